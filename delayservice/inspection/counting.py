"""Counts of the pending records in the lanes of a slice, for metrics. A lane is counted again only
if records were stored or settled since its last count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from delayservice.engine.census import TopicCounts, Waiting, largest, with_others
from delayservice.engine.cursor import CountRange
from delayservice.inspection.looking import next_due_ms, ranges_of
from delayservice.inspection.query import HORIZONS_MS, counts_before, total_of
from delayservice.slices.lane import Lane

# Largest number of target topics counted one by one, for each delay topic of a slice.
TARGETS_MAX = 20


@dataclass(slots=True)
class LaneCounts:
    """Counts of a lane's pending records at one time."""

    # State of the lane at the count (cursor, S, census), to notice later changes; None: not counted
    # yet, or a level topic.
    seen: object = None
    pending: int = 0
    # ``(start_ms, stop_ms, count)`` by ranges of due times, epoch milliseconds; empty for level
    # topics.
    ranges: Sequence[CountRange] = ()
    # Due time of the first pending record, epoch milliseconds; None: no record is pending.
    next_due_ms: int | None = None
    # Counts by target topic, for the largest targets; empty while they are unknown.
    targets: dict[str, Waiting] = field(default_factory=dict)


def count_lane(lane: Lane, now_ms: int, before: LaneCounts, *, is_time: bool = True) -> LaneCounts:
    """Return the counts of a lane's pending records at ``now_ms``, epoch milliseconds; ``before``,
    the result of the last call, if nothing has changed. Unless ``is_time``, the counts of
    ``before`` are kept, and only the first due time is updated.
    """
    if lane.window is not None:
        due_ms = lane.next_due_ms()
        pending = 0 if due_ms is None else lane.stats().pending
        return LaneCounts(pending=pending, next_due_ms=due_ms)
    seen = lane.shard.committed, lane.shard.stored, lane.store.census
    if seen == before.seen:
        return before
    if not is_time and before.seen is not None:
        first_ms, was_ms = lane.next_due_ms(), before.next_due_ms
        if first_ms is None:
            return LaneCounts(seen)
        return replace(before, next_due_ms=first_ms if was_ms is None else max(first_ms, was_ms))
    return _count(lane, now_ms, seen)


def _count(lane: Lane, now_ms: int, seen: object) -> LaneCounts:
    census, ranges = lane.store.census, ranges_of(lane, now_ms)
    if census is None or ranges is None:
        first_ms = lane.next_due_ms()
        return LaneCounts(seen, lane.store.stats().pending if first_ms else 0, (), first_ms)
    pending = total_of(ranges)
    waiting = census.by_target(pending)
    named = [one for one in largest(waiting, TARGETS_MAX) if lane.settler.denial(one) is None]
    targets = with_others(waiting, named)
    return LaneCounts(seen, pending, ranges, next_due_ms(lane, ranges), targets)


def topic_counts(counts: LaneCounts, now_ms: int) -> TopicCounts:
    """Return the counts of a lane that metrics show: all pending records, those due within each of
    ``HORIZONS_MS`` from ``now_ms``, and those of each target.
    """
    within = counts_before(counts.ranges, [now_ms + horizon_ms for horizon_ms in HORIZONS_MS])
    return TopicCounts(counts.pending, within if counts.ranges else [], counts.targets)
