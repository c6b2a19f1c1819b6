"""The one transaction of a worker, with the outputs of all its slices, and its commit.

The commit runs on a helper thread. The loop asks in each iteration whether it has ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

import structlog

from delayservice.base import faults
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.engine.claims import CLAIM, RELEASE, encode_word
from delayservice.engine.outcome import Output
from delayservice.engine.pacing import Pacer
from delayservice.engine.ports import Control
from delayservice.slices.agenda import Agenda
from delayservice.slices.edges import Edges
from delayservice.slices.lane import Lane
from delayservice.slices.slice import OWNED, Phase, Slice

# Least time between two checkpoints that are used to compare the broker's clock.
_PROBE_EVERY_S: Final = 0.1
# Checkpoints that wait for this comparison; older ones are dropped. While the clock is not trusted,
# one is written each second.
_PROBES_MAX: Final = 64

_log = structlog.get_logger(__name__)


class Timing(NamedTuple):
    """Duration of a commit, and when the broker acknowledged it (monotonic); None: unknown."""

    took_s: float
    acknowledged_s: float | None


@dataclass(slots=True)
class Probe:
    """Checkpoint by which the broker's clock is compared, once read back. Monotonic seconds."""

    slice_no: int
    data: bytes
    sent_s: float
    acknowledged_s: float | None = None


@dataclass(slots=True)
class Commit:
    """Commit under way: by slice its checkpoints, the claims and releases it carries, and the
    claims that it deletes.
    """

    future: Future[Timing]
    started_s: float
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    claiming: list[int] = field(default_factory=list)
    releasing: list[int] = field(default_factory=list)
    forgotten: list[tuple[int, str]] = field(default_factory=list)
    probe: Probe | None = None

    @property
    def is_change(self) -> bool:
        return bool(self.claiming or self.releasing)


