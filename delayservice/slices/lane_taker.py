from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from delayservice.contract.contracts import Contract
from delayservice.engine.ports import Bounds
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.parts import LoopParts
from delayservice.slices.slice import Slice
from delayservice.slices.take_over import take_over_lane

_log = structlog.get_logger(__name__)


class LaneTaker:
    """Take-over of single shards of claimed slices. ``await_end`` begins a query for the end of
    a lane's log that may have lost what the lane waits for.
    """

    def __init__(self, parts: LoopParts, await_end: Callable[[AnyLane], None]) -> None:
        self._parts = parts
        self._edges = parts.edges
        self._await_end = await_end

    def take(self, slice_: Slice, lane: AnyLane, bounds: Bounds, stored_before: int) -> None:
        """Make this node the owner of a shard. ``stored_before``: S before ``bounds`` were
        queried. Records stored since may lie above ``bounds.end``, unless they were read of an
        earlier leader: then the log was truncated.
        """
        if stored_before <= bounds.end and lane.is_read_by(bounds.leader_epoch):
            bounds = bounds._replace(end=max(bounds.end, lane.shard.stored))
        known, now_ms = slice_.known_of(lane.topic), self._edges.clock.wall_ms()
        if known is not None and known.topic_id == lane.topic_id:
            slice_.stated.setdefault(lane.topic, known.contracts)
        version_max = self._edges.gate.contract_version()
        if known is not None:  # nodes that do not know it can't follow the slice in any case
            version_max = max(version_max, known.contracts.newest_version)
        wanted = self._with_homes(lane, self._edges.contract_of(lane.topic, version_max))
        take_over_lane(lane, known, bounds, wanted, now_ms)
        self._await_end(lane)
        self._parts.transaction.touched.add(slice_.number)
        self._parts.agenda.look_again(lane)

    # The number of home partitions stays: pending ids would not be found any more.
    def _with_homes(self, lane: AnyLane, wanted: Contract) -> Contract:
        slices = self._parts.slices.values()
        lanes = [s.lanes[lane.topic] for s in slices if lane.topic in s.lanes]
        count = max(one.contracts.id_partitions for one in [lane, *lanes])
        if count in (0, wanted.id_partitions) or wanted.level_ms:
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
