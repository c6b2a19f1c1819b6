"""What brokers answer, or don't: which are silent, where logs end, and what ends a writer."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from connectors.kafka import log_ends as module
from connectors.kafka.clients import Clients, CoordinatorLog, admin_client
from connectors.kafka.errors import MEANINGS, Meaning, meaning_of
from connectors.kafka.log_ends import LATEST, log_bounds, log_ends, offsets_of
from connectors.kafka.reach import KafkaReach
from connectors.kafka.sink import KafkaSink
from connectors.kafka.targets import TargetTopics, _Known
from connectors.kafka.topic_facts import Access
from connectors.kafka.topics import TopicKeeper
from delayservice.base.errors import KafkaEdgeError, WriterEndedError
from delayservice.config.settings import Settings
from delayservice.engine.electability import TURN_S_MAX
from delayservice.engine.outcome import DELIVERED, Output
from delayservice.engine.ports import Bounds
from tests.elapsed import Clock
from tests.unit.test_claims import OPTIONS

TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Admin:
    """Brokers 1 to 3, each of which leads the partition of its number, and answers or not. Real
    brokers that fall silent are in the fault suite.
    """

    def __init__(self, clock: Clock) -> None:
        self.leaders = {number: number for number in (1, 2, 3)}
        self.silent: set[int] = set()
        self.disconnected: set[int] = set()
        self.gives_metadata = True
        self.asked: list[int] = []
        self.looks = 0
        self._clock = clock

    def list_topics(self, timeout: float) -> Any:
        self.looks += 1
        if not self.gives_metadata:
            self._clock.now_s += timeout
            raise TIMED_OUT
        partitions = {n: SimpleNamespace(leader=leader) for n, leader in self.leaders.items()}
        return SimpleNamespace(topics={"delay": SimpleNamespace(error=None, partitions=partitions)})

    def list_offsets(
        self, asked: dict[TopicPartition, Any], request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        (place,) = asked
        self.asked.append(place.partition)
        answer: Future[Any] = Future()
        if place.partition in self.silent:
            self._clock.now_s += request_timeout
            answer.set_exception(TIMED_OUT)
        elif self.leaders[place.partition] != place.partition:
            error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
            answer.set_exception(KafkaException(error))
        elif place.partition in self.disconnected:
            answer.set_result(SimpleNamespace(offset=OFFSET_INVALID))  # as the client does
        else:
            answer.set_result(SimpleNamespace(offset=0))
        return {place: answer}


class Stage:
    def __init__(self) -> None:
        self.clock = Clock()
        self.admin = Admin(self.clock)
        self.changes = 0
        admin: Any = self.admin
        self.reach = KafkaReach(admin, self._changed, self.clock)
        self.reach.check()
        self.admin.asked.clear()

    def _changed(self) -> None:
        self.changes += 1

    def check(self, times: int = 1) -> KafkaReach:
        for _ in range(times):
            self.clock.now_s += 1
            self.reach.check()
        return self.reach


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_each_broker_is_asked_every_second_for_what_it_leads(stage: Stage) -> None:
    stage.check()
    stage.clock.now_s += 0.9
    stage.reach.check()
    assert stage.admin.asked == [1, 2, 3]
    stage.check()
    assert stage.admin.asked == [1, 2, 3] * 2
    assert stage.admin.looks == 1, "who leads what is known for a while"


def test_one_missed_answer_is_no_silence_and_two_are(stage: Stage) -> None:
    stage.admin.silent = {2}
    reach = stage.check()
    assert (set(reach.silent), reach.broker, stage.changes) == (set(), "", 0)
    stage.reach.check()
    assert (set(reach.silent), stage.changes) == ({2}, 1), "asked again at once"
    assert "brokers 2 do not answer" in reach.broker
    assert reach.trouble == "", "others answer"


def test_an_answer_between_two_missed_ones_starts_the_count_anew(stage: Stage) -> None:
    for silent in ({2}, set(), {2}):
        stage.admin.silent = silent
        assert not stage.check().silent


def test_a_connection_that_breaks_is_no_answer(stage: Stage) -> None:
    stage.admin.silent = {2}
    stage.check()
    stage.admin.silent, stage.admin.disconnected = set(), {2}
    assert stage.check().silent == {2}


def test_silence_is_as_old_as_the_first_question_without_an_answer(stage: Stage) -> None:
    stage.admin.silent = {2}
    asked_s = stage.clock.now_s + 1
    reach = stage.check(3)
    assert reach.silent_s == stage.clock.now_s - asked_s
    stage.admin.silent = set()
    assert stage.check().silent_s == 0


def test_a_broker_that_answers_again_has_to_do_so_for_a_while(stage: Stage) -> None:
    stage.admin.silent = {2}
    stage.check(2)
    stage.admin.silent = set()
    reach = stage.check()
    assert reach.silent == set(), "records may be sent there at once"
    assert reach.broker
    assert stage.check(2).broker == ""


@pytest.mark.parametrize("silent", [{2}, set()])
def test_a_broker_that_leads_nothing_any_more_is_not_asked(stage: Stage, silent: set[int]) -> None:
    stage.admin.silent, stage.admin.leaders[2] = silent, 3
    assert not stage.check(3).silent
    assert stage.reach.broker == ""
    assert stage.admin.looks == 2, "who leads it is asked"
    stage.admin.asked.clear()
    stage.check()
    assert stage.admin.asked == [1, 3]


def test_missing_metadata_is_no_reason_to_leave_while_leaders_answer(stage: Stage) -> None:
    stage.clock.now_s += 100  # it is to be asked for again
    stage.admin.gives_metadata = False
    reach = stage.check(10)
    assert stage.admin.looks > 2
    assert (reach.trouble, reach.broker, set(reach.silent)) == ("", "", set())


def test_kafka_is_lost_when_no_broker_answers_two_questions_in_a_row(stage: Stage) -> None:
    with capture_logs() as lines:
        stage.admin.silent, stage.admin.gives_metadata = {1, 2, 3}, False
        assert [bool(stage.check().trouble) for _ in range(4)] == [False, True, True, True]
        stage.admin.silent, stage.admin.gives_metadata = set(), True
        assert not stage.check(2).trouble
    told = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert told == ["kafka_lost", "brokers_silent", "kafka_found", "brokers_answer"]


def test_a_node_that_starts_without_kafka_has_lost_it() -> None:
    clock = Clock()
    admin: Any = Admin(clock)
    admin.gives_metadata = False
    reach = KafkaReach(admin, monotonic_s=clock)
    for is_lost in (False, True):
        reach.check()
        assert bool(reach.trouble) == is_lost


# --- where logs end, by what brokers answer -------------------------------------------------------


PLACE = ("delay_topic_a", 0)


class Broker:
    """Answers with the given errors first, then with an offset."""

    def __init__(self, errors: Iterator[int]) -> None:
        self.errors = errors
        self.looked_up: list[str] = []

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        code = next(self.errors, None)
        answer: Future[Any] = Future()
        if code is None:
            answer.set_result(SimpleNamespace(offset=7, leader_epoch=3))
        else:
            answer.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(wanted, answer)

    def list_topics(self, topic: str, timeout: float) -> None:
        assert timeout > 0
        self.looked_up.append(topic)


def admin_of(broker: Broker) -> AdminClient:
    return cast("AdminClient", broker)


@pytest.mark.parametrize("code", sorted(module.STALE))
def test_where_a_leader_is_elected_the_question_is_asked_again(code: int) -> None:
    broker = Broker(iter([code, code]))
    assert offsets_of(admin_of(broker), [PLACE], LATEST) == {PLACE: 7}
    assert broker.looked_up == [PLACE[0]] * 2
    broker = Broker(iter([code]))
    assert log_bounds(admin_of(broker), *PLACE) == Bounds(7, 7, 3)
    assert broker.looked_up == [PLACE[0]]


def test_any_other_refusal_is_told_at_once() -> None:
    broker = Broker(iter([KafkaError.TOPIC_AUTHORIZATION_FAILED]))
    with pytest.raises(KafkaEdgeError, match="delay_topic_a:0"):
        offsets_of(admin_of(broker), [PLACE], LATEST)
    assert not broker.looked_up


def test_an_election_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 0.2)
    broker = Broker(iter([KafkaError.NOT_LEADER_FOR_PARTITION] * 100))
    with pytest.raises(KafkaEdgeError, match="NOT_LEADER"):
        offsets_of(admin_of(broker), [PLACE], LATEST)


def test_a_single_attempt_finds_the_new_leader_next_time() -> None:
    broker = Broker(iter([KafkaError.FENCED_LEADER_EPOCH]))
    assert log_ends(admin_of(broker), [PLACE]) == {}
    assert broker.looked_up == [PLACE[0]]
    assert log_ends(admin_of(broker), [PLACE]) == {PLACE: 7}


def test_bounds_do_not_wait_for_an_election() -> None:
    asked = iter([KafkaError.LEADER_NOT_AVAILABLE] * 2)
    with pytest.raises(KafkaEdgeError, match="delay_topic_a:0 starts and ends"):
        log_bounds(admin_of(Broker(asked)), *PLACE)
    assert next(asked, None) is None, "it is asked twice"


def test_an_offset_that_no_log_has_is_no_answer() -> None:
    # The client gives it, and no error, when the connection to a leader breaks.
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=None))
    admin = cast(
        "AdminClient",
        SimpleNamespace(list_offsets=lambda wanted, **_: dict.fromkeys(wanted, answer)),
    )
    with pytest.raises(KafkaEdgeError, match="connection to the leader broke"):
        log_bounds(admin, *PLACE)
    assert log_ends(admin, [PLACE]) == {}


# --- topics that are not known to every broker yet ------------------------------------------------


class DeniedBroker:
    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def describe_configs(self, resources: list[Any]) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {resource: Future() for resource in resources}
        for future in futures.values():
            future.set_exception(self._error)
        return futures


@pytest.mark.parametrize(
    ("code", "is_fatal"),
    [(KafkaError.UNKNOWN_TOPIC_OR_PART, False), (KafkaError.TOPIC_AUTHORIZATION_FAILED, True)],
)
def test_an_unknown_topic_is_no_missing_right(code: int, *, is_fatal: bool) -> None:
    settings = Settings()
    own = (settings.topics.checkpoint, settings.topics.claims_topic)
    keeper = TopicKeeper(cast("Any", DeniedBroker(code)), settings)
    existing = dict.fromkeys(own, ((1, (1, 2, 3)),))
    problems = keeper._own_problems(existing, keeper._configs(own), None)
    assert [one.is_fatal for one in problems] == [is_fatal] * 2
    assert all(("DescribeConfigs" in one.text) == is_fatal for one in problems)


# --- what ends a writer: stalled flushes, errors of brokers, lost connections ---------------------


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


def opened(
    room: int, acknowledges_s: float = math.inf, in_sync: tuple[int, ...] = (1,)
) -> tuple[KafkaSink, list[float]]:
    """``in_sync``: copies in sync of each partition of the topic ``orders``."""
    clock = [1_000.0]
    clients = Clients(
        producer=lambda _: cast("Any", SilentProducer(clock, room, acknowledges_s)),
        monotonic_s=lambda: clock[0],
    )
    targets = TargetTopics(cast("Any", None), lambda: clock[0])
    leaders = tuple(range(len(in_sync)))
    targets._known["orders"] = _Known(Access(len(in_sync), None, in_sync, 1, "", leaders))
    targets._ask = lambda *_: ()  # type: ignore[method-assign]
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


@pytest.mark.parametrize(("partition", "is_ended"), [(0, False), (1, True), (-1, True)])
def test_a_long_flush_ends_for_a_partition_without_a_leader_that_it_may_concern(
    partition: int, *, is_ended: bool
) -> None:
    sink, _ = opened(100, 2.5, in_sync=(1, 0))
    sink.send(("delay_topic_any", 0), [(DELIVERED, "orders", partition, b"k", b"v", [], 0, 1)])
    with pytest.raises(WriterEndedError, match="without a leader") if is_ended else nullcontext():
        sink.commit([])


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


def test_a_client_that_is_dropped_is_not_left_to_the_garbage_collector() -> None:
    """It may run in the client's own thread, where librdkafka aborts the process."""
    gc.disable()
    try:
        client = admin_client({"bootstrap.servers": "127.0.0.1:1"})
        dropped = weakref.ref(client)
        del client
        assert dropped() is None
    finally:
        gc.enable()
