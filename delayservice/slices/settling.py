"""Settling of due records: divides a worker's transaction among its shards with due records."""

from __future__ import annotations

import math
from typing import Final

from delayservice.base.errors import KafkaEdgeError, OwnershipLostError
from delayservice.engine.ports import Role
from delayservice.slices.lane import Lane
from delayservice.slices.owning import Owning
from delayservice.slices.slice import Slice
from delayservice.slices.transaction import LoopParts

_SHARE_MIN: Final = 200
# Time in one iteration, for all shards together, to read records that were fired.
_READ_S: Final = 0.05


class Settling:
    """Settling of due records. ``has_backlog``: more were due than the last ``settle`` could
    settle.
    """

    def __init__(self, parts: LoopParts, owning: Owning) -> None:
        self.has_backlog = False
        self._parts = parts
        self._clock = parts.edges.clock
        self._owning = owning
        self._read_until_s = -math.inf

    def settle(self) -> None:
        """Settle due records of all owned shards. Each gets an equal share of the transaction;
        shards that use up theirs divide what the others leave.
        """
        now_ms = self._clock.wall_ms()
        lanes = self._lanes_to_settle(now_ms)
        self.has_backlog = False
        if not lanes:
            return
        limits, transaction = self._parts.edges.limits, self._parts.transaction
        room = max(limits.transaction_records - transaction.records, _SHARE_MIN)
        share = max(room // len(lanes), min(_SHARE_MIN, room))
        byte_share = max(limits.transaction_bytes // len(lanes), 1)
        hungry, waiting = [], set()
        self._read_until_s = self._clock.monotonic_s() + _READ_S
        try:
            for slice_, lane in lanes:
                settled = self._settle_lane(slice_, lane, now_ms, share, byte_share)
                if settled >= share:
                    hungry.append((slice_, lane))
                elif not settled:
                    waiting.add(lane.place)
            self.has_backlog = bool(hungry)
            for slice_, lane in hungry if len(lanes) > 1 else ():
                left = limits.transaction_records - transaction.records
                if left < _SHARE_MIN:
                    break
                self._settle_lane(slice_, lane, now_ms, left // len(hungry) + 1, byte_share)
        finally:
            for _, lane in lanes:
                if lane.place in waiting and (lane.next_due_ms() or now_ms + 1) <= now_ms:
                    self._parts.agenda.wait(lane)
                else:
                    self._parts.agenda.look_when_due(lane)

    # Shards with a due record come first, earliest first, then those whose H has to move.
    def _lanes_to_settle(self, now_ms: int) -> list[tuple[Slice, Lane]]:
        agenda, is_held = self._parts.agenda, self._parts.edges.is_held
        lanes = []
        for place in agenda.take(now_ms):
            topic, number = place
            found = self._parts.find(number, topic)
            if found is None or not found[0].is_owner or not found[1].shard.owned:
                agenda.forget(place)
            elif self._owning.role(number) is Role.OWNER and not is_held(topic):
                lanes.append(found)
            else:  # looked at again with the next turn
                agenda.walking[place] = None
        return lanes

    def _settle_lane(
        self, slice_: Slice, lane: Lane, now_ms: int, limit: int, bytes_max: int
    ) -> int:
        transaction, before = self._parts.transaction, slice_.uncommitted.records
        transaction.touched.add(slice_.number)  # first: what is staged may have to be put back
        try:
            transaction.send(slice_, lane, lane.settle_late(now_ms, limit, self._may_read))
            for outputs in lane.settle_due(now_ms, limit, bytes_max):
                transaction.send(slice_, lane, outputs)
        except OwnershipLostError:
            raise
        except KafkaEdgeError as exc:
            self._owning.interrupted(slice_, str(exc))
            return 0
        if lane.shard.is_walked:
            self._parts.agenda.walking.pop(lane.place, None)
        return slice_.uncommitted.records - before

    def _may_read(self) -> bool:
        return self._clock.monotonic_s() < self._read_until_s
