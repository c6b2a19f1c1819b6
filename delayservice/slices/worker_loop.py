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
from delayservice.slices.edges import Edges
from delayservice.slices.follower import Follower
from delayservice.slices.intake import Intake
from delayservice.slices.lane import Lane
from delayservice.slices.loop_waits import Waits
from delayservice.slices.owning import Owning
from delayservice.slices.settling import Settling
from delayservice.slices.slice import Phase, Slice
from delayservice.slices.transaction import LoopParts, Transaction
from delayservice.slices.upkeep import Upkeep

_ASK_THE_TIME_S: Final = 1.0

_log = structlog.get_logger(__name__)


class WorkerLoop:
    """Loop of one worker. ``wake``, ``attend`` and ``renew_writer`` may be called by any thread."""

    def __init__(self, edges: Edges) -> None:
        self.slices: dict[int, Slice] = {}
        self.wake = edges.source.wake
        self._edges = edges
        self._clock = edges.clock
        self._clock_watch = edges.clock_watch
        self._restated: set[int] = set()
        # Why the writer is to be replaced.
        self._outdated = ""
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
        return self._owning.is_settling

    # Why no writer can be opened. Any thread may call.
    @property
    def writer_trouble(self) -> str:
        return self._owning.writer_trouble

    def attend(self, number: int) -> None:
        """Begin a slice's repair commands in the next iteration. Any thread may call this."""
        self._upkeep.attend(number)
        self.wake()

    def renew_writer(self, why: str) -> None:
        """Replace the writer in the next iteration. Any thread may call this."""
        self._outdated = why
        self.wake()

    # --- one turn ------------------------------------------------------------------------------

    def step(self, wait_ms_max: int | None = None) -> None:
        """Do one iteration; ``wait_ms_max`` None: wait as long as the loop's state allows. Raise
        ``StoreError`` if a store is corrupt: the process has to end.
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

    # Nothing is settled while the clock is not trusted. Roles come first: the process may have been
    # suspended during the poll.
    def _serve(self) -> None:
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

    # With ``visible_at_commit``, all due records are settled together just before a commit may
    # begin, so that each partition gets one batch.
    @property
    def _is_time_to_settle(self) -> bool:
        return (
            not self._edges.limits.visible_at_commit
            or self._settling.has_backlog
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

    def rewrite_checkpoint(self, slice_no: int) -> None:
        """Commit a slice's checkpoint in the next iteration even if it is unchanged, because
        another program has written a record after it.
        """
        self._restated.add(slice_no)

    # Commits a checkpoint about once a second while the clock is not trusted: the broker's
    # timestamp on the checkpoint shows whether it is right.
    def _ask_the_time(self) -> None:
        if self._transaction.since_commit_s < _ASK_THE_TIME_S:
            return
        owned = next((n for n, s in self.slices.items() if s.is_owner), None)
        if owned is not None:
            self._transaction.begin_commit(also=[owned])
            self._hear_commit()

    # If an unknown secret signed the checkpoint, no more records are stored.
    def _not_followed(self, slice_: Slice, why: str) -> None:
        self._owning.interrupted_safely(slice_, why)
        self._intake.let_store(slice_)

    # Returns whether to tend the slice again in a second.
    def _tend(self, slice_: Slice) -> bool:
        for lane in slice_.lanes.values():
            self._owning.await_end(lane)
        return self._edges.tended(slice_)

    # The broker's clock is compared if the checkpoint is a ``Probe``.
    def _heard_checkpoint(self, slice_: Slice, read_back: ReadBack) -> None:
        probe = self._transaction.take_probe(slice_.number, read_back.data)
        if probe is not None and read_back.broker_ms != NO_TIME:
            self._clock_watch.heard_answer(
                read_back.broker_ms, read_back.boot_ms, probe.sent_s, probe.acknowledged_s
            )

    def uncommitted_s(self, slice_: Slice) -> float:
        """Return the age of an owned slice's uncommitted cursor, by the last commit, seconds; 0:
        none.
        """
        if not slice_.is_owner or not slice_.is_staged:
            return 0.0
        return self._transaction.since_commit_s

    def _settle_down(self) -> None:
        try:
            self._transaction.wait()
            self._hear_commit()
            if self._transaction.is_open:
                self._transaction.abort("a shard of it is served no more")
        except OwnershipLostError as lost:
            self._owning.lose_writer(lost)

    # --- slices and shards ---------------------------------------------------------------------

    def add_slice(self, number: int) -> Slice:
        edges = self._edges
        follower = Follower(number, edges.checkpoints, edges.clock, edges.fingerprints)
        slice_ = Slice(number, Flow(edges.flow_rules()), follower, edges.copies_of(number))
        self.slices[number] = slice_
        self._upkeep.add(number)
        return slice_

    def add_lanes(self, number: int, lanes: Iterable[Lane]) -> None:
        """Add lanes as replicas; if this node owns the slice, start to take over their shards."""
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
        """Close and remove a lane; the slice's checkpoints keep the committed cursor."""
        slice_ = self.slices[number]
        lane = slice_.lanes[topic]
        if lane.shard.owned:
            self._settle_down()
        slice_.put_down(topic)
        self._edges.source.drop(lane.place)
        self._agenda.forget(lane.place)

    def drop_slice(self, number: int) -> bool:
        """Remove a replica's slice and return True; else start its release: call again later."""
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
        """End the commit, abort the open transaction, step down, and close stores and writer."""
        self._settle_down()
        for slice_ in self.slices.values():
            self._owning.step_down(slice_)
            for lane in slice_.lanes.values():
                lane.close()
        self._transaction.discard()
