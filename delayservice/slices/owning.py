"""Which slices a worker owns: claim → take over → first checkpoint → serve → release.

What takes long runs on helper threads: opening a writer, and what a take-over waits for. What is
written to Kafka goes with the worker's next commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

import structlog

from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterGivenUpError
from delayservice.contract.contracts import HOMES_VERSION, Contract
from delayservice.engine.ports import (
    Background,
    Bounds,
    Clock,
    Gate,
    Place,
    Sink,
    Succession,
)
from delayservice.engine.role import Role
from delayservice.slices.agenda import Agenda
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.phase import ON_THE_WAY, OWNED, SERVED, Phase, Step
from delayservice.slices.slice import Slice
from delayservice.slices.take_over import Taken, take_over, take_over_lane
from delayservice.slices.transaction import Ended, Transaction

_FAILURES_MAX: Final = 4
"""Aborts in a row: one or two are what it takes to find a record that a broker refuses."""
_OPEN_RETRY_S: Final = 1.0
_LOSSES_MAX: Final = 2
_LOSS_REST_S: Final = 0.1
_LOSS_REST_S_MAX: Final = 5.0
_LOSSES_S: Final = 20.0
"""Pause before a new writer is opened; it doubles with each that is lost within this time."""
_GROUP_MAX: Final = 4_096
"""Slices that are taken over together."""
_WRITING: Final = frozenset({Role.OWNER, Role.HEIR})
"""Roles in which a node needs a writer."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _TakeOver:
    """A take-over on its way. ``stored``: S of the shards when it began."""

    future: Future[dict[int, Taken]]
    slices: tuple[int, ...]
    stored: Mapping[Place, int]


@dataclass(slots=True)
class _Joining:
    """Shards of owned slices while the ends of their logs are asked for: they were added, or wait
    for an offset. ``stored`` and ``awaited``: of each when that began.
    """

    future: Future[Mapping[Place, Bounds]]
    lanes: list[AnyLane]
    stored: Mapping[Place, int]
    awaited: Mapping[Place, int]


