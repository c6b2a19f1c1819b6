"""Counts of the pending records in the lanes of a slice, for metrics. A lane is counted again only
if records were stored or settled since its last count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from delayservice.engine.census import MINUTE_MS, TopicCounts, Waiting, largest, with_others
from delayservice.engine.cursor import CountRange
from delayservice.inspection.looking import lumps_of, next_due_ms
from delayservice.inspection.query import HORIZONS_MS, count_within, together
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
    lumps: Sequence[CountRange] = ()
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
    census = lane.store.census
    lumps = [lump for lump in together(lumps_of(lane, now_ms), now_ms) if lump[2]]
    due_ms = next_due_ms(lane, lumps)
    if due_ms is None:
        return LaneCounts(seen)
    if census is None:
        return LaneCounts(seen, lane.store.stats().pending, lumps, due_ms)
    first_ms = lane.next_due_ms() or due_ms
    minute_ms = first_ms // MINUTE_MS * MINUTE_MS
    left = count_within(lumps, minute_ms, minute_ms + MINUTE_MS)
    waiting = census.by_target(first_ms, left)
    named = [one for one in largest(waiting, TARGETS_MAX) if not lane.is_denied(one)]
    targets = with_others(waiting, named)
    pending = max(sum(count for _, _, count in lumps), 0)
    return LaneCounts(seen, pending, lumps, due_ms, targets)


def topic_counts(counts: LaneCounts, now_ms: int) -> TopicCounts:
    """Return the counts of a lane that metrics show: all pending records, those due within each of
    ``HORIZONS_MS`` from ``now_ms``, and those of each target.
    """
    within = counts_within(counts.lumps, [now_ms + horizon_ms for horizon_ms in HORIZONS_MS])
    return TopicCounts(counts.pending, within if counts.lumps else [], counts.targets)


def counts_within(lumps: Iterable[CountRange], stops_ms: Sequence[int]) -> list[int]:
    """Return for each of ``stops_ms``, ascending times in epoch milliseconds, the estimated number
    of records due before it, if the records of each range in ``lumps`` are spread evenly.
    """
    counts = [0] * (len(stops_ms) + 1)  # each adds to all that follow
    parts: list[list[float]] = [[] for _ in stops_ms]
    for start_ms, stop_ms, count in lumps:
        whole = bisect_left(stops_ms, stop_ms)
        counts[whole] += count
        for at in range(bisect_right(stops_ms, start_ms), whole):
            parts[at].append(count * (stops_ms[at] - start_ms) / (stop_ms - start_ms))
    found, total = [], 0
    for at, part in enumerate(parts):
        total += counts[at]
        found.append(max(round(fsum((total, *part))), 0))
    return found
