"""Any order of calls, restarts that lose the tail among them, against a plain dictionary."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delayservice.engine.cursor import NO_GROUP, Cursor, Key
from delayservice.store.base import NO_MARK, Frame, Mark, Named, Store
from delayservice.store.memory import MemoryStore
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

FAR_MS = 10**15
IDS = [b"a", b"b", b"ab"]
TINY = WheelOptions(
    slot_ms=1_000, buffer_bytes_max=1_500, near_bytes_max=900, sync_bytes=4_000, handles_max=2
)
WIDE = replace(TINY, slot_ms=700_000)

due = st.one_of(st.integers(0, 12_000), st.integers(0, 200_000), st.integers(0, 9_000_000))
record = st.tuples(due, st.sampled_from([None, *IDS]), st.binary(max_size=20))


class StoreMachine(RuleBasedStateMachine):
    """What a shard does to its store; ``log`` is the whole truth, by offset."""

    def make(self) -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log: dict[int, tuple[Frame, bytes | None]] = {}
        self.marks: dict[int, tuple[bytes, Key]] = {}
        self.next = 0
        self.stop = 0
        self.cursor = Cursor((0, -1), 0)

    @initialize()
    def start(self) -> None:
        self.store = self.make()
        assert self.store.open() == 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _unmarked(self, record_id: bytes, below: int) -> Key | None:
        marked = {key for mark, (_, key) in self.marks.items() if mark < below}
        keys = [f[:2] for f, name in self.log.values() if name == record_id and f[1] < below]
        return max((k for k in keys if k not in marked), key=lambda k: k[1], default=None)

    @rule(records=st.lists(record, max_size=30), cancel=st.sampled_from([None, *IDS]))
    def append(self, records: list[tuple[int, bytes | None, bytes]], cancel: bytes | None) -> None:
        """The log grows, and the store takes it."""
        for due_ms, record_id, payload in records:
            offset = self.next
            victim = self._unmarked(record_id, offset) if record_id else None
            if victim is not None and record_id is not None:
                self.marks[offset] = (record_id, victim)
            key_ms = self.cursor.key[0] + 1 + due_ms
            self.log[offset] = ((key_ms, offset, NO_MARK, payload), record_id)
            self.next += 1
        victim = self._unmarked(cancel, self.next) if cancel else None
        if victim is not None and cancel is not None:
            self.marks[self.next] = (cancel, victim)
            self.next += 1
        self._feed(self.stop, self.next)

    def _feed(self, start: int, stop: int) -> None:
        offsets = range(start, stop)
        taken = [self.log[o] for o in offsets if o in self.log]
        frames = [f for f, _ in taken]
        named: list[Named] = [(n, f[0], f[1], NO_GROUP) for f, n in taken if n is not None]
        marks: list[Mark] = [
            (self.marks[o][0], *self.marks[o][1], o) for o in offsets if o in self.marks
        ]
        self.store.append(frames, named, marks, stop)
        self.stop = stop

    @precondition(lambda self: self.stop > 0)
    @rule(back=st.integers(1, 20))
    def append_again(self, back: int) -> None:
        """What the store has comes once more."""
        self._feed(max(0, self.stop - back), self.stop)

    @rule()
    def sync(self) -> None:
        assert self.store.sync() == self.stop

    @rule()
    def sync_soon(self) -> None:
        self.store.sync(wait=False)

    @rule(share=st.integers(0, 10))
    def prune(self, share: int) -> None:
        """K goes ahead by some of what is held."""
        held = self._held()
        if held and share:
            key = held[(len(held) - 1) * share // 10][:2]
            self.cursor = Cursor(key, self.stop)
        self.store.prune(self.cursor)

    @rule(upto=st.integers(0, 15_000), limit=st.integers(1, 10))
    def read(self, upto: int, limit: int) -> None:
        upto_ms = self.cursor.key[0] + upto
        found = self.store.read_due(self.cursor.key, upto_ms, limit)
        assert len(found) <= limit
        expected = [f for f in self._held() if f[0] <= upto_ms]
        assert bool(found) >= bool(expected)
        found = self._unsettled(found)
        assert found == expected[: len(found)]
        bound = self.store.next_due_ms(self.cursor.key)
        if self._held():
            assert bound is not None
            assert bound <= self._held()[0][0]

    @rule()
    def restart(self) -> None:
        """Closed and opened again."""
        self.store.close()
        self._reopen(self.stop)

    def _reopen(self, least: int) -> None:
        self.store = self.make()
        stop = self.store.open()
        assert least <= stop <= self.stop
        self.stop = stop
        self.check()
        self._feed(stop, self.next)

    def _unsettled(self, frames: list[Frame]) -> list[Frame]:
        """Without those whose mark is below H: a store may forget them or not."""
        return [f for f in frames if not self.cursor.has_settled(f[:2], f[2])]

    def _held(self) -> list[Frame]:
        marked = {key: mark for mark, (_, key) in self.marks.items() if mark < self.stop}
        held = sorted(
            (*f[:2], marked.get(f[:2], NO_MARK), f[3])
            for f, _ in self.log.values()
            if f[1] < self.stop and f[:2] > self.cursor.key
        )
        return self._unsettled(held)

    @invariant()
    def check(self) -> None:
        """Everything above K reads back, by delivery and by scan, and the ids agree."""
        if not hasattr(self, "store"):
            return
        held, after = self._held(), self.cursor.key
        assert self._unsettled(list(self.store.scanner().frames(after, FAR_MS))) == held
        found: list[Frame] = []
        while part := self.store.read_due(found[-1][:2] if found else after, FAR_MS, 9):
            found += part
        assert self._unsettled(found) == held
        kept = {f[:2] for f in held}
        marks = [(m, key) for m, (_, key) in sorted(self.marks.items()) if m < self.stop]
        floor = self.cursor.offset
        assert [e for e in self.store.marked_from(floor) if e[1] in kept] == [
            e for e in marks if e[1] in kept and e[0] >= floor
        ]
        for record_id in IDS:
            expected = self._unmarked(record_id, self.stop)
            if expected in kept:
                assert self.store.latest_unmarked(record_id, self.stop) == expected


class DurableMachine(StoreMachine):
    """With crashes: what was not synced may be gone."""

    @rule()
    def crash(self) -> None:
        durable = self.store.stats().durable_offset
        self.store.abandon()  # type: ignore[attr-defined]
        self._reopen(durable)


class MemoryMachine(StoreMachine):
    """The reference; it has nothing to open again."""

    def make(self) -> Store:
        return MemoryStore()

    def _reopen(self, least: int) -> None:
        super()._reopen(min(least, 0))


class WheelMachine(DurableMachine):
    options = TINY

    def make(self) -> Store:
        return LoneStore(self.folder, self.options)


class WideMachine(WheelMachine):
    """Nearly everything is in giant slots, of which stretches are read."""

    options = WIDE


class RocksMachine(DurableMachine):
    def make(self) -> Store:
        return LoneRocks(self.folder)


SETTINGS = settings(max_examples=40, stateful_step_count=25)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = SETTINGS
TestWheel = WheelMachine.TestCase
TestWheel.settings = SETTINGS
TestWide = WideMachine.TestCase
TestWide.settings = SETTINGS
TestRocks = RocksMachine.TestCase
TestRocks.settings = SETTINGS
