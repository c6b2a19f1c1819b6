"""Makes clients of librdkafka, which all use one logger."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from connectors.kafka.errors import error_of
from delayservice.base.errors import KafkaEdgeError, SettingsError, nearest
from delayservice.base.tokens import with_tokens

# Connection errors that do not end by waiting: a wrong password, certificate or host name.
UNREACHABLE: Final = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}  # noqa: SLF001
)

# Error code to ignore: the client asks for the coordinator of a group that is never joined, and
# reports if that is forbidden. Records are read all the same.
NO_GROUP: Final = KafkaError.GROUP_AUTHORIZATION_FAILED

# Logger of all clients; without it librdkafka writes to standard error.
LOGGER: Final = logging.getLogger("librdkafka")

# Options of every client; settings can't change them (``config.kafka.RESERVED``). Producers and
# admin clients would otherwise ask the broker to create each unknown topic that they look up: a
# misspelt one, or a target that was deleted.
FORCED: Final[Mapping[str, Any]] = {"allow.auto.create.topics": False}
# Options of every consumer: a batch whose bytes were altered on a broker's disk or on the way is an
# error, and none of its records is returned.
FORCED_CONSUMER: Final[Mapping[str, Any]] = {**FORCED, "check.crcs": True}

# Longest pause before a client connects to a broker again, in ms. The client doubles it after each
# failure, up to 10 s by itself, which all records of a broker that is back again would wait for.
RECONNECT_MS_MAX: Final = 1_000


# A request that waits for a broker which is down has librdkafka 2.16 connect to it without a pause,
# thousands of times a second, unless it keeps its connections anyway.
EAGER: Final[Mapping[str, Any]] = {"enable.sparse.connections": False}


@contextmanager
def _making() -> Iterator[None]:
    try:
        yield
    except KafkaException as exc:  # no broker is asked yet
        why = f"the Kafka client can't be made with the options in [kafka]: {error_of(exc).str()}"
        raise SettingsError(why) from exc


class _Unreachable:
    def __init__(self) -> None:
        # The last of the errors in ``UNREACHABLE``; empty: there was none.
        self.why = ""

    def note(self, error: KafkaError) -> None:
        if error.code() in UNREACHABLE:
            self.why = error.str()


class KafkaAdmin(AdminClient):
    """An admin client that keeps the last of the errors in ``UNREACHABLE``, which the errors of
    failed requests omit.
    """

    def __init__(self, options: Mapping[str, str], logger: logging.Logger = LOGGER) -> None:
        # A callback that refers to its client keeps it alive until the garbage collector runs, in
        # whatever thread: librdkafka aborts the process if it is the client's own, which completes
        # the requests.
        self._unreachable = _Unreachable()
        callback = {"error_cb": self._unreachable.note}
        config: dict[str, Any] = {**EAGER, **with_tokens(options), **FORCED, **callback}
        with _making():
            super().__init__(config, logger=logger)

    def explain(self, exc: KafkaException) -> str:
        self.poll(0)
        return f"{exc}; {self._unreachable.why}" if self._unreachable.why else str(exc)


def admin_client(options: Mapping[str, str]) -> KafkaAdmin:
    return KafkaAdmin(options)


def consumer_client(options: Mapping[str, Any]) -> Consumer:
    with _making():
        return Consumer({**with_tokens(options), **FORCED_CONSUMER}, logger=LOGGER)


# Error codes of a consumer's messages that are neither a record nor a failure.
NO_RECORDS: Final = frozenset({KafkaError._PARTITION_EOF, NO_GROUP})  # noqa: SLF001 (its public name)


def values_of(messages: Iterable[Any]) -> Iterator[bytes]:
    """Yield the values of the records among a consumer's messages, None as empty; skip the events
    in ``NO_RECORDS``, such as the end of a log.
    """
    for message in messages:
        error = message.error()
        if error is None:
            yield message.value() or b""
        elif error.code() not in NO_RECORDS:
            raise KafkaException(error)


def producer_client(options: Mapping[str, Any]) -> Producer:
    with _making():
        return Producer({"logger": LOGGER, **with_tokens(options), **FORCED})


class CoordinatorLog:
    """Logger of one transactional producer that keeps the first failure of the connection to the
    transaction coordinator.

    After such a failure the client sends EndTxn again, and tells only its log. The first copy may
    reach the broker late, and then ends whatever transaction of this producer is open. So the
    producer must not begin another one (KAFKA-17754, KIP-890; docs/internals/design.md, rule 15).
    """

    def __init__(self, logger: logging.Logger = LOGGER) -> None:
        # The line about the first failure; empty: there was none.
        self.failure = ""
        self._logger = logger

    def log(self, level: int, text: str, facility: str, *line: object) -> None:
        # The client calls this from ``poll`` and ``flush``.
        told = str(line[-1]) if line else ""
        # With ``debug`` set, the client logs at that level that it closes connections on purpose.
        is_failure = level > logging.DEBUG and facility in _FAILURES and _COORDINATOR in told
        if is_failure and not self.failure:
            self.failure = told
        self._logger.log(level, text, facility, *line)

    @property
    def options(self) -> dict[str, Any]:
        # They have to override all other options.
        return {
            "logger": self,
            "log_level": _LOG_INFO,
            "log.connection.close": True,
            "connections.max.idle.ms": 0,  # else the client closes it, and logs nothing
        }


# Facilities of librdkafka's log for a failed connection and for requests without an answer.
_FAILURES: Final = frozenset({"FAIL", "REQTMOUT"})
# librdkafka's name of the connection to the transaction coordinator.
_COORDINATOR: Final = "TxnCoordinator"
# Syslog level of the line about a closed connection with one request in flight.
_LOG_INFO: Final = 6


def connection_failure(producer: Producer, log: CoordinatorLog) -> str:
    """Return the first failure of the connection to the coordinator since ``producer`` was made,
    lines that are on their way included; empty: there was none.
    """
    with suppress(KafkaException):  # the producer's next call raises it again
        producer.poll(0)
    return log.failure


@dataclass(frozen=True, slots=True)
class Clients:
    """Factories of a worker's Kafka clients, and the clock of its waits."""

    producer: Callable[[Mapping[str, Any]], Producer] = producer_client
    consumer: Callable[[Mapping[str, Any]], Consumer] = consumer_client
    # Clock of all waits, in seconds.
    monotonic_s: Callable[[], float] = time.monotonic
    # Makes the condition on which threads wait for records that another thread reads.
    changed: Callable[[], threading.Condition] = threading.Condition


