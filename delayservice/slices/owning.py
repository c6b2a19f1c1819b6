"""Ownership of a worker's slices: claim → take over → first checkpoint → serve → release.

Helper threads open writers and wait for take-overs. Claims, checkpoints and releases are written
with the worker's next commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.engine.ports import Bounds, Place, Role
from delayservice.slices.lane import Lane
from delayservice.slices.log_end_queries import LogEndQueries, is_short
from delayservice.slices.slice import ON_THE_WAY, SERVED, Phase, Slice, Step, Taken
from delayservice.slices.take_over import LaneTaker, TakeOver, TakeOvers
from delayservice.slices.transaction import Commit, LoopParts
from delayservice.slices.writer import LOSSES_MAX, WriterOpener

# One or two failures occur when a broker refuses a record.
_FAILURES_MAX: Final = 4
# Roles in which a node needs a writer.
_WRITING: Final = frozenset({Role.OWNER, Role.HEIR})

_log = structlog.get_logger(__name__)


class Owning:
    """Ownership of the slices of one worker. Only the loop's thread uses it."""

    def __init__(self, parts: LoopParts) -> None:
        edges = parts.edges
        self._slices = parts.slices
        self._transaction = parts.transaction
        self._agenda = parts.agenda
        self._succession = edges.succession
        self._source = edges.source
        self._clock = edges.clock
        self._gate = edges.gate
        self._rest_s = edges.limits.rest_s
        self._opener = WriterOpener(edges)
        self._log_end_queries = LogEndQueries(parts.slices, edges, self._join_lane)
        self.await_end = self._log_end_queries.await_end
        self._taker = LaneTaker(parts, self.await_end)
        self._roles: Mapping[int, Role] | None = None
        self._role_of: Mapping[int, Role] = {}
        self._has_heirs = False
        self._is_writer_wanted = False
        self._is_leaving = False
        self._resting_s: dict[int, float] = {}
        self._take_overs = TakeOvers(edges)

    # --- roles ---------------------------------------------------------------------------------

    def role(self, number: int) -> Role:
        return self._role_of.get(number, Role.REPLICA)

    # Why no writer can be opened; empty: one can, or it is too early to tell. Any thread may call.
    @property
    def writer_trouble(self) -> str:
        return self._opener.trouble

    @property
    def is_opening(self) -> bool:
        return self._opener.is_opening

    @property
    def is_changing(self) -> bool:
        return bool(
            self._take_overs.is_going
            or self._log_end_queries.is_asking
            or self._transaction.changing
            or self._has_heirs
        )

    @property
    def is_settling(self) -> bool:
        return any(slice_.phase is not Phase.REPLICA for slice_ in self._slices.values())

    def follow_roles(self) -> None:
        """Prepare claims and releases by the present roles; a later commit carries them."""
        roles = self._gate.roles()
        if self._resting_s and min(self._resting_s.values()) <= self._clock.monotonic_s():
            now_s = self._clock.monotonic_s()
            self._resting_s = {n: s for n, s in self._resting_s.items() if s > now_s}
            self._roles = None
        if roles is not self._roles:
            self._roles = self._role_of = roles
            mine = [self.role(number) for number in self._slices]
            self._has_heirs = Role.HEIR in mine
            self._is_writer_wanted = any(
                self.role(n) in _WRITING for n, s in self._slices.items() if s.lanes
            )
            for slice_ in self._slices.values():
                self._follow_role(slice_)
        if self.lacks_writer and self._opener.open_when_time():
            self._hear_opening()

    def _follow_role(self, slice_: Slice) -> None:
        role, phase, number = self.role(slice_.number), slice_.phase, slice_.number
        if phase is Phase.REPLICA:
            is_wanted = role is Role.OWNER and number not in self._resting_s
            may_claim = self._transaction.writer and not (
                self._is_leaving or slice_.follower.refusal
            )
            if is_wanted and slice_.lanes and may_claim:
                slice_.move(Step.CLAIM)
                self._transaction.changing.add(number)
        elif phase is Phase.CLAIMING:
            commit = self._transaction.commit
            in_flight = commit is not None and number in commit.claiming
            if not role.keeps_owning and not in_flight:
                slice_.move(Step.WITHDRAW)
                self._transaction.changing.discard(number)
        elif not role.keeps_owning:
            self.retire(slice_)

    # --- the writer ----------------------------------------------------------------------------

    # An owner or heir needs a writer, and so does a worker that may own no slice before it could
    # open one.
    @property
    def lacks_writer(self) -> bool:
        is_wanted = self._is_writer_wanted or bool(self._opener.trouble)
        return is_wanted and not self._transaction.writer

    def _hear_opening(self) -> None:
        try:
            writer = self._opener.hear()
            if writer is None:
                return
            self._transaction.writer = writer
            self._succession.enter(writer)
        except KafkaEdgeError as exc:
            _log.warning("writer_not_opened", why=str(exc))
            return
        self._roles = None  # the claims waited for the writer

    def lose_writer(self, lost: OwnershipLostError) -> None:
        """Discard the writer and what it has not committed, and become a replica of all slices.
        Those that this node is still to own are claimed again.
        """
        why = str(lost)
        if isinstance(lost, WriterEndedError):
            _log.warning("writer_ended", writer=self._transaction.writer, why=why)
            self._dispose(lost)
        else:
            _log.warning("ownership_lost", writer=self._transaction.writer, why=why)
            self._opener.count_loss()
        self._transaction.discard()
        self._take_overs.clear()
        self._log_end_queries.clear()
        for number, slice_ in self._slices.items():
            if slice_.phase is not Phase.REPLICA:
                if slice_.phase in ON_THE_WAY or slice_.uncommitted.records:
                    self._count_failure(slice_, why)
                self.step_down(slice_)
                if self._opener.losses > LOSSES_MAX:
                    self._gate.gave_up(number, why)
        self._roles = None

    # Refused records are dead-lettered when they are settled again; slices with unacknowledged
    # checkpoints are left to other nodes.
    def _dispose(self, ended: WriterEndedError) -> None:
        for (place, offset), reason in ended.refusals.items():
            slice_ = self._slices.get(place[1])
            if slice_ is not None and place[0] in slice_.lanes:
                slice_.lanes[place[0]].verdicts.refuse([(offset, reason)])
        for number in ended.stuck & self._slices.keys():
            self._slices[number].trouble = str(ended)
            self._give_up(number, str(ended))

    # --- take over -----------------------------------------------------------------------------

    def hear_helpers(self) -> None:
        self._hear_opening()
        for job in self._take_overs.take_done():
            self._hear_take_over(job)
        self._log_end_queries.hear(may_join=self._transaction.commit is None)

    def hear_commit(self, commit: Commit) -> None:
        """Take over the slices that a commit claimed, serve those whose first checkpoint it
        carried, and become a replica of those it released.
        """
        for number in commit.checkpoints:
            slice_ = self._slices.get(number)
            if slice_ is not None and slice_.phase is Phase.TAKEN:
                self._serve_from_now(slice_)
        for number in commit.releasing:
            self._released(number)
        self._begin_take_over([n for n in commit.claiming if n in self._slices])

    def _count_failure(self, slice_: Slice, why: str) -> None:
        slice_.failures += 1
        if slice_.failures >= _FAILURES_MAX:
            slice_.failures = 0
            slice_.trouble = why
            self._gate.gave_up(slice_.number, why)

    def _begin_take_over(self, numbers: Collection[int]) -> None:
        self._transaction.changing -= set(numbers)
        slices = [self._slices[number] for number in numbers]
        for slice_ in slices:
            slice_.move(Step.FENCE)
        self._take_overs.begin(slices, self._transaction.writer)

    def _hear_take_over(self, job: TakeOver) -> None:
        waiting = [
            slice_
            for number in job.slices
            if (slice_ := self._slices.get(number)) is not None and slice_.phase is Phase.TAKING
        ]
        taken: dict[int, Taken] = {}
        try:
            taken = job.future.result()
        except KafkaEdgeError as exc:
            why = str(exc)
            _log.warning("take_over_failed", slices=job.slices, why=why)
            for slice_ in waiting:
                slice_.trouble = why
                slice_.setbacks += 1
                self._give_up(slice_.number, why)
        for slice_ in waiting:
            if slice_.phase is not Phase.TAKING:  # the writer was lost at an earlier slice
                continue
            found = taken.get(slice_.number)
            if found is None or not self.role(slice_.number).keeps_owning:
                self._rest(slice_.number)
                self._release(slice_)
            else:
                self._take(slice_, found, job.stored)

    # Settling begins at the last checkpoint; the next commit carries this owner's first one.
    def _take(self, slice_: Slice, taken: Taken, stored: Mapping[Place, int]) -> None:
        slice_.taken_over(taken, self._gate.epoch(slice_.number))
        missing, short = [], []
        try:
            for lane in slice_.lanes.values():
                bounds = taken.bounds.get(lane.place)
                if bounds is None:  # its leader gave no answer, or it was added meanwhile
                    missing.append(lane)
                elif is_short(slice_, lane, bounds, stored[lane.place]):
                    short.append(lane)
                else:
                    self._taker.take(slice_, lane, bounds, stored[lane.place])
        except KafkaEdgeError as exc:  # its log can't be read
            self.interrupted_safely(slice_, str(exc))
            return
        if missing or short:
            self._log_end_queries.ask([*missing, *short], short)
        self._transaction.changing.add(slice_.number)

    def join(self, slice_: Slice, lanes: list[Lane]) -> None:
        """Take over added shards if the slice is served; the next iteration applies all roles
        again.
        """
        if slice_.phase in SERVED:
            self._log_end_queries.ask(lanes)
        self._roles = None

    def _join_lane(self, slice_: Slice, lane: Lane, bounds: Bounds, stored_before: int) -> None:
        if lane.shard.owned and self._transaction.is_open:  # the new writer fits the shard to it
            self._transaction.abort(f"the log of {lane.topic}:{lane.partition} has moved")
        try:
            if lane.shard.owned:
                self._fit_again(slice_, lane, bounds)
                return
            self._taker.take(slice_, lane, bounds, stored_before)
        except KafkaEdgeError as exc:
            self.interrupted_safely(slice_, str(exc))
            return
        self._transaction.changing.add(slice_.number)
        slice_.move(Step.JOIN)

    # The ends are asked again: this owner may have written records since the query was sent.
    def _fit_again(self, slice_: Slice, lane: Lane, bounds: Bounds) -> None:
        why = f"it ended at {bounds.end}, and {lane.awaited_end} is waited for"
        _log.warning("log_moved", topic=lane.topic, partition=lane.partition, why=why)
        is_truncated = lane.shard.stored > bounds.end
        lane.refit(self._source.bounds(lane.place), is_truncated=is_truncated)
        self.await_end(lane)
        self._transaction.touched.add(slice_.number)
        self._agenda.look_again(lane)

    def _serve_from_now(self, slice_: Slice) -> None:
        slice_.move(Step.SERVE)
        slice_.trouble = ""
        slice_.setbacks = 0
        self._transaction.changing.discard(slice_.number)
        self._transaction.forgettable += [(slice_.number, w) for w in sorted(slice_.fenced)]
        slice_.fenced = frozenset()
        for lane in slice_.lanes.values():
            self._agenda.look_again(lane)
        self._gate.settling(slice_.number, is_settling=True)
        _log.info(
            "took_over",
            slice=slice_.number,
            epoch=slice_.epoch,
            shards={t: lane.shard.committed for t, lane in slice_.lanes.items()},
        )
        if not self.role(slice_.number).keeps_owning:
            self._release(slice_)

    # --- let go --------------------------------------------------------------------------------

    def retire(self, slice_: Slice) -> None:
        """Release a slice with the next commit, if this node owns it or has just taken it over."""
        if slice_.phase in SERVED:
            self._release(slice_)

    def _release(self, slice_: Slice) -> None:
        slice_.move(Step.RELEASE)
        self._transaction.changing.add(slice_.number)

    def release_all(self) -> None:
        """Release every slice with the next commit, and make no new claims."""
        self._is_leaving = True
        for slice_ in self._slices.values():
            self.retire(slice_)

    def _released(self, number: int) -> None:
        self._transaction.changing.discard(number)
        slice_ = self._slices.get(number)
        if slice_ is None:
            return
        _log.info("handed_over", slice=number, epoch=slice_.epoch)
        self.step_down(slice_)

    def step_down(self, slice_: Slice) -> None:
        """Make this node a replica of a slice at once, without a release."""
        slice_.step_down()
        self._transaction.changing.discard(slice_.number)
        self._transaction.touched.discard(slice_.number)
        for lane in slice_.lanes.values():
            self._agenda.look_again(lane)
        self._gate.settling(slice_.number, is_settling=False)
        self._roles = None  # this node may be the owner again already

    def interrupted(self, slice_: Slice, why: str) -> None:
        """Release a slice that can't be served here, and report it for another node. Raise
        ``OwnershipLostError`` if the writer turns out to be lost.
        """
        _log.warning("slice_interrupted", slice=slice_.number, why=why)
        slice_.trouble = why
        self._give_up(slice_.number, why)
        if slice_.phase in SERVED:
            if slice_.uncommitted.records and self._transaction.commit is None:
                self._transaction.abort(why)
            self._release(slice_)

    def interrupted_safely(self, slice_: Slice, why: str) -> None:
        """Release a slice as ``interrupted`` does; if the writer is lost, call ``lose_writer``."""
        try:
            self.interrupted(slice_, why)
        except OwnershipLostError as lost:
            self.lose_writer(lost)

    def _give_up(self, number: int, why: str) -> None:
        self._rest(number)
        self._gate.gave_up(number, why)

    def _rest(self, number: int) -> None:
        self._resting_s[number] = self._clock.monotonic_s() + self._rest_s
