"""The one transaction of a worker: outputs of all its slices, committed with their cursors.

The commit runs on the writer's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn

import structlog

from delayservice.base import faults
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.engine.claims import CLAIM, RELEASE, encode_word
from delayservice.engine.outcome import Output
from delayservice.engine.ports import NO_TIME, Control, ReadBack
from delayservice.slices.lane import Lane
from delayservice.slices.slice import OWNED, Phase, Slice
from delayservice.slices.state import Commit, CommitEnded, LoopState, Probe, Timing
from delayservice.slices.writer import WriterPhase, WriterStep

# Least time between two checkpoints that are used to compare the broker's clock.
_PROBE_EVERY_S: Final = 0.1
_ASK_THE_TIME_S: Final = 1.0

_log = structlog.get_logger(__name__)


# --- fill --------------------------------------------------------------------------------------


def send(state: LoopState, slice_: Slice, lane: Lane, outputs: list[Output]) -> None:
    """Add outputs of a lane. Raise ``OwnershipLostError`` if the writer is lost or has ended."""
    if not outputs:
        return
    transaction = state.transaction
    faults.point("before_produce")
    state.writer.move(WriterStep.SEND)
    state.edges.sink.send(lane.place, outputs)
    slice_.uncommitted.add(outputs, lane.topic, lane.past_due)
    transaction.records += len(outputs)
    transaction.bytes += sum([len(output[4]) for output in outputs if output[4] is not None])


def abort(state: LoopState, why: str) -> NoReturn:
    """Abort, which ends the writer: raise ``WriterEndedError``. A new writer settles again."""
    state.edges.sink.abort()
    raise WriterEndedError(why)


def discard(state: LoopState) -> None:
    """Discard the writer, the open transaction, and the commit under way, without a result."""
    state.edges.sink.discard()
    transaction = state.transaction
    if transaction.commit is not None:
        transaction.forgettable += transaction.commit.forgotten
    transaction.commit = None
    transaction.records = transaction.bytes = 0
    transaction.touched.clear()
    transaction.changing.clear()


# --- time --------------------------------------------------------------------------------------


# Slices without a staged cursor leave ``touched``, so that each is examined once after a change,
# and not in each iteration of the loop.
def is_staged(state: LoopState) -> bool:
    transaction = state.transaction
    if transaction.changing or state.writer.phase is WriterPhase.SENDING:
        return True
    while transaction.touched:
        number = transaction.touched.pop()
        slice_ = state.slices.get(number)
        if slice_ is not None and slice_.phase in OWNED and slice_.is_staged:
            transaction.touched.add(number)
            return True
    return False


# Such a commit does not wait for ``cursor_interval_ms``.
def is_urgent(state: LoopState) -> bool:
    transaction = state.transaction
    return bool(
        transaction.changing
        or transaction.records
        or any(s.is_filling for n in transaction.touched if (s := state.slices.get(n)) is not None)
    )


def _is_time(state: LoopState) -> bool:
    transaction, limits = state.transaction, state.edges.limits
    is_full = (
        transaction.records >= limits.transaction_records
        or transaction.bytes >= limits.transaction_bytes
    )
    return bool(transaction.changing) or is_full or commit_in_ms(state) <= 0


def commit_in_ms(state: LoopState) -> float:
    wait_ms = may_commit_in_ms(state)
    if is_urgent(state):
        return wait_ms
    return max(wait_ms, state.edges.limits.cursor_interval_ms - since_commit_s(state) * 1000)


def may_commit_in_ms(state: LoopState) -> float:
    return max(state.transaction.pacer.interval_ms - since_commit_s(state) * 1000, 0.0)


def since_commit_s(state: LoopState) -> float:
    return state.clock.monotonic_s() - state.transaction.last_commit_s


# --- commit ------------------------------------------------------------------------------------


def commit_when_time(state: LoopState) -> None:
    rewritten = state.transaction.rewritten
    is_rewritten = any(s.is_owner for n in rewritten if (s := state.slices.get(n)))
    if is_rewritten or (is_staged(state) and _is_time(state)):
        begin_commit(state)


# Commits a checkpoint about once a second while the clock is not trusted: the broker's timestamp on
# the checkpoint shows whether it is right.
def ask_the_time(state: LoopState) -> None:
    owned = next((n for n, s in state.slices.items() if s.is_owner), None)
    if owned is not None and since_commit_s(state) >= _ASK_THE_TIME_S:
        state.transaction.rewritten.add(owned)


def begin_commit(state: LoopState) -> None:
    """Start a commit of what has changed on the writer's thread."""
    transaction, writer = state.transaction, state.writer
    transaction.last_commit_s = state.clock.monotonic_s()
    controls: list[Control] = []
    commit = Commit(transaction.last_commit_s)
    for number in sorted(transaction.touched | transaction.changing | transaction.rewritten):
        slice_ = state.slices.get(number)
        if slice_ is not None:
            controls += _controls(state, slice_, commit)
    transaction.touched.clear()
    transaction.rewritten.clear()
    commit.forgotten, transaction.forgettable = transaction.forgettable, []
    controls += [Control(number, None, name) for number, name in commit.forgotten]
    if not controls and writer.phase is not WriterPhase.SENDING:
        transaction.changing.clear()
        return
    writer.move(WriterStep.COMMIT)
    transaction.commit = commit
    _note_probe(state, commit)
    work, event = partial(_commit_timed, state, controls), partial(CommitEnded, commit)
    transaction.timing = state.run(state.edges.writing, work, event)


