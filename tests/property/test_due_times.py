"""The heap of due times gives what a sorted list gives, and never holds much more than counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayservice.slices.agenda import DueTimes

KEYS = st.integers(0, 5)
TIMES = st.integers(0, 20)
PUT = st.tuples(st.just("put"), KEYS, st.none() | TIMES)
TAKE = st.tuples(st.just("take"), KEYS, TIMES)


@given(st.lists(PUT | TAKE, max_size=60))
def test_it_gives_what_a_sorted_list_gives(changes: list[tuple[str, int, int | None]]) -> None:
    dues: DueTimes[int] = DueTimes()
    known: dict[int, int] = {}
    for what, key, at_ms in changes:
        if what == "put":
            dues.put(key, at_ms)
            known.pop(key, None)
            if at_ms is not None:
                known[key] = at_ms
        elif at_ms is not None:
            taken = dues.take_due(at_ms)
            expected = sorted(due_ms for due_ms in known.values() if due_ms <= at_ms)
            assert [known.pop(one) for one in taken] == expected
            assert all(due_ms > at_ms for due_ms in known.values())
        assert dues.next_ms() == min(known.values(), default=None)


@given(st.lists(st.tuples(KEYS, TIMES), max_size=500))
def test_it_holds_little_more_than_what_counts(changes: list[tuple[int, int]]) -> None:
    dues: DueTimes[int] = DueTimes()
    keys = set()
    for key, at_ms in changes:
        dues.put(key, at_ms)
        keys.add(key)
        assert len(dues._heap) <= 4 * len(keys) + 5


def test_keys_need_no_order() -> None:
    dues: DueTimes[object] = DueTimes()
    first, second = object(), object()
    dues.put(second, 5)
    dues.put(first, 5)
    assert dues.take_due(5) == [second, first]
