"""Makes clients of librdkafka, all of which log the same way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

UNREACHABLE: Final = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}  # noqa: SLF001
)
"""Errors of a connection that waiting won't mend: a password, a certificate, a name."""

NO_GROUP: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The client asks for the coordinator of a group that is never joined, and says so when it may
not. That is no reason to read nothing."""

LOGGER: Final = logging.getLogger("librdkafka")
"""Without it librdkafka writes to standard error by itself."""


class KafkaAdmin(AdminClient):
    """An admin client that remembers why it can't connect: a request that fails says only that."""

    def __init__(self, options: Mapping[str, str], logger: logging.Logger = LOGGER) -> None:
        self._trouble = ""
        config: dict[str, Any] = {**options, "error_cb": self._note}
        super().__init__(config, logger=logger)

    def _note(self, error: KafkaError) -> None:
        if error.code() in UNREACHABLE:
            self._trouble = error.str()

    def explain(self, exc: KafkaException) -> str:
        """The error of a request, and the last reason why no connection was made, if any."""
        self.poll(0)
        return f"{exc}; {self._trouble}" if self._trouble else str(exc)


def admin_client(options: Mapping[str, str]) -> KafkaAdmin:
    """An admin client."""
    return KafkaAdmin(options)


def consumer_client(options: Mapping[str, Any]) -> Consumer:
    """A consumer, not assigned to anything."""
    return Consumer(dict(options), logger=LOGGER)


NO_RECORDS: Final = frozenset({KafkaError._PARTITION_EOF, NO_GROUP})  # noqa: SLF001 (its public name)
"""Codes of a consumer's messages that are neither a record nor a failure."""


def values_of(messages: Iterable[Any]) -> Iterator[bytes]:
    """The values of what a consumer gave; what only says where the log ends is left out.

    Raises:
        KafkaException: something can't be read.
    """
    for message in messages:
        error = message.error()
        if error is None:
            yield message.value() or b""
        elif error.code() not in NO_RECORDS:
            raise KafkaException(error)


def producer_client(options: Mapping[str, Any]) -> Producer:
    """A producer; a transactional one is not initialised yet."""
    return Producer(dict(options), logger=LOGGER)


@dataclass(frozen=True, slots=True)
class Clients:
    """Factories of a worker's clients, and the clock that it waits by.

    Attributes:
        producer: makes a producer of its options.
        consumer: makes a consumer of its options.
        monotonic_s: the clock of all waits, seconds.
        changed: makes the condition by which one thread waits for what another reads.
    """

    producer: Callable[[Mapping[str, Any]], Producer] = producer_client
    consumer: Callable[[Mapping[str, Any]], Consumer] = consumer_client
    monotonic_s: Callable[[], float] = time.monotonic
    changed: Callable[[], threading.Condition] = threading.Condition


KAFKA: Final = Clients()
"""The clients of librdkafka, and this machine's clock."""


def produce_patiently(producer: Producer, *args: object, **options: object) -> None:
    """Queue a record; while the client's queue is full, let it drain."""
    queue: Callable[..., None] = producer.produce  # its stubs know no null header
    while True:
        try:
            queue(*args, **options)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def flush(producer: Producer, timeout_s: float) -> int:
    """Wait until everything is sent or the time is over; how many records are left.

    The client raises its fatal error while reports of what failed with it are still to come, and
    Python takes the first of those for a mistake of the client's: ``SystemError``.

    Raises:
        KafkaException: the producer is fenced, or otherwise of no use any more.
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
