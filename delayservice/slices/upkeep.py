"""Commit → prune, and periodic work beside delivery: applies checkpoints that were read back,
updates digests and metrics, syncs stores. No iteration of the loop does all of it for every slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.disk import DiskLevel
from delayservice.slices import ingest, log_ends, ownership
from delayservice.slices.commit import compare_clocks
from delayservice.slices.slice import OWNED, Slice
from delayservice.slices.state import LoopState

_TENDED_PER_S: Final = 20
# Least time between two updates of an idle slice.
_ROUND_S: Final = 4.0
# Slices that catch up or are new and are updated each ``follow_s``: the sooner it is known that
# they have caught up, the sooner they can be owned.
_BEHIND_AT_ONCE: Final = 4
# Time after which a trouble that has not come again has ended. Any try takes up to a minute, and
# begins within another.
_TROUBLE_S: Final = 120.0


def tend(state: LoopState) -> None:
    _follow_checkpoints(state)
    _tend_slices(state)
    _sync_when_time(state)


# --- checkpoints -------------------------------------------------------------------------------


def _follow_checkpoints(state: LoopState) -> None:
    upkeep = state.upkeep
    news = state.edges.checkpoints.take_updated()
    if 0 in news:
        ownership.find_homes(state)
    upkeep.updated.update(news)
    now_s = state.clock.monotonic_s()
    if not upkeep.updated or now_s - upkeep.followed_s < state.edges.limits.follow_s:
        return
    upkeep.followed_s = now_s
    updated, upkeep.updated = upkeep.updated, set()
    for number in updated:
        slice_ = state.slices.get(number)
        if slice_ is not None:
            _follow(state, slice_)


def _follow(state: LoopState, slice_: Slice) -> None:
    upkeep = state.upkeep
    _turn_copies(state, slice_)  # before the stores are pruned
    try:
        read_back = slice_.follower.prune(slice_.lanes, is_owner=slice_.phase in OWNED)
    except KafkaEdgeError as exc:
        ownership.interrupted(state, slice_, str(exc))
        # If an unknown secret signed the checkpoint, no more records are stored.
        ingest.let_store(state, slice_)
        return
    upkeep.active.add(slice_.number)
    if slice_.number in upkeep.behind:
        upkeep.hurried_s = -math.inf
    if read_back is not None:
        compare_clocks(state, slice_.number, read_back)


# --- copies and metrics ------------------------------------------------------------------------


def _tend_slices(state: LoopState) -> None:
    upkeep, limits = state.upkeep, state.edges.limits
    for number in list(upkeep.busy):
        slice_ = state.slices.get(number)
        if slice_ is None or not _turn_copies(state, slice_):
            upkeep.busy.discard(number)
    now_s = state.clock.monotonic_s()
    elapsed_s = now_s - upkeep.tended_s
    if elapsed_s < limits.tend_s:
        if upkeep.behind and now_s - upkeep.hurried_s >= limits.follow_s:
            upkeep.hurried_s = now_s
            _tend_all(state, list(upkeep.behind)[:_BEHIND_AT_ONCE])
        return
    upkeep.tended_s = now_s
    due, upkeep.active = upkeep.active, set()
    per_s = min(len(upkeep.round) / _ROUND_S, _TENDED_PER_S)
    for _ in range(min(len(upkeep.round), math.ceil(per_s * elapsed_s))):
        due.add(upkeep.round[0])
        upkeep.round.rotate(-1)
    _tend_all(state, due)


def _tend_all(state: LoopState, numbers: Iterable[int]) -> None:
    upkeep, now_s = state.upkeep, state.clock.monotonic_s()
    for number in numbers:
        slice_ = state.slices.get(number)
        if slice_ is None:
            continue
        if _turn_copies(state, slice_):
            upkeep.busy.add(number)
        for lane in slice_.lanes.values():
            log_ends.await_end(state, lane)
        if slice_.is_served_elsewhere and now_s - slice_.troubled_s > _TROUBLE_S:
            slice_.trouble = ""
        upkeep.behind.pop(number, None)
        upkeep.tended[number] = None


# Nothing is done if the slice is refused, or digests are off.
def _turn_copies(state: LoopState, slice_: Slice) -> bool:
    if slice_.copies is None or slice_.follower.refusal:
        return False
    slice_.copies.turn(slice_.lanes, state.edges.reading, is_owner=slice_.is_owner)
    return slice_.copies.is_busy


# --- stores ------------------------------------------------------------------------------------


def _sync_when_time(state: LoopState) -> None:
    upkeep, edges = state.upkeep, state.edges
    now_s = state.clock.monotonic_s()
    is_time = now_s - upkeep.synced_s >= edges.limits.sync_s
    if not is_time or edges.disk_level() == DiskLevel.FULL:
        return
    upkeep.synced_s = now_s
    for slice_ in state.slices.values():
        for lane in slice_.lanes.values():
            if lane.stats().durable_offset < lane.shard.stored:
                lane.sync_soon()
