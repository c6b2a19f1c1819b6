"""Loop of a worker over all its slices: poll → store → due → settle → commit → prune.

One thread runs the loop and alone uses the source, the sink and the stores, so no locks are needed.
Calls that block run on helper threads: opening a writer, the commit, and the waits of take-overs.
Meanwhile the loop goes on polling and storing. Storing needs no ownership; settling does.

An iteration (``step``) does not visit every slice: its cost depends on the number of its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from delayservice.base.errors import OwnershipLostError, WriterEndedError
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.engine.ports import NO_TIME, ReadBack
from delayservice.slices.agenda import Agenda
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.edges import Edges
from delayservice.slices.follower import Follower
from delayservice.slices.intake import Intake
from delayservice.slices.loop_waits import Waits
from delayservice.slices.owning import Owning
from delayservice.slices.parts import LoopParts
from delayservice.slices.phase import Phase
from delayservice.slices.settling import Settling
from delayservice.slices.slice import Slice
from delayservice.slices.transaction import Transaction
from delayservice.slices.upkeep import Upkeep

_ASK_THE_TIME_S: Final = 1.0

_log = structlog.get_logger(__name__)


class WorkerLoop:
    """Loop that polls, stores and settles the records of all slices of one worker.

    Attributes:
        slices: the slices that it serves, by number.
        wake: ends the wait for records early; any thread may call it.
        release_all: releases every owned slice with the next commit, and prevents new claims.
    """

    def __init__(self, edges: Edges) -> None:
        self.slices: dict[int, Slice] = {}
        self.wake = edges.source.wake
        self._edges = edges
        self._clock = edges.clock
        self._clock_watch = edges.clock_watch
        self._restated: set[int] = set()
        self._outdated = ""
        """Why the writer is to be replaced; empty: it is not."""
        agenda = self._agenda = Agenda()
        transaction = self._transaction = Transaction(self.slices, agenda, edges)
        parts = LoopParts(self.slices, transaction, agenda, edges)
        owning = self._owning = Owning(parts)
        self.release_all = owning.release_all
        self._upkeep = Upkeep(
            self.slices,
            edges,
            tended=self._tend,
            heard=self._heard_checkpoint,
            interrupted=self._not_followed,
        )
        self._intake = Intake(
            parts,
            owning,
            is_active=self._upkeep.active_now,
            drop_lane=self.drop_lane,
            settle_down=self._settle_down,
        )
        self._settling = Settling(parts, owning)
        self._waits = Waits(parts, owning, self._settling, self._upkeep)

    @property
    def is_settling(self) -> bool:
        """Return whether this worker claims, takes over, owns or releases any slice."""
        return self._owning.is_settling

    @property
    def writer_trouble(self) -> str:
        """Return why no writer can be opened; empty: one can, or it is too early to tell. Any
        thread may call.
        """
        return self._owning.writer_trouble

    def attend(self, number: int) -> None:
        """Begin the queued repair commands of a slice in the loop's next iteration. Any thread may
        call this.
        """
        self._upkeep.attend(number)
        self.wake()

    def renew_writer(self, why: str) -> None:
        """Replace the writer in the loop's next iteration, for the reason ``why``. Any thread may
        call this.
        """
        self._outdated = why
        self.wake()

    # --- one turn ------------------------------------------------------------------------------

    def step(self, wait_ms_max: int | None = None) -> None:
        """Do one iteration of the loop: poll, store, settle what is due, commit when it is time,
        prune. ``wait_ms_max``: longest wait for records, milliseconds; None: as long as the state
        of the loop allows.

        Raises:
            StoreError: a store is corrupt; the process has to end.
        """
        try:
            self._turn(wait_ms_max)
        except OwnershipLostError as lost:
            self._owning.lose_writer(lost)

    def _turn(self, wait_ms_max: int | None) -> None:
        began_s = self._clock.monotonic_s()
        self._hear_helpers()
        if self._outdated and self._transaction.writer:
            why, self._outdated = self._outdated, ""
            self._settle_down()
            if self._transaction.writer:
                raise WriterEndedError(why)
        self._owning.follow_roles()
        wait_ms = self._waits.wait_ms() if wait_ms_max is None else wait_ms_max
        waited_s = self._intake.poll(wait_ms, self._waits.gather_ms(wait_ms))
        self._hear_helpers()
        self._serve()
        self._upkeep.turn()
        self._edges.observer.turned(self._clock.monotonic_s() - began_s - waited_s)

    def _hear_helpers(self) -> None:
        self._hear_commit()
        self._owning.hear_helpers()

    def _hear_commit(self) -> None:
        commit = self._transaction.hear()
        if commit is not None:
            self._upkeep.active |= commit.checkpoints.keys()
            self._owning.hear_commit(commit)

    def _serve(self) -> None:
        """Settle due records and commit when it is time; settle nothing while the clock is not
        trusted. Roles are updated first, because the process may have been suspended during the
        poll.
        """
        transaction = self._transaction
        if transaction.commit is not None or not transaction.writer:
            return
        transaction.check_writer()
        self._owning.follow_roles()
        doubt = self._clock_watch.doubt()
        if doubt is None:
            if self._is_time_to_settle:
                self._settling.settle()
        else:
            if transaction.is_open:
                _log.warning("clock_in_doubt", why=doubt)
                transaction.abort(f"the clock is in doubt: {doubt}")
            self._ask_the_time()
        self._commit_when_time()

    @property
    def _is_time_to_settle(self) -> bool:
        """Return whether to settle in this iteration: always, except with the setting
        ``visible_at_commit``. With it, all records that have become due are settled together just
        before a commit may begin, so that each partition gets one batch.
        """
        return (
            not self._edges.limits.visible_at_commit
            or self._settling.is_hungry
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
        """Commit a slice's checkpoint in the loop's next iteration even if it is unchanged, because
        another program has written a record after it in the checkpoint topic.
        """
        self._restated.add(slice_no)

    def _ask_the_time(self) -> None:
        """Commit a checkpoint without outputs, about once a second, while the clock is not trusted.
        The broker's timestamp on the checkpoint shows whether the clock is right.
        """
        if self._transaction.since_commit_s < _ASK_THE_TIME_S:
            return
        owned = next((n for n, s in self.slices.items() if s.is_owner), None)
        if owned is not None:
            self._transaction.begin_commit(also=[owned])
            self._hear_commit()

    def _not_followed(self, slice_: Slice, why: str) -> None:
        """Release a slice whose newest checkpoint can't be applied, for the reason ``why``. If an
        unknown secret signed it, store no more records of the slice.
        """
        self._owning.interrupted_safely(slice_, why)
        self._intake.let_store(slice_)

    def _tend(self, slice_: Slice) -> bool:
        """Query log ends that lanes of a slice wait for, and update its metrics; return whether to
        do so again in a second.
        """
        for lane in slice_.lanes.values():
            self._owning.await_end(lane)
        return self._edges.tended(slice_)

    def _heard_checkpoint(self, slice_: Slice, read_back: ReadBack) -> None:
        """Compare the broker's clock with this node's if the transaction noted when this checkpoint
        was sent (it is a ``Probe``).
        """
        probe = self._transaction.take_probe(slice_.number, read_back.data)
        if probe is not None and read_back.broker_ms != NO_TIME:
            self._clock_watch.heard_answer(
                read_back.broker_ms, read_back.boot_ms, probe.sent_s, probe.acknowledged_s
            )

    def uncommitted_s(self, slice_: Slice) -> float:
        """Return the time since the worker's last commit began, seconds; 0 if this node does not
        own the slice, or the slice has no uncommitted cursor.
        """
        if not slice_.is_owner or not slice_.is_staged:
            return 0.0
        return self._transaction.since_commit_s

    def _settle_down(self) -> None:
        """Wait for the end of the commit under way, and abort the open transaction."""
        try:
            self._transaction.wait()
            self._hear_commit()
            if self._transaction.is_open:
                self._transaction.abort("a shard of it is served no more")
        except OwnershipLostError as lost:
            self._owning.lose_writer(lost)

    # --- slices and shards ---------------------------------------------------------------------

    def add_slice(self, number: int) -> Slice:
        """Add a slice without shards, and return it."""
        edges = self._edges
        follower = Follower(number, edges.checkpoints, edges.clock, edges.fingerprints)
        slice_ = Slice(number, Flow(edges.flow_rules()), follower, edges.copies_of(number))
        self.slices[number] = slice_
        self._upkeep.add(number)
        return slice_

    def add_lanes(self, number: int, lanes: Iterable[AnyLane]) -> None:
        """Add lanes to slice ``number``, as replicas; the slice is added if it is new. If this node
        owns it, start to take over their shards.
        """
        slice_ = self.slices.get(number) or self.add_slice(number)
        added = list(lanes)
        for lane in added:
            slice_.lanes[lane.topic] = lane
            lane.follow(Cursor())
        self._intake.let_store(slice_)
        slice_.follower.again()
        self._upkeep.follow_again(number)
        self._owning.join(slice_, added)

    def drop_lane(self, number: int, topic: str) -> None:
        """Close and remove the lane of a slice for a topic that is gone or no longer served. The
        slice's checkpoints keep the committed cursor.
        """
        slice_ = self.slices[number]
        lane = slice_.lanes[topic]
        if lane.shard.owned:
            self._settle_down()
        slice_.put_down(topic)
        self._edges.source.drop(lane.place)
        self._agenda.forget(lane.place)

    def drop_slice(self, number: int) -> bool:
        """Remove a slice of which this node is a replica, and return True. Otherwise start its
        release, and return False: call again later.
        """
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
        """Wait for the commit under way, abort the open transaction, become a replica of all
        slices, and close the stores and the writer.
        """
        self._settle_down()
        for slice_ in self.slices.values():
            self._owning.step_down(slice_)
            for lane in slice_.lanes.values():
                lane.close()
        self._transaction.discard()
