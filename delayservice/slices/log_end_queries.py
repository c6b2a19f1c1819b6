from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import Bounds, Place
from delayservice.slices.edges import Edges
from delayservice.slices.lane import Lane
from delayservice.slices.slice import OWNED, Slice

_log = structlog.get_logger(__name__)


# ``stored`` and ``awaited``: S and awaited end of each shard when the query was sent.
@dataclass(slots=True)
class _Query:
    future: Future[Mapping[Place, Bounds]]
    lanes: list[Lane]
    stored: Mapping[Place, int]
    awaited: Mapping[Place, int]

    def is_too_short(self, slice_: Slice, bounds: Bounds, lane: Lane) -> bool:
        """Return whether the log was truncated: below what was read of it before a take-over,
        or, on its owner, below what it awaits now and awaited when the query was sent.
        """
        if not lane.shard.owned:
            return is_short(slice_, lane, bounds, self.stored[lane.place])
        return bounds.end < min(lane.awaited_end, self.awaited[lane.place])


def is_short(slice_: Slice, lane: Lane, bounds: Bounds, stored: int) -> bool:
    """Return whether a log ends below H of the last checkpoint, or S when its end was queried."""
    return bounds.end < max(stored, slice_.passed_of(lane))


class LogEndQueries:
    """Queries for the log ends of shards in owned slices, sent together on a helper thread: of
    added shards, and of those that wait for an offset which the log may have lost.

    ``join`` takes a shard over, or fits an owned one, with its S when the query was sent.
    """

    def __init__(
        self,
        slices: Mapping[int, Slice],
        edges: Edges,
        join: Callable[[Slice, Lane, Bounds, int], None],
    ) -> None:
        self._slices = slices
        self._background = edges.background
        self._succession = edges.succession
        self._clock = edges.clock
        self._rest_s = edges.limits.rest_s
        self._join = join
        self._queries: list[_Query] = []
        # Lanes whose log ends are queried after a pause; the values have no meaning.
        self._waiting: dict[Lane, None] = {}
        # Lanes whose log was too short by the last answer; a second answer has to confirm it before
        # records are called lost.
        self._short: set[Lane] = set()
        self._ask_after_s = -math.inf

    @property
    def is_asking(self) -> bool:
        return bool(self._queries)

    def clear(self) -> None:
        """Drop all queries, because the writer was lost."""
        self._queries.clear()
        self._waiting.clear()
        self._short.clear()

    def await_end(self, lane: Lane) -> None:
        """Query the end of a lane's log after a pause, if the lane awaits an offset. The Kafka
        client does not report a truncation once the log has grown to its position again.
        """
        if lane.awaited_end:
            if not self._waiting:
                self._ask_after_s = self._clock.monotonic_s() + self._rest_s
            self._waiting[lane] = None

    def ask(self, lanes: list[Lane], short: Iterable[Lane] = ()) -> None:
        """Query these logs now; those of ``short`` were too short by a first answer."""
        self._short.update(short)
        stored = stored_of(lanes)
        future = self._background.submit(lambda: self._succession.bounds(stored.keys()))
        awaited = {lane.place: lane.awaited_end for lane in lanes}
        self._queries.append(_Query(future, lanes, stored, awaited))

    def hear(self, *, may_join: bool) -> None:
        """Take over shards whose log ends are known. Not ``may_join``: during a commit it would
        be uncertain which commit carries a first checkpoint.
        """
        if may_join:
            for query in [one for one in self._queries if one.future.done()]:
                if query in self._queries:  # else the one before has found the writer lost
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
            was_short = lane in self._short
            self._short.discard(lane)
            slice_ = self._slices.get(lane.partition)
            if slice_ is None or slice_.lanes.get(lane.topic) is not lane:
                continue
            if slice_.phase not in OWNED:
                continue
            found, stored = bounds.get(lane.place), query.stored[lane.place]
            if found is None:
                self._waiting[lane] = None
            elif query.is_too_short(slice_, found, lane) and not was_short:
                self._short.add(lane)
                self._waiting[lane] = None
            elif not lane.shard.owned or query.is_too_short(slice_, found, lane):
                self._join(slice_, lane, found, stored)
            else:
                self.await_end(lane)
        self._ask_after_s = self._clock.monotonic_s() + self._rest_s


def stored_of(lanes: Iterable[Lane]) -> dict[Place, int]:
    return {lane.place: lane.shard.stored for lane in lanes}
