"""The loop of one slice: poll → store → due → settle → commit → prune.

Single-threaded: one loop owns the source, the sink and the stores of its slice, so there is nothing
to lock. Storing goes on whether or not this node owns the slice; settling needs ownership.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import structlog

from delayservice import faults
from delayservice.core.checkpoint import (
    Checkpoint,
    ShardCheckpoint,
    encode_checkpoint,
    fingerprint,
)
from delayservice.core.contract import Contract
from delayservice.core.cursor import Cursor
from delayservice.core.disk import DiskLevel
from delayservice.core.flow import Flow, FlowRules
from delayservice.core.outcome import Output, Tally
from delayservice.core.pacing import Pacer
from delayservice.core.role import Role
from delayservice.core.settle import Routes
from delayservice.errors import (
    KafkaEdgeError,
    LogMovedError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.copies import CopyKeeper
from delayservice.lanes.follower import Follower
from delayservice.lanes.ports import (
    Checkpoints,
    Clock,
    Gate,
    Observer,
    Sink,
    Source,
)
from delayservice.lanes.take_over import check_secret, read_checkpoint, take_over_lane

REPLICA_WAIT_MS = 200
"""As ``Limits.idle_wait_ms`` a multiple of 200: the client wakes up so often while it waits, and
that is most of what an idle slice costs (``bench idle``)."""
_ASK_THE_TIME_S = 1.0
_RECHECK_BLOCKED_S = 0.25
_NOT_SETTLING_WAIT_MS = 50.0
_HEIR_WAIT_MS = 5.0
_BUSY_WAIT_MS = 5.0
"""While a copy is read from the disk: a core is not to be filled with that."""
_LEAST_WAIT_MS = 0.5
_COMPLETE_S_MAX = 0.2
_TAKE_OVERS_MAX = 2
_ABORTS_MAX = 4
"""In a row: one or two are what it takes to find a record that a broker refuses."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the loop does at once, and how often it commits."""

    poll_records: int = 4_000
    batch_records: int = 10_000
    """Outputs per shard and step; they are read and sent in chunks (see ``Lane.settle_due``)."""
    transaction_records: int = 20_000
    """Outputs after which a transaction is committed even before its time."""
    batch_bytes: int = 32 << 20
    """Payload bytes per shard and step."""
    transaction_interval_ms_min: float = 30.0
    """Bounds of the time between the starts of two commits: transactions per second."""
    transaction_interval_ms_max: float = 100.0
    sync_interval_s: float = 60.0
    """How old the stores' durable horizon may get, however little is stored: what a restart reads
    again must still be in the log."""
    visible_at_commit: bool = True
    """Whether outputs are seen with their commit only: exactly once."""
    cursor_interval_ms: float = 500.0
    """A commit that would only move the cursor waits this long, for its loss costs nothing but
    reading a little again; unless storing would have to wait for it."""
    idle_wait_ms: int = 600
    """Longest wait for records when nothing is due: how fast the loop notices everything else."""
    replica_wait_ms: int = REPLICA_WAIT_MS
    """The same for a replica: how fast it notices that it has become the owner."""


