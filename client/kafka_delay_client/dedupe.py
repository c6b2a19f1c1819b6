"""Do the work of a record once, although the record may come twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from confluent_kafka import Message

from delayservice.base.errors import InvalidRequestError
from kafka_delay_client.received import source_of


class SeenStore(Protocol):
    """Remembers identities. A store that outlives the process, such as a table, is the user's own.

    Each method may raise whatever the store raises; it goes to the caller.
    """

    def has(self, source: str) -> bool:
        """Return whether ``source`` was added, as far as is remembered."""

    def add(self, source: str) -> None:
        """Remember ``source``; adding it again changes nothing."""


class LruSeen:
    """A ``SeenStore`` in memory: the identities used last. Thread-safe.

    Args:
        capacity: how many; about 170 bytes each.

    Raises:
        InvalidRequestError: a capacity below 1.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise InvalidRequestError(f"capacity is {capacity}: remember 1 identity or more")
        self._capacity = capacity
        self._sources: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, source: str) -> bool:
        """Return whether ``source`` is remembered; if so, it is among the newest again."""
        with self._lock:
            if source not in self._sources:
                return False
            self._sources.move_to_end(source)
            return True

    def add(self, source: str) -> None:
        """Remember ``source``, and forget the oldest where there are too many."""
        with self._lock:
            self._sources[source] = None
            self._sources.move_to_end(source)
            if len(self._sources) > self._capacity:
                self._sources.popitem(last=False)


class Deduplicator:
    """Record of which work is done, by the ``source_of`` of records.

    Ask ``is_done`` before the work and call ``done`` after it. A crash between the work and
    ``done`` leaves the work to be done again, unless the store takes part in the transaction of the
    work itself; ``docs/client.md`` says what that means.

    Args:
        store: what remembers; None: the last 100,000 identities, in memory.
    """

    def __init__(self, store: SeenStore | None = None) -> None:
        self._store = LruSeen() if store is None else store

    def is_done(self, message: Message) -> bool:
        """Return whether ``done`` was called for this record, or for another copy of it."""
        return self._store.has(source_of(message))

    def done(self, message: Message) -> None:
        """The record's work is done: its copies are not to be worked on."""
        self._store.add(source_of(message))
