"""The delay topics' partitions of one slice, read committed.

A partition's position moves past transaction markers and aborted records only with the end-of-
partition event, so those events are asked for, and a run says where it stops, not what it holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, TypeAlias

import structlog
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    OffsetSpec,
)

from connectors.kafka.clients import NO_GROUP, consumer_client
from connectors.kafka.errors import answer_of
from delayservice.core.entry import UNREADABLE, Row
from delayservice.errors import KafkaEdgeError, LogMovedError
from delayservice.lanes.ports import Bounds, Run

ASK_TIMEOUT_S: Final = 15.0
SCAN_STALL_S: Final = 60.0
SCAN_BATCH: Final = 5_000
SCAN_WAIT_MS: Final = 10

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""

_MOVED: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001

READ_HINT: Final = "give the service Read on this topic"

_headers_of: Final = methodcaller("headers")
"""``message.headers()``, checked: for a name that is not UTF-8 the client returns a result *and*
sets an exception. Python notices that in a call from C; in a plain call only until the call is
optimised, and then the exception appears anywhere later."""

_log = structlog.get_logger(__name__)


def consumer_config(client: Mapping[str, str], name: str) -> dict[str, Any]:
    """Options of a consumer that keeps its own position, as every consumer of the service does."""
    return {
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 100,
        "fetch.queue.backoff.ms": 20,  # the default, a second, is how long a full queue pauses it
        "queued.max.messages.kbytes": 16_384,
        **client,
        "group.id": f"delayservice-{name}",  # required by the client; nothing is ever joined
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }


class KafkaSource:
    """Single-threaded, as the loop that owns it."""

    def __init__(self, slice_no: int, client: Mapping[str, str], admin: AdminClient) -> None:
        self._slice_no = slice_no
        self._config = consumer_config(client, f"source-{slice_no}")
        self._admin = admin
        self._consumer = consumer_client(self._config)
        self._positions: dict[str, int] = {}
        self._held: set[str] = set()

    # --- position ------------------------------------------------------------------------------

    def seek(self, topic: str, offset: int) -> None:
        """Read from ``offset`` on; see the port."""
        partition = TopicPartition(topic, self._slice_no, offset)
        if topic in self._positions:
            self._consumer.incremental_unassign([partition])
        self._consumer.incremental_assign([partition])
        self._positions[topic] = offset
        if topic in self._held:  # the client forgets a pause of what was not assigned
            self.pause(topic)

    def drop(self, topic: str) -> None:
        """Read this topic no longer."""
        self._held.discard(topic)
        if self._positions.pop(topic, None) is not None:
            self._consumer.incremental_unassign([TopicPartition(topic, self._slice_no)])

    def pause(self, topic: str) -> None:
        """Fetch no more of it for now."""
        self._held.add(topic)
        self._consumer.pause([TopicPartition(topic, self._slice_no)])

    def resume(self, topic: str) -> None:
        """Fetch again."""
        self._held.discard(topic)
        self._consumer.resume([TopicPartition(topic, self._slice_no)])

    # --- read ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float, limit: int) -> list[Run]:
        """What is there; see the port."""
        try:
            return list(self._runs(_take(self._consumer, timeout_s, limit)))
        except (KafkaEdgeError, KafkaException):
            # What was taken with the failure is not handed over, so it has to come again.
            for topic, offset in list(self._positions.items()):
                self.seek(topic, offset)
            raise

    def _runs(self, messages: list[Any]) -> Iterator[Run]:
        rows: dict[str, list[Row]] = {}
        stops: dict[str, int] = {}
        before = None
        for message in messages:
            error = message.error()
            if error is not None:
                self._take_event(message, error, stops)
                continue
            topic = message.topic()
            if topic != before:  # seldom, and comparing costs less than looking it up
                before, add = topic, rows.setdefault(topic, []).append
            add(_row(message))
        for topic, taken in rows.items():
            stops[topic] = max(stops.get(topic, 0), taken[-1][0] + 1)
        for topic, stop in stops.items():
            start = self._positions.get(topic)
            if start is not None and stop > start:
                self._positions[topic] = stop
                yield Run(topic, start, rows.get(topic, []), stop)

    def _take_event(
        self,
        message: Any,  # noqa: ANN401  # as in ``_row``
        error: KafkaError,
        stops: dict[str, int],
    ) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            stops[message.topic()] = message.offset()
        elif error.code() in _MOVED:
            raise LogMovedError(message.topic(), str(error))
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # the other topics go on
            _log.error(
                "topic_not_readable",
                topic=message.topic(),
                slice=self._slice_no,
                hint=READ_HINT,
            )
        elif error.retriable() or error.code() < 0 or error.code() == NO_GROUP:
            _log.debug("fetch_error", slice=self._slice_no, why=str(error))
        else:
            raise KafkaEdgeError(f"{message.topic()}:{self._slice_no} can't be read: {error}")

    # --- ask -----------------------------------------------------------------------------------

    def bounds(self, topic: str) -> Bounds:
        """Where the log starts and ends; see the port."""
        return log_bounds(self._admin, topic, self._slice_no)

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now; see the port."""
        return topic_ids(self._admin, [topic]).get(topic)

    def scan(self, topic: str, start: int, stop: int) -> Iterator[Run]:
        """Read ``[start, stop)`` aside; see the port.

        Raises:
            KafkaEdgeError: nothing came for a minute.
        """
        yield from scan_partition(self._config, topic, self._slice_no, start, stop)

    def close(self) -> None:
        """Release the connections."""
        self._consumer.close()


