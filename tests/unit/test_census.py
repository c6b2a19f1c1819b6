"""What waits, by target and by when it is due, against the plain definition, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.codec import Meta, encode_payload
from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine import census
from delayservice.engine.census import OTHERS, Census, Waiting, largest, with_others
from delayservice.engine.cursor import NO_MARK, Cursor, Frame
from delayservice.inspection.query import count_within
from delayservice.replicas.digest import compared_from_ms
from delayservice.store.base import Store
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

START_MS = 1_700_000_040_000
"""A whole minute."""
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
END_MS = START_MS + 1_000 * HOUR_MS
NAMED: Meta = (b"id", None, 1, None)
PARKED: Meta = (None, b"topic:0:1", 3, None)
every_store = pytest.mark.parametrize("kind", ["memory", "wheel", "rocksdb"])


def frame(
    offset: int, ahead_ms: int, target: str = "orders", meta: Meta | None = None, due_ms: int = 0
) -> Frame:
    key_ms = START_MS + ahead_ms
    payload = encode_payload((target, -1, None, b"v", [], due_ms or key_ms, meta))
    return key_ms, offset, NO_MARK, payload


def opened(kind: str, folder: Path) -> DigestingStore:
    made: dict[str, type[Store]] = {"wheel": LoneStore, "rocksdb": LoneRocks}
    inner = MemoryStore() if kind == "memory" else made[kind](folder / "shard")  # type: ignore[call-arg]
    store = DigestingStore(inner)
    store.open()
    return store


def counts(store: DigestingStore, next_ms: int = START_MS, left: int = 10**9) -> dict[str, Waiting]:
    assert store.census is not None
    return store.census.by_target(next_ms, left)


def total(store: DigestingStore, start_ms: int = START_MS) -> int:
    return sum(count for _, _, count in store.lumps(start_ms, END_MS))


def test_what_is_too_near_for_the_digest_is_counted_beside_it(tmp_path: Path) -> None:
    store = opened("memory", tmp_path)
    store.append([frame(n, 30_000 * n) for n in range(10)], [], [], 10)
    from_ms = compared_from_ms(START_MS + MINUTE_MS)
    assert store.near(from_ms) == 0  # no cursor is known
    store.prune(Cursor((START_MS + MINUTE_MS, 0), 10))
    store.digest.follow(Cursor((START_MS + MINUTE_MS, 0), 10))
    sums = store.digest.sums
    assert sums is not None
    assert (store.near(from_ms), sums.totals(from_ms)[1]) == (6, 2)
    store.close()


@every_store
def test_what_is_parked_shows_by_target_until_its_second_is_over(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    rows = [frame(n, 90_000 + n, "missing", PARKED) for n in range(5)]
    store.append([*rows, frame(5, 95_000)], [], [], 6)
    assert counts(store) == {"missing": Waiting(5, 5), "orders": Waiting(1, 0)}
    assert counts(store, START_MS + 92_000) == {"orders": Waiting(1, 0)}
    store.prune(Cursor((START_MS + 2 * MINUTE_MS, 0), 6))
    assert counts(store) == {}
    store.close()


@every_store
@pytest.mark.parametrize("minutes", [1, 30], ids=["near", "later"])
def test_what_is_cancelled_is_not_pending(kind: str, minutes: int, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    ahead_ms = minutes * MINUTE_MS
    rows = [frame(n, ahead_ms + n, "mails", NAMED) for n in range(3)]
    store.append(rows, [(b"id", *row[:2]) for row in rows], [], 3)
    store.append([frame(3, ahead_ms)], [], [(b"id", *rows[1][:2], 4)], 5)
    assert counts(store) == {"mails": Waiting(2, 0), "orders": Waiting(1, 0)}
    assert total(store) == 3
    store.prune(Cursor((START_MS, 0), 5))
    assert total(store) == 3
    store.close()


@every_store
def test_what_is_far_is_counted_where_it_is_due_and_not_if_it_is_cancelled(
    kind: str, tmp_path: Path
) -> None:
    store = opened(kind, tmp_path)
    due_ms = START_MS + 10 * HOUR_MS
    rows = [frame(n, 2 * HOUR_MS + n, meta=NAMED, due_ms=due_ms) for n in range(2)]
    store.append(rows, [(b"id", *row[:2]) for row in rows], [], 2)
    lumps = store.lumps(START_MS, END_MS)
    assert count_within(lumps, START_MS, START_MS + 9 * HOUR_MS) == 0
    assert count_within(lumps, START_MS + 9 * HOUR_MS, START_MS + 12 * HOUR_MS) == 2
    store.append([], [], [(b"id", *rows[0][:2], 2)], 3)
    assert total(store) == 1
    store.close()


@every_store
def test_a_scan_of_the_disk_finds_the_same(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    rows = [
        frame(0, 60_000, "mails", NAMED),
        frame(1, 61_000, "mails", NAMED),
        frame(2, HOUR_MS, "missing", PARKED),
        frame(3, HOUR_MS, due_ms=START_MS + 8 * HOUR_MS),
    ]
    store.append(rows, [(b"id", *row[:2]) for row in rows[:2]], [], 4)
    store.append([], [], [(b"id", *rows[0][:2], 4)], 5)
    store.prune(Cursor((START_MS, 0), 0))
    known, lumps = counts(store), sorted(store.lumps(START_MS, END_MS))
    store.begin_scan()
    store.append([frame(5, 2 * HOUR_MS)], [], [(b"id", *rows[1][:2], 6)], 7)
    while not store.scan_on():
        pass
    store.digest.finish()
    assert known == {
        "mails": Waiting(1, 0),
        "missing": Waiting(1, 1),
        "orders": Waiting(1, 0),
    }
    assert counts(store) == {"missing": Waiting(1, 1), "orders": Waiting(2, 0)}
    assert total(store) == sum(count for _, _, count in lumps) == 3
    store.close()


@every_store
def test_counts_are_by_the_second_for_the_next_minutes(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    store.append([frame(n, 1_000 * n) for n in range(150)], [], [], 150)
    lumps = store.lumps(START_MS, END_MS)
    for second in range(150):
        start_ms = START_MS + 1_000 * second
        assert count_within(lumps, start_ms, start_ms + 1_000) == 1
    store.close()


def test_a_store_that_was_not_read_yet_says_nothing_by_target(tmp_path: Path) -> None:
    store = opened("wheel", tmp_path)
    store.append([frame(0, MINUTE_MS)], [], [], 1)
    store.close()
    again = opened("wheel", tmp_path)
    assert again.census is None
    again.prune(Cursor((START_MS, OFFSET_MAX), 1))
    again.begin_scan()
    while not again.scan_on():
        pass
    again.digest.finish()
    assert counts(again) == {"orders": Waiting(1, 0)}
    again.close()


def test_what_is_settled_of_the_first_minute_is_taken_from_all_its_targets() -> None:
    held = Census()
    held.add([frame(n, n, "mails" if n % 2 else "orders") for n in range(100)])
    held.add([frame(n, MINUTE_MS, "later") for n in range(7)])
    assert held.by_target(START_MS, 20) == {
        "mails": Waiting(10, 0),
        "orders": Waiting(10, 0),
        "later": Waiting(7, 0),
    }
    assert held.by_target(START_MS + MINUTE_MS, 7) == {"later": Waiting(7, 0)}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_targets_without_a_count_of_their_own_are_counted_together(
    records: list[tuple[int, int]],
) -> None:
    held = Census()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census, "ENTRIES_MAX", 4)
        held.add([frame(n, m * MINUTE_MS, f"t{t}") for n, (m, t) in enumerate(records)])
    found = held.by_target(START_MS, 10**9)
    assert sum(waiting.pending for waiting in found.values()) == len(records)
    assert len(found) <= 5
    assert sum(count for _, _, count in held.lumps(START_MS, END_MS)) == len(records)


def test_the_largest_targets_keep_their_names_and_all_others_are_one() -> None:
    waiting = {f"t{n}": Waiting(10 * n, n % 3) for n in range(1, 8)}
    found = with_others(waiting, largest(waiting, 3))
    assert {*found} == {"t2", "t7", "t6", OTHERS}
    assert sum(one.pending for one in found.values()) == sum(w.pending for w in waiting.values())
    assert sum(one.parked for one in found.values()) == sum(w.parked for w in waiting.values())
    assert with_others({"t1": Waiting(1, 0)}, ["t1"]) == {"t1": Waiting(1, 0)}
