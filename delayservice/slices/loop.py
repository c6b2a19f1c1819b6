"""Loop of a worker over all its slices: poll → store → due → settle → commit → prune.

One thread runs the loop and alone uses the source, the sink and the stores, so no locks are needed.
What blocks runs on helper threads: opening a writer, the commit, take-overs, queries to brokers.
Each ends with an event in the inbox. Meanwhile the loop goes on polling and storing. Storing needs
no ownership; settling does.

An iteration does not visit every slice: its cost depends on the number of its records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from delayservice.base.clock import NOT_COMPARED
from delayservice.base.errors import OwnershipLostError, WriterEndedError
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.slices import commit, ingest, log_ends, ownership
from delayservice.slices.edges import Edges
from delayservice.slices.follow import Follower
from delayservice.slices.lane import Lane
from delayservice.slices.shares import settle
from delayservice.slices.slice import Phase, Slice
from delayservice.slices.state import (
    CommandArrived,
    CommitEnded,
    Event,
    LogEndsFound,
    LogFound,
    LogRead,
    LoopState,
    TakeOverEnded,
    WriterOpened,
    WriterOutdated,
)
from delayservice.slices.upkeep import tend
from delayservice.slices.writer import WriterPhase

# Waits for records, ms: while no writer is open, the clock is not trusted, or slices catch up.
_NOT_SETTLING_WAIT_MS: Final = 50.0
# While a slice is taken over or released.
_CHANGING_WAIT_MS: Final = 5.0
# While a commit is under way or a writer is opened: their events can't end the client's wait.
_HELPER_WAIT_MS: Final = 2.0
# While H cannot move, or a delay topic is paused, unless the next commit begins later.
_WALKING_WAIT_MS: Final = 10.0
# While a copy is scanned or repaired; leaves part of a core free.
_BUSY_WAIT_MS: Final = 5.0
# While due records remain.
_LEAST_WAIT_MS: Final = 0.5
_GATHER_MS_MAX: Final = 10.0

_log = structlog.get_logger(__name__)


class WorkerLoop:
    """Loop of one worker. ``wake``, ``attend`` and ``renew_writer`` may be called by any thread."""

    def __init__(self, edges: Edges) -> None:
        self.state = LoopState(edges)
        self.slices = self.state.slices
        self.wake = edges.source.wake

    @property
    def is_settling(self) -> bool:
        return any(slice_.phase is not Phase.REPLICA for slice_ in self.slices.values())

    # Why no writer can be opened. Any thread may call.
    @property
    def writer_trouble(self) -> str:
        return self.state.writer.trouble

    def attend(self, number: int) -> None:
        """Begin a slice's repair commands in the next iteration. Any thread may call this."""
        self.state.inbox.put(CommandArrived(number))

    def renew_writer(self, why: str) -> None:
        """Replace the writer in the next iteration. Any thread may call this."""
        self.state.inbox.put(WriterOutdated(why))

    def rewrite_checkpoint(self, slice_no: int) -> None:
        """Commit a slice's checkpoint in the next iteration even if it is unchanged, because
        another program has written a record after it.
        """
        self.state.transaction.rewritten.add(slice_no)

    def step(self, wait_ms: float | None = None) -> None:
        """Do one iteration; ``wait_ms`` None: wait as long as the loop's state allows. Raise
        ``StoreError`` if a store is corrupt: the process has to end.
        """
        try:
            turn(self.state, wait_ms)
        except OwnershipLostError as lost:
            ownership.lose_writer(self.state, lost)

    def take_tended(self) -> list[Slice]:
        """Return the slices whose metrics are to be updated: about once a second while they change
        or catch up, all others in turn.
        """
        tended = self.state.upkeep.tended
        taken = [slice_ for number in tended if (slice_ := self.slices.get(number)) is not None]
        tended.clear()
        return taken

    def tend_again(self, slice_no: int) -> None:
        """Tend a slice that catches up soon again."""
        upkeep = self.state.upkeep
        upkeep.active.add(slice_no)
        upkeep.behind[slice_no] = None  # as the last one

    def uncommitted_s(self, slice_: Slice) -> float:
        """Return the age of an owned slice's uncommitted cursor, by the last commit, seconds; 0:
        none.
        """
        if not slice_.is_owner or not slice_.is_staged:
            return 0.0
        return commit.since_commit_s(self.state)

    # --- slices and shards ---------------------------------------------------------------------

    def add_slice(self, number: int) -> Slice:
        edges, upkeep = self.state.edges, self.state.upkeep
        follower = Follower(number, edges.checkpoints, edges.clock, edges.fingerprints)
        slice_ = Slice(number, Flow(edges.flow_rules()), follower, edges.copies_of(number))
        self.slices[number] = slice_
        upkeep.round.append(number)
        upkeep.behind[number] = None
        return slice_

    def renew_rates(self) -> None:
        """Give each slice its share of the rates again: their number may have changed."""
        rules = self.state.edges.flow_rules()
        for slice_ in self.slices.values():
            slice_.flow.renew(rules)

    def add_lanes(self, number: int, lanes: Iterable[Lane]) -> None:
        """Add lanes as replicas; if this node owns the slice, start to take over their shards."""
        state = self.state
        slice_ = self.slices.get(number) or self.add_slice(number)
        added = list(lanes)
        for lane in added:
            slice_.lanes[lane.topic] = lane
            lane.follow(Cursor())
        ingest.let_store(state, slice_)
        slice_.follower.again()
        state.upkeep.updated.add(number)
        state.upkeep.active.add(number)
        ownership.join(state, slice_, added)

    def drop_lane(self, number: int, topic: str) -> bool:
        """Close and remove a lane and return True; the slice's checkpoints keep the committed
        cursor. False: a commit is under way that may carry it; call again later.
        """
        return ingest.drop_lane(self.state, number, topic)

    def drop_slice(self, number: int) -> bool:
        """Remove a replica's slice and return True; else start its release: call again later."""
        slice_ = self.slices[number]
        if slice_.phase is not Phase.REPLICA:
            ownership.retire(self.state, slice_)
            return False
        for topic in list(slice_.lanes):
            ingest.drop_lane(self.state, number, topic)
        del self.slices[number]
        self.state.upkeep.round.remove(number)
        self.state.upkeep.behind.pop(number, None)
        return True

    def release_all(self) -> None:
        ownership.release_all(self.state)

    def close(self) -> None:
        """End the commit, abort the open transaction, step down, and close stores and writer."""
        state, transaction = self.state, self.state.transaction
        if transaction.commit is not None:
            transaction.timing.exception()  # waits for its end
            try:
                handle(state, CommitEnded(transaction.commit, transaction.timing))
            except OwnershipLostError as lost:
                ownership.lose_writer(state, lost)
        ownership.end_transaction(state, "the worker ends")
        for slice_ in self.slices.values():
            ownership.step_down(state, slice_)
            for lane in slice_.lanes.values():
                lane.close()
        commit.discard(state)


