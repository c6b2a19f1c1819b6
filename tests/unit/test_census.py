"""What waits, by target and by when it is due, against the plain definition, on every store."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayservice.contract.codec import Meta, encode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine import census
from delayservice.engine.census import (
    HOUR_MS,
    MINUTE_MS,
    OTHERS,
    Census,
    Waiting,
    group_of,
    largest,
    with_others,
)
from delayservice.engine.cursor import NO_MARK, Cursor, Frame, Key, Mark, Named
from delayservice.inspection.query import counts_before
from delayservice.store import digesting
from delayservice.store.base import Store
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

START_MS = 472_223 * HOUR_MS
TARGETS = ("orders", "mails", "missing")
every_store = pytest.mark.parametrize("kind", ["memory", "wheel", "rocksdb"])


def frame(offset: int, ahead_ms: int, target: str = "orders") -> Frame:
    return framed(offset, START_MS + ahead_ms, START_MS + ahead_ms, target, None)


def framed(offset: int, key_ms: int, due_ms: int, target: str, meta: Meta | None) -> Frame:
    return key_ms, offset, NO_MARK, encode_payload((target, -1, None, b"v", [], due_ms, meta))


def opened(kind: str, folder: Path) -> DigestingStore:
    made: dict[str, type[Store]] = {"wheel": LoneStore, "rocksdb": LoneRocks}
    inner = MemoryStore() if kind == "memory" else made[kind](folder / "shard")  # type: ignore[call-arg]
    store = DigestingStore(inner)
    store.open()
    return store


def scan(store: DigestingStore) -> None:
    store.begin_scan()
    while not store.scan_on():
        pass
    store.digest.finish()


class World:
    """A store, and what waits in it by the plain definition."""

    def __init__(self, store: DigestingStore) -> None:
        self.store = store
        self.waits: dict[Key, tuple[str, int, bool]] = {}
        self.ids: dict[bytes, Key] = {}
        self.stop = 0
        self.k_ms = START_MS

    def add(self, ahead_ms: int, far_ms: int, target: str, number: int, attempt: int) -> None:
        """A record, which replaces the one of its id; a ``number`` of 0: it has none."""
        key_ms = self.k_ms + ahead_ms
        record_id = b"id-%d" % number if number else None
        meta: Meta | None = (record_id, None, attempt, None)
        row = framed(self.stop, key_ms, key_ms + far_ms, target, meta)
        marks: list[Mark] = []
        named: list[Named] = []
        if record_id is not None:
            if record_id in self.ids:
                marks.append((record_id, *self.ids[record_id], self.stop))
                self.waits.pop(self.ids[record_id], None)
            group = group_of(key_ms, target, key_ms + far_ms, is_parked=attempt > 1)
            named.append((record_id, *row[:2], group))
            self.ids[record_id] = row[:2]
        self.stop += 1
        self.waits[row[:2]] = target, key_ms + far_ms, attempt > 1
        self.store.append([row], named, marks, self.stop)

    def settle(self, minutes: int) -> None:
        """All with keys in the next minutes are settled."""
        self.k_ms += minutes * MINUTE_MS
        self.waits = {key: one for key, one in self.waits.items() if key[0] >= self.k_ms}
        self.ids = {name: key for name, key in self.ids.items() if key[0] >= self.k_ms}
        self.store.prune(Cursor((self.k_ms - 1, OFFSET_MAX), self.stop))

    def check(self) -> None:
        held = self.store.census
        assert held is not None
        assert self.store.pending == len(self.waits)
        wanted: dict[str, Waiting] = {}
        for target, _, is_parked in self.waits.values():
            one = wanted.get(target, Waiting(0, 0))
            wanted[target] = Waiting(one.pending + 1, one.parked + is_parked)
        assert held.by_target(len(self.waits)) == wanted
        stops_ms = [START_MS + hour * HOUR_MS for hour in range(60)]
        dues = [due_ms for _, due_ms, _ in self.waits.values()]
        ranges = held.ranges(self.k_ms, len(self.waits))
        assert counts_before(ranges, stops_ms) == [sum(d < stop for d in dues) for stop in stops_ms]


added = st.tuples(
    st.one_of(st.integers(0, 2 * MINUTE_MS), st.integers(0, 2 * HOUR_MS)),
    st.sampled_from([0, 0, HOUR_MS, 30 * HOUR_MS]),
    st.sampled_from(TARGETS),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2]),
)
steps = st.lists(
    st.one_of(added, st.integers(1, 2), st.integers(1, 70), st.just("scan")), max_size=30
)


@every_store
@settings(max_examples=25)
@given(steps=steps)
def test_counts_are_those_of_the_plain_definition_after_any_steps(
    kind: str, steps: list[tuple[int, int, str, int, int] | int | str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(opened(kind, Path(folder)))
        world.settle(0)
        for step in steps:
            if isinstance(step, tuple):
                world.add(*step)
            elif isinstance(step, int):
                world.settle(step)
            else:
                scan(world.store)
            world.check()
        world.store.close()


@every_store
def test_changes_during_a_scan_count_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digesting, "SCAN_ROWS", 1)
    world = World(opened(kind, tmp_path))
    world.add(500, 0, "orders", 0, 1)
    for number in range(1, 4):
        world.add(number * 1_000, 0, "orders", number, 1)
    world.settle(0)
    world.store.begin_scan()
    for number in (1, 2, 3, 1):  # what lies before and behind what the scan has read
        world.store.scan_on()
        world.add(1_500, 0, "mails", number, 1)
        world.add(2 * HOUR_MS, 0, "missing", number, 1)
    while not world.store.scan_on():
        pass
    world.store.digest.finish()
    world.check()
    world.store.close()


@every_store
def test_the_rest_of_the_first_minute_is_counted_exactly(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    rows = [frame(n, n, "mails" if n % 2 else "orders") for n in range(100)]
    marks: list[Mark] = [(b"%d" % n, *rows[n][:2], 107) for n in range(10)]
    named: list[Named] = [(b"%d" % n, *rows[n][:2], ("mails", 0, False)) for n in range(10)]
    later = [frame(n, MINUTE_MS, "later") for n in range(100, 107)]
    store.append([*rows, *later], named, marks, 108)
    store.read_due((0, -1), START_MS + 1_000, 100)
    store.prune(Cursor(rows[79][:2], 108))
    assert store.pending == 27
    assert store.census is not None
    assert store.census.by_target(27) == {
        "mails": Waiting(9, 0),  # a share of those that are not marked
        "orders": Waiting(11, 0),
        "later": Waiting(7, 0),
    }
    store.close()


def test_a_store_that_was_not_read_yet_says_nothing_by_target(tmp_path: Path) -> None:
    store = opened("wheel", tmp_path)
    store.append([frame(0, MINUTE_MS)], [], [], 1)
    store.close()
    again = opened("wheel", tmp_path)
    again.prune(Cursor((START_MS, OFFSET_MAX), 1))
    assert (again.census, again.pending) == (None, 1)
    scan(again)
    assert again.census is not None
    assert again.census.by_target(1) == {"orders": Waiting(1, 0)}
    again.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_uncounted_targets_are_counted_together(records: list[tuple[int, int]]) -> None:
    held = Census()
    rows = [frame(n, m * MINUTE_MS, f"t{t}") for n, (m, t) in enumerate(records)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census, "ENTRIES_MAX", 4)
        held.add(rows)
    found = held.by_target(len(rows))
    assert sum(waiting.pending for waiting in found.values()) == len(rows)
    assert len(found) <= 5
    for row, (_, target) in zip(rows, records, strict=True):
        held.cancel(row[0], (f"t{target}", 0, False))
    assert held.pending(len(rows)) == 0
    assert held.by_target(0) == {}


def test_the_largest_targets_keep_their_names_and_all_others_are_one() -> None:
    waiting = {f"t{n}": Waiting(10 * n, n % 3) for n in range(1, 8)}
    found = with_others(waiting, largest(waiting, 3))
    assert {*found} == {"t2", "t7", "t6", OTHERS}
    assert sum(one.pending for one in found.values()) == sum(w.pending for w in waiting.values())
    assert sum(one.parked for one in found.values()) == sum(w.parked for w in waiting.values())
    assert with_others({"t1": Waiting(1, 0)}, ["t1"]) == {"t1": Waiting(1, 0)}