class Transaction:
    """Open transaction of one worker, and its commit. Only the loop's thread uses it.

    ``writer``: the transactional id; empty: there is none. ``changing``: slices whose phase changes
    with the next commit. ``touched``: slices that may have something to commit. ``is_open``: the
    producer has outputs that no commit includes yet.
    """

    def __init__(self, slices: Mapping[int, Slice], agenda: Agenda, edges: Edges) -> None:
        limits = edges.limits
        self.writer = ""
        self.changing: set[int] = set()
        self.touched: set[int] = set()
        self.records = 0
        self.is_open = False
        self.commit: Commit | None = None
        self.forgettable: list[tuple[int, str]] = []
        self._slices = slices
        self._agenda = agenda
        self._sink = edges.sink
        self._writing = edges.writing
        self._clock = edges.clock
        self._observer = edges.observer
        self._limits = limits
        self._node_id = edges.node_id
        self._secret = edges.fingerprints[0]
        self._pacer = Pacer(limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
        self._last_commit_s = -math.inf
        # Claims written by this process.
        self._turns = 0
        self._probes: deque[Probe] = deque(maxlen=_PROBES_MAX)

    # --- fill ----------------------------------------------------------------------------------

    def send(self, slice_: Slice, lane: Lane, outputs: list[Output]) -> None:
        """Add outputs of a lane. Raise ``OwnershipLostError`` if the writer is lost or has
        ended.
        """
        if outputs:
            faults.point("before_produce")
            self.is_open = True
        self._sink.send(lane.place, outputs)
        slice_.uncommitted.add(outputs, lane.topic, lane.past_due)
        self.records += len(outputs)

    def abort(self, why: str) -> NoReturn:
        """Abort, which ends the writer: raise ``WriterEndedError``. A new writer settles again."""
        self._sink.abort()
        raise WriterEndedError(why)

    def check_writer(self) -> None:
        self._sink.check()

    def discard(self) -> None:
        """Discard the writer, the open transaction, and the commit under way, without a result."""
        self._sink.discard()
        self.writer = ""
        if self.commit is not None:
            self.forgettable += self.commit.forgotten
        self.commit = None
        self.is_open = False
        self.records = 0
        self.touched.clear()
        self.changing.clear()

    # --- time ----------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        return bool(self.changing) or self.is_open or self._has_staged_slice

    # Slices without a staged cursor leave ``touched``, so that each is examined once after a
    # change, and not in each iteration of the loop.
    @property
    def _has_staged_slice(self) -> bool:
        while self.touched:
            number = self.touched.pop()
            slice_ = self._slices.get(number)
            if slice_ is not None and slice_.phase in OWNED and slice_.is_staged:
                self.touched.add(number)
                return True
        return False

    # Such a commit does not wait for ``cursor_interval_ms``.
    @property
    def is_urgent(self) -> bool:
        return bool(
            self.changing
            or self.records
            or any(s.is_filling for n in self.touched if (s := self._slices.get(n)) is not None)
        )

    @property
    def is_time(self) -> bool:
        is_full = self.records >= self._limits.transaction_records
        return bool(self.changing) or is_full or self.commit_in_ms <= 0

    @property
    def commit_in_ms(self) -> float:
        wait_ms = self.may_commit_in_ms
        if self.is_urgent:
            return wait_ms
        return max(wait_ms, self._limits.cursor_interval_ms - self.since_commit_s * 1000)

    @property
    def may_commit_in_ms(self) -> float:
        return max(self._pacer.interval_ms - self.since_commit_s * 1000, 0.0)

    @property
    def since_commit_s(self) -> float:
        return self._clock.monotonic_s() - self._last_commit_s

    # --- commit --------------------------------------------------------------------------------

    def begin_commit(self, also: Collection[int] = ()) -> None:
        """Start a commit of what has changed on the helper thread. ``also``: owned slices whose
        checkpoint is written even if it is unchanged.
        """
        self._last_commit_s = self._clock.monotonic_s()
        controls: list[Control] = []
        commit = Commit(Future(), self._last_commit_s)
        for number in sorted(self.touched | self.changing | set(also)):
            slice_ = self._slices.get(number)
            if slice_ is not None:
                controls += self._controls(slice_, commit, is_wanted=number in also)
        commit.forgotten, self.forgettable = self.forgettable, []
        controls += [Control(number, None, writer) for number, writer in commit.forgotten]
        if not controls and not self.is_open:
            self.changing.clear()
            self.touched.clear()
            return
        self.touched = set()
        self.is_open = False
        commit.future = self._writing.submit(lambda: self._commit_timed(controls))
        self.commit = commit
        self._note_probe(commit)

    def _note_probe(self, commit: Commit) -> None:
        is_time = not self._probes or commit.started_s - self._probes[-1].sent_s >= _PROBE_EVERY_S
        if is_time and commit.checkpoints:
            number, data = next(iter(commit.checkpoints.items()))
            commit.probe = Probe(number, data, commit.started_s)
            self._probes.append(commit.probe)

    def take_probe(self, slice_no: int, data: bytes) -> Probe | None:
        """Return and remove the ``Probe`` of this checkpoint; None: it was not chosen as one."""
        found = next((p for p in self._probes if p.slice_no == slice_no and p.data == data), None)
        if found is not None:
            self._probes.remove(found)
        return found

    def _controls(self, slice_: Slice, commit: Commit, *, is_wanted: bool) -> list[Control]:
        number, controls = slice_.number, []
        if slice_.phase is Phase.CLAIMING:
            commit.claiming.append(number)
            self._turns += 1  # one count for all slices: one may be dropped and added again
            slice_.turn = self._turns
            controls.append(self._word(slice_, CLAIM))
        if slice_.phase is Phase.TAKEN or (
            slice_.phase in OWNED and (slice_.is_staged or is_wanted)
        ):
            data = slice_.checkpoint(self._node_id, self.writer, self._secret)
            commit.checkpoints[number] = data
            controls.append(Control(number, data))
        if slice_.phase is Phase.RELEASING:
            commit.releasing.append(number)
            controls.append(self._word(slice_, RELEASE))
        return controls

    def _word(self, slice_: Slice, word: str) -> Control:
        value = encode_word(slice_.number, self.writer, self._node_id, word, slice_.turn)
        return Control(slice_.number, value, self.writer)

    # Called on the writer's thread.
    def _commit_timed(self, controls: Sequence[Control]) -> Timing:
        started_s = self._clock.monotonic_s()
        acknowledged_s = self._sink.commit(controls)
        return Timing(self._clock.monotonic_s() - started_s, acknowledged_s)

    def wait(self) -> None:
        """Wait for the end of the commit, if one is under way; ``hear`` processes its result."""
        if self.commit is not None:
            self.commit.future.exception()

    def hear(self) -> Commit | None:
        """Return the ended commit; None: there is none. Raise ``OwnershipLostError`` if it was
        aborted or fenced, or its result is unknown: the next owner reads that from the
        checkpoint topic.
        """
        commit = self.commit
        if commit is None or not commit.future.done():
            return None
        self.commit = None
        elapsed_s = self._clock.monotonic_s() - commit.started_s
        committed = False
        try:
            elapsed_s, acknowledged_s = commit.future.result()
            committed = True
            if commit.probe is not None:
                commit.probe.acknowledged_s = acknowledged_s
        except OwnershipLostError:
            raise
        except KafkaEdgeError as lost:
            raise OwnershipLostError(str(lost)) from lost
        finally:
            if not committed:
                self.forgettable += commit.forgotten
            self._pacer.observe(elapsed_s * 1000)
            self._observer.transaction(commit.checkpoints.keys(), elapsed_s, committed=committed)
        faults.point("after_commit")
        self._committed(commit)
        return commit

    def _committed(self, commit: Commit) -> None:
        self.records = 0
        now_ms = self._clock.wall_ms()
        for number in commit.checkpoints:
            slice_ = self._slices.get(number)
            if slice_ is not None:
                slice_.committed(now_ms)
                self._observer.settled(number, slice_.uncommitted, now_ms)
                slice_.uncommitted.clear()


@dataclass(frozen=True, slots=True)
class LoopParts:
    """Objects of one worker's loop that its steps share."""

    slices: Mapping[int, Slice]
    transaction: Transaction
    agenda: Agenda
    edges: Edges

    def find(self, number: int, topic: str) -> tuple[Slice, Lane] | None:
        slice_ = self.slices.get(number)
        lane = None if slice_ is None else slice_.lanes.get(topic)
        return None if slice_ is None or lane is None else (slice_, lane)
