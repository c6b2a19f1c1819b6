"""The loop of a worker on a thread of its own, with the metrics of its slices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import process_time
from typing import Final, NamedTuple

import structlog

from connectors.kafka.topic_facts import ServedTopic
from delayservice.base.clock import NodeClock
from delayservice.inspection.counting import count_slice, topic_counts
from delayservice.metrics.counts import WorkerMetrics
from delayservice.metrics.snapshot import encode_slice
from delayservice.process.gate import WorkerGate
from delayservice.process.observer import MetricsObserver, Sampled
from delayservice.process.process_memory import memory_bytes
from delayservice.process.turns import BusyError, Turns
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.slice import Slice
from delayservice.slices.worker_loop import WorkerLoop
from ha.ownership import Ownership, SliceStanding

CATCHING_UP_S = 5.0
PROGRESS_S = 5.0
"""How often a copy that is catching up says how far it is."""
ENDS_AGE_S_MAX = 10.0
COUNTING_SHARE = 0.02
"""Counting takes no more of a core: while much is due a count reads the disk for tens of
milliseconds, and stands the longer."""
SAMPLE_S = 1.0
STOP_WAIT_S = 15.0
"""How long slices may take to be released at the end."""

_log = structlog.get_logger(__name__)


class _LogEnds(NamedTuple):
    """Ends of a slice's logs by delay topic, and when they were asked for (monotonic seconds)."""

    asked_s: float
    ends: Mapping[str, int]