class SliceLoop:
    """One slice on one node."""

    def __init__(
        self,
        slice_no: int,
        *,
        node_id: str,
        source: Source,
        sink: Sink,
        checkpoints: Checkpoints,
        clock: Clock,
        gate: Gate,
        observer: Observer,
        routes: Routes,
        contract_of: Callable[[str], Contract],
        limits: Limits,
        flow: Flow | None = None,
        disk_level: Callable[[], DiskLevel] = lambda: DiskLevel.ROOM,
        copies: CopyKeeper | None = None,
        pausing: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_held: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``contract_of``: what the settings ask for, by delay topic; ``flow``: limits that all
        lanes share, None: there are none; ``copies``: compares and repairs them, None: nobody does;
        ``pausing``: around the wait for records, while others may look at the lanes; ``is_held``:
        whether nothing of a delay topic is to be settled, because somebody said so.
        """
        self.slice_no = slice_no
        self.lanes: dict[str, AnyLane] = {}
        self.owner = False
        self.epoch = 0
        self._node_id = node_id
        self._source = source
        self._sink = sink
        self._checkpoints = checkpoints
        self._clock = clock
        self._gate = gate
        self._observer = observer
        self._secret = fingerprint(routes.secret)
        self._contract_of = contract_of
        self._limits = limits
        self.flow = flow or Flow(FlowRules())
        self._disk_level = disk_level
        self._copies = copies
        self._pausing = pausing
        self._is_held = is_held
        self._may_store = True
        self._pacer = Pacer(limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
        self._last_committed = b""
        self._commits = 0
        self._unserved: dict[str, ShardCheckpoint] = {}
        self._last_commit_s = float("-inf")
        self._rechecked_s = float("-inf")
        self._synced_s = clock.monotonic_s()
        self._uncommitted = Tally()
        self._role = Role.REPLICA
        self._failed_take_overs = 0
        self._aborts = 0
        self._follower = Follower(slice_no, checkpoints, clock)

    # --- one turn ------------------------------------------------------------------------------

    def step(self, wait_ms_max: int | None = None) -> None:
        """One turn: poll, store, settle what is due, commit when it is time, prune.

        Raises:
            StoreError: a store can't be trusted any more; the process has to end.
            KafkaEdgeError: the checkpoint is unreadable or written with another secret.
        """
        try:
            self._claim_or_release()
            self._poll(wait_ms_max)
            if self.owner:
                self._serve()
        except OwnershipLostError as lost:
            _log.warning("ownership_lost", slice=self.slice_no, why=str(lost))
            self._take_over_failed(str(lost))
            self.release()
        if self._copies is not None:
            self._copies.turn(self.lanes, is_owner=self.owner)
        self._prune()
        self._sync_when_time()

    def _claim_or_release(self) -> None:
        self._role = self._gate.role(self.slice_no)
        if self.owner and not self._role.keeps_owning:
            self.hand_over()
        elif self._role is Role.HEIR:
            self._sink.prepare()
        elif self._role is Role.OWNER and not self.owner and self.lanes:
            self._take_over()

    def _serve(self) -> None:
        """Settle and commit; while the ensemble is out of sight, only finish what has begun.

        The role is asked anew, for the process may have stood still in the poll: what a zombie
        sends at least once, nobody can take back.
        """
        self._role = self._gate.role(self.slice_no)
        if self._role is not Role.OWNER:
            if self._role is Role.PAUSED and self._uncommitted.records:
                self._commit_when_time()
        elif self._gate.frozen() is not None:
            self._ask_the_time()
        else:
            self._settle()
            self._commit_when_time()

    def _poll(self, wait_ms_max: int | None) -> None:
        self._mind_the_disk()
        wait_ms = self._wait_ms() if wait_ms_max is None else wait_ms_max
        try:
            with self._pausing():
                runs = self._source.poll(wait_ms / 1000, self._limits.poll_records)
        except LogMovedError as moved:
            self._refit(moved)
            return
        faults.point("after_poll")
        for run in runs:
            lane = self.lanes.get(run.topic)
            if lane is not None:
                self._observer.ingested(lane.ingest(run))
            if run.rows:
                self._gate.heard_broker(run.rows[-1][1], None, 0.0)
        faults.point("after_append")

    def _mind_the_disk(self) -> None:
        may_store = self._disk_level() < DiskLevel.STOP
        if may_store != self._may_store:
            self._may_store = may_store
            for lane in self.lanes.values():
                lane.let_store(may_store=may_store)

    def _refit(self, moved: LogMovedError) -> None:
        """The log expired or was truncated under us: go on with what it holds now. Another log of
        the same name is none of this lane's: a new lane will serve it from its start.
        """
        lane = self.lanes.get(moved.topic)
        if lane is None:  # dropped a moment ago
            return
        if self._source.topic_id(moved.topic) != lane.topic_id:
            self.drop_lane(moved.topic)
            return
        if self.owner:
            self._start_over("log_moved", why=str(moved))
        lane.refit(self._source.bounds(moved.topic))

    def _wait_ms(self) -> float:
        """How long nothing is to be done unless a record comes."""
        wait_ms = float(self._limits.idle_wait_ms)
        if self._role is Role.HEIR:
            return _HEIR_WAIT_MS
        if self._copies is not None and self._copies.is_busy:
            wait_ms = _BUSY_WAIT_MS
        if self._role is Role.REPLICA:
            return min(wait_ms, self._limits.replica_wait_ms)
        if not self.owner or self._role is Role.PAUSED or self._gate.frozen() is not None:
            return min(wait_ms, _NOT_SETTLING_WAIT_MS)
        wait_ms = min(wait_ms, self._due_in_ms())
        if self._is_staged:
            wait_ms = min(wait_ms, self._commit_in_ms())
        # At least a moment, so that something which is due but has to wait does not spin.
        return max(wait_ms, _LEAST_WAIT_MS)

    def _due_in_ms(self) -> float:
        """Until the next record is due; where nobody sees it before its commit, until the commit:
        one turn for all that come due meanwhile, not one for each (``bench steady``).
        """
        now_ms = self._clock.wall_ms()
        dues = [lane.next_due_ms() for lane in self._settled_lanes()]
        due_in_ms = min(
            (due_ms - now_ms for due_ms in dues if due_ms is not None), default=math.inf
        )
        if due_in_ms <= 0 or not self._limits.visible_at_commit:
            return due_in_ms
        return max(due_in_ms, self._to_commit_ms(self._pacer.interval_ms))

    # --- due → settle --------------------------------------------------------------------------

    def _settle(self) -> None:
        now_ms = self._clock.wall_ms()
        limit = self._limits.batch_records
        self._recheck_blocked()
        try:
            for lane in self._settled_lanes():
                self._send(lane, lane.settle_late(now_ms, limit))
                for outputs in lane.settle_due(now_ms, limit, self._limits.batch_bytes):
                    if not self._send(lane, outputs):
                        break
        except RefusedError as refused:
            self._put_back(refused)

    def _settled_lanes(self) -> list[AnyLane]:
        return [lane for topic, lane in self.lanes.items() if not self._is_held(topic)]

    def _send(self, lane: AnyLane, outputs: list[Output]) -> bool:
        """Whether all is well; if not, the transaction was aborted."""
        if not outputs:
            return True
        targets = {(output[1], output[2]) for output in outputs}
        blocked = self._sink.blocked(targets)
        if blocked.keys() - lane.verdicts.blocked.keys():
            lane.verdicts.blocked.update(blocked)
            self._start_over("target_blocked", targets=sorted(f"{t}:{p}" for t, p in blocked))
            return False
        faults.point("before_produce")
        self._sink.send(lane.topic, outputs, targets)
        self._uncommitted.add(outputs)
        return True

    def _recheck_blocked(self) -> None:
        """A target that was missing may have been created since."""
        if self._clock.monotonic_s() - self._rechecked_s < _RECHECK_BLOCKED_S:
            return
        self._rechecked_s = self._clock.monotonic_s()
        for lane in self.lanes.values():
            if lane.verdicts.blocked:
                lane.verdicts.blocked = self._sink.still_blocked(lane.verdicts.blocked)

    def _start_over(self, event: str, **facts: object) -> None:
        """Nothing of this transaction becomes visible; the same is settled again, otherwise."""
        _log.warning(event, slice=self.slice_no, **facts)
        self._sink.abort()
        self._aborted()

    def _put_back(self, refused: RefusedError) -> None:
        for (topic, offset), reason in refused.refusals.items():
            self.lanes[topic].verdicts.refuse([(offset, reason)])
        self._start_over("records_refused", why=str(refused))

    def _aborted(self) -> None:
        for lane in self.lanes.values():
            lane.aborted()
        self.flow.abort()
        self._uncommitted.clear()

    # --- commit --------------------------------------------------------------------------------

    @property
    def _is_staged(self) -> bool:
        return any(lane.shard.is_staged for lane in self.lanes.values())

    @property
    def _is_filling(self) -> bool:
        return any(lane.shard.is_filling for lane in self.lanes.values())

    @property
    def uncommitted_s(self) -> float:
        """How long something has been waiting to be committed, seconds; 0 when nothing is."""
        if not self._is_staged:
            return 0.0
        return self._clock.monotonic_s() - self._last_commit_s

    def _commit_in_ms(self) -> float:
        interval_ms = self._pacer.interval_ms
        if not self._uncommitted.records and not self._is_filling:
            interval_ms = max(interval_ms, self._limits.cursor_interval_ms)
        return self._to_commit_ms(interval_ms)

    def _to_commit_ms(self, interval_ms: float) -> float:
        """Until the last commit is so long ago, milliseconds."""
        since_s = self._clock.monotonic_s() - self._last_commit_s
        return max(interval_ms - since_s * 1000, 0.0)

    def _commit_when_time(self) -> None:
        if not self._is_staged:
            return
        full = self._uncommitted.records >= self._limits.transaction_records
        if full or self._commit_in_ms() <= 0:
            self._commit()

    def _commit(self) -> bool:
        """All outputs sent and the cursors of all shards, in one transaction; whether it did."""
        started_s = self._last_commit_s = self._clock.monotonic_s()
        committed = False
        self._commits += 1
        data = encode_checkpoint(self._checkpoint())
        try:
            self._sink.commit(data)
            committed = True
            self._last_committed = data
        except RefusedError as refused:
            self._put_back(refused)
        except TransactionAbortedError as aborted:
            _log.warning("transaction_aborted", slice=self.slice_no, why=str(aborted))
            self._aborted()
            self._count_abort(str(aborted))
        except OwnershipLostError:  # fenced, or nobody knows: it counts, and a successor finds out
            self._observer.transaction(self._clock.monotonic_s() - started_s, committed=False)
            raise
        elapsed_s = self._clock.monotonic_s() - started_s
        self._pacer.observe(elapsed_s * 1000)
        self._observer.transaction(elapsed_s, committed=committed)
        if committed:
            faults.point("after_commit")
            self._committed()
        return committed

    def _count_abort(self, why: str) -> None:
        """What this node can't commit again and again, one with another network perhaps can."""
        self._aborts += 1
        if self._aborts >= _ABORTS_MAX:
            self._aborts = 0
            self._gate.gave_up(self.slice_no, why)

    def _committed(self) -> None:
        self._aborts = 0
        for lane in self.lanes.values():
            lane.committed()
        self.flow.commit(self._clock.wall_ms())
        self._observer.settled(self._uncommitted, self._clock.wall_ms())
        self._uncommitted.clear()

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            slice_no=self.slice_no,
            node_id=self._node_id,
            epoch=self.epoch,
            secret_fingerprint=self._secret,
            shards=self._unserved
            | {topic: lane.checkpoint() for topic, lane in self.lanes.items()},
            commit=self._commits,
        )

    def _ask_the_time(self) -> None:
        """Nothing is settled while the clock is in doubt. A commit without outputs, read back with
        the broker's timestamp, says whether it is right after all.
        """
        if self._clock.monotonic_s() - self._last_commit_s >= _ASK_THE_TIME_S:
            self._start_over("clock_in_doubt", why=self._gate.frozen())
            self._commit()

    # --- ownership -----------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Rule 7 in the order of design section 6: fence, ask again, read the checkpoint."""
        known = self._follower.newest
        if known is None or known.secret_fingerprint != self._secret:
            check_secret(self._checkpoints, self.slice_no, self._secret)
        if not self._gate.confirm(self.slice_no):
            return
        self._sink.init()
        if not self._gate.confirm(self.slice_no):
            self._sink.discard()
            return
        faults.point("take_over")
        checkpoint = self._read_checkpoint()
        last_epoch = checkpoint.epoch if checkpoint else 0
        self.epoch = max(self._gate.epoch(self.slice_no), 1 + last_epoch)
        # What is not served here keeps its cursor, or its next owner would deliver it all again.
        self._unserved = dict(checkpoint.shards) if checkpoint else {}
        for lane in self.lanes.values():
            self._take_over_lane(lane, checkpoint)
        self.owner = True
        if not self._commit():
            raise OwnershipLostError(
                f"slice {self.slice_no}: the first checkpoint was not committed"
            )
        self._failed_take_overs = 0
        self._gate.settling(self.slice_no, is_settling=True)
        _log.info(
            "took_over",
            slice=self.slice_no,
            epoch=self.epoch,
            shards={t: lane.shard.committed for t, lane in self.lanes.items()},
        )

    def _take_over_failed(self, why: str) -> None:
        """Once may be another node's attempt at the same time; twice, and another may try."""
        if self.owner:
            return
        self._failed_take_overs += 1
        if self._failed_take_overs >= _TAKE_OVERS_MAX:
            self._failed_take_overs = 0
            self._gate.gave_up(self.slice_no, why)

    def _read_checkpoint(self) -> Checkpoint | None:
        return read_checkpoint(self._checkpoints, self.slice_no, self._secret)

    def _take_over_lane(self, lane: AnyLane, checkpoint: Checkpoint | None) -> None:
        known = checkpoint.shards.get(lane.topic) if checkpoint else None
        bounds = self._source.bounds(lane.topic)
        take_over_lane(lane, known, bounds, self._contract_of(lane.topic))

    def hand_over(self) -> None:
        """Stop settling in good order: finish the transaction, then let go."""
        if not self.owner:
            return
        try:
            if self._is_staged:
                self._commit()
            # Kafka writes the end of a transaction after it has answered. Whoever fences before it
            # is through has to ask again, and its client waits half a second for that.
            self._checkpoints.await_read_back(self.slice_no, self._last_committed, _COMPLETE_S_MAX)
            _log.info("handed_over", slice=self.slice_no, epoch=self.epoch)
        except OwnershipLostError as lost:
            _log.warning("ownership_lost", slice=self.slice_no, why=str(lost))
        self.release()

    def release(self) -> None:
        """Stop settling at once: whatever was not committed is dropped, and storing goes on."""
        self._sink.discard()
        self.flow.abort()
        self._uncommitted.clear()
        self.owner = False
        for lane in self.lanes.values():
            lane.step_down()
        self._gate.settling(self.slice_no, is_settling=False)

    # --- prune ---------------------------------------------------------------------------------

    def _prune(self) -> None:
        read_back = self._follower.prune(self.lanes, is_owner=self.owner)
        if read_back is not None and read_back.data == self._last_committed:
            self._gate.heard_broker(read_back.broker_ms, read_back, self._last_commit_s)

    @property
    def stored(self) -> dict[str, int]:
        """S of each shard, by delay topic."""
        return {topic: lane.shard.stored for topic, lane in self.lanes.items()}

    @property
    def damaged(self) -> int:
        """Stretches of the copies that the last scan of the disk could not read."""
        return 0 if self._copies is None else self._copies.digests.damaged

    def lag_s(self, log_ends: Mapping[str, int]) -> float:
        """How far this node's copy is behind the owner's, seconds; infinite while nobody knows.

        Args:
            log_ends: where the logs ended a moment ago, by delay topic, as far as that is known.

        Raises:
            KafkaEdgeError: the checkpoint topic can't be asked.
        """
        return 0.0 if self.owner else self._follower.lag_s(self.lanes, log_ends)

    def _sync_when_time(self) -> None:
        now_s = self._clock.monotonic_s()
        is_time = now_s - self._synced_s >= self._limits.sync_interval_s
        if not is_time or self._disk_level() == DiskLevel.FULL:
            return
        self._synced_s = now_s
        for lane in self.lanes.values():
            if lane.store.stats().durable_offset < lane.shard.stored:
                lane.store.sync_soon()

    # --- shards --------------------------------------------------------------------------------

    def add_lanes(self, lanes: Iterable[AnyLane]) -> None:
        """Serve more shards: taken over at once by an owner."""
        added = list(lanes)
        for lane in added:
            self.lanes[lane.topic] = lane
            lane.let_store(may_store=self._may_store)
            lane.follow(Cursor())
        self._follower.again()
        if self.owner:
            checkpoint = self._read_checkpoint()
            for lane in added:
                self._take_over_lane(lane, checkpoint)
        # A contract is committed before anything is read by it.
        if self.owner and not self._commit():
            self.release()

    def drop_lane(self, topic: str) -> None:
        """Serve a shard no longer: its topic is gone or unfit. Its cursor stays as committed."""
        if self.owner:
            self._put_down(topic)
        lane = self.lanes.pop(topic)
        lane.close()
        self._source.drop(topic)

    def _put_down(self, topic: str) -> None:
        try:
            self._start_over("shard_dropped", topic=topic)
            self._unserved[topic] = self.lanes[topic].checkpoint()
        except OwnershipLostError as lost:
            _log.warning("ownership_lost", slice=self.slice_no, why=str(lost))
            self.release()

    def close(self) -> None:
        """Finish the transaction, make the stores durable, let go of everything."""
        try:
            self.hand_over()
        except KafkaEdgeError as exc:  # whoever is next reads the checkpoint
            _log.warning("slice_interrupted", slice=self.slice_no, why=str(exc))
            self.release()
        for lane in self.lanes.values():
            lane.close()
