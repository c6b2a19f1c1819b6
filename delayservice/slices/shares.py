"""Due → settle: divides a worker's transaction into shares, one for each shard with due records."""

from __future__ import annotations

from typing import Final

from delayservice.engine.ports import Role
from delayservice.engine.settle import HasTime
from delayservice.slices import log_ends
from delayservice.slices.commit import send
from delayservice.slices.lane import Lane
from delayservice.slices.slice import Slice
from delayservice.slices.state import LoopState

_SHARE_MIN: Final = 200
# Time in one iteration, for all shards together, to read records that were fired and to search the
# calendar.
_SLOW_S: Final = 0.05


def settle(state: LoopState) -> None:
    """Settle due records of all owned shards. Each gets an equal share of the transaction; shards
    that use up theirs divide what the others leave.
    """
    now_ms = state.clock.wall_ms()
    lanes = _lanes_to_settle(state, now_ms)
    state.has_backlog = False
    if not lanes:
        return
    limits, transaction = state.edges.limits, state.transaction
    room = max(limits.transaction_records - transaction.records, _SHARE_MIN)
    share = max(room // len(lanes), min(_SHARE_MIN, room))
    byte_share = max((limits.transaction_bytes - transaction.bytes) // len(lanes), 1)
    hungry, waiting = [], set()
    until_s = state.clock.monotonic_s() + _SLOW_S

    def has_time() -> bool:
        return state.clock.monotonic_s() < until_s

    try:
        for slice_, lane in lanes:
            settled = _settle_lane(state, slice_, lane, now_ms, share, byte_share, has_time)
            if settled >= share:
                hungry.append((slice_, lane))
            elif not settled:
                waiting.add(lane.place)
        state.has_backlog = bool(hungry)
        for slice_, lane in hungry if len(lanes) > 1 else ():
            left = limits.transaction_records - transaction.records
            bytes_left = limits.transaction_bytes - transaction.bytes
            if left < _SHARE_MIN or bytes_left <= 0:
                break
            share, byte_share = left // len(hungry) + 1, bytes_left // len(hungry) + 1
            _settle_lane(state, slice_, lane, now_ms, share, byte_share, has_time)
    finally:
        for _, lane in lanes:
            if lane.place in waiting and (lane.next_due_ms() or now_ms + 1) <= now_ms:
                state.agenda.wait(lane)
            else:
                state.agenda.look_when_due(lane)


# Shards whose due record had to wait come first, then those with a due record, earliest first, then
# those whose H has to move. While a log that has moved is looked at, nothing of it is settled.
def _lanes_to_settle(state: LoopState, now_ms: int) -> list[tuple[Slice, Lane]]:
    agenda, roles, moved = state.agenda, state.roles, state.log_ends.moved
    lanes = []
    for place in agenda.take(now_ms):
        topic, number = place
        found = state.find(place)
        if found is None or not found[0].is_owner or not found[1].shard.owned:
            agenda.forget(place)
        elif roles.role(number) is not Role.OWNER or state.edges.is_held(topic):
            agenda.walking[place] = None  # looked at again in the next iteration
        elif found[1] not in moved:
            lanes.append(found)
    return lanes


def _settle_lane(
    state: LoopState,
    slice_: Slice,
    lane: Lane,
    now_ms: int,
    limit: int,
    bytes_max: int,
    has_time: HasTime,
) -> int:
    before = slice_.uncommitted.records
    state.transaction.touched.add(slice_.number)  # first: what is staged may have to be put back
    send(state, slice_, lane, lane.settle_late(now_ms, limit, has_time))
    for outputs in lane.settle_due(now_ms, limit, bytes_max, has_time):
        send(state, slice_, lane, outputs)
    log_ends.read_again(state, lane)
    if lane.shard.is_walked:
        state.agenda.walking.pop(lane.place, None)
    return slice_.uncommitted.records - before
