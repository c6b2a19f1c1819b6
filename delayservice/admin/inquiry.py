"""Queries to all workers of the node, whose answers are merged.

Queries that open web pages repeat are sent at most once a second, and the answers are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from delayservice.base.errors import DelayServiceError
from delayservice.inspection.asking import WorkerClient
from delayservice.inspection.query import (
    Ahead,
    BacklogCounts,
    Find,
    HeldTopics,
    Locate,
    Page,
    Pending,
    Question,
    RecordStatus,
    Search,
    Standings,
    merged,
)
from ha.members import Members, joined

TIMEOUT_S: Final = 10.0
_ELSEWHERE: Final = "this node keeps no copy of its shard"

T = TypeVar("T")


class Kept(Generic[T]):
    """Cache of the result of ``ask``, or of the ``DelayServiceError`` that it raised, for
    ``fresh_s`` seconds. Thread-safe. With ``takes_old``, ``get`` returns the previous answer while
    another thread asks.
    """

    def __init__(
        self, ask: Callable[[], T], fresh_s: float = 1.0, *, takes_old: bool = False
    ) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._takes_old = takes_old
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._answer: Future[T] = Future()

    def get(self) -> T:
        answer = self._answer
        if not self._lock.acquire(blocking=not (self._takes_old and answer.done())):
            return answer.result()
        try:
            if time.monotonic() - self._asked_s > self._fresh_s:
                answer = Future()
                try:
                    answer.set_result(self._ask())
                except DelayServiceError as exc:
                    answer.set_exception(exc)
                self._answer, self._asked_s = answer, time.monotonic()
            return self._answer.result()
        finally:
            self._lock.release()


class Workers:
    """Queries to the workers of this node. Any thread may call the methods. Each raises
    ``NotAnsweredError`` if a worker does not answer, and ``DelayServiceError`` if no worker runs.
    ``askers`` returns a client for each current worker.
    """

    def __init__(self, askers: Callable[[], Sequence[WorkerClient]]) -> None:
        self._askers = askers
        self._horizon = Kept(self._ask_horizon)
        self._members = Kept(self._ask_members)

    def search(self, asked: Search) -> Page:
        """Return one page of the matching pending records of all workers, in the order of
        ``Pending.position``.
        """
        return merged(self._all(asked, Page), asked.limit)

    def find(self, record_id: bytes) -> list[Pending]:
        """Return the pending records with this ``delay-id``; each shard has one at most."""
        answers = self._all(Find(record_id=record_id), list[Pending])
        return [row for rows in answers for row in rows]

    def locate(self, asked: Locate) -> RecordStatus:
        """Return the state of a record of a delay topic."""
        answers: list[RecordStatus | None] = self._all(asked, RecordStatus | None)  # type: ignore[arg-type]
        found = (status for status in answers if status is not None)
        return next(found, RecordStatus(state="elsewhere", detail=_ELSEWHERE))

    def horizon(self) -> BacklogCounts:
        """Return the counts of the node's pending records by due time. They are at most a second
        old.
        """
        return self._horizon.get()

    def members(self) -> Members:
        """Return the nodes of the cluster, and owners and copies of the slices. They are at most a
        second old.
        """
        return self._members.get()

    def held(self) -> list[list[bytes]]:
        """Return, for each worker, the record keys (``engine.pauses.encode_key``) of the active
        pauses that it has read.
        """
        return self._all(HeldTopics(), list[bytes])

    def _ask_horizon(self) -> BacklogCounts:
        now_ms = time.time_ns() // 1_000_000
        horizon = BacklogCounts(now_ms=now_ms)
        for part in self._all(Ahead(now_ms=now_ms), BacklogCounts):
            horizon.add(part)
        return horizon

    def _ask_members(self) -> Members:
        # Without ZooKeeper, each worker knows only its own slices, so all answers are joined.
        return joined(self._all(Standings(), Members))

    def _all(self, question: Question, kind: type[T]) -> list[T]:
        # If a worker does not answer, the result would be incomplete.
        askers = self._askers()
        if not askers:
            raise DelayServiceError("no worker runs yet; try again in a moment")
        with ThreadPoolExecutor(len(askers)) as pool:
            return list(pool.map(lambda asker: asker.ask(question, kind, TIMEOUT_S), askers))
