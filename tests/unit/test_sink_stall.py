"""When a flush counts as stalled: a busy broker is waited for, a silent one is not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connectors.kafka.clients import Clients
from connectors.kafka.delivery_reports import Stall
from connectors.kafka.sink import KafkaSink
from connectors.kafka.targets import TargetTopics
from delayservice.base.errors import WriterEndedError
from delayservice.engine.electability import TURN_S_MAX
from delayservice.engine.outcome import DELIVERED, Output
from tests.unit.test_checkpoint_tail import OPTIONS


def test_a_flush_is_stalled_since_the_last_acknowledgement() -> None:
    stall = Stall(100, 10.0)
    assert [stall.seconds(100 - n, 10.0 + 2.5 * n, 0.0) for n in (1, 2, 3, 4)] == [0.0] * 4
    assert stall.seconds(96, 23.5, 0.0) == 3.5
    assert Stall(5, 10.0).seconds(5, 13.5, 0.0) == 3.5, "since it began, without any"


@pytest.mark.parametrize(("throttled_until_s", "stalled_s"), [(13.0, 0.5), (20.0, -6.5)])
def test_the_wait_that_a_quota_asks_for_does_not_count(
    throttled_until_s: float, stalled_s: float
) -> None:
    assert Stall(5, 10.0).seconds(5, 13.5, throttled_until_s) == stalled_s


class SilentProducer:
    """A producer to a leader that says nothing, whose queue has room for one more record every two
    seconds.
    """

    def __init__(self, clock: list[float], room: int) -> None:
        self._clock = clock
        self._room = room
        self._queued = 0
        self.next_s = 0.0

    def produce(self, *_: object, **__: object) -> None:
        if self._queued >= self._room and self._clock[0] < self.next_s:
            raise BufferError
        self._queued += 1
        self.next_s = self._clock[0] + 2.0

    def poll(self, timeout_s: float) -> int:
        self._clock[0] += timeout_s
        return 0

    def flush(self, timeout_s: float) -> int:
        self._clock[0] += timeout_s
        return self._queued

    def list_topics(self, *_: object) -> None: ...

    def init_transactions(self, _: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def abort_transaction(self, _: float) -> None: ...

    def purge(self, **_: object) -> None: ...


def opened(room: int) -> tuple[KafkaSink, list[float]]:
    clock = [1_000.0]
    clients = Clients(
        producer=lambda _: cast("Any", SilentProducer(clock, room)), monotonic_s=lambda: clock[0]
    )
    targets = TargetTopics(cast("Any", None), lambda: clock[0])
    sink = KafkaSink(OPTIONS, targets, clients)
    sink.open()
    return sink, clock


OUTPUTS: list[Output] = [(DELIVERED, "orders", -1, b"k", b"v", [], 0, n) for n in range(100)]


def test_all_waits_of_a_transaction_for_room_in_the_queue_together_have_an_end() -> None:
    sink, clock = opened(room=3)
    with pytest.raises(WriterEndedError, match="queue is full"):
        sink.send(("delay_topic_any", 0), OUTPUTS)
    assert clock[0] - 1_000 < TURN_S_MAX / 2


def test_records_sent_alone_that_nobody_acknowledges_end_the_writer_and_not_the_loop() -> None:
    sink, clock = opened(room=1_000)
    sink._targets.suspect("orders")
    with pytest.raises(WriterEndedError, match="not acknowledged"):
        sink.send(("delay_topic_any", 0), OUTPUTS)
    assert clock[0] - 1_000 < TURN_S_MAX / 2
