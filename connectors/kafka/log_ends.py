"""Asks the leaders of partitions where their logs start and end."""

from __future__ import annotations

from collections.abc import Collection
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
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

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


_Answers = dict[Place, _Found | KafkaException]

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
    asked = [_asked_twice(admin, [place], spec, isolation) for spec in (EARLIEST, LATEST)]
    first, end = (_known(answer)[place] for answer in asked)
    return Bounds(first.offset, *end)


def many_bounds(admin: AdminClient, places: Collection[Place]) -> dict[Place, Bounds]:
    """Return first offset and high watermark of each partition, in two requests for all.
    Partitions whose leader does not answer are left out.
    """
    first, ends = (_found(_asked(admin, places, spec)) for spec in (EARLIEST, LATEST))
    return {p: Bounds(first[p].offset, *end) for p, end in ends.items() if p in first}


def log_ends(
    admin: AdminClient,
    places: Collection[Place],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    """Return the high watermark of each partition, or with ``READ_COMMITTED`` its last stable
    offset, asked all at once. Partitions whose leader does not answer are left out.
    """
    return _offsets(_found(_asked(admin, places, LATEST, isolation)))


def offsets_of(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    """Return the offset that ``spec`` selects in each partition. While leaders are elected, the
    request is repeated for up to ``ASK_TIMEOUT_S``.
    """
    retrying = Retrying(
        retry=retry_if_result(lambda answers: bool(_stale(answers))),
        stop=stop_after_delay(ASK_TIMEOUT_S),
        wait=wait_fixed(_AGAIN_S),
    )
    try:
        return _offsets(_known(retrying(_asked, admin, places, spec, isolation)))
    except RetryError as exc:
        return _offsets(_known(exc.last_attempt.result()))


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


def _asked(
    admin: AdminClient,
    places: Collection[Place],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> _Answers:
    # The client remembers leaders for 15 min, so topics whose leaders have changed are looked up
    # anew, for the next request.
    if not places:
        return {}
    asked: dict[TopicPartition, Any] = admin.list_offsets(
        {TopicPartition(*place): spec for place in places},
        isolation_level=isolation,
        request_timeout=ASK_TIMEOUT_S,
    )
    answers = {(place.topic, place.partition): _answer(future) for place, future in asked.items()}
    for topic in sorted({topic for topic, _ in _stale(answers)}):
        try:
            admin.list_topics(topic, timeout=ASK_TIMEOUT_S)
        except KafkaException as exc:
            _log.warning("topic_not_looked_up", topic=topic, why=str(exc))
    return answers


def _asked_twice(
    admin: AdminClient, places: Collection[Place], spec: OffsetSpec, isolation: IsolationLevel
) -> _Answers:
    answers = _asked(admin, places, spec, isolation)
    again = _stale(answers)
    return answers | _asked(admin, again, spec, isolation)


def offset_of(future: Any, timeout_s: float) -> Any:  # noqa: ANN401  # the client leaves it untyped
    """Return the answer of ``list_offsets`` for one partition: an object with ``offset`` and
    ``leader_epoch``.
    """
    answer = answer_of(future, timeout_s)
    if answer.offset == OFFSET_INVALID:
        error = KafkaError(KafkaError._TRANSPORT, "the connection to the leader broke")  # noqa: SLF001
        raise KafkaException(error)
    return answer


def _answer(future: Any) -> _Found | KafkaException:  # noqa: ANN401  # as above
    try:
        answer = offset_of(future, ASK_TIMEOUT_S)
    except KafkaException as exc:
        return exc
    return _Found(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch)


def _offsets(found: dict[Place, _Found]) -> dict[Place, int]:
    return {place: answer.offset for place, answer in found.items()}


def _stale(answers: _Answers) -> list[Place]:
    return [
        place
        for place, answer in answers.items()
        if isinstance(answer, KafkaException) and error_of(answer).code() in STALE
    ]


def _known(answers: _Answers) -> dict[Place, _Found]:
    found = _found(answers)
    for (topic, partition), answer in answers.items():
        if isinstance(answer, KafkaException):
            raise KafkaEdgeError(
                f"where {topic}:{partition} starts and ends can't be asked: {answer}"
            ) from answer
    return found


def _found(answers: _Answers) -> dict[Place, _Found]:
    found = {}
    for place, answer in answers.items():
        if isinstance(answer, KafkaException):
            _log.debug("log_end_not_known", topic=place[0], partition=place[1], why=str(answer))
        else:
            found[place] = answer
    return found


def watermarks(consumer: Consumer, place: Place) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_TIMEOUT_S)
    return low, high