KAFKA: Final = Clients()


def connect(producer: Producer, topic: str, timeout_s: float) -> None:
    """Connect a new producer to a broker, within ``timeout_s`` seconds at most, and raise no error:
    the call that needs the connection does. ``topic``: any topic.

    Without a connection, ``init_transactions`` and the first record of an idempotent producer wait
    for a timer of the client's, half a second and more. The first metadata come by the address that
    the settings name, and the client then drops that connection; the second ones come by that of a
    broker.
    """
    with suppress(KafkaException):
        producer.list_topics(topic, timeout_s)
        producer.list_topics(topic, timeout_s)


# Error code of a record for which the client's queue had no room in time.
QUEUE_FULL: Final = KafkaError._TIMED_OUT_QUEUE  # noqa: SLF001 (its public name)
# Longest wait for room in the client's queue, in s: a producer gives its records up before.
_ROOM_S: Final = 120.0


def produce_patiently(
    producer: Producer,
    *record: object,
    timeout_s: float = _ROOM_S,
    monotonic_s: Callable[[], float] = time.monotonic,
    **options: object,
) -> None:
    """Queue a record, with the arguments of ``Producer.produce``; while the client's queue is full,
    wait until it drains. ``KafkaException`` with ``QUEUE_FULL``: it had no room for ``timeout_s``
    seconds.
    """
    queue: Callable[..., None] = producer.produce  # its stubs know no null header
    until_s = monotonic_s() + timeout_s
    while True:
        try:
            queue(*record, **options)
        except BufferError as exc:
            if monotonic_s() >= until_s:
                why = "the client's queue is full, and no record of it is acknowledged"
                raise KafkaException(KafkaError(QUEUE_FULL, why)) from exc
            producer.poll(0.01)
        else:
            return


def flush(producer: Producer, timeout_s: float) -> int:
    """Wait until every record is acknowledged or has failed, up to ``timeout_s`` seconds; return
    the number of records that are left.
    """
    try:
        return producer.flush(timeout_s)
    except SystemError as exc:
        cause: BaseException | None = exc
        while cause is not None and not isinstance(cause, KafkaException):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


# Extra wait for delivery reports, in s: the client looks for expired records once a second.
_REPORT_S: Final = 5.0
# Longest wait for the connection that saves a new producer half a second, in s.
_CONNECT_S: Final = 1.0


def write_confirmed(
    client: Mapping[str, Any], records: Sequence[Mapping[str, Any]], timeout_s: float
) -> list[Message]:
    """Write records, each the arguments of ``Producer.produce``, with a producer of their own;
    return their delivery reports. ``KafkaException``: a record was refused, or was not confirmed
    within ``timeout_s`` seconds (``_MSG_TIMED_OUT``), after which the client drops it.
    """
    timeout_ms = round(timeout_s * 1_000)
    own = {"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": timeout_ms}
    producer = producer_client({**client, **own})
    if records:
        connect(producer, records[0]["topic"], _CONNECT_S)
    written: list[Message] = []
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.append(message)
        else:
            errors.append(error)

    for record in records:
        producer.produce(**record, on_delivery=note)
        producer.poll(0)
    if flush(producer, timeout_s + _REPORT_S) and not errors:
        errors.append(KafkaError(KafkaError._MSG_TIMED_OUT))  # noqa: SLF001 (its public name)
    if errors:
        raise KafkaException(errors[0])
    return written


def partitions_of(client: Producer | Consumer | AdminClient, topic: str, timeout_s: float) -> int:
    """Return the number of partitions of a topic. All topics are asked for: brokers may create one
    that is asked for by its name, unless ``client`` has the options of ``clients.FORCED``. If there
    is no such topic, the ``KafkaEdgeError`` names one with a similar name.
    """
    topics = client.list_topics(timeout=timeout_s).topics
    found = topics.get(topic)
    if found is not None and found.error is None and found.partitions:
        return len(found.partitions)
    why = "it does not exist, or this user may not describe it"
    if found is not None and found.error is not None:
        why = found.error.str()
    near = nearest(topic, topics.keys() - {topic})
    hint = f"; did you mean {near}?" if near else ""
    raise KafkaEdgeError(f"topic {topic} can't be used: {why}{hint}")
