"""Ownership of a worker's slices: claim → take over → first checkpoint → serve → release.

Helper threads open writers and wait for take-overs. Claims, checkpoints and releases are written
with the worker's next commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

import structlog

from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.contract.contracts import Contract, Contracts, home_partitions
from delayservice.engine.checkpoint import decode_checkpoint
from delayservice.engine.ports import Bounds, Role
from delayservice.slices import log_ends
from delayservice.slices.commit import abort, discard
from delayservice.slices.lane import Lane
from delayservice.slices.slice import ON_THE_WAY, SERVED, Phase, Slice, Step, Taken
from delayservice.slices.state import (
    Commit,
    LogEndsFound,
    LoopState,
    TakeOverEnded,
    WriterOpened,
)
from delayservice.slices.take_over import grouped, take_over, take_over_lane
from delayservice.slices.writer import LOSSES_MAX, WriterPhase

# One or two failures occur when a broker refuses a record.
_FAILURES_MAX: Final = 4
# Roles in which a node needs a writer.
_WRITING: Final = frozenset({Role.OWNER, Role.HEIR})

_log = structlog.get_logger(__name__)


# --- roles -------------------------------------------------------------------------------------


def follow_roles(state: LoopState) -> None:
    """Prepare claims and releases by the present roles; a later commit carries them."""
    roles, slices = state.roles, state.slices
    now_s = state.clock.monotonic_s()
    if roles.resting_s and min(roles.resting_s.values()) <= now_s:
        roles.resting_s = {n: s for n, s in roles.resting_s.items() if s > now_s}
        roles.is_followed = False
    present = state.edges.gate.roles()
    if present is not roles.of or not roles.is_followed:
        roles.of, roles.is_followed = present, True
        roles.are_heirs = any(roles.role(number) is Role.HEIR for number in slices)
        roles.need_writer = any(roles.role(n) in _WRITING for n, s in slices.items() if s.lanes)
        for slice_ in slices.values():
            _follow_role(state, slice_)
    if lacks_writer(state) and state.writer.may_open:
        state.writer.open()
        state.run(state.edges.writing, state.edges.sink.open, WriterOpened)


def _follow_role(state: LoopState, slice_: Slice) -> None:
    roles, number, phase = state.roles, slice_.number, slice_.phase
    role = roles.role(number)
    if phase is Phase.REPLICA:
        if role is Role.OWNER and _may_claim(state, slice_):
            slice_.move(Step.CLAIM)
            state.transaction.changing.add(number)
    elif phase is Phase.CLAIMING:
        commit = state.transaction.commit
        in_flight = commit is not None and number in commit.claiming
        if not role.keeps_owning and not in_flight:
            slice_.move(Step.WITHDRAW)
            state.transaction.changing.discard(number)
    elif not role.keeps_owning:
        retire(state, slice_)


def _may_claim(state: LoopState, slice_: Slice) -> bool:
    roles = state.roles
    is_ready = bool(state.writer.name and slice_.lanes) and not slice_.follower.refusal
    has_moved = not state.log_ends.moved.isdisjoint(slice_.lanes.values())
    is_resting = slice_.number in roles.resting_s
    return is_ready and not (roles.is_leaving or is_resting or has_moved)


def is_changing(state: LoopState) -> bool:
    return bool(
        state.take_overs
        or state.log_ends.asked
        or state.transaction.changing
        or state.roles.are_heirs
    )


# --- the writer --------------------------------------------------------------------------------


# An owner or heir needs a writer, and so does a worker that may own no slice before it could open
# one.
def lacks_writer(state: LoopState) -> bool:
    return not state.writer.name and (state.roles.need_writer or bool(state.writer.trouble))


def writer_opened(state: LoopState, event: WriterOpened) -> None:
    try:
        name = event.opened.result()
    except KafkaEdgeError as exc:
        state.writer.refused(str(exc))
        _log.warning("writer_not_opened", why=str(exc))
        return
    state.writer.opened(name)
    state.edges.take_over_client.enter(name)
    state.roles.is_followed = False  # the claims waited for the writer


def lose_writer(state: LoopState, lost: OwnershipLostError) -> None:
    """Discard the writer and what it has not committed, and become a replica of all slices. Those
    that this node is still to own are claimed again.
    """
    why, writer = str(lost), state.writer
    if isinstance(lost, WriterEndedError):
        _log.warning("writer_ended", writer=writer.name, why=why)
        _dispose(state, lost)
    else:
        _log.warning("ownership_lost", writer=writer.name, why=why)
        writer.count_loss()
    writer.lose()
    discard(state)
    for job in state.take_overs:
        job.cancel()
    state.take_overs.clear()
    state.log_ends.clear()
    for number, slice_ in state.slices.items():
        if slice_.phase is not Phase.REPLICA:
            if slice_.phase in ON_THE_WAY or slice_.uncommitted.records:
                _count_failure(state, slice_, why)
            step_down(state, slice_)
            if writer.losses > LOSSES_MAX:
                state.edges.gate.gave_up(number, why)
    state.roles.is_followed = False


# Refused records are dead-lettered when they are settled again; slices with unacknowledged
# checkpoints are left to other nodes.
def _dispose(state: LoopState, ended: WriterEndedError) -> None:
    for (place, offset), reason in ended.refusals.items():
        found = state.find(place)
        if found is not None:
            found[1].verdicts.refuse([(offset, reason)])
    for number in ended.stuck & state.slices.keys():
        _give_up(state, state.slices[number], str(ended))


def end_transaction(state: LoopState, why: str) -> None:
    """Abort the open transaction, if there is one, with all that follows from it."""
    if state.writer.phase is WriterPhase.SENDING:
        try:
            abort(state, why)
        except OwnershipLostError as lost:
            lose_writer(state, lost)


# --- take over ---------------------------------------------------------------------------------


def follow_commit(state: LoopState, commit: Commit) -> None:
    """Take over the slices that a commit claimed, serve those whose first checkpoint it carried,
    and become a replica of those it released.
    """
    for number in commit.checkpoints:
        slice_ = state.slices.get(number)
        if slice_ is not None and slice_.phase is Phase.TAKEN:
            _serve_from_now(state, slice_)
    for number in commit.releasing:
        _released(state, number)
    _begin_take_over(state, [n for n in commit.claiming if n in state.slices])


def _count_failure(state: LoopState, slice_: Slice, why: str) -> None:
    slice_.failures += 1
    if slice_.failures >= _FAILURES_MAX:
        slice_.failures = 0
        _report(state, slice_, why)


def _begin_take_over(state: LoopState, numbers: Collection[int]) -> None:
    state.transaction.changing -= set(numbers)
    slices = [state.slices[number] for number in numbers]
    for slice_ in slices:
        slice_.move(Step.FENCE)
    for group in grouped(slices):
        turns = {slice_.number: slice_.turn - 1 for slice_ in group}
        lanes = [lane for slice_ in group for lane in slice_.lanes.values()]
        stored = {lane: lane.shard.stored for lane in lanes}
        topic_ids = {lane.place: lane.topic_id for lane in lanes}
        edges = state.edges
        work = partial(
            take_over,
            edges.take_over_client,
            state.writer.name,
            turns,
            topic_ids,
            edges.fingerprints,
        )
        event = partial(TakeOverEnded, tuple(turns), stored)
        state.take_overs.add(state.run(edges.background, work, event))


def take_over_ended(state: LoopState, event: TakeOverEnded) -> None:
    if event.taken not in state.take_overs:  # the writer was lost meanwhile
        return
    state.take_overs.remove(event.taken)
    waiting = [
        slice_
        for number in event.slices
        if (slice_ := state.slices.get(number)) is not None and slice_.phase is Phase.TAKING
    ]
    taken: dict[int, Taken] = {}
    try:
        taken = event.taken.result()
    except KafkaEdgeError as exc:
        why = str(exc)
        _log.warning("take_over_failed", slices=event.slices, why=why)
        for slice_ in waiting:
            slice_.setbacks += 1
            _give_up(state, slice_, why)
    for slice_ in waiting:
        found = taken.get(slice_.number)
        if found is None or not state.roles.role(slice_.number).keeps_owning:
            _rest(state, slice_.number)
            _release(state, slice_)
        else:
            _take(state, slice_, found, event.stored)


# Settling begins at the last checkpoint; the next commit carries this owner's first one.
def _take(state: LoopState, slice_: Slice, taken: Taken, stored: Mapping[Lane, int]) -> None:
    slice_.taken_over(taken, state.edges.gate.epoch(slice_.number))
    missing, short = [], []
    for lane in slice_.lanes.values():
        bounds = taken.bounds.get(lane.place)
        # Its leader gave no answer, or it was added meanwhile, perhaps in the place of one of an
        # earlier topic of this name.
        if bounds is None or lane not in stored:
            missing.append(lane)
        elif log_ends.is_short(slice_, lane, bounds, stored[lane]):
            short.append(lane)
        else:
            _take_lane(state, slice_, lane, bounds, stored[lane])
    if missing or short:
        log_ends.ask(state, [*missing, *short], short)
    if not slice_.not_taken or slice_.not_taken.keys() < slice_.lanes.keys():
        state.transaction.changing.add(slice_.number)


def join(state: LoopState, slice_: Slice, lanes: list[Lane]) -> None:
    """Take over added shards if the slice is served; the next iteration applies all roles again."""
    if slice_.phase in SERVED:
        log_ends.ask(state, lanes)
    state.roles.is_followed = False


def log_ends_found(state: LoopState, event: LogEndsFound) -> None:
    if event.query not in state.log_ends.asked:  # the writer was lost meanwhile
        return
    if state.transaction.commit is not None:
        # It would be uncertain which commit carries a first checkpoint.
        state.deferred.append(event)
        return
    state.log_ends.asked.remove(event.query)
    for slice_, lane, bounds, stored in log_ends.judged(state, event):
        if lane.shard.owned:
            why = f"it ended at {bounds.end}, and {lane.awaited_end} is waited for"
            log_moved(state, slice_, lane, why, is_truncated=lane.shard.stored > bounds.end)
            continue
        if _take_lane(state, slice_, lane, bounds, stored):
            state.transaction.changing.add(slice_.number)
            slice_.move(Step.JOIN)


# Records that were stored after ``bounds`` were queried, with S at ``stored_before``, may lie above
# ``bounds.end``, unless they were read of an earlier leader: then the log was truncated. False: it
# has to wait until it is known where ids have their home.
def _take_lane(
    state: LoopState, slice_: Slice, lane: Lane, bounds: Bounds, stored_before: int
) -> bool:
    if stored_before <= bounds.end and lane.proof.is_read_by(bounds.leader_epoch):
        bounds = bounds._replace(end=max(bounds.end, lane.shard.stored))
    known, edges = slice_.known_of(lane.topic), state.edges
    stated = known.contracts if known is not None and known.topic_id == lane.topic_id else None
    version_max = edges.gate.contract_version()
    if known is not None:  # nodes that do not know it can't follow the slice in any case
        version_max = max(version_max, known.contracts.newest_version)
    wanted = _with_homes(state, lane, edges.contract_of(lane.topic, version_max), stated)
    if wanted is None:
        why = f"{lane.topic}:{lane.partition} is served as soon as partition 0 of this topic is"
        slice_.not_taken[lane.topic] = why if lane.topic in slice_.not_taken else ""
        log_ends.ask_later(state, lane)
        return False
    slice_.not_taken.pop(lane.topic, None)
    if stated is not None:
        slice_.stated.setdefault(lane.topic, stated)
    take_over_lane(lane, known, bounds, wanted, state.clock.wall_ms())
    log_ends.await_end(state, lane)
    state.transaction.touched.add(slice_.number)
    state.agenda.look_again(lane)
    return True


def find_homes(state: LoopState) -> None:
    """Take over shards that wait for partition 0 of their topic, if its checkpoint has come."""
    waiting = state.log_ends.waiting
    found = [lane for lane in waiting if _is_not_taken(state, lane) and _first(state, lane)]
    for lane in found:
        del waiting[lane]
    if found:
        log_ends.ask(state, found)


def _is_not_taken(state: LoopState, lane: Lane) -> bool:
    slice_ = state.slices.get(lane.partition)
    return slice_ is not None and lane.topic in slice_.not_taken


# The contracts of partition 0, as they were read back: in the place of those that are not committed
# yet, another owner may commit others.
def _first(state: LoopState, lane: Lane) -> Contracts | None:
    read_back = state.edges.checkpoints.read_back(0)
    if read_back is None:
        state.edges.checkpoints.follow(0)
        return None
    with suppress(KafkaEdgeError):  # the take-over of slice 0 reports the error
        shard = _decoded(read_back.data).shards.get(lane.topic)
        if shard is not None and shard.topic_id == lane.topic_id:
            return shard.contracts
    return None


# Thousands of lanes may ask in one turn.
_decoded = lru_cache(1)(decode_checkpoint)


# The number of home partitions stays: pending ids would not be found any more. None: it is not
# known yet. ``known``: contracts of the last checkpoint; None: the shard was never served.
def _with_homes(
    state: LoopState, lane: Lane, wanted: Contract, known: Contracts | None
) -> Contract | None:
    if wanted.level_ms:
        return wanted
    if state.edges.partitions_of is not None:
        partitions = 0 if lane.partition else state.edges.partitions_of(lane.topic)
        first = None if known and known.id_partitions else _first(state, lane)
        number = home_partitions(known, first, partitions)
        return None if number is None else replace(wanted, id_partitions=number)
    lanes = [s.lanes[lane.topic] for s in state.slices.values() if lane.topic in s.lanes]
    count = max(one.contracts.id_partitions for one in [lane, *lanes])
    if count in (0, wanted.id_partitions):
        return wanted
    _log.error(
        "id_partitions_kept",
        topic=lane.topic,
        partition=lane.partition,
        in_force=count,
        asked_for=wanted.id_partitions,
        hint="delivery.id_partitions was changed, which is ignored: pending ids would not be "
        "found any more. Set it back to the value in_force",
    )
    return replace(wanted, id_partitions=count)


def _serve_from_now(state: LoopState, slice_: Slice) -> None:
    transaction = state.transaction
    slice_.move(Step.SERVE)
    slice_.trouble = ""
    slice_.setbacks = 0
    transaction.changing.discard(slice_.number)
    transaction.forgettable += [(slice_.number, w) for w in sorted(slice_.fenced)]
    slice_.fenced = frozenset()
    for lane in slice_.lanes.values():
        state.agenda.look_again(lane)
    state.edges.gate.settling(slice_.number, is_settling=True)
    _log.info(
        "took_over",
        slice=slice_.number,
        epoch=slice_.epoch,
        shards={t: lane.shard.committed for t, lane in slice_.lanes.items()},
    )
    if not state.roles.role(slice_.number).keeps_owning:
        _release(state, slice_)


# --- let go ------------------------------------------------------------------------------------


def retire(state: LoopState, slice_: Slice) -> None:
    """Release a slice with the next commit, if this node owns it or has just taken it over."""
    if slice_.phase in SERVED:
        _release(state, slice_)


def _release(state: LoopState, slice_: Slice) -> None:
    slice_.move(Step.RELEASE)
    state.transaction.changing.add(slice_.number)


def release_all(state: LoopState) -> None:
    """Release every slice with the next commit, and make no new claims."""
    state.roles.is_leaving = True
    for slice_ in state.slices.values():
        retire(state, slice_)


def _released(state: LoopState, number: int) -> None:
    state.transaction.changing.discard(number)
    slice_ = state.slices.get(number)
    if slice_ is None:
        return
    _log.info("handed_over", slice=number, epoch=slice_.epoch)
    step_down(state, slice_)


def step_down(state: LoopState, slice_: Slice) -> None:
    """Make this node a replica of a slice at once, without a release."""
    slice_.step_down()
    state.transaction.changing.discard(slice_.number)
    state.transaction.touched.discard(slice_.number)
    for lane in slice_.lanes.values():
        state.agenda.look_again(lane)
    state.edges.gate.settling(slice_.number, is_settling=False)
    state.roles.is_followed = False  # this node may be the owner again already


def log_moved(
    state: LoopState, slice_: Slice, lane: Lane, why: str, *, is_truncated: bool | None
) -> None:
    """Look at a log that has lost what this node read of it, or is to read next. An owner settles
    nothing of it any more: it releases the slice, and takes it over anew.
    """
    log_ends.look_at_log(state, slice_, lane, why, is_truncated=is_truncated)
    if lane.shard.owned:
        retire(state, slice_)


def interrupted(state: LoopState, slice_: Slice, why: str) -> None:
    """Release a slice that can't be served here, and report it for another node."""
    _log.warning("slice_interrupted", slice=slice_.number, why=why)
    _give_up(state, slice_, why)
    if slice_.phase in SERVED and slice_.uncommitted.records:
        end_transaction(state, why)
    retire(state, slice_)


def _give_up(state: LoopState, slice_: Slice, why: str) -> None:
    _rest(state, slice_.number)
    _report(state, slice_, why)


def _report(state: LoopState, slice_: Slice, why: str) -> None:
    slice_.trouble, slice_.troubled_s = why, state.clock.monotonic_s()
    state.edges.gate.gave_up(slice_.number, why)


def _rest(state: LoopState, number: int) -> None:
    rest_s = state.edges.limits.rest_s
    state.roles.resting_s[number] = state.clock.monotonic_s() + rest_s