_NOT_ASKED: Final = _LogEnds(float("-inf"), {})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The shards that a worker is to keep: delay topics by name, of each slice."""

    slices: Mapping[int, Mapping[str, ServedTopic]] = field(default_factory=dict)


class WorkerThread:
    """Runs the loop until told to stop.

    A store that can't be trusted, or anything unforeseen, is not survived: ``failure`` is set, and
    the worker ends so that the supervisor starts a clean one.

    Args:
        make_loop: makes the loop; given who is told of a slice that was looked after.
        observer: of the loop.
        gate: of the loop.
        clock: monotonic.
        make_lane: a lane for a delay topic and a partition.
        close_edges: releases what the loop uses.
        disk_alarm: why storing has stopped; empty: it has not.
        checkpoint_alarm: what is wrong with the checkpoints of a slice; empty: nothing.
        retired: told of a slice of which no copy is kept any more.
        turns: other threads look at the lanes while the loop waits.
    """

    def __init__(
        self,
        make_loop: Callable[[Callable[[Slice], bool]], WorkerLoop],
        observer: MetricsObserver,
        gate: WorkerGate,
        ownership: Ownership,
        clock: NodeClock,
        make_lane: Callable[[ServedTopic, int, WorkerLoop], AnyLane],
        close_edges: Callable[[], None],
        disk_alarm: Callable[[], str],
        checkpoint_alarm: Callable[[int], str],
        retired: Callable[[int], None],
        turns: Turns,
    ) -> None:
        self.loop = make_loop(self._tended)
        self.failure: BaseException | None = None
        self._log_ends: dict[int, _LogEnds] = {}
        self._observer = observer
        self._gate = gate
        self._ownership = ownership
        self._clock = clock
        self._make_lane = make_lane
        self._close_edges = close_edges
        self._disk_alarm = disk_alarm
        self._checkpoint_alarm = checkpoint_alarm
        self._retired = retired
        self._turns = turns
        self._worker_metrics = WorkerMetrics()
        self._sampled_s = float("-inf")
        self._wanted = Wanted()
        self._served: Wanted | None = None
        self._stopping = threading.Event()
        self._turn_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="worker-loop")
        ownership.on_change(self.loop.wake)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def want(self, wanted: Wanted) -> None:
        """Keep these slices from now on, with these topics and no others."""
        for number in wanted.slices:  # they are shown at once, whatever becomes of them
            self._observer.of(number)
        self._wanted = wanted
        self.loop.wake()

    @property
    def slices(self) -> list[int]:
        """The slices that are kept here now."""
        return sorted(self.loop.slices.copy())

    def to_measure(self, quiet_max: int) -> list[int]:
        """Return the slices whose log ends are to be asked for: all to which something happens, and
        some of the quiet ones, those whose turn was the longest ago.
        """
        sampled, numbers = self._observer.sampled, self.slices
        quiet = [n for n in numbers if (one := sampled.get(n)) is not None and one.is_quiet]
        quiet.sort(key=lambda n: self._log_ends.get(n, _NOT_ASKED).asked_s)
        return sorted(set(numbers).difference(quiet[quiet_max:]))

    def measured(self, asked_s: float, ends: Mapping[int, Mapping[str, int]]) -> None:
        """Take where the logs of slices ended, by delay topic, when that was asked, monotonic."""
        for number, its_ends in ends.items():
            self._log_ends[number] = _LogEnds(asked_s, its_ends)

    @property
    def turn_s(self) -> float:
        """Duration of the present turn of the loop so far, seconds; any thread may ask."""
        since_s = self._turn_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    @property
    def worker_metrics(self) -> WorkerMetrics:
        """Figures that belong to no slice, as of about a second ago; never changed once given."""
        return self._worker_metrics

    @property
    def published(self) -> list[bytes]:
        """The metrics of every slice, packed by the loop's thread."""
        return [one.published for one in list(self._observer.sampled.values())]

    def stop(self) -> None:
        """Ask it to release its slices and end."""
        self._stopping.set()
        self.loop.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextmanager
    def looking(self, slice_no: int, timeout_s: float) -> Iterator[Mapping[str, AnyLane]]:
        """Around a look at the lanes of a slice, by another thread; delivery waits meanwhile.

        Raises:
            BusyError: there is too much to do now, or the slice is served here no longer.
        """
        with self._turns.looking(timeout_s):
            slice_ = self.loop.slices.get(slice_no)
            if slice_ is None:
                raise BusyError("it has ended; another node or worker may serve it")
            yield slice_.lanes

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with self._turns.working():
            try:
                while not self._stopping.is_set():
                    self._turn_since_s = self._clock.monotonic_s()
                    self._serve_wanted()
                    self.loop.step()
                    self._sample_worker()
                self._turn_since_s = None
                self._end()
            except BaseException as exc:  # noqa: BLE001  # whatever it is, the worker has to know
                self.failure = exc
                _log.exception("loop_failed")
            finally:
                self._close_edges()

    def _end(self) -> None:
        self.loop.release_all()
        deadline_s = self._clock.monotonic_s() + STOP_WAIT_S
        while self.loop.is_settling and self._clock.monotonic_s() < deadline_s:
            self.loop.release_all()
            self.loop.step()
        self.loop.close()

    def _serve_wanted(self) -> None:
        """Serve what is wanted now; tried again when the cluster interrupts it."""
        wanted = self._wanted
        if wanted is self._served:
            return
        is_done = True
        for number in self.slices:
            if number not in wanted.slices:
                is_done = self._retire(number) and is_done
        for number, topics in wanted.slices.items():
            self._change_topics(number, topics)
        if is_done:
            self._served = wanted

    def _retire(self, number: int) -> bool:
        if not self.loop.drop_slice(number):
            return False
        self._observer.sampled.pop(number, None)
        self._log_ends.pop(number, None)
        self._retired(number)
        return True

    def _change_topics(self, number: int, topics: Mapping[str, ServedTopic]) -> None:
        slice_ = self.loop.slices.get(number)
        lanes = {} if slice_ is None else slice_.lanes
        for name, lane in list(lanes.items()):
            if name not in topics or topics[name].topic_id != lane.topic_id:
                _log.warning("shard_dropped", slice=number, topic=name)
                self.loop.drop_lane(number, name)
        added = [topic for name, topic in topics.items() if name not in lanes]
        if added or slice_ is None:
            self.loop.add_lanes(number, [self._make_lane(t, number, self.loop) for t in added])

    # --- metrics -------------------------------------------------------------------------------

    def _sample_worker(self) -> None:
        """Copy what belongs to no slice once a second, for other threads to read."""
        now_s = self._clock.monotonic_s()
        if now_s - self._sampled_s >= SAMPLE_S:
            self._sampled_s = now_s
            self._worker_metrics = taken = WorkerMetrics(process_time(), memory_bytes())
            taken.add(self._observer.worker)

    def _tended(self, slice_: Slice) -> bool:
        """Publish a slice packed, so that other threads never read what the loop writes; return
        whether it is still behind, and its progress waited for.
        """
        self._observer.of(slice_.number)
        sampled = self._observer.sampled[slice_.number]
        sampled.lag_s = slice_.lag_s(self._recent_ends(slice_.number))
        standing = SliceStanding(slice_.stored, sampled.lag_s, slice_.follower.refusal)
        self._ownership.standing(slice_.number, standing)
        self._sample(slice_, sampled)
        seen = standing.stored, slice_.follower.newest
        is_behind = bool(sampled.lag_s or sampled.metrics.source_lag)
        sampled.is_quiet = seen == sampled.seen and not is_behind
        sampled.seen = seen
        self._tell_progress(slice_, sampled)
        return sampled.lag_s >= CATCHING_UP_S

    def _recent_ends(self, slice_no: int) -> Mapping[str, int]:
        asked_s, ends = self._log_ends.get(slice_no, _NOT_ASKED)
        return ends if self._clock.monotonic_s() - asked_s < ENDS_AGE_S_MAX else {}

    def _tell_progress(self, slice_: Slice, sampled: Sampled) -> None:
        """A copy that was wiped takes its time; say how far it is."""
        now_s = self._clock.monotonic_s()
        is_behind = _is_behind(sampled) and not slice_.follower.refusal
        if is_behind == sampled.was_behind and now_s - sampled.told_s < PROGRESS_S:
            return
        if is_behind:
            stored, left = sum(slice_.stored.values()), sampled.metrics.source_lag
            percent = round(100 * stored / max(stored + left, 1))
            _log.info("catching_up", slice=slice_.number, percent=percent, left=left)
        elif sampled.was_behind:
            _log.info("caught_up", slice=slice_.number)
        sampled.was_behind = is_behind
        sampled.told_s = now_s

    def _sample(self, slice_: Slice, sampled: Sampled) -> None:
        metrics, is_owner = sampled.metrics, slice_.is_owner
        ends = self._log_ends.get(slice_.number, _NOT_ASKED).ends
        lanes = list(slice_.lanes.values())
        for lane in lanes:
            lane.log_reaches(ends.get(lane.topic, 0))
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        is_time = now_s >= sampled.count_again_s
        sampled.counts = count_slice(slice_.lanes, now_ms, sampled.counts, is_time=is_time)
        if is_time:
            took_s = self._clock.monotonic_s() - now_s
            sampled.count_again_s = now_s + took_s * len(self.loop.slices) / COUNTING_SHARE
        counts = sampled.counts.values()
        dues = [one.next_due_ms for one in counts if one.next_due_ms is not None]
        stored = slice_.stored
        metrics.source_lag = sum(max(end - stored.get(t, 0), 0) for t, end in ends.items())
        verdict = self._ownership.verdict(slice_.number)
        metrics.cause, metrics.reason = verdict.cause.value, verdict.reason
        metrics.state = "owner" if is_owner else metrics.cause or "replica"
        metrics.epoch = slice_.epoch if is_owner else 0
        metrics.lag_s = sampled.lag_s if sampled.lag_s < float("inf") else -1.0
        metrics.pending = sum(one.pending for one in counts)
        shown = sampled.counts if is_owner else {}
        metrics.topics = {topic: topic_counts(one, now_ms) for topic, one in shown.items()}
        metrics.store_bytes = sum(lane.store.stats().bytes for lane in lanes)
        metrics.oldest_due_ms = min(dues, default=None)
        metrics.cursor_age_s = self.loop.uncommitted_s(slice_)
        metrics.damaged = slice_.damaged
        metrics.lost_offsets = slice_.follower.lost_offsets
        metrics.storing_stopped = bool(self._disk_alarm())
        metrics.counters.over_cap = slice_.flow.over_cap
        foreign = self._checkpoint_alarm(slice_.number)
        if foreign and is_owner:
            self.loop.restate(slice_.number)
        metrics.alarm = slice_.trouble or foreign or self._disk_alarm()
        sampled.published = encode_slice(metrics)


def _is_behind(sampled: Sampled) -> bool:
    return sampled.lag_s >= CATCHING_UP_S and sampled.metrics.source_lag > 0
