"""The loop of a worker over all its slices: poll → store → due → settle → commit → prune.

Single-threaded: one loop owns the source, the sink and the stores, so there is nothing to lock.
What blocks runs on helper threads: opening a writer, the commit, and what a take-over waits for.
Meanwhile the loop goes on polling and storing. Storing needs no ownership; settling does.

Nothing here is done for every slice in every turn: what a turn costs follows the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import structlog

from delayservice import faults
from delayservice.core.checkpoint import fingerprint
from delayservice.core.claims import CLAIM, RELEASE, encode_word
from delayservice.core.contract import Contract
from delayservice.core.cursor import Cursor
from delayservice.core.disk import DiskLevel
from delayservice.core.flow import Flow, FlowRules
from delayservice.core.outcome import Output
from delayservice.core.pacing import Pacer
from delayservice.core.role import Role
from delayservice.core.settle import Routes
from delayservice.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)
from delayservice.lanes.agenda import Agenda
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.copies import CopyKeeper
from delayservice.lanes.follower import Follower
from delayservice.lanes.ports import (
    Background,
    Bounds,
    Checkpoints,
    Clock,
    Control,
    Gate,
    Observer,
    Place,
    ReadBack,
    Sink,
    Source,
    Succession,
    Trouble,
)
from delayservice.lanes.slice import OWNED, Phase, Slice
from delayservice.lanes.take_over import Taken, take_over, take_over_lane
from delayservice.lanes.upkeep import Pace, Upkeep

REPLICA_WAIT_MS: Final = 200
"""As ``Limits.idle_wait_ms`` a multiple of 200: the client wakes up so often while it waits, and
that is most of what an idle worker costs (``bench idle``)."""
_ASK_THE_TIME_S: Final = 1.0
_NOT_SETTLING_WAIT_MS: Final = 50.0
_HEIR_WAIT_MS: Final = 5.0
_HELPER_WAIT_MS: Final = 2.0
_WALKING_WAIT_MS: Final = 10.0
"""While H waits for something, or a delay topic is paused."""
_BUSY_WAIT_MS: Final = 5.0
"""While a copy is read from the disk: that must not fill a core."""
_LEAST_WAIT_MS: Final = 0.5
_GATHER_MS_MAX: Final = 10.0
_SHARE_MIN: Final = 200
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

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the loop does at once, and how often it commits."""

    poll_records: int = 4_000
    transaction_records: int = 20_000
    """Outputs after which a transaction is committed even before its time; the shards that have
    something due share them."""
    transaction_bytes: int = 32 << 20
    """Payload bytes of a transaction, about."""
    transaction_interval_ms_min: float = 10.0
    """Bounds of the time between the starts of two commits."""
    transaction_interval_ms_max: float = 100.0
    visible_at_commit: bool = True
    """Whether outputs are seen with their commit only: exactly once."""
    cursor_interval_ms: float = 500.0
    """A commit that would only move cursors waits this long, for its loss costs nothing but reading
    a little again; unless storing would have to wait for it."""
    idle_wait_ms: int = 600
    """Longest wait for records when nothing is due: how fast the loop notices everything else."""
    replica_wait_ms: int = REPLICA_WAIT_MS
    """The same while there are slices that this node does not own: how fast it notices that it has
    become the owner."""
    pace: Pace = field(default_factory=Pace)
    rest_s: float = 1.0
    """How long a slice that could not be served is left alone."""


@dataclass(slots=True)
class _Commit:
    """A transaction on its way: what it carries of which slice."""

    future: Future[float]
    started_s: float
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    claiming: list[int] = field(default_factory=list)
    releasing: list[int] = field(default_factory=list)

    @property
    def is_change(self) -> bool:
        """Whether slices change hands by it."""
        return bool(self.claiming or self.releasing)


@dataclass(slots=True)
class _TakeOver:
    """A take-over on its way."""

    future: Future[dict[int, Taken]]
    slices: tuple[int, ...]


