"""Functions by which a consumer reads a record's identity and its producer's headers."""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from confluent_kafka import Message

from delayservice.contract import names
from delayservice.contract.aliases import STRIPPED

RETRY_SOURCE: Final = "retry-source"
"""Name of the header in which ``RetryLadder`` keeps the identity (``source_of``) of a record."""

Received: TypeAlias = list[tuple[str, bytes | None]]


def all_headers(message: Message) -> Received:
    """Return all headers of a record, in order; an empty list if it has none."""
    return cast("Received", message.headers() or [])


def last_header(headers: Received, name: str) -> bytes | None:
    """Return the value of the last header named ``name``; None: its value is null, or no header has
    that name.
    """
    return next((value for known, value in reversed(headers) if known == name), None)


def own_headers(message: Message) -> Received:
    """Return a record's headers without those that the delay service adds or reads, in order."""
    return [header for header in all_headers(message) if header[0] not in STRIPPED]


def source_of(message: Message) -> str:
    """Return the identity of a record, which stays the same over deliveries and retries.

    The identity is the header ``delay-source`` of the first delivery, which ``RetryLadder`` keeps.
    For a record that the service did not deliver, it is ``topic:partition:offset``.
    """
    headers = all_headers(message)
    source = last_header(headers, RETRY_SOURCE) or last_header(headers, names.DELAY_SOURCE)
    if source is not None:
        return source.decode("utf-8", "replace")
    return f"{message.topic()}:{message.partition()}:{message.offset()}"