def _controls(state: LoopState, slice_: Slice, commit: Commit) -> list[Control]:
    number, controls, transaction = slice_.number, [], state.transaction
    if slice_.phase is Phase.CLAIMING:
        commit.claiming.append(number)
        transaction.claims += 1  # one count for all slices: one may be dropped and added again
        slice_.turn = transaction.claims
        controls.append(_word(state, slice_, CLAIM))
    is_changed = slice_.phase in OWNED and (slice_.is_staged or number in transaction.rewritten)
    if slice_.phase is Phase.TAKEN or is_changed:
        writer, secret = state.writer.name, state.secret_fingerprint
        data = slice_.checkpoint(state.edges.node_id, writer, secret)
        commit.checkpoints[number] = data
        controls.append(Control(number, data))
    if slice_.phase is Phase.RELEASING:
        commit.releasing.append(number)
        controls.append(_word(state, slice_, RELEASE))
    return controls


def _word(state: LoopState, slice_: Slice, word: str) -> Control:
    writer = state.writer.name
    value = encode_word(slice_.number, writer, state.edges.node_id, word, slice_.turn)
    return Control(slice_.number, value, writer)


# Called on the writer's thread.
def _commit_timed(state: LoopState, controls: Sequence[Control]) -> Timing:
    started_s = state.clock.monotonic_s()
    acknowledged_s = state.edges.sink.commit(controls)
    return Timing(state.clock.monotonic_s() - started_s, acknowledged_s)


def end_commit(state: LoopState, ended: CommitEnded) -> Commit | None:
    """Return the ended commit; None: its writer was given up before. Raise ``OwnershipLostError``
    if it was aborted or fenced, or its result is unknown: the next owner reads that from the
    checkpoint topic.
    """
    transaction, commit = state.transaction, ended.commit
    if commit is not transaction.commit:
        return None
    transaction.commit = None
    elapsed_s = state.clock.monotonic_s() - commit.started_s
    committed = False
    try:
        elapsed_s, acknowledged_s = ended.timing.result()
        committed = True
        if commit.probe is not None:
            commit.probe.acknowledged_s = acknowledged_s
    except OwnershipLostError:
        raise
    except KafkaEdgeError as lost:
        raise OwnershipLostError(str(lost)) from lost
    finally:
        if not committed:
            transaction.forgettable += commit.forgotten
        transaction.pacer.observe(elapsed_s * 1000)
        state.edges.observer.transaction(commit.checkpoints.keys(), elapsed_s, committed=committed)
    faults.point("after_commit")
    state.writer.move(WriterStep.COMMITTED)
    _committed(state, commit)
    return commit


def _committed(state: LoopState, commit: Commit) -> None:
    state.transaction.records = state.transaction.bytes = 0
    now_ms = state.clock.wall_ms()
    for number in commit.checkpoints:
        slice_ = state.slices.get(number)
        if slice_ is not None:
            slice_.committed(now_ms)
            state.edges.observer.settled(slice_.uncommitted, now_ms)
            slice_.uncommitted.clear()


# --- the broker's clock ------------------------------------------------------------------------


def _note_probe(state: LoopState, commit: Commit) -> None:
    probes = state.transaction.probes
    is_time = not probes or commit.started_s - probes[-1].sent_s >= _PROBE_EVERY_S
    if is_time and commit.checkpoints:
        number, data = next(iter(commit.checkpoints.items()))
        commit.probe = Probe(number, data, commit.started_s)
        probes.append(commit.probe)


def compare_clocks(state: LoopState, slice_no: int, read_back: ReadBack) -> None:
    """Compare the broker's clock by the append time of a checkpoint, if it is a ``Probe``."""
    probes = state.transaction.probes
    probe = next((p for p in probes if (p.slice_no, p.data) == (slice_no, read_back.data)), None)
    if probe is None:
        return
    probes.remove(probe)
    if read_back.broker_ms != NO_TIME:
        state.edges.clock_watch.heard_answer(
            read_back.broker_ms, read_back.boot_ms, probe.sent_s, probe.acknowledged_s
        )