class WorkerLoop:
    """All slices of one worker."""

    _turns = 0
    """Claims that were written in this life."""

    def __init__(
        self,
        *,
        node_id: str,
        source: Source,
        sink: Sink,
        checkpoints: Checkpoints,
        succession: Succession,
        background: Background,
        clock: Clock,
        gate: Gate,
        observer: Observer,
        routes: Routes,
        contract_of: Callable[[str], Contract],
        limits: Limits,
        flow_rules: Callable[[], FlowRules] = FlowRules,
        disk_level: Callable[[], DiskLevel] = lambda: DiskLevel.ROOM,
        copies_of: Callable[[int], CopyKeeper | None] = lambda _: None,
        pausing: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_held: Callable[[str], bool] = lambda _: False,
        tended: Callable[[Slice], bool] = lambda _: False,
        writing: Background | None = None,
    ) -> None:
        """``contract_of``: what the settings ask for, by delay topic; ``flow_rules``: limits of a
        slice; ``copies_of``: compares and repairs the copies of a slice; ``pausing``: around the
        wait for records, while other threads may look at the lanes; ``is_held``: whether nothing of
        a delay topic is to be settled now; ``tended``: called about once a second for each slice
        that something happened to, and now and then for the others; whether that is to be soon;
        ``background``: threads for what asks and waits; ``writing``: one for the writer, which must
        not queue behind that.
        """
        self.slices: dict[int, Slice] = {}
        self._node_id = node_id
        self._source = source
        self._sink = sink
        self._checkpoints = checkpoints
        self._succession = succession
        self._background = background
        self._writing = writing or background
        self._clock = clock
        self._gate = gate
        self._observer = observer
        self._secret = fingerprint(routes.secret)
        self._contract_of = contract_of
        self._limits = limits
        self._flow_rules = flow_rules
        self._disk_level = disk_level
        self._copies_of = copies_of
        self._pausing = pausing
        self._is_held = is_held
        self._may_store = True
        self._pacer = Pacer(limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
        # --- the writer
        self._writer = ""
        self._opening: Future[str] | None = None
        self._open_after_s = -math.inf
        self._losses = 0
        self._lost_s = -math.inf
        self._commit: _Commit | None = None
        self._is_open = False
        self._staged_records = 0
        self._resettle = False
        self._last_commit_s = -math.inf
        # --- ownership
        self._roles: Mapping[int, Role] | None = None
        self._role_of: Mapping[int, Role] = {}
        self._changing: set[int] = set()
        self._heirs = 0
        self._has_replicas = False
        self._resting_s: dict[int, float] = {}
        self._is_leaving = False
        self._take_overs: list[_TakeOver] = []
        self._joining: list[tuple[Future[Mapping[Place, Bounds]], list[AnyLane]]] = []
        self._forgettable: list[tuple[int, str]] = []
        # --- what there is to do
        self._agenda = Agenda()
        self._is_hungry = False
        self._touched: set[int] = set()
        self._upkeep = Upkeep(
            self.slices,
            checkpoints,
            clock,
            limits.pace,
            disk_level=disk_level,
            tended=tended,
            heard=self._heard_checkpoint,
            interrupted=self._interrupted_safely,
        )
        self.attend = self._upkeep.attend

    # --- one turn ------------------------------------------------------------------------------

    def step(self, wait_ms_max: int | None = None) -> None:
        """One turn: poll, store, settle what is due, commit when it is time, prune.

        Raises:
            StoreError: a store can't be trusted any more; the process has to end.
        """
        try:
            self._turn(wait_ms_max)
        except OwnershipLostError as lost:
            self._lose_writer(str(lost))

    def _turn(self, wait_ms_max: int | None) -> None:
        self._hear_helpers()
        self._follow_roles()
        if self._resettle:
            self._resettle = False  # what was aborted goes before anything new
        else:
            self._poll(self._wait_ms() if wait_ms_max is None else wait_ms_max)
        self._hear_helpers()
        self._serve()
        self._upkeep.turn()

    def _serve(self) -> None:
        """Settle and commit; while the ensemble is out of sight, only finish what has begun. The
        roles are asked anew, for the process may have stood still in the poll.
        """
        if self._commit is not None or not self._writer:
            return
        self._follow_roles()
        doubt = self._gate.frozen()
        if doubt is not None:
            if self._is_open:
                self._start_over("clock_in_doubt", why=doubt)
            self._ask_the_time()
            if self._commit is None:
                self._commit_when_time()
            return
        if self._is_time_to_settle:
            self._settle()
        self._commit_when_time()

    @property
    def _is_time_to_settle(self) -> bool:
        """Whether to settle with this turn. What is seen with its commit only is settled right
        before that, in one step for all that came due meanwhile: so each partition gets one batch.
        """
        return (
            not self._limits.visible_at_commit
            or self._is_hungry
            or self._to_commit_ms(self._pacer.interval_ms) <= 0
            or self._is_urgent
        )

    def _role(self, number: int) -> Role:
        return self._role_of.get(number, Role.REPLICA)

    # --- poll → store --------------------------------------------------------------------------

    def _poll(self, wait_ms: float) -> None:
        self._mind_the_disk()
        with self._pausing():
            runs = self._source.poll(
                wait_ms / 1000, self._limits.poll_records, self._gather_ms(wait_ms) / 1000
            )
        faults.point("after_poll")
        heard_ms = 0
        for run in runs:
            slice_ = self.slices.get(run.place[1])
            lane = None if slice_ is None else slice_.lanes.get(run.place[0])
            if slice_ is None or lane is None:
                continue
            try:
                records = lane.ingest(run)
            except KafkaEdgeError as exc:
                if not lane.shard.owned:
                    lane.step_down()  # what was read is read again; an owner does when it lets go
                self._interrupted_safely(slice_, str(exc))
                if not lane.shard.owned:
                    lane.step_down()  # what was taken with the failure is read again
                continue
            self._observer.ingested(slice_.number, records)
            self._upkeep.active.add(slice_.number)
            if lane.shard.owned:
                self._touched.add(slice_.number)
                self._agenda.walk(lane)
            if run.rows:
                heard_ms = max(heard_ms, run.rows[-1][1])
        if heard_ms:
            self._gate.heard_broker(heard_ms, None, 0.0)
        for trouble in self._source.take_troubles():
            self._hear_trouble(trouble)
        faults.point("after_append")

    def _hear_trouble(self, trouble: Trouble) -> None:
        """The log expired or was truncated under us: go on with what it holds now. Another log of
        the same name is none of this lane's: a new lane will serve it from its start.
        """
        topic, number = trouble.place
        slice_ = self.slices.get(number)
        lane = None if slice_ is None else slice_.lanes.get(topic)
        if slice_ is None or lane is None:  # dropped a moment ago
            return
        if not trouble.has_moved:
            self._interrupted_safely(slice_, trouble.why)
            return
        _log.warning("log_moved", topic=topic, partition=number, why=trouble.why)
        try:
            if self._source.topic_id(topic) != lane.topic_id:
                self.drop_lane(number, topic)
                return
            bounds = self._source.bounds(lane.place)
        except KafkaEdgeError as exc:
            self._source.seek(lane.place, lane.shard.stored)
            self._interrupted_safely(slice_, str(exc))
            return
        if lane.shard.owned:
            self._settle_down_safely()
        try:
            lane.refit(bounds)
        except KafkaEdgeError as exc:
            self._interrupted_safely(slice_, str(exc))
        self._agenda.look_again(lane)

    def _mind_the_disk(self) -> None:
        may_store = self._disk_level() < DiskLevel.STOP
        if may_store != self._may_store:
            self._may_store = may_store
            for slice_ in self.slices.values():
                for lane in slice_.lanes.values():
                    lane.let_store(may_store=may_store)

    def _wait_ms(self) -> float:
        """Return how long nothing is to be done unless a record comes."""
        if self._commit is not None and not self._commit.is_change:
            # Nothing is settled before the next commit may begin.
            return max(_HELPER_WAIT_MS, self._to_commit_ms(self._pacer.interval_ms))
        if self._commit is not None or self._opening is not None:
            return _HELPER_WAIT_MS
        if self._take_overs or self._joining or self._changing or self._heirs:
            return _HEIR_WAIT_MS
        limits = self._limits
        wait_ms = float(limits.idle_wait_ms)
        if self._upkeep.is_busy:
            wait_ms = _BUSY_WAIT_MS
        if self._has_replicas:
            wait_ms = min(wait_ms, limits.replica_wait_ms)
        if not self._writer or self._gate.frozen() is not None:
            return min(wait_ms, _NOT_SETTLING_WAIT_MS)
        if self._is_hungry:
            return _LEAST_WAIT_MS
        if self._agenda.walking:
            to_commit_ms = self._to_commit_ms(self._pacer.interval_ms)
            wait_ms = min(wait_ms, max(to_commit_ms, _WALKING_WAIT_MS))
        wait_ms = min(wait_ms, self._due_in_ms())
        if self._is_staged:
            wait_ms = min(wait_ms, self._commit_in_ms())
        # At least a moment, so that something which is due but has to wait does not spin.
        return max(wait_ms, _LEAST_WAIT_MS)

    def _gather_ms(self, wait_ms: float) -> float:
        """Return how long to gather records after the first has come: none of them is settled
        before the next commit may begin, and each turn has its price.
        """
        if not self._limits.visible_at_commit or wait_ms <= _LEAST_WAIT_MS:
            return 0.0
        return min(self._to_commit_ms(self._pacer.interval_ms), wait_ms, _GATHER_MS_MAX)

    def _due_in_ms(self) -> float:
        """Return the time until the next record is due; where it is seen with its commit only,
        until the commit: one turn for all that come due meanwhile, not one for each.
        """
        due_ms = self._agenda.next_due_ms()
        due_in_ms = math.inf if due_ms is None else due_ms - self._clock.wall_ms()
        if not self._limits.visible_at_commit:
            return due_in_ms
        return max(due_in_ms, self._to_commit_ms(self._pacer.interval_ms))

    # --- due → settle --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Each shard that has something to settle gets its share of the transaction; what the
        others leave over goes to those that have more.
        """
        now_ms = self._clock.wall_ms()
        lanes = self._lanes_to_settle(now_ms)
        self._is_hungry = False
        if not lanes:
            return
        limits = self._limits
        room = max(limits.transaction_records - self._staged_records, _SHARE_MIN)
        share = max(room // len(lanes), min(_SHARE_MIN, room))
        byte_share = max(limits.transaction_bytes // len(lanes), 1)
        hungry, waiting = [], set()
        try:
            for slice_, lane in lanes:
                settled = self._settle_lane(slice_, lane, now_ms, share, byte_share)
                if settled >= share:
                    hungry.append((slice_, lane))
                elif not settled:
                    waiting.add(lane.place)
            self._is_hungry = bool(hungry)
            for slice_, lane in hungry if len(lanes) > 1 else ():
                left = limits.transaction_records - self._staged_records
                if left < _SHARE_MIN:
                    break
                self._settle_lane(slice_, lane, now_ms, left // len(hungry) + 1, byte_share)
        except RefusedError as refused:
            self._put_back(refused)
        finally:
            for _, lane in lanes:
                if lane.place in waiting and (lane.next_due_ms() or now_ms + 1) <= now_ms:
                    self._agenda.wait(lane)
                else:
                    self._agenda.look_when_due(lane)

    def _lanes_to_settle(self, now_ms: int) -> list[tuple[Slice, AnyLane]]:
        """Return those that H has to walk and those with something due, earliest first."""
        found = []
        for place in self._agenda.take(now_ms):
            slice_ = self.slices.get(place[1])
            lane = None if slice_ is None else slice_.lanes.get(place[0])
            if slice_ is None or lane is None or not slice_.is_owner or not lane.shard.owned:
                self._agenda.forget(place)
            elif self._role(slice_.number) is Role.OWNER and not self._is_held(place[0]):
                found.append((slice_, lane))
            else:  # looked at again with the next turn
                self._agenda.walking[place] = None
        return found

    def _settle_lane(
        self, slice_: Slice, lane: AnyLane, now_ms: int, limit: int, bytes_max: int
    ) -> int:
        """Settle what is late and what is due of one shard; return how many outputs that made."""
        before = slice_.uncommitted.records
        self._touched.add(slice_.number)  # first, for whatever is staged may have to be put back
        try:
            self._send(slice_, lane, lane.settle_late(now_ms, limit))
            for outputs in lane.settle_due(now_ms, limit, bytes_max):
                self._send(slice_, lane, outputs)
        except (RefusedError, OwnershipLostError):
            raise
        except KafkaEdgeError as exc:
            self._interrupted(slice_, str(exc))
            return 0
        if lane.shard.is_walked:
            self._agenda.walking.pop(lane.place, None)
        return slice_.uncommitted.records - before

    def _send(self, slice_: Slice, lane: AnyLane, outputs: list[Output]) -> None:
        if not outputs:
            return
        faults.point("before_produce")
        self._is_open = True
        self._sink.send(lane.place, outputs)
        slice_.uncommitted.add(outputs)
        self._staged_records += len(outputs)

    def _put_back(self, refused: RefusedError) -> None:
        for (place, offset), reason in refused.refusals.items():
            slice_ = self.slices.get(place[1])
            if slice_ is not None and place[0] in slice_.lanes:
                slice_.lanes[place[0]].verdicts.refuse([(offset, reason)])
        self._start_over("records_refused", why=str(refused))

    def _start_over(self, event: str, **facts: object) -> None:
        """Drop the transaction: nothing of it becomes visible; the same is settled again."""
        _log.warning(event, **facts)
        self._sink.abort()
        self._aborted()

    def _aborted(self) -> None:
        self._is_open = False
        self._staged_records = 0
        self._resettle = True
        for number in self._touched:
            slice_ = self.slices.get(number)
            if slice_ is not None:
                slice_.aborted()
                for lane in slice_.lanes.values():
                    self._agenda.look_again(lane)

    # --- commit --------------------------------------------------------------------------------

    @property
    def _is_staged(self) -> bool:
        return bool(
            self._changing
            or self._is_open
            or any(self._is_slice_staged(number) for number in self._touched)
        )

    def _is_slice_staged(self, number: int) -> bool:
        slice_ = self.slices.get(number)
        return slice_ is not None and slice_.phase in OWNED and slice_.is_staged

    @property
    def _is_urgent(self) -> bool:
        """Whether a commit is wanted for more than the cursors."""
        return bool(
            self._changing
            or self._staged_records
            or any(s.is_filling for n in self._touched if (s := self.slices.get(n)) is not None)
        )

    def uncommitted_s(self, slice_: Slice) -> float:
        """Return how long something of a slice has been waiting to be committed, seconds."""
        if not slice_.is_owner or not slice_.is_staged:
            return 0.0
        return self._clock.monotonic_s() - self._last_commit_s

    def _commit_in_ms(self) -> float:
        interval_ms = self._pacer.interval_ms
        if not self._is_urgent:
            interval_ms = max(interval_ms, self._limits.cursor_interval_ms)
        return self._to_commit_ms(interval_ms)

    def _to_commit_ms(self, interval_ms: float) -> float:
        """Return the time until the last commit began so long ago, milliseconds."""
        since_s = self._clock.monotonic_s() - self._last_commit_s
        return max(interval_ms - since_s * 1000, 0.0)

    def _commit_when_time(self) -> None:
        if self._commit is not None or not self._writer or not self._is_staged:
            return
        is_full = self._staged_records >= self._limits.transaction_records
        if self._changing or is_full or self._commit_in_ms() <= 0:
            self._begin_commit()

    def _begin_commit(self, also: Collection[int] = ()) -> None:
        """Hand the transaction to the helper thread: the checkpoints of all slices that changed,
        claims and releases. ``also``: slices whose checkpoint is wanted in any case.
        """
        self._last_commit_s = self._clock.monotonic_s()
        controls: list[Control] = []
        checkpoints: dict[int, bytes] = {}
        claiming, releasing = [], []
        for number in sorted(self._touched | self._changing | set(also)):
            slice_ = self.slices.get(number)
            if slice_ is None:
                continue
            if slice_.phase is Phase.CLAIMING:
                claiming.append(number)
                self._turns += 1  # also over a slice that was dropped and kept again
                slice_.turn = self._turns
                controls.append(self._word(number, CLAIM))
            if slice_.phase is Phase.TAKEN or (
                slice_.phase in OWNED and (slice_.is_staged or number in also)
            ):
                data = slice_.checkpoint(self._node_id, self._writer, self._secret)
                checkpoints[number] = data
                controls.append(Control(number, data))
            if slice_.phase is Phase.RELEASING:
                releasing.append(number)
                controls.append(self._word(number, RELEASE))
        controls += [Control(number, None, writer) for number, writer in self._forgettable]
        self._forgettable.clear()
        if not controls and not self._is_open:
            self._changing.clear()
            self._touched.clear()
            return
        self._touched = set()
        self._is_open = False
        future = self._writing.submit(lambda: self._commit_timed(controls))
        self._commit = _Commit(future, self._last_commit_s, checkpoints, claiming, releasing)
        self._hear_commit()

    def _commit_timed(self, controls: Sequence[Control]) -> float:
        """Commit; return how long it took, seconds. Runs on the writer's thread."""
        started_s = self._clock.monotonic_s()
        self._sink.commit(controls)
        return self._clock.monotonic_s() - started_s

    def _word(self, number: int, word: str) -> Control:
        turn = self.slices[number].turn
        value = encode_word(number, self._writer, self._node_id, word, turn)
        return Control(number, value, self._writer)

    def _hear_commit(self) -> None:
        """Take the result of a commit, if it has come."""
        commit = self._commit
        if commit is None or not commit.future.done():
            return
        self._commit = None
        committed = False
        elapsed_s = self._clock.monotonic_s() - commit.started_s
        try:
            elapsed_s = commit.future.result()
            committed = True
        except RefusedError as refused:
            self._touched |= commit.checkpoints.keys()
            self._put_back(refused)
            self._failed(commit, str(refused))
        except TransactionAbortedError as aborted:
            _log.warning("transaction_aborted", why=str(aborted))
            self._touched |= commit.checkpoints.keys()
            self._aborted()
            self._failed(commit, str(aborted))
            for number in aborted.stuck & self.slices.keys():
                self._interrupted_safely(self.slices[number], str(aborted))
        except KafkaEdgeError as lost:  # fenced, or the result is not known: a successor finds out
            self._observe(commit, elapsed_s, committed=False)
            self._lose_writer(str(lost))
            return
        self._observe(commit, elapsed_s, committed=committed)
        if committed:
            faults.point("after_commit")
            self._committed(commit)

    def _observe(self, commit: _Commit, elapsed_s: float, *, committed: bool) -> None:
        self._pacer.observe(elapsed_s * 1000)
        self._observer.transaction(commit.checkpoints.keys(), elapsed_s, committed=committed)

    def _failed(self, commit: _Commit, why: str) -> None:
        """What this node can't commit again and again, one with another network perhaps can."""
        for number in commit.checkpoints:
            slice_ = self.slices.get(number)
            if slice_ is not None:
                slice_.failures += 1
                if slice_.failures >= _FAILURES_MAX:
                    slice_.failures = 0
                    slice_.trouble = why
                    self._gate.gave_up(number, why)

    def _committed(self, commit: _Commit) -> None:
        self._staged_records = 0
        now_ms = self._clock.wall_ms()
        upgraded = []
        for number, data in commit.checkpoints.items():
            slice_ = self.slices.get(number)
            if slice_ is None:
                continue
            slice_.committed(data, now_ms)
            self._observer.settled(number, slice_.uncommitted, now_ms)
            slice_.uncommitted.clear()
            self._upkeep.active.add(number)
            if slice_.phase is Phase.TAKEN and slice_.is_upgrade:
                upgraded.append(number)
            elif slice_.phase is Phase.TAKEN:
                self._serve_from_now(slice_)
        for number in commit.releasing:
            self._released(number)
        claimed = [n for n in commit.claiming if n in self.slices]
        self._begin_take_over([*claimed, *upgraded], upgraded)

    def _ask_the_time(self) -> None:
        """Nothing is settled while the clock is in doubt. A commit without outputs, read back with
        the broker's timestamp, says whether it is right after all.
        """
        if self._clock.monotonic_s() - self._last_commit_s < _ASK_THE_TIME_S:
            return
        owned = next((n for n, s in self.slices.items() if s.is_owner), None)
        if owned is not None:
            self._begin_commit(also=[owned])

    # --- ownership -----------------------------------------------------------------------------

    def _follow_roles(self) -> None:
        """Claim what this node is to own, release what it is not to own any more."""
        roles = self._gate.roles()
        if self._resting_s and min(self._resting_s.values()) <= self._clock.monotonic_s():
            now_s = self._clock.monotonic_s()
            self._resting_s = {n: s for n, s in self._resting_s.items() if s > now_s}
            self._roles = None
        if roles is not self._roles:
            self._roles = self._role_of = roles
            mine = [roles.get(n, Role.REPLICA) for n in self.slices]
            self._has_replicas = any(role is not Role.OWNER for role in mine)
            self._heirs = mine.count(Role.HEIR)
            for slice_ in self.slices.values():
                self._follow_role(slice_)
        if not self._writer and self._opening is None and self._wants_writer:
            self._open_writer()

    def _follow_role(self, slice_: Slice) -> None:
        role, phase, number = self._role(slice_.number), slice_.phase, slice_.number
        if phase is Phase.REPLICA:
            is_wanted = role is Role.OWNER and number not in self._resting_s
            if is_wanted and slice_.lanes and self._writer and not self._is_leaving:
                slice_.phase = Phase.CLAIMING
                self._changing.add(number)
        elif phase is Phase.CLAIMING:
            in_flight = self._commit is not None and number in self._commit.claiming
            if not role.keeps_owning and not in_flight:
                slice_.phase = Phase.REPLICA
                self._changing.discard(number)
        elif phase in {Phase.TAKEN, Phase.OWNER} and not role.keeps_owning:
            self._release(slice_)

    @property
    def _wants_writer(self) -> bool:
        if self._clock.monotonic_s() < self._open_after_s:
            return False
        wanted = {Role.OWNER, Role.HEIR}
        return any(self._role(n) in wanted for n, s in self.slices.items() if s.lanes)

    def _open_writer(self) -> None:
        self._opening = self._writing.submit(self._sink.open)
        self._hear_opening()

    def _hear_helpers(self) -> None:
        self._hear_opening()
        self._hear_commit()
        for job in [job for job in self._take_overs if job.future.done()]:
            self._take_overs.remove(job)
            self._hear_take_over(job)
        if self._commit is None:  # whose checkpoint is the first must be beyond doubt
            for joining in [one for one in self._joining if one[0].done()]:
                self._joining.remove(joining)
                self._join(*joining)

    def _hear_opening(self) -> None:
        opening = self._opening
        if opening is None or not opening.done():
            return
        self._opening = None
        try:
            self._writer = opening.result()
            self._succession.enter(self._writer)
        except KafkaEdgeError as exc:
            _log.warning("writer_not_opened", why=str(exc))
            self._open_after_s = self._clock.monotonic_s() + _OPEN_RETRY_S
            for number, slice_ in self.slices.items():
                if slice_.lanes and self._role(number) is Role.OWNER:
                    slice_.trouble = str(exc)
                    self._gate.gave_up(number, str(exc))
            return
        self._roles = None  # what was to be claimed waited for the writer

    def _begin_take_over(self, numbers: Collection[int], upgraded: Collection[int]) -> None:
        """The claims of these slices are committed: names, fence, read. ``upgraded``: so is the
        first checkpoint, but version 1 may have come between.
        """
        self._changing -= set(numbers)
        if not numbers:
            return
        for group in self._grouped(numbers):
            self._submit_take_over(group, upgraded)

    def _grouped(self, numbers: Collection[int]) -> Iterable[list[int]]:
        """Slices whose take-over failed before go in smaller groups each time, so that one that
        can't be taken over keeps fewer and fewer others from it.
        """
        by_setbacks: dict[int, list[int]] = {}
        for number in numbers:
            by_setbacks.setdefault(self.slices[number].setbacks, []).append(number)
        for setbacks, group in by_setbacks.items():
            size = max(_GROUP_MAX >> setbacks, 1)
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _submit_take_over(self, numbers: Collection[int], upgraded: Collection[int]) -> None:
        slices, places = {}, []
        for number in numbers:
            slice_ = self.slices[number]
            slice_.phase = Phase.TAKING
            slices[number] = slice_.turn - 1
            places += slice_.places
        me, secret, succession = self._writer, self._secret, self._succession
        future = self._background.submit(
            lambda: take_over(succession, me, slices, places, secret, upgraded)
        )
        self._take_overs.append(_TakeOver(future, tuple(numbers)))

    def _hear_take_over(self, job: _TakeOver) -> None:
        waiting = [
            slice_
            for number in job.slices
            if (slice_ := self.slices.get(number)) is not None and slice_.phase is Phase.TAKING
        ]
        taken: dict[int, Taken] = {}
        why = "another node is to own it"
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
            found = taken.get(slice_.number)
            if found is None or not self._role(slice_.number).keeps_owning:
                self._rest(slice_.number)
                self._release(slice_)
            else:
                self._take(slice_, found)

    def _take(self, slice_: Slice, taken: Taken) -> None:
        """Make the lanes owners from the last checkpoint on; the next commit says so."""
        missing = [place for place in slice_.places if place not in taken.bounds]
        slice_.taken_over(taken, self._gate.epoch(slice_.number))
        try:
            for lane in slice_.lanes.values():
                if lane.place in taken.bounds:
                    self._take_lane(slice_, lane, taken.bounds[lane.place])
        except KafkaEdgeError as exc:  # its log can't be read
            self._interrupted_safely(slice_, str(exc))
            return
        if missing:  # their leader gave no answer, or they were added meanwhile
            self._ask_bounds([slice_.lanes[topic] for topic, _ in missing])
        self._changing.add(slice_.number)

    def _take_lane(self, slice_: Slice, lane: AnyLane, bounds: Bounds) -> None:
        take_over_lane(lane, slice_.known_of(lane.topic), bounds, self._contract_of(lane.topic))
        self._touched.add(slice_.number)
        self._agenda.look_again(lane)

    def _ask_bounds(self, lanes: list[AnyLane]) -> None:
        places = [lane.place for lane in lanes]
        future = self._background.submit(lambda: self._succession.bounds(places))
        self._joining.append((future, lanes))

    def _join(self, future: Future[Mapping[Place, Bounds]], lanes: list[AnyLane]) -> None:
        """Let shards that were added to an owned slice be owned as well."""
        try:
            bounds = future.result()
        except KafkaEdgeError as exc:
            _log.warning("log_ends_not_known", why=str(exc))
            bounds = {}
        again = []
        for lane in lanes:
            slice_ = self.slices.get(lane.partition)
            if slice_ is None or slice_.lanes.get(lane.topic) is not lane:
                continue
            if slice_.phase not in OWNED or lane.shard.owned:
                continue
            if lane.place in bounds:
                try:
                    self._take_lane(slice_, lane, bounds[lane.place])
                except KafkaEdgeError as exc:
                    self._interrupted_safely(slice_, str(exc))
                    continue
                self._changing.add(slice_.number)
                if slice_.phase is Phase.OWNER:
                    slice_.phase = Phase.TAKEN  # a contract is committed before it is used
            else:
                again.append(lane)
        if again:
            self._ask_bounds(again)

    def _serve_from_now(self, slice_: Slice) -> None:
        """The first checkpoint is committed."""
        slice_.phase = Phase.OWNER
        slice_.trouble = ""
        slice_.setbacks = 0
        self._changing.discard(slice_.number)
        self._forgettable += [(slice_.number, writer) for writer in slice_.fenced]
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
        if not self._role(slice_.number).keeps_owning:
            self._release(slice_)

    def _release(self, slice_: Slice) -> None:
        """Let go in good order: finish the transaction, say so in the log."""
        slice_.phase = Phase.RELEASING
        self._changing.add(slice_.number)

    def _released(self, number: int) -> None:
        self._changing.discard(number)
        slice_ = self.slices.get(number)
        if slice_ is None:
            return
        _log.info("handed_over", slice=number, epoch=slice_.epoch)
        self._step_down(slice_)

    def _step_down(self, slice_: Slice) -> None:
        slice_.step_down()
        self._changing.discard(slice_.number)
        self._touched.discard(slice_.number)
        for lane in slice_.lanes.values():
            self._agenda.look_again(lane)
        self._gate.settling(slice_.number, is_settling=False)
        self._roles = None  # it may be wanted again already

    def _interrupted(self, slice_: Slice, why: str) -> None:
        """A slice can't be served here now; the others go on."""
        _log.warning("slice_interrupted", slice=slice_.number, why=why)
        slice_.trouble = why
        self._give_up(slice_.number, why)
        if slice_.phase in {Phase.TAKEN, Phase.OWNER}:
            if slice_.uncommitted.records and self._commit is None:
                self._start_over("transaction_dropped", slice=slice_.number)
            self._release(slice_)

    def _interrupted_safely(self, slice_: Slice, why: str) -> None:
        """The same outside of a transaction: the writer may turn out to be lost by then."""
        try:
            self._interrupted(slice_, why)
        except OwnershipLostError as lost:
            self._lose_writer(str(lost))

    def _give_up(self, number: int, why: str) -> None:
        """Leave a slice alone for a moment, and let another node try."""
        self._rest(number)
        self._gate.gave_up(number, why)

    def _rest(self, number: int) -> None:
        self._resting_s[number] = self._clock.monotonic_s() + self._limits.rest_s

    def _lose_writer(self, why: str) -> None:
        """Fenced, or the result of a commit is not known: give the writer up, and claim anew what
        this node is still to own.
        """
        _log.warning("ownership_lost", writer=self._writer, why=why)
        now_s = self._clock.monotonic_s()
        self._losses = 1 if now_s - self._lost_s > _LOSSES_S else self._losses + 1
        self._lost_s = now_s
        self._sink.discard()
        self._writer = ""
        self._commit = None
        self._is_open = False
        self._staged_records = 0
        for job in self._take_overs:
            job.future.cancel()
        self._take_overs.clear()
        self._joining.clear()
        self._forgettable.clear()
        self._touched.clear()
        self._changing.clear()
        rest_s = min(_LOSS_REST_S * 2**self._losses, _LOSS_REST_S_MAX)
        if self._losses > 1:  # once is what another node's take-over does
            self._open_after_s = now_s + rest_s
        gives_up = self._losses > _LOSSES_MAX
        for number, slice_ in self.slices.items():
            if slice_.phase is not Phase.REPLICA:
                self._step_down(slice_)
                if gives_up:
                    self._gate.gave_up(number, why)
        self._roles = None

    def _settle_down(self) -> None:
        """Have nothing in flight: wait for a commit, and drop what is staged since."""
        if self._commit is not None:
            self._commit.future.exception()  # waits
            self._hear_commit()
        if self._is_open:
            self._start_over("transaction_dropped")

    def _heard_checkpoint(self, slice_: Slice, read_back: ReadBack) -> None:
        """A checkpoint came back: an own one says how far the broker's clock is from ours."""
        if read_back.data == slice_.last_committed:
            self._gate.heard_broker(read_back.broker_ms, read_back, self._last_commit_s)

    # --- slices and shards ---------------------------------------------------------------------

    def add_slice(self, number: int) -> Slice:
        """Keep a slice; it has no shards yet."""
        follower = Follower(number, self._checkpoints, self._clock)
        slice_ = Slice(number, Flow(self._flow_rules()), follower, self._copies_of(number))
        self.slices[number] = slice_
        self._upkeep.add(number)
        return slice_

    def add_lanes(self, number: int, lanes: Iterable[AnyLane]) -> None:
        """Serve more shards of a slice: an owner takes them over."""
        slice_ = self.slices.get(number) or self.add_slice(number)
        added = list(lanes)
        for lane in added:
            slice_.lanes[lane.topic] = lane
            lane.let_store(may_store=self._may_store)
            lane.follow(Cursor())
        slice_.follower.again()
        self._upkeep.follow_again(number)
        if slice_.phase in {Phase.TAKEN, Phase.OWNER}:
            self._ask_bounds(added)
        self._roles = None

    def drop_lane(self, number: int, topic: str) -> None:
        """Serve a shard no longer: its topic is gone or unfit. Its cursor stays as committed."""
        slice_ = self.slices[number]
        lane = slice_.lanes[topic]
        if lane.shard.owned:
            self._settle_down_safely()
        slice_.put_down(topic)
        self._source.drop(lane.place)
        self._agenda.forget(lane.place)

    def _settle_down_safely(self) -> None:
        try:
            self._settle_down()
        except OwnershipLostError as lost:
            self._lose_writer(str(lost))

    def drop_slice(self, number: int) -> bool:
        """Keep no copy of a slice any more; False: it has to be released first."""
        slice_ = self.slices[number]
        if slice_.phase is not Phase.REPLICA:
            if slice_.phase in {Phase.TAKEN, Phase.OWNER}:
                self._release(slice_)
            return False
        for topic in list(slice_.lanes):
            self.drop_lane(number, topic)
        del self.slices[number]
        self._upkeep.remove(number)
        return True

    def release_all(self) -> None:
        """Let go of every slice in good order, and claim none any more; on the way for as long as
        ``is_settling``.
        """
        self._is_leaving = True
        for slice_ in self.slices.values():
            if slice_.phase in {Phase.TAKEN, Phase.OWNER}:
                self._release(slice_)

    @property
    def is_settling(self) -> bool:
        """Whether any slice is owned, or on the way to or from it."""
        return any(slice_.phase is not Phase.REPLICA for slice_ in self.slices.values())

    def close(self) -> None:
        """Make the stores durable, let go of everything."""
        self._settle_down_safely()
        for slice_ in self.slices.values():
            self._step_down(slice_)
            for lane in slice_.lanes.values():
                lane.close()
        self._sink.discard()
