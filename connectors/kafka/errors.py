"""Groups librdkafka's errors by what each means for a transaction."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from delayservice.contract.codes import TARGET_REFUSED, TOO_LARGE

Answer = TypeVar("Answer")

FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001  # librdkafka's local error codes have this spelling
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors after which a writer is given up: another producer with its transactional id has taken
over, or the broker forgot it. From some, the client would recover with a higher epoch, which undoes
a fence."""

REFUSALS: Final[dict[int, str]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: TOO_LARGE,
    KafkaError.INVALID_RECORD: TARGET_REFUSED,
    KafkaError.POLICY_VIOLATION: TARGET_REFUSED,
}
"""Codes of dead letters, by permanent error of one record or its target."""

UNKNOWN_TARGETS: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors that end when the target topic is created; until then records for it are parked."""

LOST_TARGETS: Final = UNKNOWN_TARGETS | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""Errors of a topic that does not exist or may not be described. The topic is looked up again, and
records for it are parked."""

ABORTABLE: Final = (
    REFUSALS.keys()
    | LOST_TARGETS
    | {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,  # follows a batch that the broker refused
    }
)
"""Errors of records and targets after which the transaction is aborted; after any other error the
writer is given up."""

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
"""Errors of records that were dropped because their transaction was aborted on purpose."""


def error_of(exc: KafkaException) -> KafkaError:
    """Return the ``KafkaError`` in an exception of the client."""
    error = exc.args[0]
    if not isinstance(error, KafkaError):  # pragma: no cover - the client always carries one
        raise TypeError(f"a Kafka exception without a Kafka error: {exc!r}") from exc
    return error


def answer_of(future: Future[Answer], timeout_s: float) -> Answer:
    """Wait up to ``timeout_s`` seconds for the answer to an admin request, and return it.

    Raises:
        KafkaException: the cluster refused the request; or it did not answer in time, and the
            request may still be under way.
    """
    try:
        return future.result(timeout_s)
    except TimeoutError as exc:
        error = KafkaError(KafkaError._TIMED_OUT, f"no answer in {timeout_s:.0f} s")  # noqa: SLF001
        raise KafkaException(error) from exc
