"""Groups librdkafka's errors by what each means for a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from delayservice.contract.codes import TARGET_REFUSED, TOO_LARGE

Answer = TypeVar("Answer")


class Meaning(Enum):
    """Meaning of an error that ends a transaction, which decides what follows. The writer ends in
    any case.
    """

    REFUSED = "the topic refuses this record for good: it is dead-lettered"
    UNSUITED = "the topic takes no records as it is set up: its records are parked for a while"
    LOST = "the topic is not as it was known: it is looked up again, and its records are parked"
    PASSING = "it passes by itself: the same is tried again"
    WRITER = "the producer can't go on, and has nothing to abort: it is fenced or forgotten"


# Codes by which a producer learns that another one has its transactional id now.
FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001  # librdkafka's local codes have this spelling
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)

# Errors that Produce, AddPartitionsToTxn or EndTxn may be answered with, and those that the client
# gives records itself (``ProduceResponse``, KIP-98, KIP-890; ``rd_kafka_handle_Produce_error``).
_CODES: Final[Mapping[Meaning, Sequence[int]]] = {
    Meaning.REFUSED: (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    ),
    Meaning.UNSUITED: (
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError._BAD_COMPRESSION,  # noqa: SLF001
    ),
    Meaning.LOST: (
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ),
    Meaning.PASSING: (
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError.INVALID_MSG,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,  # follows a batch that the broker refused
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.OPERATION_NOT_ATTEMPTED,  # another partition of the request has failed
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.TRANSACTION_ABORTABLE,
    ),
    Meaning.WRITER: (
        *FENCED,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ),
}

MEANINGS: Final[Mapping[int, Meaning]] = {
    code: meaning for meaning, codes in _CODES.items() for code in codes
}

# Codes of a topic or partition that does not exist or may not be described.
LOST_TARGETS: Final = frozenset(_CODES[Meaning.LOST])

# Codes of a topic or partition that does not exist.
UNKNOWN_TARGETS: Final = LOST_TARGETS - {KafkaError.TOPIC_AUTHORIZATION_FAILED}


def meaning_of(error: KafkaError) -> Meaning:
    # An unknown error is put down to the topic, so that it does not end one writer after the other.
    return MEANINGS.get(error.code(), Meaning.UNSUITED)


def refusal_code(error: KafkaError) -> str:
    is_size = error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
    return TOO_LARGE if is_size else TARGET_REFUSED


# Errors of records that were dropped because their transaction was aborted on purpose.
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001


def error_of(exc: KafkaException) -> KafkaError:
    error = exc.args[0]
    if not isinstance(error, KafkaError):  # pragma: no cover - the client always carries one
        raise TypeError(f"a Kafka exception without a Kafka error: {exc!r}") from exc
    return error


def answer_of(future: Future[Answer], timeout_s: float) -> Answer:
    """Wait up to ``timeout_s`` seconds for the answer to an admin request, and return it. After a
    time-out, which is a ``KafkaException`` too, the request may still be under way.
    """
    try:
        return future.result(timeout_s)
    except TimeoutError as exc:
        error = KafkaError(KafkaError._TIMED_OUT, f"no answer in {timeout_s:.0f} s")  # noqa: SLF001
        raise KafkaException(error) from exc