# --- one iteration -----------------------------------------------------------------------------


def turn(state: LoopState, wait_ms: float | None = None) -> None:
    began_s = state.clock.monotonic_s()
    if wait_ms is None:
        wait_ms = wait_ms_of(state) if state.inbox.is_empty else 0.0
    waited_s = ingest.poll(state, wait_ms, gather_ms(state, wait_ms))
    for _ in range(len(state.deferred)):
        handle(state, state.deferred.popleft())
    for event in state.inbox.drain():
        handle(state, event)
    log_ends.ask_again(state)
    # After the poll: the process may have been suspended during it.
    ownership.follow_roles(state)
    _serve(state)
    tend(state)
    state.edges.observer.turned(state.clock.monotonic_s() - began_s - waited_s)


def handle(state: LoopState, event: Event) -> None:
    _HANDLERS[type(event)](state, event)


def _commit_ended(state: LoopState, event: CommitEnded) -> None:
    ended = commit.end_commit(state, event)
    if ended is not None:
        state.upkeep.active |= ended.checkpoints.keys()
        ownership.follow_commit(state, ended)


def _writer_outdated(state: LoopState, event: WriterOutdated) -> None:
    state.writer.outdated = event.why


def _command_arrived(state: LoopState, event: CommandArrived) -> None:
    state.upkeep.busy.add(event.slice_no)


