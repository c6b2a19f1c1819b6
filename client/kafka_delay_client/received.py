"""Facts that a consumer reads from a record: its source, and the producer's own headers."""

from __future__ import annotations

from typing import Final, TypeAlias, cast

from confluent_kafka import Message

from delayservice.contract import names
from delayservice.contract.aliases import STRIPPED

RETRY_SOURCE: Final = "retry-source"
"""Header that the retry ladder adds: ``source_of`` the record that failed first."""

Received: TypeAlias = list[tuple[str, bytes | None]]


def all_headers(message: Message) -> Received:
    """The headers as a consumer gets them: in order, none left out."""
    return cast("Received", message.headers() or [])


def last_header(headers: Received, name: str) -> bytes | None:
    """The last header of a name, which is the one that counts; None when it is null or missing."""
    return next((value for known, value in reversed(headers) if known == name), None)


def own_headers(message: Message) -> Received:
    """A record's headers without those that the delay service has added or would read."""
    return [header for header in all_headers(message) if header[0] not in STRIPPED]


def source_of(message: Message) -> str:
    """The identity of a record that stays the same over deliveries and retries.

    ``delay-source`` of the record as it was first delivered, also after ``RetryLadder`` sent it
    round; ``topic:partition:offset`` of a record that never went through the service.
    """
    headers = all_headers(message)
    source = last_header(headers, RETRY_SOURCE) or last_header(headers, names.DELAY_SOURCE)
    if source is not None:
        return source.decode("utf-8", "replace")
    return f"{message.topic()}:{message.partition()}:{message.offset()}"
