"""Any order of calls on the shards of a worker, crashes and damage among them, against the log."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delayservice.base.errors import SlotDamagedError, StoreError
from delayservice.engine.cursor import NO_GROUP, Cursor, Key
from delayservice.replicas.digest_rows import Damage
from delayservice.store.base import NO_MARK, Frame, Mark, Named, Store
from delayservice.store.memory import MemoryStore
from delayservice.store.offline import each_store, read
from delayservice.store.rocksdb import RocksDatabase
from delayservice.store.wheel import Wheel, WheelOptions
from tests.shards import Shards
from tests.wheels import TOPIC, slot_files

FAR_MS = 10**15
START = Cursor((0, -1), 0)
IDS = [b"a", b"b", b"ab"]
TINY = WheelOptions(
    slot_ms=1_000, buffer_bytes_max=1_500, near_bytes_max=900, sync_bytes=4_000, handles_max=2
)
WIDE = replace(TINY, slot_ms=700_000)

due = st.one_of(st.integers(0, 12_000), st.integers(0, 200_000), st.integers(0, 9_000_000))
record = st.tuples(due, st.sampled_from([None, *IDS]), st.binary(max_size=20))
share = st.integers(0, 10)
numbers = st.integers(0, 2)
labels = st.sampled_from([b"", b"one", b"\0" * 20, bytes(range(256)) * 40])


@dataclass
class Shard:
    """A store and the whole truth: ``log``, ``marks`` and ``sightings`` by offset, S, and the
    cursor.

    ``pairs`` are S and label as they were together since the last sync.
    """

    store: Store
    log: dict[int, tuple[Frame, bytes | None]] = field(default_factory=dict)
    marks: dict[int, tuple[bytes, Key]] = field(default_factory=dict)
    sightings: dict[int, Key] = field(default_factory=dict)
    next: int = 0
    stop: int = 0
    cursor: Cursor = START
    pairs: list[tuple[int, bytes]] = field(default_factory=lambda: [(0, b"")])

    def unmarked(self, record_id: bytes, below: int) -> Key | None:
        marked = {key for mark, (_, key) in self.marks.items() if mark < below}
        keys = [f[:2] for f, name in self.log.values() if name == record_id and f[1] < below]
        return max((k for k in keys if k not in marked), key=lambda k: k[1], default=None)

    def mark(self, record_id: bytes | None) -> bool:
        """Let the next offset settle the record of this id, if there is one."""
        victim = self.unmarked(record_id, self.next) if record_id else None
        if victim is None or record_id is None:
            return False
        self.marks[self.next] = (record_id, victim)
        return True

    def see(self, record_id: bytes | None) -> bool:
        """Let the next offset find the record of this id pending, if there is one."""
        found = self.unmarked(record_id, self.next) if record_id else None
        if found is not None:
            self.sightings[self.next] = found
        return found is not None

    def feed(self, start: int, stop: int) -> None:
        offsets = range(start, stop)
        taken = [self.log[o] for o in offsets if o in self.log]
        frames = [f for f, _ in taken]
        named: list[Named] = [(n, f[0], f[1], NO_GROUP) for f, n in taken if n is not None]
        marks: list[Mark] = [
            (self.marks[o][0], *self.marks[o][1], o) for o in offsets if o in self.marks
        ]
        seen = [(o, *self.sightings[o]) for o in offsets if o in self.sightings]
        self.store.append(frames, named, marks, stop, seen)
        self.stop = stop
        self.pairs.append((stop, self.store.label))

    def unsettled(self, frames: list[Frame]) -> list[Frame]:
        """Without those whose mark is below H: a store may forget them or not."""
        return [f for f in frames if not self.cursor.has_settled(f[:2], f[2])]

    def held(self, stop: int) -> list[Frame]:
        """What is above K of the log below ``stop``."""
        marked = {key: mark for mark, (_, key) in self.marks.items() if mark < stop}
        held = sorted(
            (*f[:2], marked.get(f[:2], NO_MARK), f[3])
            for f, _ in self.log.values()
            if f[1] < stop and f[:2] > self.cursor.key
        )
        return self.unsettled(held)

    def read_all(self) -> list[Frame]:
        found: list[Frame] = []
        while part := self.store.read_due(found[-1][:2] if found else self.cursor.key, FAR_MS, 9):
            found += part
        return found

    def is_repaired(self) -> bool:
        """Check all, and give back the first stretch that is damaged, if there is one."""
        try:
            self.check()
        except SlotDamagedError as damage:
            start_ms, stop_ms = damage.start_ms, damage.stop_ms
            inside = [f for f in self.held(self.stop) if start_ms <= f[0] < stop_ms]
            self.store.rebuild(start_ms, stop_ms, inside)
            return False
        return True

    def check(self) -> None:
        held, after, stop = self.held(self.stop), self.cursor.key, self.stop
        assert self.unsettled(list(self.store.scanner().frames(after, FAR_MS))) == held
        assert self.unsettled(self.read_all()) == held
        pending = self.store.stats().pending
        assert pending >= len(held)
        assert self.cursor != START or pending == len(held)
        assert self.store.label == self.pairs[-1][1]
        kept = {f[:2] for f in held}
        floor = self.cursor.offset
        marks = [(m, key) for m, (_, key) in sorted(self.marks.items()) if floor <= m < stop]
        found = self.store.marked_from(floor)
        assert [e for e in found if e[1] in kept] == [e for e in marks if e[1] in kept]
        seen = [(o, key) for o, key in sorted(self.sightings.items()) if floor <= o < stop]
        assert self.store.sighted_from(floor) == seen
        for record_id in IDS:
            expected = self.unmarked(record_id, stop)
            latest = self.store.latest_unmarked(record_id, stop)
            assert latest == expected or not {latest, expected} & kept


class StoreMachine(RuleBasedStateMachine):
    """What lanes do to the stores of three shards."""

    def make(self) -> list[Store]:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.shards: list[Shard] = []

    @initialize()
    def start(self) -> None:
        self.shards = [Shard(store) for store in self.make()]
        assert [shard.store.open() for shard in self.shards] == [0, 0, 0]

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        for shard in self.shards:
            shard.store.close()

    @rule(
        number=numbers,
        records=st.lists(record, max_size=30),
        absent=st.sampled_from([None, *IDS]),
        cancel=st.sampled_from([None, *IDS]),
    )
    def append(
        self,
        number: int,
        records: list[tuple[int, bytes | None, bytes]],
        absent: bytes | None,
        cancel: bytes | None,
    ) -> None:
        shard = self.shards[number]
        for due_ms, record_id, payload in records:
            shard.mark(record_id)
            key_ms = shard.cursor.key[0] + 1 + due_ms
            shard.log[shard.next] = ((key_ms, shard.next, NO_MARK, payload), record_id)
            shard.next += 1
        shard.next += shard.see(absent)
        shard.next += shard.mark(cancel)
        shard.feed(shard.stop, shard.next)

    @rule(number=numbers, label=labels)
    def set_label(self, number: int, label: bytes) -> None:
        shard = self.shards[number]
        shard.store.set_label(label)
        shard.pairs.append((shard.stop, label))

    @rule(number=numbers)
    def sync(self, number: int) -> None:
        shard = self.shards[number]
        assert shard.store.sync() == shard.stop
        del shard.pairs[:-1]

    @rule(number=numbers)
    def sync_soon(self, number: int) -> None:
        self.shards[number].store.sync(wait=False)

    @rule(number=numbers, k_share=share, h_share=share)
    def prune(self, number: int, k_share: int, h_share: int) -> None:
        """K goes ahead by some of what is held, and H by some of what is stored."""
        shard = self.shards[number]
        held, (key, h) = shard.held(shard.stop), shard.cursor
        if held and k_share:
            key = held[(len(held) - 1) * k_share // 10][:2]
        shard.cursor = Cursor(key, h + (shard.stop - h) * h_share // 10)
        shard.store.prune(shard.cursor)

    @rule(number=numbers, upto=st.integers(0, 15_000), limit=st.integers(1, 10))
    def read(self, number: int, upto: int, limit: int) -> None:
        shard = self.shards[number]
        held, key = shard.held(shard.stop), shard.cursor.key
        upto_ms = key[0] + upto
        found = shard.store.read_due(key, upto_ms, limit)
        assert len(found) <= limit
        expected = [f for f in held if f[0] <= upto_ms]
        assert bool(found) >= bool(expected)
        found = shard.unsettled(found)
        assert found == expected[: len(found)]
        bound = shard.store.next_due_ms(key)
        if held:
            assert bound is not None
            assert bound <= held[0][0]

    @rule(number=numbers, low=share, high=share)
    def rebuild(self, number: int, low: int, high: int) -> None:
        """A stretch is replaced by what it holds; before the next sync, it counts as lost."""
        shard = self.shards[number]
        held = shard.held(shard.stop)
        if held:
            bounds = [held[(len(held) - 1) * part // 10][0] for part in (low, high)]
            shard.store.rebuild(min(bounds), max(bounds), held)
            shard.store.sync()

    @rule(number=numbers)
    def reset(self, number: int) -> None:
        shard = self.shards[number]
        shard.store.reset()
        shard.stop, shard.pairs = 0, [(0, b"")]
        shard.check()
        shard.feed(0, shard.next)

    @rule()
    def restart(self) -> None:
        self.close()
        for shard in self.shards:
            del shard.pairs[:-1]
        self.reopen([shard.stop for shard in self.shards])

    def reopen(self, least: list[int]) -> None:
        """As much as ``least`` is there, with the label of that moment; the rest is read again."""
        for shard, store in zip(self.shards, self.make(), strict=True):
            shard.store = store
        for shard, at_least in zip(self.shards, least, strict=True):
            stop, label = shard.store.open(), shard.store.label
            assert at_least <= stop <= shard.stop
            assert (stop, label) in shard.pairs or stop == 0
            shard.stop, shard.pairs = stop, [(stop, label)]
            shard.check()
            shard.feed(stop, shard.next)

    @invariant()
    def check(self) -> None:
        """Everything above K reads back, by delivery and by scan, and the ids agree."""
        for shard in self.shards:
            shard.check()


class DurableMachine(StoreMachine):
    """With crashes, after which what was not synced may be gone, and readers of the folder."""

    def worker(self) -> Shards:
        raise NotImplementedError

    def make(self) -> list[Store]:
        self.database = self.worker()
        return [self.database.store(TOPIC, number) for number in range(3)]

    def close(self) -> None:
        self.database.close()

    def durable(self) -> list[int]:
        return [shard.store.stats().durable_offset for shard in self.shards]

    @rule()
    def crash(self) -> None:
        durable = self.durable()
        self.database.abandon()
        self.reopen(durable)

    @rule()
    def look(self) -> None:
        """Another process finds no damage, and reads what was durable or is there now."""
        durable = self.durable()
        for (_, _, number), store in each_store(self.folder, checked=True):
            assert not isinstance(store, StoreError), store
            shard = self.shards[number]
            assert durable[number] <= store.stop_offset <= shard.stop
            assert (store.stop_offset, store.label) in shard.pairs
            found: list[Frame] = []
            for part in read(store):
                if isinstance(part, Damage):
                    # A crash may come between the deletion of a file that K has passed and the next
                    # manifest. The next prune forgets it; the reader does not know K.
                    assert part.stop_ms <= shard.cursor.key[0], part
                    continue
                found += [f for f in part if f[:2] > shard.cursor.key]
            assert shard.unsettled(found) == shard.held(store.stop_offset)


class WheelMachine(DurableMachine):
    options = TINY

    def worker(self) -> Shards:
        return Wheel(self.folder, self.options)

    @precondition(lambda self: bool(slot_files(self.folder)))
    @rule(which=share, place=share, bit=st.integers(0, 7))
    def spoil(self, which: int, place: int, bit: int) -> None:
        """A bit of a file flips while the node is down."""
        self.close()
        files = slot_files(self.folder)
        path = files[(len(files) - 1) * which // 10]
        data = bytearray(path.read_bytes())
        data[(len(data) - 1) * place // 10] ^= 1 << bit
        path.write_bytes(data)
        for shard, store in zip(self.shards, self.make(), strict=True):
            shard.store = store
            assert shard.store.open() == shard.stop
        while not all(shard.is_repaired() for shard in self.shards):
            pass  # a file that one shard finds damaged is put aside for all of them
        self.database.sync()


class WideMachine(WheelMachine):
    """Nearly everything is in giant slots, of which stretches are read."""

    options = WIDE


class RocksMachine(DurableMachine):
    def worker(self) -> Shards:
        return RocksDatabase(self.folder)


class MemoryMachine(StoreMachine):
    """The reference; it has nothing to open again."""

    def make(self) -> list[Store]:
        return [MemoryStore() for _ in range(3)]

    def reopen(self, least: list[int]) -> None:
        super().reopen([0 for _ in least])


SETTINGS = settings(max_examples=40, stateful_step_count=25)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = SETTINGS
TestWheel = WheelMachine.TestCase
TestWheel.settings = SETTINGS
TestWide = WideMachine.TestCase
TestWide.settings = SETTINGS
TestRocks = RocksMachine.TestCase
TestRocks.settings = SETTINGS
