"""Meetings too rare to wait for: found once by a long run, and put down here."""

import json
from random import Random

from delayservice.contract.codec import Payload
from delayservice.contract.entry import CANCEL, COPY, FIRE, SCHEDULE, Entry
from delayservice.engine import outcome
from delayservice.engine.cursor import START_KEY, Cursor, Key
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from tests.simulation.sim_store import SimStore
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import routes_of

TOPIC, SECRET = "delay_topic_any", b"secret"
_OUTPUTS_MAX = 1_000
ROLL_WINDOW_MS = 40


def _nowhere(_what: str) -> None:
    """No crash comes inside a step."""


def nothing_fired(key: Key) -> Payload:
    raise AssertionError(f"{key} was asked for")


class Node:
    """A shard with an empty store. ``stop``: where its store ends; ``log_start``: the first offset
    that its log still holds.
    """

    def __init__(self, stop: int = 0, log_start: int = 0) -> None:
        self.log_start = log_start
        routes = routes_of(ROLL_WINDOW_MS, secret=SECRET)
        self.store = SimStore(Random(0), _nowhere, tidy=False)
        self.store._stop_offset = stop
        self.shard = Shard(Settler(TOPIC, 0, routes, Verdicts(), KnownTargets()), stop)

    def ingest(self, offset: int, log: list[Entry]) -> None:
        entries, stop = [log[offset]], offset + 1
        needed = self.shard.scans_needed(offset, entries, stop)
        scans = {
            scan.copy_offset: _x_of(log, scan.record_id, max(scan.base, self.log_start), offset)
            for scan in needed
        }
        added = self.shard.ingest(offset, entries, stop, scans, self.store.latest_unmarked)
        self.store.append(added.frames, added.named, added.marks, self.shard.stored)


def _x_of(log: list[Entry], name: bytes, base: int, stop: int) -> int:
    found = (e[0] for e in log[base:stop] if e[1] != COPY and e[3] == name)
    return next(found, -1)


def test_a_new_owner_knows_a_late_copy_before_its_canceller_takes_effect() -> None:
    payload: Payload = ("orders", -1, None, b"v", [], 90, (b"x", b"delay_topic_any:0:0", 1, None))
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", payload, None),
        (1, CANCEL, 0, b"x", (None, None, []), None),
        (2, COPY, 90, b"x", payload, 1),
    ]
    node = Node(stop=3)  # the copy's time has passed by the committed K: it was not stored
    node.shard.take_over(Cursor((100, 0), 1), [], end=3)

    node.ingest(1, log)
    assert node.shard.advance_offset(100, 10, nothing_fired) == []
    assert node.shard.staged.offset == 1

    node.ingest(2, log)
    settled = [
        (output[0], output[7]) for output in node.shard.advance_offset(100, 10, nothing_fired)
    ]
    assert settled == [(outcome.CANCELLED, 2), (outcome.CANCELLED, 1)]
    assert node.shard.staged.offset == 3


def _payload(record_id: bytes | None, due_ms: int, offset: int) -> Payload:
    meta = None if record_id is None else (record_id, b"delay_topic_any:0:%d" % offset, 1, None)
    return ("orders", -1, None, b"v", [], due_ms, meta)


def test_a_requeued_record_that_is_read_before_its_commit_is_known() -> None:
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", _payload(b"x", 90, 0), None),
        (1, COPY, 90, b"x", _payload(b"x", 90, 0), 1),
        (2, CANCEL, 0, b"x", (None, None, []), None),
    ]
    node = Node()
    node.shard.take_over(Cursor(), [], end=0)
    node.ingest(0, log)
    assert node.shard.advance_offset(40, _OUTPUTS_MAX, nothing_fired) == []
    rolled = node.shard.advance_key(node.store.read_due(START_KEY, 40, _OUTPUTS_MAX), 40)
    assert [output[0] for output in rolled] == [outcome.ROLLED]

    node.ingest(1, log)  # read committed, so it is; the loop has not heard of it yet
    node.shard.commit()
    node.ingest(2, log)
    settled = [
        (output[0], output[7]) for output in node.shard.advance_offset(50, 10, nothing_fired)
    ]
    assert settled == [(outcome.CANCELLED, 1), (outcome.CANCELLED, 2)]


def test_what_is_delivered_for_a_lost_cancel_is_not_fired_when_it_is_read_again() -> None:
    payload = _payload(b"x", 90, 0)
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", payload, None),
        (1, CANCEL, 0, b"x", (None, None, []), None),  # was to cancel the one at 3, and is lost
        (2, FIRE, 0, b"x", (None, None, []), None),
        (3, COPY, 90, b"x", payload, 1),
    ]
    node = Node(stop=4, log_start=2)
    node.shard.take_over(Cursor((40, 0), 1), [(1, (90, 3))], end=4, log_start=2)

    def pending_at(key: Key) -> Payload:
        assert key == (90, 3)
        return payload

    settled = node.shard.advance_offset(100, 10, pending_at)
    assert [(output[0], output[7]) for output in settled] == [(outcome.DELIVERED, 3)]
    node.shard.commit()

    node.ingest(2, log)
    node.ingest(3, log)
    settled = node.shard.advance_offset(100, 10, pending_at)
    assert [(output[0], output[7]) for output in settled] == [(outcome.NOT_PENDING, 2)]
    assert node.shard.staged.offset == 4


def test_what_is_requeued_for_a_lost_cancel_can_be_settled_by_no_lost_record() -> None:
    payload = _payload(b"x", 90, 0)
    node = Node(stop=3)
    node.shard.take_over(Cursor(), [(1, (90, 0))], end=3, log_start=3, lost_below=3)
    (rolled,) = node.shard.advance_offset(50, 10, lambda _: payload)
    assert (rolled[0], rolled[7]) == (outcome.ROLLED, 0)
    assert json.loads(dict(rolled[5])["delay-copy"] or b"")["base"] == 3


def test_a_copy_is_settled_by_no_record_that_was_read_and_lost() -> None:
    payload = _payload(b"x", 90, 0)
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", payload, None),
        (1, SCHEDULE, 500, None, _payload(None, 500, 1), None),
        (2, CANCEL, 0, b"x", (None, None, []), None),
        (3, COPY, 90, b"x", payload, 2),
    ]
    node = Node(log_start=3)
    node.shard.follow(Cursor((40, 0), 2))
    for offset in range(3):
        node.ingest(offset, log)
    node.shard.take_over(Cursor((40, 0), 2), [], end=4, log_start=3, lost_below=3)

    node.ingest(3, log)
    assert node.shard.advance_offset(50, 10, nothing_fired) == []
    due = node.store.read_due((40, 0), 90, _OUTPUTS_MAX)
    settled = node.shard.advance_key(due, 90)
    assert [(output[0], output[7]) for output in settled] == [(outcome.DELIVERED, 3)]
