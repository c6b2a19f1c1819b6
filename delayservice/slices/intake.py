from __future__ import annotations

from collections.abc import Callable

import structlog

from delayservice.base import faults
from delayservice.base.errors import KafkaEdgeError, LogTruncatedError
from delayservice.engine.disk import DiskLevel
from delayservice.engine.ports import PartitionError, PolledBatch
from delayservice.slices.lane import Lane
from delayservice.slices.owning import Owning
from delayservice.slices.slice import Slice
from delayservice.slices.transaction import LoopParts

_log = structlog.get_logger(__name__)


class Intake:
    """Reader of the delay topics for a worker's lanes. Only the loop's thread uses it."""

    def __init__(
        self,
        parts: LoopParts,
        owning: Owning,
        *,
        is_active: Callable[[int], None],
        drop_lane: Callable[[int, str], None],
        settle_down: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._edges = parts.edges
        self._source = parts.edges.source
        self._owning = owning
        self._is_active = is_active
        self._drop_lane = drop_lane
        self._settle_down = settle_down
        self._may_store = True

    def poll(self, wait_ms: float, gather_ms: float) -> float:
        """Poll once and store the records; return how long it waited, seconds. ``gather_ms``:
        longest wait for more after the first.
        """
        self._mind_the_disk()
        edges = self._edges
        began_s = edges.clock.monotonic_s()
        with edges.pausing():
            records_max = edges.limits.poll_records
            runs = self._source.poll(wait_ms / 1000, records_max, gather_ms / 1000)
        waited_s = edges.clock.monotonic_s() - began_s
        faults.point("after_poll")
        heard_ms = 0
        for run in runs:
            if self.store(run) and run.rows:
                heard_ms = max(heard_ms, run.rows[-1][1])
        if heard_ms:
            edges.clock_watch.heard(heard_ms)
        for trouble in self._source.take_errors():
            self._hear_trouble(trouble)
        faults.point("after_append")
        return waited_s

    def store(self, run: PolledBatch) -> bool:
        """Store polled records. Return False if the shard is not served or refused, or that
        failed: then its slice is released, or its lane fitted to the changed log or dropped.
        """
        topic, number = run.place
        found = self._parts.find(number, topic)
        if found is None or found[0].follower.refusal:  # dropped or refused a moment ago
            return False
        slice_, lane = found
        if topic in slice_.damaged_logs and run.stop > slice_.damaged_logs[topic][0]:
            del slice_.damaged_logs[topic]
        try:
            records = lane.ingest(run)
        except LogTruncatedError as exc:
            self._refit(slice_, lane, str(exc), is_truncated=exc.is_stored)
            return False
        except KafkaEdgeError as exc:
            if not lane.shard.owned:
                lane.step_down()  # reads the run again; an owner steps down with its release
            self._owning.interrupted_safely(slice_, str(exc))
            if not lane.shard.owned:
                lane.step_down()  # reads again what was ingested before the failure
            return False
        self._edges.observer.ingested(number, records)
        self._is_active(number)
        if lane.shard.owned:
            self._parts.transaction.touched.add(number)
            self._parts.agenda.walk(lane)
        return True

    # Stored records of a damaged log are still delivered.
    def _hear_trouble(self, trouble: PartitionError) -> None:
        topic, number = trouble.place
        found = self._parts.find(number, topic)
        if found is None:  # dropped a moment ago
            return
        slice_, lane = found
        if trouble.damaged_at is not None:
            damage = (trouble.damaged_at, trouble.why)
            if slice_.damaged_logs.get(topic) != damage:
                _log.error("log_damaged", topic=topic, partition=number, why=trouble.why)
            slice_.damaged_logs[topic] = damage
            return
        if not trouble.has_moved:
            self._owning.interrupted_safely(slice_, trouble.why)
            return
        self._refit(slice_, lane, trouble.why, is_truncated=trouble.is_truncated or None)

    def _refit(self, slice_: Slice, lane: Lane, why: str, *, is_truncated: bool | None) -> None:
        _log.warning("log_moved", topic=lane.topic, partition=lane.partition, why=why)
        try:
            if self._source.topic_id(lane.topic) != lane.topic_id:
                self._drop_lane(slice_.number, lane.topic)
                return
            bounds = self._source.bounds(lane.place)
            if bounds.end < slice_.passed_of(lane):  # asked twice before it is called lost
                bounds = self._source.bounds(lane.place)
        except KafkaEdgeError as exc:
            stored = lane.shard.stored
            self._source.seek(lane.place, stored, lane.last_below(stored))
            self._owning.interrupted_safely(slice_, str(exc))
            return
        if lane.shard.owned:
            self._settle_down()
        try:
            lane.refit(bounds, is_truncated=is_truncated)
            self._owning.await_end(lane)
        except KafkaEdgeError as exc:
            self._owning.interrupted_safely(slice_, str(exc))
        self._parts.agenda.look_again(lane)

    def _mind_the_disk(self) -> None:
        may_store = self._edges.disk_level() < DiskLevel.STOP
        if may_store != self._may_store:
            self._may_store = may_store
            for slice_ in self._parts.slices.values():
                self.let_store(slice_)

    # Storing is forbidden if the disk is too full, or the slice's checkpoint was signed with an
    # unknown secret.
    def let_store(self, slice_: Slice) -> None:
        may_store = self._may_store and not slice_.follower.refusal
        for lane in slice_.lanes.values():
            lane.let_store(may_store=may_store)