def _row(message: Any) -> Row:  # noqa: ANN401  # the client's stubs make every field optional
    """A message as the record reader takes it."""
    try:
        headers = _headers_of(message)
    except (SystemError, UnicodeDecodeError):
        # A header whose name is not UTF-8: the client raises once, and must not be asked again.
        headers = UNREADABLE
    return (message.offset(), message.timestamp()[1], message.key(), message.value(), headers)


def _take(consumer: Consumer, timeout_s: float, limit: int) -> list[Any]:
    """What is there, after waiting for the first: ``consume`` alone would wait for the last."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(limit - 1, 0)]


def topic_ids(admin: AdminClient, topics: Sequence[str]) -> dict[str, str]:
    """The ids of those of ``topics`` that exist: they tell a recreated topic from the old one."""
    described = admin.describe_topics(TopicCollection(list(topics)))
    found = {}
    for name, future in described.items():
        try:
            found[name] = str(answer_of(future, ASK_TIMEOUT_S).topic_id)
        except KafkaException as exc:
            _log.warning("topic_not_described", topic=name, why=str(exc))
    return found


def log_bounds(
    admin: AdminClient,
    topic: str,
    partition: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Bounds:
    """Start of the log and its high watermark, open transactions included; with ``READ_COMMITTED``
    the last stable offset instead, below which none is open.

    Raises:
        KafkaEdgeError: the cluster does not say.
    """
    place = TopicPartition(topic, partition)
    asked = [
        admin.list_offsets({place: spec}, isolation_level=isolation, request_timeout=ASK_TIMEOUT_S)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    ]
    try:
        offsets = [int(answer_of(answer[place], ASK_TIMEOUT_S).offset) for answer in asked]
    except KafkaException as exc:
        raise KafkaEdgeError(
            f"where {topic}:{partition} starts and ends can't be asked: {exc}"
        ) from exc
    return Bounds(*offsets)


def log_ends(admin: AdminClient, places: Collection[Place]) -> dict[Place, int]:
    """High watermarks, asked all at once; a partition whose leader does not answer is left out."""
    if not places:
        return {}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets(
        {TopicPartition(*place): latest for place in places}, request_timeout=ASK_TIMEOUT_S
    )
    ends = {}
    for partition, answer in asked.items():
        try:
            offset = answer_of(answer, ASK_TIMEOUT_S).offset
            ends[partition.topic, partition.partition] = int(offset)
        except KafkaException as exc:
            _log.debug("log_end_not_known", topic=partition.topic, why=str(exc))
    return ends


def scan_partition(
    config: Mapping[str, Any],
    topic: str,
    partition: int,
    start: int,
    stop: int,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Iterator[Run]:
    """Runs of ``[start, stop)``, by a consumer of its own.

    Raises:
        KafkaEdgeError: nothing came for a minute, or the log no longer holds the range.
    """
    # At the end of a log the broker keeps a fetch waiting before it says so: here, not for long.
    consumer = consumer_client({**config, "fetch.wait.max.ms": SCAN_WAIT_MS})
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        heard_s = monotonic_s()
        at = start
        while at < stop:
            messages = _take(consumer, 0.2, SCAN_BATCH)
            if not messages and monotonic_s() - heard_s > SCAN_STALL_S:
                raise KafkaEdgeError(f"{topic}:{partition} gave nothing from offset {at} on")
            rows: list[Row] = []
            reached = at
            for message in messages:
                error = message.error()
                if error is None:
                    reached = message.offset() + 1
                    if message.offset() < stop:
                        rows.append(_row(message))
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    reached = max(reached, message.offset())
                elif error.code() in _MOVED:
                    raise KafkaEdgeError(f"{topic}:{partition} no longer holds offset {at}")
                elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise KafkaEdgeError(f"{topic} may not be read: Read on it is missing")
            if reached > at:
                heard_s = monotonic_s()
                yield Run(topic, at, rows, min(reached, stop))
                at = reached
    finally:
        consumer.close()
