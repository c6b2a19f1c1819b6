"""Meetings too rare to wait for: found once by a long run, and put down here."""

from delayservice.contract.codec import Payload
from delayservice.contract.entry import CANCEL, COPY, SCHEDULE, Entry
from delayservice.engine import outcome
from delayservice.engine.cursor import Cursor
from tests.simulation.model_adapter import Node, nothing_fired


def test_a_new_owner_knows_a_late_copy_before_its_canceller_takes_effect() -> None:
    payload: Payload = ("orders", -1, None, b"v", [], 90, (b"x", b"delay_topic_any:0:0", 1, None))
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", payload, None),
        (1, CANCEL, 0, b"x", (None, None, []), None),
        (2, COPY, 90, b"x", payload, 1),
    ]
    node = Node(roll_window_ms=40)
    node.restart(3, (), log)  # the copy's time has passed by the committed K: it was not stored
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


def test_a_copy_that_comes_back_before_the_answer_to_its_commit_is_waited_for_no_longer() -> None:
    log: list[Entry] = [
        (0, SCHEDULE, 40, b"x", _payload(b"x", 90, 0), None),
        (1, COPY, 90, b"x", _payload(b"x", 90, 0), 1),
        (2, CANCEL, 0, b"x", (None, None, []), None),
    ]
    node = Node(roll_window_ms=40)
    node.shard.take_over(Cursor(), [], end=0)
    node.ingest(0, log)
    assert node.walk_offset(1, 40, log) == []
    rolled = node.walk_key((40, 0), 40)
    assert [output[0] for output in rolled] == [outcome.ROLLED]

    node.ingest(1, log)  # read committed, so it is; the loop has not heard of it yet
    node.shard.commit()
    node.ingest(2, log)
    settled = [
        (output[0], output[7]) for output in node.shard.advance_offset(50, 10, nothing_fired)
    ]
    assert settled == [(outcome.CANCELLED, 1), (outcome.CANCELLED, 2)]
