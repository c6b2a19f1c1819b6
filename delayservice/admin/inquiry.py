"""Queries to all workers of the node at once, with merged answers.

A query that many make at the same time, as the pages of several people do, runs once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from delayservice.base.errors import DelayServiceError
from delayservice.inspection.asking import WorkerClient
from delayservice.inspection.query import (
    Ahead,
    BacklogCounts,
    Fate,
    Find,
    HeldTopics,
    Locate,
    Page,
    Pending,
    Question,
    Search,
    Standings,
    merged,
)
from ha.members import Members, joined

TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 1.0

T = TypeVar("T")


class Inquiry(Protocol):
    """The queries of the API to a node."""

    def search(self, asked: Search) -> Page:
        """Return a page of pending records by due time."""

    def find(self, record_id: bytes) -> list[Pending]:
        """Return the pending records of an id, one in each shard at most."""

    def locate(self, asked: Locate) -> Fate | None:
        """Return the fate of a source record; None: this node keeps no copy of its shard."""

    def horizon(self) -> BacklogCounts:
        """Return the number of records by due time."""

    def members(self) -> Members:
        """Return the state of the cluster."""

    def held(self) -> list[list[bytes]]:
        """Return the pauses that each worker has read."""


class _Kept:
    """Cache of an answer or its error for one second; all waiting threads get the same."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._answer: Any = None
        self._failure: DelayServiceError | None = None

    def get(self) -> Any:  # noqa: ANN401  # whatever is asked for
        with self._lock:
            if time.monotonic() - self._asked_s > _FRESH_S:
                self._ask_again()
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return self._answer

    def _ask_again(self) -> None:
        try:
            self._answer, self._failure = self._ask(), None
        except DelayServiceError as exc:
            self._answer, self._failure = None, exc
        self._asked_s = time.monotonic()


class Workers:
    """Queries to the workers of this node. Any thread may call.

    Args:
        askers: returns the channels to the current workers.
    """

    def __init__(self, askers: Callable[[], Sequence[WorkerClient]]) -> None:
        self._askers = askers
        self._horizon = _Kept(self._ask_horizon)
        self._members = _Kept(self._ask_members)

    def search(self, asked: Search) -> Page:
        """Return a page of pending records by due time, merged from all workers."""
        return merged(self._all(asked, Page), asked.limit)

    def find(self, record_id: bytes) -> list[Pending]:
        """Return the pending records of an id, from all workers."""
        answers = self._all(Find(record_id=record_id), list[Pending])
        return [row for rows in answers for row in rows]

    def locate(self, asked: Locate) -> Fate | None:
        """Return the fate of a source record; None: this node keeps no copy of its shard."""
        answers: list[Fate | None] = self._all(asked, Fate | None)  # type: ignore[arg-type]
        return next((fate for fate in answers if fate is not None), None)

    def horizon(self) -> BacklogCounts:
        """Return the number of records by due time, at most a second old."""
        kept: BacklogCounts = self._horizon.get()
        return kept

    def members(self) -> Members:
        """Return the state of the cluster, at most a second old."""
        kept: Members = self._members.get()
        return kept

    def held(self) -> list[list[bytes]]:
        """Return the pauses that each worker has read."""
        return self._all(HeldTopics(), list[bytes])

    def _ask_horizon(self) -> BacklogCounts:
        horizon = BacklogCounts()
        for part in self._all(Ahead(now_ms=time.time_ns() // 1_000_000), BacklogCounts):
            horizon.add(part)
        return horizon

    def _ask_members(self) -> Members:
        """Return the merged members: without ZooKeeper, each worker knows only its own slices."""
        return joined(self._all(Standings(), Members))

    def _all(self, question: Question, kind: type[T]) -> list[T]:
        """Return the answers of all workers.

        Raises:
            NotAnsweredError: a worker gives no answer, so that the result would be incomplete.
        """
        askers = self._askers()
        if not askers:
            raise DelayServiceError("no worker runs yet; try again in a moment")
        asked = [asker.ask(question, TIMEOUT_S) for asker in askers]
        return [one.answer(kind) for one in asked]
