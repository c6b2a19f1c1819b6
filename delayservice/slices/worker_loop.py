"""The loop of a worker over all its slices: poll → store → due → settle → commit → prune.

Single-threaded: one loop owns the source, the sink and the stores, so there is nothing to lock.
What blocks runs on helper threads: opening a writer, the commit, and what a take-over waits for.
Meanwhile the loop goes on polling and storing. Storing needs no ownership; settling does.

Nothing here is done for every slice in every turn: what a turn costs follows the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import structlog

from delayservice.base import faults
from delayservice.base.errors import (
    KafkaEdgeError,
    LogTruncatedError,
    OwnershipLostError,
    RefusedError,
)
from delayservice.contract.contracts import Contract
from delayservice.engine.checkpoint import fingerprint
from delayservice.engine.cursor import Cursor
from delayservice.engine.disk import DiskLevel
from delayservice.engine.flow import Flow, FlowRules
from delayservice.engine.ports import (
    Background,
    Checkpoints,
    Clock,
    Gate,
    Observer,
    ReadBack,
    Run,
    Sink,
    Source,
    Succession,
    Trouble,
)
from delayservice.engine.role import Role
from delayservice.engine.routes import Routes
from delayservice.slices.agenda import Agenda
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.follower import Follower
from delayservice.slices.limits import Limits
from delayservice.slices.owning import Owning
from delayservice.slices.phase import Phase
from delayservice.slices.slice import Slice
from delayservice.slices.transaction import Transaction
from delayservice.slices.upkeep import Upkeep

_ASK_THE_TIME_S: Final = 1.0
_NOT_SETTLING_WAIT_MS: Final = 50.0
_CHANGING_WAIT_MS: Final = 5.0
_HELPER_WAIT_MS: Final = 2.0
_WALKING_WAIT_MS: Final = 10.0
"""While H waits for something, or a delay topic is paused."""
_BUSY_WAIT_MS: Final = 5.0
"""While a copy is read from the disk: that must not fill a core."""
_LEAST_WAIT_MS: Final = 0.5
_GATHER_MS_MAX: Final = 10.0
_SHARE_MIN: Final = 200
_READ_S: Final = 0.05
"""How long one turn reads records that are fired, wherever they lie: all shards together."""

_log = structlog.get_logger(__name__)


class WorkerLoop:
    """All slices of one worker."""

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
        contract_of: Callable[[str, int], Contract],
        limits: Limits,
        flow_rules: Callable[[], FlowRules] = FlowRules,
        disk_level: Callable[[], DiskLevel] = lambda: DiskLevel.ROOM,
        copies_of: Callable[[int], CopyKeeper | None] = lambda _: None,
        pausing: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_held: Callable[[str], bool] = lambda _: False,
        tended: Callable[[Slice], bool] = lambda _: False,
        writing: Background | None = None,
    ) -> None:
        """``contract_of``: see ``Owning``; ``flow_rules``: limits of a
        slice; ``copies_of``: compares and repairs the copies of a slice; ``pausing``: around the
        wait for records, while other threads may look at the lanes; ``is_held``: whether nothing of
        a delay topic is to be settled now; ``tended``: called about once a second for each slice
        that something happened to, and now and then for the others; whether that is to be soon;
        ``background``: threads for what asks and waits; ``writing``: one for the writer, which must
        not queue behind that.
        """
        self.slices: dict[int, Slice] = {}
        self._source = source
        self._checkpoints = checkpoints
        self._clock = clock
        self._gate = gate
        self._observer = observer
        self._limits = limits
        self._flow_rules = flow_rules
        self._disk_level = disk_level
        self._copies_of = copies_of
        self._pausing = pausing
        self._is_held = is_held
        self._may_store = True
        self._read_until_s = -math.inf
        self._restated: set[int] = set()
        self._waited_s = 0.0
        self._is_hungry = False
        """Whether more is due than the last turn could settle."""
        self._secrets = tuple(map(fingerprint, routes.secrets))
        writing = writing or background
        self._tended = tended
        self._agenda = Agenda()
        self._transaction = Transaction(
            self.slices,
            self._agenda,
            sink,
            writing,
            clock,
            observer,
            limits,
            node_id,
            self._secrets[0],
        )
        self._owning = Owning(
            self.slices,
            self._transaction,
            self._agenda,
            sink,
            succession,
            background,
            writing,
            clock,
            gate,
            contract_of,
            self._secrets,
            limits.rest_s,
        )
        self._upkeep = Upkeep(
            self.slices,
            checkpoints,
            clock,
            limits.pace,
            disk_level=disk_level,
            tended=self._tend,
            heard=self._heard_checkpoint,
            interrupted=self._not_followed,
        )
        self.wake = source.wake
        self.release_all = self._owning.release_all

    @property
    def is_settling(self) -> bool:
        """Return whether any slice is owned, or on the way to or from it."""
        return self._owning.is_settling

    def attend(self, number: int) -> None:
        """Look after a slice's copies at once: there is a command. Any thread may call this."""
        self._upkeep.attend(number)
        self.wake()

    # --- one turn ------------------------------------------------------------------------------

    def step(self, wait_ms_max: int | None = None) -> None:
        """One turn: poll, store, settle what is due, commit when it is time, prune.

        Raises:
            StoreError: a store can't be trusted any more; the process has to end.
        """
        try:
            self._turn(wait_ms_max)
        except OwnershipLostError as lost:
            self._owning.lose_writer(lost)

    def _turn(self, wait_ms_max: int | None) -> None:
        began_s, self._waited_s = self._clock.monotonic_s(), 0.0
        self._hear_helpers()
        self._owning.follow_roles()
        if not self._transaction.take_aborted():
            self._poll(self._wait_ms() if wait_ms_max is None else wait_ms_max)
        self._hear_helpers()
        self._serve()
        self._upkeep.turn()
        self._observer.turned(self._clock.monotonic_s() - began_s - self._waited_s)

    def _hear_helpers(self) -> None:
        self._hear_commit()
        self._owning.hear_helpers()

    def _hear_commit(self) -> None:
        ended = self._transaction.hear()
        if ended is not None:
            self._upkeep.active |= ended.commit.checkpoints.keys()
            self._owning.hear_commit(ended)

    def _serve(self) -> None:
        """Settle and commit; while the ensemble is out of sight, only finish what has begun. The
        roles are asked anew, for the process may have stood still in the poll.
        """
        transaction = self._transaction
        if transaction.commit is not None or not transaction.writer:
            return
        self._owning.follow_roles()
        doubt = self._gate.frozen()
        if doubt is None:
            if self._is_time_to_settle:
                self._settle()
        else:
            if transaction.is_open:
                transaction.start_over("clock_in_doubt", why=doubt)
            self._ask_the_time()
        self._commit_when_time()

    @property
    def _is_time_to_settle(self) -> bool:
        """Return whether to settle with this turn. What is seen with its commit only is settled
        right before that, in one step for all that came due meanwhile: so each partition gets one
        batch.
        """
        return (
            not self._limits.visible_at_commit
            or self._is_hungry
            or self._transaction.may_commit_in_ms <= 0
            or self._transaction.is_urgent
        )

    def _commit_when_time(self) -> None:
        transaction = self._transaction
        if transaction.commit is not None:
            return
        restated = {n for n in self._restated if (s := self.slices.get(n)) and s.is_owner}
        if restated or (transaction.is_staged and transaction.is_time):
            self._restated.clear()
            transaction.begin_commit(also=restated)
            self._hear_commit()

    def restate(self, slice_no: int) -> None:
        """Commit the checkpoint of an owned slice again, although nothing has changed: another
        record lies above it in its topic.
        """
        self._restated.add(slice_no)

    def _ask_the_time(self) -> None:
        """Nothing is settled while the clock is in doubt. A commit without outputs, read back with
        the broker's timestamp, says whether it is right after all.
        """
        if self._transaction.since_commit_s < _ASK_THE_TIME_S:
            return
        owned = next((n for n, s in self.slices.items() if s.is_owner), None)
        if owned is not None:
            self._transaction.begin_commit(also=[owned])
            self._hear_commit()

    # --- poll → store --------------------------------------------------------------------------

    def _poll(self, wait_ms: float) -> None:
        self._mind_the_disk()
        began_s = self._clock.monotonic_s()
        with self._pausing():
            runs = self._source.poll(
                wait_ms / 1000, self._limits.poll_records, self._gather_ms(wait_ms) / 1000
            )
        self._waited_s = self._clock.monotonic_s() - began_s
        faults.point("after_poll")
        heard_ms = 0
        for run in runs:
            if self._store(run) and run.rows:
                heard_ms = max(heard_ms, run.rows[-1][1])
        if heard_ms:
            self._gate.heard_broker(heard_ms, None, 0.0)
        for trouble in self._source.take_troubles():
            self._hear_trouble(trouble)
        faults.point("after_append")

    def _store(self, run: Run) -> bool:
        """Store what was read of a shard; return whether that could be done."""
        topic, number = run.place
        slice_ = self.slices.get(number)
        lane = None if slice_ is None else slice_.lanes.get(topic)
        if slice_ is None or lane is None or slice_.follower.refusal:  # since a moment ago
            return False
        try:
            records = lane.ingest(run)
        except LogTruncatedError as exc:
            self._refit(slice_, lane, str(exc), is_truncated=exc.is_stored)
            return False
        except KafkaEdgeError as exc:
            if not lane.shard.owned:
                lane.step_down()  # what was read is read again; an owner does when it lets go
            self._owning.interrupted_safely(slice_, str(exc))
            if not lane.shard.owned:
                lane.step_down()  # what was taken with the failure is read again
            return False
        self._observer.ingested(number, records)
        self._upkeep.active.add(number)
        if lane.shard.owned:
            self._transaction.touched.add(number)
            self._agenda.walk(lane)
        return True

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
            self._owning.interrupted_safely(slice_, trouble.why)
            return
        self._refit(slice_, lane, trouble.why, is_truncated=trouble.is_truncated)

    def _refit(self, slice_: Slice, lane: AnyLane, why: str, *, is_truncated: bool) -> None:
        _log.warning("log_moved", topic=lane.topic, partition=lane.partition, why=why)
        try:
            if self._source.topic_id(lane.topic) != lane.topic_id:
                self.drop_lane(slice_.number, lane.topic)
                return
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
        self._agenda.look_again(lane)

    def _mind_the_disk(self) -> None:
        may_store = self._disk_level() < DiskLevel.STOP
        if may_store != self._may_store:
            self._may_store = may_store
            for slice_ in self.slices.values():
                self._let_store(slice_)

    def _let_store(self, slice_: Slice) -> None:
        may_store = self._may_store and not slice_.follower.refusal
        for lane in slice_.lanes.values():
            lane.let_store(may_store=may_store)

    def _not_followed(self, slice_: Slice, why: str) -> None:
        """A checkpoint can't be followed: the slice can't be served here, perhaps not stored."""
        self._owning.interrupted_safely(slice_, why)
        self._let_store(slice_)

    def _tend(self, slice_: Slice) -> bool:
        """Look after an active slice, about once a second; return whether to do so again soon."""
        for lane in slice_.lanes.values():
            self._owning.await_end(lane)
        return self._tended(slice_)

    def _heard_checkpoint(self, slice_: Slice, read_back: ReadBack) -> None:
        """A checkpoint came back: an own one says how far the broker's clock is from ours."""
        probe = self._transaction.take_probe(slice_.number, read_back.data)
        if probe is not None:
            answer = read_back._replace(acknowledged_s=probe.acknowledged_s)
            self._gate.heard_broker(answer.broker_ms, answer, probe.sent_s)

    # --- waiting -------------------------------------------------------------------------------

    def _wait_ms(self) -> float:
        """Return how long nothing is to be done unless a record comes."""
        transaction, limits = self._transaction, self._limits
        if transaction.commit is not None and not transaction.commit.is_change:
            # Nothing is settled before this one has ended, and exactly once another may begin.
            rest_ms = transaction.may_commit_in_ms if limits.visible_at_commit else 0
            return max(_HELPER_WAIT_MS, rest_ms)
        if transaction.commit is not None or self._owning.is_opening:
            return _HELPER_WAIT_MS
        if self._owning.is_changing:
            return _CHANGING_WAIT_MS
        wait_ms = float(limits.idle_wait_ms)
        if self._upkeep.is_busy:
            wait_ms = _BUSY_WAIT_MS
        if self._owning.lacks_writer or self._gate.frozen() is not None:
            return min(wait_ms, _NOT_SETTLING_WAIT_MS)
        if self._is_hungry:
            return _LEAST_WAIT_MS
        if self._agenda.walking:
            wait_ms = min(wait_ms, max(transaction.may_commit_in_ms, _WALKING_WAIT_MS))
        wait_ms = min(wait_ms, self._due_in_ms())
        if transaction.is_staged:
            wait_ms = min(wait_ms, transaction.commit_in_ms)
        # At least a moment, so that something which is due but has to wait does not spin.
        return max(wait_ms, _LEAST_WAIT_MS)

    def _gather_ms(self, wait_ms: float) -> float:
        """Return how long to gather records after the first has come: none of them is settled
        before the next commit may begin, and each turn has its price.
        """
        if not self._limits.visible_at_commit or wait_ms <= _LEAST_WAIT_MS:
            return 0.0
        return min(self._transaction.may_commit_in_ms, wait_ms, _GATHER_MS_MAX)

    def _due_in_ms(self) -> float:
        """Return the time until the next record is due; where it is seen with its commit only,
        until the commit: one turn for all that come due meanwhile, not one for each.
        """
        due_ms = self._agenda.next_due_ms()
        due_in_ms = math.inf if due_ms is None else due_ms - self._clock.wall_ms()
        if not self._limits.visible_at_commit:
            return due_in_ms
        return max(due_in_ms, self._transaction.may_commit_in_ms)

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
        limits, transaction = self._limits, self._transaction
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
            self._is_hungry = bool(hungry)
            for slice_, lane in hungry if len(lanes) > 1 else ():
                left = limits.transaction_records - transaction.records
                if left < _SHARE_MIN:
                    break
                self._settle_lane(slice_, lane, now_ms, left // len(hungry) + 1, byte_share)
        except RefusedError as refused:
            transaction.put_back(refused)
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
            elif self._owning.role(slice_.number) is Role.OWNER and not self._is_held(place[0]):
                found.append((slice_, lane))
            else:  # looked at again with the next turn
                self._agenda.walking[place] = None
        return found

    def _settle_lane(
        self, slice_: Slice, lane: AnyLane, now_ms: int, limit: int, bytes_max: int
    ) -> int:
        """Settle what is late and what is due of one shard; return how many outputs that made."""
        transaction, before = self._transaction, slice_.uncommitted.records
        transaction.touched.add(slice_.number)  # first: what is staged may have to be put back
        try:
            transaction.send(slice_, lane, lane.settle_late(now_ms, limit, self._may_read))
            for outputs in lane.settle_due(now_ms, limit, bytes_max):
                transaction.send(slice_, lane, outputs)
        except (RefusedError, OwnershipLostError):
            raise
        except KafkaEdgeError as exc:
            self._owning.interrupted(slice_, str(exc))
            return 0
        if lane.shard.is_walked:
            self._agenda.walking.pop(lane.place, None)
        return slice_.uncommitted.records - before

    def _may_read(self) -> bool:
        return self._clock.monotonic_s() < self._read_until_s

    def uncommitted_s(self, slice_: Slice) -> float:
        """Return how long something of a slice has been waiting to be committed, seconds."""
        if not slice_.is_owner or not slice_.is_staged:
            return 0.0
        return self._transaction.since_commit_s

    def _settle_down(self) -> None:
        """Have nothing in flight: wait for a commit, and drop what is staged since."""
        try:
            self._transaction.wait()
            self._hear_commit()
            if self._transaction.is_open:
                self._transaction.start_over("transaction_dropped")
        except OwnershipLostError as lost:
            self._owning.lose_writer(lost)

    # --- slices and shards ---------------------------------------------------------------------

    def add_slice(self, number: int) -> Slice:
        """Keep a slice; it has no shards yet."""
        follower = Follower(number, self._checkpoints, self._clock, self._secrets)
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
            lane.follow(Cursor())
        self._let_store(slice_)
        slice_.follower.again()
        self._upkeep.follow_again(number)
        self._owning.join(slice_, added)

    def drop_lane(self, number: int, topic: str) -> None:
        """Serve a shard no longer: its topic is gone or unfit. Its cursor stays as committed."""
        slice_ = self.slices[number]
        lane = slice_.lanes[topic]
        if lane.shard.owned:
            self._settle_down()
        slice_.put_down(topic)
        self._source.drop(lane.place)
        self._agenda.forget(lane.place)

    def drop_slice(self, number: int) -> bool:
        """Keep no copy of a slice any more; False: it has to be released first."""
        slice_ = self.slices[number]
        if slice_.phase is not Phase.REPLICA:
            self._owning.retire(slice_)
            return False
        for topic in list(slice_.lanes):
            self.drop_lane(number, topic)
        del self.slices[number]
        self._upkeep.remove(number)
        return True

    def close(self) -> None:
        """Make the stores durable, let go of everything."""
        self._settle_down()
        for slice_ in self.slices.values():
            self._owning.step_down(slice_)
            for lane in slice_.lanes.values():
                lane.close()
        self._transaction.discard()
