"""What ends a writer: stalled flushes, errors of brokers, lost connections."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from connectors.kafka.clients import Clients, CoordinatorLog
from connectors.kafka.errors import MEANINGS, Meaning, meaning_of
from connectors.kafka.sink import KafkaSink
from connectors.kafka.targets import TargetTopics
from delayservice.base.errors import WriterEndedError
from delayservice.engine.electability import TURN_S_MAX
from delayservice.engine.outcome import DELIVERED, Output
from tests.unit.test_claims import OPTIONS


class SilentProducer:
    """A producer to a leader that says nothing, whose queue has room for one more record every two
    seconds; or one that acknowledges a record every ``acknowledges_s``.
    """

    def __init__(self, clock: list[float], room: int, acknowledges_s: float = math.inf) -> None:
        self._clock = clock
        self._room = room
        self._queued = 0
        self._acknowledges_s = acknowledges_s
        self._sent_s = 0.0
        self.next_s = 0.0

    def __len__(self) -> int:
        return self._queued

    def produce(self, *_: object, **__: object) -> None:
        if self._queued >= self._room and self._clock[0] < self.next_s:
            raise BufferError
        self._queued += 1
        self.next_s = self._clock[0] + 2.0
        self._sent_s = self._clock[0]

    def poll(self, timeout_s: float) -> int:
        self._clock[0] += timeout_s
        return 0

    def flush(self, timeout_s: float) -> int:
        self._clock[0] += timeout_s
        done = int((self._clock[0] - self._sent_s) / self._acknowledges_s)
        return max(self._queued - done, 0)

    def list_topics(self, *_: object) -> None: ...

    def init_transactions(self, _: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def commit_transaction(self, _: float) -> None: ...

    def abort_transaction(self, _: float) -> None: ...

    def purge(self, **_: object) -> None: ...


def opened(room: int, acknowledges_s: float = math.inf) -> tuple[KafkaSink, list[float]]:
    clock = [1_000.0]
    clients = Clients(
        producer=lambda _: cast("Any", SilentProducer(clock, room, acknowledges_s)),
        monotonic_s=lambda: clock[0],
    )
    targets = TargetTopics(cast("Any", None), lambda: clock[0])
    targets.unserved = lambda targets: {}  # type: ignore[method-assign]  # noqa: ARG005  # all serve
    sink = KafkaSink(OPTIONS, targets, clients)
    sink.open()
    return sink, clock


OUTPUTS: list[Output] = [(DELIVERED, "orders", -1, b"k", b"v", [], 0, n) for n in range(100)]


@pytest.mark.parametrize(
    ("acknowledges_s", "throttled_s", "ends_s"),
    [(2.5, 0, None), (math.inf, 0, 3), (math.inf, 10, 13), (4, 2, 7)],
)
def test_a_flush_ends_after_three_seconds_without_progress(
    acknowledges_s: float, throttled_s: float, ends_s: float | None
) -> None:
    sink, clock = opened(100, acknowledges_s)
    sink.send(("delay_topic_any", 0), OUTPUTS[:2])
    sink._reports.note_throttle(cast("Any", SimpleNamespace(throttle_time=throttled_s)))
    if ends_s is None:
        sink.commit([])
    else:
        with pytest.raises(WriterEndedError, match="not acknowledged"):
            sink.commit([])
        assert clock[0] - 1_000 == pytest.approx(ends_s, abs=0.3)


def test_all_waits_of_a_transaction_for_room_in_the_queue_together_have_an_end() -> None:
    sink, clock = opened(room=3)
    with pytest.raises(WriterEndedError, match="queue is full"):
        sink.send(("delay_topic_any", 0), OUTPUTS)
    assert clock[0] - 1_000 < TURN_S_MAX / 2


def test_unacknowledged_single_records_end_the_writer() -> None:
    sink, clock = opened(room=1_000)
    sink._targets.suspect("orders", is_found=False)
    with pytest.raises(WriterEndedError, match="not acknowledged"):
        sink.send(("delay_topic_any", 0), OUTPUTS)
    assert clock[0] - 1_000 < TURN_S_MAX / 2


# --- each error that a broker may answer to a transaction's requests has one meaning --------------


OF_OTHER_REQUESTS = (
    {-1, 0, 1, 11, 12, 22, 23, 24, 25, 26, 27, 28, 30, 33, 34, 35, 36, 37, 38, 39, 41, 42, 50, 54}
    | {*range(57, 59), *range(60, 74), *range(77, 87), 88, *range(91, 98)}
    | {*range(110, 120), *range(121, 134)}
)
"""Codes that Kafka 4.3 answers to none of Produce, AddPartitionsToTxn and EndTxn: those of groups,
fetches, administration, connections and the controller (``common.protocol.Errors`` and the error
lists of the three requests' schemas)."""


def test_each_code_that_the_client_knows_has_a_meaning_or_belongs_to_other_requests() -> None:
    codes = {
        code
        for name in dir(KafkaError)
        if name.isupper() and isinstance(code := getattr(KafkaError, name), int) and code >= -1
    }
    assert len(codes) > 110
    answered = {code for code in MEANINGS if code >= 0}
    assert answered & OF_OTHER_REQUESTS == set()
    assert codes - answered == OF_OTHER_REQUESTS, "a new code of the client needs a meaning"


def test_an_error_without_a_meaning_is_put_down_to_the_topic_and_not_to_the_writer() -> None:
    assert meaning_of(KafkaError(KafkaError.UNKNOWN)) is Meaning.UNSUITED


# --- which lines of a client's log end its writer -------------------------------------------------


CLOSED = "[thrd:TxnCoordinator]: TxnCoordinator: broker:9092: Disconnected (after 9ms in state UP)"


@pytest.mark.parametrize(
    ("level", "facility", "line", "is_failure"),
    [
        (logging.INFO, "FAIL", CLOSED, True),
        (
            logging.WARNING,
            "REQTMOUT",
            CLOSED.replace("Disconnected", "Timed out 1 in-flight"),
            True,
        ),
        (logging.DEBUG, "FAIL", CLOSED, False),
        (logging.ERROR, "FAIL", "[thrd:broker:9092/1]: broker:9092/1: Disconnected", False),
        (logging.WARNING, "GETPID", "[thrd:main]: TxnCoordinator/1: Not coordinator", False),
    ],
    ids=["closed", "no answer", "closed on purpose, with debug", "another broker", "an answer"],
)
def test_only_failed_connections_to_the_coordinator_are_failures(
    level: int, facility: str, line: str, *, is_failure: bool
) -> None:
    log = CoordinatorLog()
    log.log(level, "%s [%s] %s", facility, "rdkafka#producer-1", line)
    assert log.failure == (line if is_failure else "")
