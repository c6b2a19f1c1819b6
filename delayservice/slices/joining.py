"""Shards of owned slices that wait for the end of their log: they were added, or the log may have
lost an offset that they wait for. The ends are asked for together, on a helper thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import Bounds, Place
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.edges import Edges
from delayservice.slices.phase import OWNED
from delayservice.slices.slice import Slice

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Query:
    """A question for the ends of logs. ``stored`` and ``awaited``: of each shard when it began."""

    future: Future[Mapping[Place, Bounds]]
    lanes: list[AnyLane]
    stored: Mapping[Place, int]
    awaited: Mapping[Place, int]

    def is_too_short(self, bounds: Bounds, lane: AnyLane) -> bool:
        """Return whether a log ends below an offset that its shard has waited for since before the
        question: the log did hold that offset.
        """
        return bounds.end < min(lane.awaited_end, self.awaited[lane.place])


class Joining:
    """Single-threaded, as the loop that owns it.

    Args:
        slices: those of the loop, by number.
        edges: threads, clock, succession.
        join: takes a shard, the bounds of its log, and its S when they were asked for: it is to be
            owned as well, or to begin anew.
    """

    def __init__(
        self,
        slices: Mapping[int, Slice],
        edges: Edges,
        join: Callable[[Slice, AnyLane, Bounds, int], None],
    ) -> None:
        self._slices = slices
        self._background = edges.background
        self._succession = edges.succession
        self._clock = edges.clock
        self._rest_s = edges.limits.rest_s
        self._join = join
        self._queries: list[_Query] = []
        self._waiting: dict[AnyLane, None] = {}
        """Shards whose ends are asked for after a rest."""
        self._ask_after_s = -math.inf

    @property
    def is_asking(self) -> bool:
        """Return whether an answer is awaited."""
        return bool(self._queries)

    def clear(self) -> None:
        """Forget all: the writer was lost."""
        self._queries.clear()
        self._waiting.clear()

    def await_end(self, lane: AnyLane) -> None:
        """Ask for the end of a shard's log if the shard waits for an offset: the log may have lost
        it, and the client reports nothing where the log has grown again to the position.
        """
        if lane.awaited_end:
            if not self._waiting:
                self._ask_after_s = self._clock.monotonic_s() + self._rest_s
            self._waiting[lane] = None

    def ask(self, lanes: list[AnyLane]) -> None:
        """Ask for the ends of these shards' logs."""
        stored = stored_of(lanes)
        future = self._background.submit(lambda: self._succession.bounds(stored.keys()))
        awaited = {lane.place: lane.awaited_end for lane in lanes}
        self._queries.append(_Query(future, lanes, stored, awaited))

    def hear(self, *, may_join: bool) -> None:
        """Take the answers, and ask again for shards that still wait. ``may_join``: no commit is on
        its way, so that the first checkpoint of a shard is beyond doubt.
        """
        if may_join:
            for query in [one for one in self._queries if one.future.done()]:
                if query in self._queries:  # else the writer was lost with the one before
                    self._queries.remove(query)
                    self._hear(query)
        if self._waiting and self._clock.monotonic_s() >= self._ask_after_s:
            waiting, self._waiting = self._waiting, {}
            asked = [one for one in waiting if one.awaited_end or not one.shard.owned]
            if asked:
                self.ask(asked)

    def _hear(self, query: _Query) -> None:
        try:
            bounds = query.future.result()
        except KafkaEdgeError as exc:
            _log.warning("log_ends_not_known", why=str(exc))
            bounds = {}
        for lane in query.lanes:
            slice_ = self._slices.get(lane.partition)
            if slice_ is None or slice_.lanes.get(lane.topic) is not lane:
                continue
            if slice_.phase not in OWNED:
                continue
            found = bounds.get(lane.place)
            if found is None:
                self._waiting[lane] = None
            elif not lane.shard.owned or query.is_too_short(found, lane):
                self._join(slice_, lane, found, query.stored[lane.place])
            else:
                self.await_end(lane)
        self._ask_after_s = self._clock.monotonic_s() + self._rest_s


def stored_of(lanes: Iterable[AnyLane]) -> dict[Place, int]:
    """Return S of each shard."""
    return {lane.place: lane.shard.stored for lane in lanes}
