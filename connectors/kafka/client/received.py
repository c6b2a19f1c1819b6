"""What a consumer reads of a delivered record: its producer's headers, and its identity, by which
the record is processed once, even if it arrives twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol, TypeAlias, cast

from confluent_kafka import Message

from delayservice.base.errors import InvalidRequestError
from delayservice.contract import input_headers, names

RETRY_SOURCE: Final = "retry-source"
"""Name of the header in which ``RetryLadder`` keeps the identity (``source_of``) of a record."""

RETRY_ERROR: Final = "retry-error"
"""Name of the header in which ``RetryLadder`` tells why a record failed."""

Received: TypeAlias = list[tuple[str, bytes | None]]


def all_headers(message: Message) -> Received:
    return cast("Received", message.headers() or [])


def last_header(headers: Received, name: str) -> bytes | None:
    """Return the value of the last header named ``name``; None: its value is null, or no header has
    that name.
    """
    return next((value for known, value in reversed(headers) if known == name), None)


def own_headers(message: Message) -> Received:
    """Return a record's headers without those that the delay service or ``RetryLadder`` adds or
    reads, in order: a record that is made of them has an identity of its own.
    """
    own = input_headers.own_headers(all_headers(message))
    return [header for header in own if header[0] not in (RETRY_SOURCE, RETRY_ERROR)]


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


class SeenStore(Protocol):
    """Interface of a store for the identities (``source_of``) of processed records. Users may
    implement a persistent store, such as a table of a database.

    ``Deduplicator`` passes exceptions of a store on to its caller.
    """

    def has(self, source: str) -> bool:
        """Return whether the identity ``source`` was added, and was not dropped since."""

    def add(self, source: str) -> None:
        """Store the identity ``source``; adding it again changes nothing."""


class LruSeen:
    """``SeenStore`` in memory, which keeps the most recently used identities: ``has`` and ``add``
    use one. Thread-safe.

    Args:
        capacity: the largest number of identities; each takes about 170 bytes.

    Raises:
        InvalidRequestError: ``capacity`` is below 1.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise InvalidRequestError(f"capacity is {capacity}: remember 1 identity or more")
        self._capacity = capacity
        self._sources: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, source: str) -> bool:
        with self._lock:
            if source not in self._sources:
                return False
            self._sources.move_to_end(source)
            return True

    def add(self, source: str) -> None:
        with self._lock:
            self._sources[source] = None
            self._sources.move_to_end(source)
            if len(self._sources) > self._capacity:
                self._sources.popitem(last=False)


class Deduplicator:
    """Register of the records that a consumer has processed, by identity (``source_of``).

    Call ``is_done`` before a record is processed, and ``done`` afterwards. After a crash between
    the two, the record is processed again, unless the store takes part in the same
    transaction as the processing (``docs/client.md``).

    Args:
        store: store of identities; None: the last 100,000 identities, in memory.
    """

    def __init__(self, store: SeenStore | None = None) -> None:
        self._store = LruSeen() if store is None else store

    def is_done(self, message: Message) -> bool:
        """Return whether ``done`` was called for this record or a duplicate of it."""
        return self._store.has(source_of(message))

    def done(self, message: Message) -> None:
        """Store that this record was processed: ``is_done`` is then True for its duplicates."""
        self._store.add(source_of(message))
