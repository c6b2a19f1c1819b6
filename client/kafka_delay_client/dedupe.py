"""Deduplication for consumers: a record is processed once, even if it arrives twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from confluent_kafka import Message

from delayservice.base.errors import InvalidRequestError
from kafka_delay_client.received import source_of


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
    """``SeenStore`` in memory, which keeps the most recently used identities. Thread-safe.

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
        """Return whether ``source`` is stored, and make it the most recently used identity."""
        with self._lock:
            if source not in self._sources:
                return False
            self._sources.move_to_end(source)
            return True

    def add(self, source: str) -> None:
        """Store the identity ``source``; if there are more than ``capacity``, drop the least
        recently used one.
        """
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
