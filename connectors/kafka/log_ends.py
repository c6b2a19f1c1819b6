"""Asks the leaders of partitions where their logs start and end."""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import count
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    OffsetSpec,
)

from connectors.kafka.errors import answer_of, error_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import Bounds, Place

ASK_TIMEOUT_S: Final = 15.0
EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
# Error codes of a broker that no longer leads the partition, or does not lead it yet.
STALE: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
_AGAIN_S: Final = 0.1


class _Found(NamedTuple):
    """An offset and the leader epoch that came with it; -1: the broker does not give one."""

    offset: int
    leader_epoch: int


_log = structlog.get_logger(__name__)


def log_bounds(
    admin: AdminClient,
    topic: str,
    partition: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Bounds:
    """Return the first offset of a log and its high watermark, or with ``READ_COMMITTED`` its last
    stable offset, at which the first open transaction begins. An election is not waited for, as the
    worker's loop calls this.
    """
    place = (topic, partition)
    first, end = (_known(admin, [place], spec, isolation)[place] for spec in (EARLIEST, LATEST))
    return Bounds(first.offset, *end)


def many_bounds(admin: AdminClient, places: Collection[Place]) -> dict[Place, Bounds]:
    """Return first offset and high watermark of each partition, in two requests for all.
    Partitions whose leader does not answer are left out.
    """
    first, ends = (_asked(admin, places, spec)[0] for spec in (EARLIEST, LATEST))
    return {p: Bounds(first[p].offset, *end) for p, end in ends.items() if p in first}


def log_ends(admin: AdminClient, places: Collection[Place]) -> dict[Place, int]:
    """Return the high watermark of each partition, asked all at once. Partitions whose leader does
    not answer are left out.
    """
    found, _ = _asked(admin, places, LATEST)
    return {place: answer.offset for place, answer in found.items()}


def offsets_of(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    """Return the offset that ``spec`` selects in each partition. While leaders are elected, the
    request is repeated for up to ``ASK_TIMEOUT_S``.
    """
    found = _known(admin, places, spec, isolation, ASK_TIMEOUT_S)
    return {place: answer.offset for place, answer in found.items()}


def offsets_since(admin: AdminClient, places: Collection[Place], time_ms: int) -> dict[Place, int]:
    """Return for each partition the offset of the first record whose timestamp is ``time_ms``
    (epoch ms) or later; a partition without such a record is left out.
    """
    found = offsets_of(admin, places, OffsetSpec.for_timestamp(time_ms))
    return {place: offset for place, offset in found.items() if offset >= 0}


def newest_time_ms(admin: AdminClient, places: Collection[Place]) -> int:
    """Return the latest timestamp of any record in these partitions, epoch ms; -1: there are no
    records. Where brokers set the timestamps, the clock of one has reached this time.
    """
    spec: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    asked: dict[TopicPartition, Any] = admin.list_offsets(
        {TopicPartition(*place): spec for place in places}, request_timeout=ASK_TIMEOUT_S
    )
    try:
        return max(int(answer_of(future, ASK_TIMEOUT_S).timestamp) for future in asked.values())
    except KafkaException as exc:
        raise KafkaEdgeError(f"when records were written can't be asked: {exc}") from exc


def _known(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel,
    wait_s: float = 0.0,
) -> dict[Place, _Found]:
    """Return the offset in each partition. Leaders that have changed are asked twice, and then
    again for ``wait_s`` seconds.
    """
    until_s = time.monotonic() + wait_s
    known: dict[Place, _Found] = {}
    for asked in count():
        found, failed = _asked(admin, [p for p in places if p not in known], spec, isolation)
        known |= found
        others = [exc for exc in failed.values() if error_of(exc).code() not in STALE]
        if others or not failed or (asked and time.monotonic() >= until_s):
            break
        time.sleep(_AGAIN_S if asked else 0)
    for (topic, partition), exc in failed.items():
        raise KafkaEdgeError(
            f"where {topic}:{partition} starts and ends can't be asked: {exc}"
        ) from exc
    return known


def _asked(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> tuple[dict[Place, _Found], dict[Place, KafkaException]]:
    found, failed, stale = {}, {}, set()
    asked: dict[TopicPartition, Any] = {}
    if places:
        asked = admin.list_offsets(
            {TopicPartition(*place): spec for place in places},
            isolation_level=isolation,
            request_timeout=ASK_TIMEOUT_S,
        )
    for place, future in asked.items():
        key = (place.topic, place.partition)
        try:
            answer = offset_of(future, ASK_TIMEOUT_S)
        except KafkaException as exc:
            _log.debug("log_end_not_known", topic=key[0], partition=key[1], why=str(exc))
            failed[key] = exc
            if error_of(exc).code() in STALE:
                stale.add(place.topic)
        else:
            epoch = answer.leader_epoch
            found[key] = _Found(answer.offset, -1 if epoch is None else epoch)
    # The client remembers leaders for 15 min, so topics whose leaders have changed are looked up
    # anew, for the next request.
    for topic in sorted(stale):
        try:
            admin.list_topics(topic, timeout=ASK_TIMEOUT_S)
        except KafkaException as exc:
            _log.warning("topic_not_looked_up", topic=topic, why=str(exc))
    return found, failed


def offset_of(future: Any, timeout_s: float) -> Any:  # noqa: ANN401  # the client leaves it untyped
    """Return the answer of ``list_offsets`` for one partition: an object with ``offset`` and
    ``leader_epoch``.
    """
    answer = answer_of(future, timeout_s)
    if answer.offset == OFFSET_INVALID:
        error = KafkaError(KafkaError._TRANSPORT, "the connection to the leader broke")  # noqa: SLF001
        raise KafkaException(error)
    return answer


def watermarks(consumer: Consumer, place: Place) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_TIMEOUT_S)
    return low, high
