"""Questions about the logs of single shards, which helper threads ask: where a log ends, and what
became of one that has moved.

The Kafka client does not report a truncation once the log has grown to its position again. So while
an owner waits for an offset, the end of its log is queried too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import structlog

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import Bounds, Source
from delayservice.slices.lane import Lane
from delayservice.slices.slice import OWNED, Slice
from delayservice.slices.state import LogEndQuery, LogEndsFound, LogFound, LogRead, LoopState

_log = structlog.get_logger(__name__)


def is_short(slice_: Slice, lane: Lane, bounds: Bounds, stored: int) -> bool:
    """Return whether a log ends below H of the last checkpoint, or S when its end was queried."""
    return bounds.end < _known_end(slice_, lane, stored)


def _known_end(slice_: Slice, lane: Lane, stored: int) -> int:
    return max(stored, slice_.passed_of(lane))


# --- ends --------------------------------------------------------------------------------------


def await_end(state: LoopState, lane: Lane) -> None:
    """Query the end of a lane's log after a pause, if the lane awaits an offset."""
    if lane.awaited_end:
        ask_later(state, lane)


def ask_later(state: LoopState, lane: Lane) -> None:
    """Query the end of a lane's log after a pause."""
    log_ends = state.log_ends
    if not log_ends.waiting:
        log_ends.ask_after_s = state.clock.monotonic_s() + state.edges.limits.rest_s
    log_ends.waiting[lane] = None


def ask(state: LoopState, lanes: list[Lane], short: Iterable[Lane] = ()) -> None:
    """Query these logs now; those of ``short`` were too short by a first answer."""
    log_ends = state.log_ends
    log_ends.short.update(short)
    stored = {lane.place: lane.shard.stored for lane in lanes}
    topic_ids = {lane.place: lane.topic_id for lane in lanes}
    query = LogEndQuery(lanes, stored, {lane.place: lane.awaited_end for lane in lanes})
    log_ends.asked.add(query)
    state.run(
        state.edges.background,
        partial(state.edges.take_over_client.bounds, topic_ids),
        partial(LogEndsFound, query),
    )


def ask_again(state: LoopState) -> None:
    log_ends = state.log_ends
    if log_ends.waiting and state.clock.monotonic_s() >= log_ends.ask_after_s:
        waiting, log_ends.waiting = log_ends.waiting, {}
        asked = [lane for lane in waiting if lane.awaited_end or not lane.shard.owned]
        if asked:
            ask(state, asked)


def judged(state: LoopState, found: LogEndsFound) -> Iterator[tuple[Slice, Lane, Bounds, int]]:
    """Yield the lanes of owned slices whose log ends are known, with S when they were queried:
    added ones, to be taken over, and owned ones, whose log was truncated. Others are asked again.
    """
    query, log_ends = found.query, state.log_ends
    try:
        bounds = found.bounds.result()
    except KafkaEdgeError as exc:
        _log.warning("log_ends_not_known", why=str(exc))
        bounds = {}
    for lane in query.lanes:
        was_short = lane in log_ends.short
        log_ends.short.discard(lane)
        slice_ = state.slices.get(lane.partition)
        if slice_ is None or slice_.lanes.get(lane.topic) is not lane:
            continue
        if slice_.phase not in OWNED:
            continue
        its, stored = bounds.get(lane.place), query.stored[lane.place]
        if its is None:
            ask_later(state, lane)
        elif _is_too_short(query, slice_, lane, its) and not was_short:
            log_ends.short.add(lane)
            ask_later(state, lane)
        elif not lane.shard.owned or _is_too_short(query, slice_, lane, its):
            yield slice_, lane, its, stored
        else:
            await_end(state, lane)


# The log was truncated: below what was read of it before a take-over, or, on its owner, below what
# it awaits now and awaited when the query was sent.
def _is_too_short(query: LogEndQuery, slice_: Slice, lane: Lane, bounds: Bounds) -> bool:
    if not lane.shard.owned:
        return is_short(slice_, lane, bounds, query.stored[lane.place])
    return bounds.end < min(lane.awaited_end, query.awaited[lane.place])


# --- logs that are read again ------------------------------------------------------------------


def read_again(state: LoopState, lane: Lane) -> None:
    """Begin to read what a lane wants of its log, unless that was begun."""
    wanted = lane.log_wanted
    if wanted is None or state.log_reads.get(lane) is wanted:
        return
    state.log_reads[lane] = wanted
    state.run(state.edges.reading, partial(lane.log.read, wanted), partial(LogRead, lane, wanted))


# --- logs that have moved ------------------------------------------------------------------------


def look_at_log(
    state: LoopState, slice_: Slice, lane: Lane, why: str, *, is_truncated: bool | None
) -> None:
    """Ask what became of a log that no longer holds what is to be read next. ``is_truncated`` None:
    the client has lost its position, which retention may have deleted.
    """
    if lane in state.log_ends.moved:
        return
    _log.warning("log_moved", topic=lane.topic, partition=lane.partition, why=why)
    state.log_ends.moved.add(lane)
    known_end = _known_end(slice_, lane, lane.shard.stored)
    state.run(
        state.edges.background,
        partial(_log_now, state.edges.source, lane, known_end),
        partial(LogFound, lane, is_truncated, lane.tenure),
    )


def _log_now(source: Source, lane: Lane, known_end: int) -> tuple[str | None, Bounds]:
    bounds = source.bounds(lane.place)
    if bounds.end < known_end:  # asked twice before it is called lost
        bounds = source.bounds(lane.place)
    # After the bounds: an id that was replaced never comes back.
    return source.topic_id(lane.topic), bounds
