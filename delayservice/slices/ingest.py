"""Poll → store: the records of the delay topics go into the stores of their shards."""

from __future__ import annotations

import structlog

from delayservice.base import faults
from delayservice.base.errors import KafkaEdgeError, LogTruncatedError
from delayservice.engine.disk import DiskLevel
from delayservice.engine.ports import PartitionError, PolledBatch
from delayservice.slices import log_ends, ownership
from delayservice.slices.slice import Slice
from delayservice.slices.state import LogFound, LogRead, LoopState

_log = structlog.get_logger(__name__)


def poll(state: LoopState, wait_ms: float, gather_ms: float) -> float:
    """Poll once and store the records; return how long it waited, seconds. ``gather_ms``: longest
    wait for more after the first.
    """
    _mind_the_disk(state)
    edges = state.edges
    began_s = state.clock.monotonic_s()
    with edges.pausing():
        batches = edges.source.poll(wait_ms / 1000, edges.limits.poll_records, gather_ms / 1000)
    waited_s = state.clock.monotonic_s() - began_s
    faults.point("after_poll")
    for batch in batches:
        store(state, batch)
    for error in edges.source.take_errors():
        _partition_failed(state, error)
    faults.point("after_append")
    return waited_s


def store(state: LoopState, batch: PolledBatch) -> None:
    """Store polled records, unless the shard is not served or refused. If that fails, its slice is
    released.
    """
    topic, number = batch.place
    found = state.find(batch.place)
    if found is None or found[0].follower.refusal:  # dropped or refused a moment ago
        return
    slice_, lane = found
    if topic in slice_.damaged_logs and batch.stop > slice_.damaged_logs[topic][0]:
        del slice_.damaged_logs[topic]
    try:
        records = lane.ingest(batch)
    except LogTruncatedError as exc:
        ownership.log_moved(state, slice_, lane, str(exc), is_truncated=exc.is_stored)
        return
    log_ends.read_again(state, lane)
    state.edges.observer.ingested(records)
    state.upkeep.active.add(number)
    if lane.shard.owned:
        state.transaction.touched.add(number)
        state.agenda.walk(lane)


def log_read(state: LoopState, event: LogRead) -> None:
    """Go on with a lane that waited for what it wanted of its log."""
    lane = event.lane
    if state.log_reads.get(lane) is event.wanted:
        del state.log_reads[lane]
    found = state.find(lane.place)
    if found is None or found[1] is not lane or lane.log_wanted is not event.wanted:
        return
    try:
        batch = lane.log_answered(event.answer.result())
    except KafkaEdgeError as exc:
        ownership.interrupted(state, found[0], str(exc))
        if not lane.shard.owned:  # an owner steps down with its release
            lane.step_down()
        return
    if batch is not None:
        store(state, batch)
    state.agenda.look_again(lane)


# Stored records of a damaged log are still delivered.
def _partition_failed(state: LoopState, error: PartitionError) -> None:
    topic, number = error.place
    found = state.find(error.place)
    if found is None:  # dropped a moment ago
        return
    slice_, lane = found
    if error.damaged_at is not None:
        damage = (error.damaged_at, error.why)
        if slice_.damaged_logs.get(topic) != damage:
            _log.error("log_damaged", topic=topic, partition=number, why=error.why)
        slice_.damaged_logs[topic] = damage
    elif error.has_moved:
        is_truncated = error.is_truncated or None
        ownership.log_moved(state, slice_, lane, error.why, is_truncated=is_truncated)
    else:
        ownership.interrupted(state, slice_, error.why)


def log_found(state: LoopState, event: LogFound) -> None:
    """Fit a replica to its log, which has moved; an owner has to release its slice first."""
    lane = event.lane
    found = state.find(lane.place)
    if found is None or found[1] is not lane:  # dropped meanwhile
        state.log_ends.moved.discard(lane)
        return
    if event.tenure != lane.tenure:  # the take-over meanwhile has fitted it to its log
        state.log_ends.moved.discard(lane)
        lane.read_anew()
        return
    if lane.shard.owned:
        state.deferred.append(event)
        return
    state.log_ends.moved.discard(lane)
    state.roles.is_followed = False  # a claim may have waited
    try:
        topic_id, bounds = event.found.result()
        if topic_id == lane.topic_id:
            lane.refit(bounds, is_truncated=event.is_truncated)
        else:
            drop_lane(state, lane.partition, lane.topic)
    except KafkaEdgeError as exc:
        lane.read_anew()
        ownership.interrupted(state, found[0], str(exc))


def drop_lane(state: LoopState, number: int, topic: str) -> bool:
    """Close and remove a lane and return True; the slice's checkpoints keep the committed cursor.
    False: a commit is under way that may carry it; call again later.
    """
    slice_ = state.slices[number]
    lane = slice_.lanes[topic]
    if lane.shard.owned:
        if state.transaction.commit is not None:
            return False
        ownership.end_transaction(state, "a shard of it is served no more")
    slice_.put_down(topic)
    state.edges.source.drop(lane.place)
    state.agenda.forget(lane.place)
    return True


# --- storing -----------------------------------------------------------------------------------


def _mind_the_disk(state: LoopState) -> None:
    may_store = state.edges.disk_level() < DiskLevel.STOP
    if may_store != state.may_store:
        state.may_store = may_store
        for slice_ in state.slices.values():
            let_store(state, slice_)


# Storing is forbidden if the disk is too full, or the slice's checkpoint was signed with an unknown
# secret.
def let_store(state: LoopState, slice_: Slice) -> None:
    may_store = state.may_store and not slice_.follower.refusal
    for lane in slice_.lanes.values():
        lane.let_store(may_store=may_store)
