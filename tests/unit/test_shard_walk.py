"""The walk of H where it could take long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayservice.core import outcome
from delayservice.core.codec import Payload
from delayservice.core.cursor import Cursor, Key
from delayservice.core.entry import FIRE, Entry
from delayservice.core.pending import Additions
from delayservice.core.settle import Routes, Settler, Verdicts
from delayservice.core.shard import Shard, _Flights
from delayservice.cron import cron_time

ROUTES = Routes("letters", "outcomes", b"secret", 1_000, 0, (), cron_time)
IDS = st.sampled_from([b"a", b"b", b"c"])
OFFSETS = st.integers(0, 5)


def shard() -> Shard:
    made = Shard(Settler("delay_topic_any", 0, ROUTES, Verdicts()), 0)
    made.take_over(Cursor(), [], 0)
    return made


def nothing_pending(_: Key) -> Payload:
    raise AssertionError("nothing is pending")


def test_many_fires_are_walked_in_several_turns() -> None:
    """Each may read a record that lies anywhere; a turn is not to take minutes."""
    walked = shard()
    fires: list[Entry] = [(n, FIRE, 0, b"%d" % n, (None, None, []), None) for n in range(100)]
    added = walked.ingest(0, fires, 100, {}, lambda _, __: None)
    assert added == Additions()
    turns = []
    while walked.staged.offset < 100:
        outputs = walked.advance_offset(1, 10_000, nothing_pending)
        assert {output[0] for output in outputs} == {outcome.NOT_PENDING}
        turns.append(len(outputs))
    assert sum(turns) == 100
    assert max(turns) < 40


@given(st.lists(st.tuples(st.booleans(), IDS, OFFSETS)), IDS, OFFSETS)
def test_a_copy_in_flight_is_found_by_its_id(
    changes: list[tuple[bool, bytes, int]], asked: bytes, offset: int
) -> None:
    flights, pairs = _Flights(), set[tuple[bytes, int]]()
    for is_new, record_id, base in changes:
        if is_new:
            flights.add(record_id, base)
            pairs.add((record_id, base))
        else:
            flights.discard(record_id, base)
            pairs.discard((record_id, base))
    merged = _Flights()
    merged.update(flights)
    for one in (flights, merged):
        assert bool(one) == bool(pairs)
        found = any(name == asked and base <= offset for name, base in pairs)
        assert one.has(asked, offset) == found
    flights.clear()
    assert not flights
    assert bool(merged) == bool(pairs)
