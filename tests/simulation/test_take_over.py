"""Meetings too rare to wait for: found once by a long run, and put down here."""

from delayservice.core import outcome
from delayservice.core.codec import Payload
from delayservice.core.cursor import Cursor
from delayservice.core.entry import CANCEL, COPY, SCHEDULE, Entry
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
