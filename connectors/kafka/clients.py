"""How clients of librdkafka are made, so that all of them log the same way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

UNREACHABLE: Final = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE}  # noqa: SLF001
)
"""Errors of a connection that waiting won't mend: a password, a certificate, a name."""

NO_GROUP: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The client asks for the coordinator of a group that nobody ever joins, and says so when it may
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
"""What a consumer says that is neither a record nor a failure."""


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