_HANDLERS: Final[Mapping[type[Event], Callable[[LoopState, Any], None]]] = {
    WriterOpened: ownership.writer_opened,
    CommitEnded: _commit_ended,
    TakeOverEnded: ownership.take_over_ended,
    LogEndsFound: ownership.log_ends_found,
    LogFound: ingest.log_found,
    LogRead: ingest.log_read,
    WriterOutdated: _writer_outdated,
    CommandArrived: _command_arrived,
}


# Nothing is settled while the clock is not trusted.
def _serve(state: LoopState) -> None:
    writer = state.writer
    if not writer.may_send:
        return
    state.edges.sink.check()
    if writer.outdated:
        _end_writer(state, writer.outdated)
    doubt = state.edges.clock_watch.doubt()
    if doubt is not None:
        if writer.phase is WriterPhase.SENDING:
            if doubt != NOT_COMPARED:  # at every start
                _log.warning("clock_in_doubt", why=doubt)
            commit.abort(state, f"the clock is in doubt: {doubt}")
        commit.ask_the_time(state)
    elif _is_time_to_settle(state):
        settle(state)
    commit.commit_when_time(state)


def _end_writer(state: LoopState, why: str) -> None:
    if state.writer.phase is WriterPhase.SENDING:
        commit.abort(state, why)
    raise WriterEndedError(why)


# With ``visible_at_commit``, all due records are settled together just before a commit may begin,
# so that each partition gets one batch.
def _is_time_to_settle(state: LoopState) -> bool:
    return (
        not state.edges.limits.visible_at_commit
        or state.has_backlog
        or commit.may_commit_in_ms(state) <= 0
        or commit.is_urgent(state)
    )


# --- waits -------------------------------------------------------------------------------------


def wait_ms_of(state: LoopState) -> float:
    transaction, limits = state.transaction, state.edges.limits
    if transaction.commit is not None and not transaction.commit.is_change:
        # Nothing is settled before this commit has ended and, with ``visible_at_commit``, before
        # the next one may begin.
        rest_ms = commit.may_commit_in_ms(state) if limits.visible_at_commit else 0
        return max(_HELPER_WAIT_MS, rest_ms)
    if state.writer.phase in (WriterPhase.COMMITTING, WriterPhase.OPENING):
        return _HELPER_WAIT_MS
    if ownership.is_changing(state):
        return _CHANGING_WAIT_MS
    wait_ms = float(limits.idle_wait_ms)
    if state.upkeep.busy:
        wait_ms = _BUSY_WAIT_MS
    if state.upkeep.behind:
        wait_ms = min(wait_ms, _NOT_SETTLING_WAIT_MS)
    if ownership.lacks_writer(state) or state.edges.clock_watch.doubt() is not None:
        return min(wait_ms, _NOT_SETTLING_WAIT_MS)
    if state.has_backlog:
        return _LEAST_WAIT_MS
    if state.agenda.walking:
        wait_ms = min(wait_ms, max(commit.may_commit_in_ms(state), _WALKING_WAIT_MS))
    wait_ms = min(wait_ms, _due_in_ms(state))
    if commit.is_staged(state):
        wait_ms = min(wait_ms, commit.commit_in_ms(state))
    # Never zero: a due record that can't be settled yet must not make the loop spin.
    return max(wait_ms, _LEAST_WAIT_MS)


# A longer wait for more records after the first makes fewer iterations, which cost less; none if
# they could be settled at once.
def gather_ms(state: LoopState, wait_ms: float) -> float:
    if not state.edges.limits.visible_at_commit or wait_ms <= _LEAST_WAIT_MS:
        return 0.0
    return min(commit.may_commit_in_ms(state), wait_ms, _GATHER_MS_MAX)


def _due_in_ms(state: LoopState) -> float:
    due_ms = state.agenda.next_due_ms()
    due_in_ms = math.inf if due_ms is None else due_ms - state.clock.wall_ms()
    if not state.edges.limits.visible_at_commit:
        return due_in_ms
    return max(due_in_ms, commit.may_commit_in_ms(state))