class Owning:
    """Single-threaded, as the loop that owns it.

    Args:
        slices: those of the loop, by number.
        transaction: claims, first checkpoints and releases go with it.
        agenda: told of shards that begin or cease to be owned.
        sink: opens writers.
        succession: what a take-over asks of Kafka and the ensemble.
        background: threads for what asks and waits.
        writing: the writer's own thread.
        clock: monotonic; the wall clock tells how fast logs grow.
        gate: what the ensemble says, and what it is told.
        contract_of: what the settings ask for, by delay topic and newest version that may be used.
        secrets: fingerprints of those that this node verifies copies by.
        rest_s: how long a slice that could not be served is left alone.
    """

    def __init__(
        self,
        slices: Mapping[int, Slice],
        transaction: Transaction,
        agenda: Agenda,
        sink: Sink,
        succession: Succession,
        background: Background,
        writing: Background,
        clock: Clock,
        gate: Gate,
        contract_of: Callable[[str, int], Contract],
        secrets: Collection[str],
        rest_s: float,
    ) -> None:
        self._slices = slices
        self._transaction = transaction
        self._agenda = agenda
        self._sink = sink
        self._succession = succession
        self._background = background
        self._writing = writing
        self._clock = clock
        self._gate = gate
        self._contract_of = contract_of
        self._secrets = secrets
        self._rest_s = rest_s
        self._roles: Mapping[int, Role] | None = None
        self._role_of: Mapping[int, Role] = {}
        self._has_heirs = False
        self._is_writer_wanted = False
        self._is_leaving = False
        self._resting_s: dict[int, float] = {}
        self._opening: Future[str] | None = None
        self._open_after_s = -math.inf
        self._losses = 0
        self._lost_s = -math.inf
        self._take_overs: list[_TakeOver] = []
        self._joining: list[_Joining] = []
        self._unjoined: dict[AnyLane, None] = {}
        """Shards of owned slices whose leaders gave no answer, or that wait for an end of the log
        which it may have lost since; asked again together."""
        self._join_after_s = -math.inf

    # --- roles ---------------------------------------------------------------------------------

    def role(self, number: int) -> Role:
        """Return what this node may do with a slice now."""
        return self._role_of.get(number, Role.REPLICA)

    @property
    def is_opening(self) -> bool:
        """Return whether a writer is being opened."""
        return self._opening is not None

    @property
    def is_changing(self) -> bool:
        """Return whether slices are on their way here, or may be in a moment."""
        return bool(
            self._take_overs or self._joining or self._transaction.changing or self._has_heirs
        )

    @property
    def is_settling(self) -> bool:
        """Return whether any slice is owned, or on the way to or from it."""
        return any(slice_.phase is not Phase.REPLICA for slice_ in self._slices.values())

    def follow_roles(self) -> None:
        """Claim what this node is to own, release what it is not to own any more."""
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
        may_open = self._opening is None and self._clock.monotonic_s() >= self._open_after_s
        if self.lacks_writer and may_open:
            self._open_writer()

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

    @property
    def lacks_writer(self) -> bool:
        """Return whether there is no writer although slices are to be owned."""
        return self._is_writer_wanted and not self._transaction.writer

    def _open_writer(self) -> None:
        self._opening = self._writing.submit(self._sink.open)
        self._hear_opening()

    def _hear_opening(self) -> None:
        opening = self._opening
        if opening is None or not opening.done():
            return
        self._opening = None
        try:
            self._transaction.writer = opening.result()
            self._succession.enter(self._transaction.writer)
        except KafkaEdgeError as exc:
            _log.warning("writer_not_opened", why=str(exc))
            self._open_after_s = self._clock.monotonic_s() + _OPEN_RETRY_S
            for number, slice_ in self._slices.items():
                if slice_.lanes and self.role(number) is Role.OWNER:
                    slice_.trouble = str(exc)
                    self._gate.gave_up(number, str(exc))
            return
        self._roles = None  # what was to be claimed waited for the writer

    def lose_writer(self, lost: OwnershipLostError) -> None:
        """Fenced, or the result of a commit is not known: give the writer up, and claim anew what
        this node is still to own.
        """
        why = str(lost)
        _log.warning("ownership_lost", writer=self._transaction.writer, why=why)
        if not isinstance(lost, WriterGivenUpError):
            self._count_loss()
        self._transaction.discard()
        for job in self._take_overs:
            job.future.cancel()
        self._take_overs.clear()
        self._joining.clear()
        self._unjoined.clear()
        for number, slice_ in self._slices.items():
            if slice_.phase is not Phase.REPLICA:
                if slice_.phase in ON_THE_WAY:  # else a commit of its own has ended the row
                    self._count_failure(slice_, why)
                self.step_down(slice_)
                if self._losses > _LOSSES_MAX:
                    self._gate.gave_up(number, why)
        self._roles = None

    def _count_loss(self) -> None:
        """Rest before the next writer is opened, if this one was not the first in a while."""
        now_s = self._clock.monotonic_s()
        self._losses = 1 if now_s - self._lost_s > _LOSSES_S else self._losses + 1
        self._lost_s = now_s
        if self._losses > 1:  # once is what another node's take-over does
            rest_s = min(_LOSS_REST_S * 2**self._losses, _LOSS_REST_S_MAX)
            self._open_after_s = now_s + rest_s

    # --- take over -----------------------------------------------------------------------------

    def hear_helpers(self) -> None:
        """Take what helper threads have to say."""
        self._hear_opening()
        for job in [job for job in self._take_overs if job.future.done()]:
            self._take_overs.remove(job)
            self._hear_take_over(job)
        if self._transaction.commit is None:  # whose checkpoint is the first must be beyond doubt
            for joining in [one for one in self._joining if one.future.done()]:
                self._joining.remove(joining)
                self._join(joining)
        if self._unjoined and self._clock.monotonic_s() >= self._join_after_s:
            asked, self._unjoined = self._unjoined, {}
            waiting = [one for one in asked if one.awaited_end or not one.shard.owned]
            if waiting:
                self._ask_bounds(waiting)

    def hear_commit(self, ended: Ended) -> None:
        """Do what follows from the end of a commit."""
        if ended.why:
            self._failed(ended)
            return
        upgraded = []
        for number in ended.commit.checkpoints:
            slice_ = self._slices.get(number)
            if slice_ is None or slice_.phase is not Phase.TAKEN:
                continue
            if slice_.is_upgrade:
                upgraded.append(number)
            else:
                self._serve_from_now(slice_)
        for number in ended.commit.releasing:
            self._released(number)
        claimed = [n for n in ended.commit.claiming if n in self._slices]
        self._begin_take_over([*claimed, *upgraded], upgraded)

    def _failed(self, ended: Ended) -> None:
        """Let go of slices that this node can't commit: another node perhaps can."""
        for number in {*ended.commit.checkpoints, *ended.commit.claiming}:
            slice_ = self._slices.get(number)
            if slice_ is not None:
                self._count_failure(slice_, ended.why)
        for number in ended.stuck & self._slices.keys():
            self.interrupted_safely(self._slices[number], ended.why)

    def _count_failure(self, slice_: Slice, why: str) -> None:
        """Note that a commit of a slice failed; leave it to others after a few in a row."""
        slice_.failures += 1
        if slice_.failures >= _FAILURES_MAX:
            slice_.failures = 0
            slice_.trouble = why
            self._gate.gave_up(slice_.number, why)

    def _begin_take_over(self, numbers: Collection[int], upgraded: Collection[int]) -> None:
        """The claims of these slices are committed: names, fence, read. ``upgraded``: so is the
        first checkpoint, but version 1 may have come between.
        """
        self._transaction.changing -= set(numbers)
        for group in self._grouped(numbers):
            self._submit_take_over(group, upgraded)

    def _grouped(self, numbers: Collection[int]) -> Iterable[list[int]]:
        """Slices whose take-over failed before go in smaller groups each time, so that one that
        can't be taken over keeps fewer and fewer others from it.
        """
        by_setbacks: dict[int, list[int]] = {}
        for number in numbers:
            by_setbacks.setdefault(self._slices[number].setbacks, []).append(number)
        for setbacks, group in by_setbacks.items():
            size = max(_GROUP_MAX >> setbacks, 1)
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _submit_take_over(self, numbers: Collection[int], upgraded: Collection[int]) -> None:
        slices: dict[int, int] = {}
        lanes: list[AnyLane] = []
        for number in numbers:
            slice_ = self._slices[number]
            slice_.move(Step.FENCE)
            slices[number] = slice_.turn - 1
            lanes += slice_.lanes.values()
        stored = _stored(lanes)
        me, secrets, succession = self._transaction.writer, self._secrets, self._succession
        future = self._background.submit(
            lambda: take_over(succession, me, slices, stored.keys(), secrets, upgraded)
        )
        self._take_overs.append(_TakeOver(future, tuple(numbers), stored))

    def _hear_take_over(self, job: _TakeOver) -> None:
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
            if slice_.phase is not Phase.TAKING:  # the writer was lost with another one
                continue
            found = taken.get(slice_.number)
            if found is None or not self.role(slice_.number).keeps_owning:
                self._rest(slice_.number)
                self._release(slice_)
            else:
                self._take(slice_, found, job.stored)

    def _take(self, slice_: Slice, taken: Taken, stored: Mapping[Place, int]) -> None:
        """Make the lanes owners from the last checkpoint on; the next commit says so."""
        missing = [place for place in slice_.places if place not in taken.bounds]
        slice_.taken_over(taken, self._gate.epoch(slice_.number))
        try:
            for lane in slice_.lanes.values():
                if lane.place in taken.bounds:
                    self._take_lane(slice_, lane, taken.bounds[lane.place], stored[lane.place])
        except KafkaEdgeError as exc:  # its log can't be read
            self.interrupted_safely(slice_, str(exc))
            return
        if missing:  # their leader gave no answer, or they were added meanwhile
            self._ask_bounds([slice_.lanes[topic] for topic, _ in missing])
        self._transaction.changing.add(slice_.number)

    def _take_lane(self, slice_: Slice, lane: AnyLane, bounds: Bounds, stored_before: int) -> None:
        """Own a shard. ``stored_before``: its S before the bounds were asked for; what was stored
        since may lie above them, and the log is no shorter for that.
        """
        if stored_before <= bounds.end:
            bounds = bounds._replace(end=max(bounds.end, lane.shard.stored))
        known, now_ms = slice_.known_of(lane.topic), self._clock.wall_ms()
        if lane.shard.owned:  # and the log has lost what it waits for
            known = replace(lane.checkpoint(), cursor=lane.shard.committed)
        if known is not None and known.topic_id == lane.topic_id:
            slice_.stated.setdefault(lane.topic, known.contracts)
        version_max = self._gate.contract_version()
        if known is not None:  # nodes that do not know it can't follow the slice in any case
            version_max = max(version_max, known.contracts.newest_version)
        wanted = self._with_homes(lane, self._contract_of(lane.topic, version_max))
        take_over_lane(lane, known, bounds, wanted, now_ms)
        self.await_end(lane)
        self._transaction.touched.add(slice_.number)
        self._agenda.look_again(lane)

    def _with_homes(self, lane: AnyLane, wanted: Contract) -> Contract:
        """Return what settings ask for, with ids at home where they are by the contracts that are
        in force of the topic's partitions, whatever the settings say now.
        """
        lanes = [s.lanes[lane.topic] for s in self._slices.values() if lane.topic in s.lanes]
        count = max(one.contracts.id_partitions for one in [lane, *lanes])
        if count in (0, wanted.id_partitions) or wanted.version < HOMES_VERSION:
            return wanted
        _log.error(
            "id_partitions_kept",
            topic=lane.topic,
            partition=lane.partition,
            in_force=count,
            asked_for=wanted.id_partitions,
            hint="ids stay at home where they are, or what is pending there would not be found: "
            "set delivery.id_partitions back",
        )
        return replace(wanted, id_partitions=count)

    def await_end(self, lane: AnyLane) -> None:
        """Ask for the end of a shard's log if the shard waits for an offset: the log may have lost
        it, and the client says nothing where the log has grown again to the position.
        """
        if lane.awaited_end:
            if not self._unjoined:
                self._join_after_s = self._clock.monotonic_s() + self._rest_s
            self._unjoined[lane] = None

    def join(self, slice_: Slice, lanes: list[AnyLane]) -> None:
        """Let shards that were added be owned as well, if their slice is."""
        if slice_.phase in SERVED:
            self._ask_bounds(lanes)
        self._roles = None

    def _ask_bounds(self, lanes: list[AnyLane]) -> None:
        stored = _stored(lanes)
        future = self._background.submit(lambda: self._succession.bounds(stored.keys()))
        awaited = {lane.place: lane.awaited_end for lane in lanes}
        self._joining.append(_Joining(future, lanes, stored, awaited))

    def _join(self, joining: _Joining) -> None:
        try:
            bounds = joining.future.result()
        except KafkaEdgeError as exc:
            _log.warning("log_ends_not_known", why=str(exc))
            bounds = {}
        for lane in joining.lanes:
            slice_ = self._slices.get(lane.partition)
            if slice_ is None or slice_.lanes.get(lane.topic) is not lane:
                continue
            if slice_.phase not in OWNED:
                continue
            found = bounds.get(lane.place)
            if found is None:
                self._unjoined[lane] = None
            elif not lane.shard.owned or _is_too_short(found, lane, joining):
                self._join_lane(slice_, lane, found, joining.stored[lane.place])
            else:
                self.await_end(lane)
        self._join_after_s = self._clock.monotonic_s() + self._rest_s

    def _join_lane(self, slice_: Slice, lane: AnyLane, bounds: Bounds, stored_before: int) -> None:
        if lane.shard.owned:
            why = f"it ends at {bounds.end}, and {lane.awaited_end} is waited for"
            _log.warning("log_moved", topic=lane.topic, partition=lane.partition, why=why)
            if self._transaction.is_open:
                self._transaction.start_over("transaction_dropped", slice=slice_.number)
        try:
            self._take_lane(slice_, lane, bounds, stored_before)
        except KafkaEdgeError as exc:
            self.interrupted_safely(slice_, str(exc))
            return
        self._transaction.changing.add(slice_.number)
        slice_.move(Step.JOIN)

    def _serve_from_now(self, slice_: Slice) -> None:
        """The first checkpoint is committed."""
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
        """Let go in good order, if it is served: finish the transaction, say so in the log."""
        if slice_.phase in SERVED:
            self._release(slice_)

    def _release(self, slice_: Slice) -> None:
        slice_.move(Step.RELEASE)
        self._transaction.changing.add(slice_.number)

    def release_all(self) -> None:
        """Let go of every slice in good order, and claim none any more; on the way for as long as
        ``is_settling``.
        """
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
        """Settle nothing of a slice from now on."""
        slice_.step_down()
        self._transaction.changing.discard(slice_.number)
        self._transaction.touched.discard(slice_.number)
        for lane in slice_.lanes.values():
            self._agenda.look_again(lane)
        self._gate.settling(slice_.number, is_settling=False)
        self._roles = None  # it may be wanted again already

    def interrupted(self, slice_: Slice, why: str) -> None:
        """A slice can't be served here now; the others go on.

        Raises:
            OwnershipLostError: the writer turned out to be lost.
        """
        _log.warning("slice_interrupted", slice=slice_.number, why=why)
        slice_.trouble = why
        self._give_up(slice_.number, why)
        if slice_.phase in SERVED:
            if slice_.uncommitted.records and self._transaction.commit is None:
                self._transaction.start_over("transaction_dropped", slice=slice_.number)
            self._release(slice_)

    def interrupted_safely(self, slice_: Slice, why: str) -> None:
        """The same outside of a transaction."""
        try:
            self.interrupted(slice_, why)
        except OwnershipLostError as lost:
            self.lose_writer(lost)

    def _give_up(self, number: int, why: str) -> None:
        """Leave a slice alone for a moment, and let another node try."""
        self._rest(number)
        self._gate.gave_up(number, why)

    def _rest(self, number: int) -> None:
        self._resting_s[number] = self._clock.monotonic_s() + self._rest_s


def _is_too_short(bounds: Bounds, lane: AnyLane, joining: _Joining) -> bool:
    """Return whether a log ends below an offset that its shard waits for, and waited for when the
    end was asked for: the log has held that offset by then.
    """
    return bounds.end < min(lane.awaited_end, joining.awaited[lane.place])


def _stored(lanes: Iterable[AnyLane]) -> dict[Place, int]:
    return {lane.place: lane.shard.stored for lane in lanes}
