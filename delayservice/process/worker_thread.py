"""Thread that runs a worker's loop, with its lock and the metrics of its slices."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Final, NamedTuple, TypeAlias

import structlog

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.source import KafkaSource
from connectors.kafka.topic_facts import ServedTopic
from delayservice.base.clock import NodeClock
from delayservice.base.errors import DelayServiceError
from delayservice.inspection.counting import LaneCounts, count_lane, topic_counts
from delayservice.metrics.counts import WorkerMetrics
from delayservice.metrics.snapshot import encode_slice
from delayservice.process.lanes import LaneMaker
from delayservice.process.observer import MetricsObserver, Sampled
from delayservice.process.watches import DiskWatch
from delayservice.slices.lane import Lane
from delayservice.slices.loop import WorkerLoop
from delayservice.slices.slice import Slice
from ha.ownership import Ownership, SliceStanding


class BusyError(DelayServiceError):
    """The working thread made no pause in time, or has ended, so its data could not be read."""


class Turns:
    """Lock that a working thread holds except in its pauses, in which other threads may take it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False

    @contextmanager
    def working(self) -> Iterator[None]:
        # After the context has ended, ``looking`` always fails.
        with self._lock:
            try:
                yield
            finally:
                self._is_over = True

    @contextmanager
    def pausing(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def looking(self, timeout_s: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=timeout_s):
            raise BusyError(f"it was busy for {timeout_s:g} s; try again")
        try:
            if self._is_over:
                raise BusyError("it has ended; another node or worker may serve it")
            yield
        finally:
            self._lock.release()


# Time by which a copy is behind the owner's from which it counts as catching up, in s.
CATCHING_UP_S = 5.0
# Interval between two log lines about the progress of a copy that is catching up, in s.
PROGRESS_S = 5.0
# Age of log ends, in s, from which they are not used to calculate the lag.
ENDS_AGE_S_MAX = 10.0
# Largest share of a core that counting pending records may use. The longer a count takes, because
# it reads the disk, the less often it is repeated.
COUNTING_SHARE = 0.02
# Interval at which the metrics of the whole worker are copied for other threads, in s.
SAMPLE_S = 1.0
# Longest wait for the release of the slices when the thread ends, in s.
STOP_WAIT_S = 15.0

_log = structlog.get_logger(__name__)


class _LogEnds(NamedTuple):
    """End offsets of a slice's logs by delay topic, and when they were queried, monotonic s."""

    asked_s: float
    ends: Mapping[str, int]


_NOT_ASKED: Final = _LogEnds(float("-inf"), {})


# Shards that a worker is to keep: by slice, the delay topics by name.
Wanted: TypeAlias = Mapping[int, Mapping[str, ServedTopic]]


class WorkerThread:
    """Thread that runs a worker's loop until ``stop``.

    After a corrupt store or an unexpected error the thread ends and sets ``failure``. The worker
    process ends, and the supervisor starts another.
    """

    def __init__(
        self,
        loop: WorkerLoop,
        observer: MetricsObserver,
        ownership: Ownership,
        clock: NodeClock,
        lanes: LaneMaker,
        source: KafkaSource,
        disk: DiskWatch,
        checkpoints: KafkaCheckpoints,
        retired: Callable[[int], None],
        turns: Turns,
    ) -> None:
        self.loop = loop
        self.failure: BaseException | None = None
        self._log_ends: dict[int, _LogEnds] = {}
        self._observer = observer
        self._ownership = ownership
        self._clock = clock
        self._lanes = lanes
        self._source = source
        self._disk = disk
        self._checkpoints = checkpoints
        self._retired = retired
        self._turns = turns
        # As copied at most about a second ago.
        self.worker_metrics = WorkerMetrics()
        self._sampled_s = float("-inf")
        self._wanted: Wanted = {}
        self._served: Wanted | None = None
        self._stopping = threading.Event()
        self._turn_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="worker-loop")
        ownership.on_change(self.loop.wake)

    def start(self) -> None:
        self._thread.start()

    def want(self, wanted: Wanted) -> None:
        # The loop adds what is missing, and drops all others.
        for number in wanted:  # shown in metrics at once, even if serving fails
            self._observer.of(number)
        self._wanted = wanted
        self.loop.wake()

    @property
    def slices(self) -> list[int]:
        return sorted(self.loop.slices.copy())

    def to_measure(self, quiet_max: int) -> list[int]:
        """Return the slices whose log ends are to be queried: all busy ones, and at most
        ``quiet_max`` idle ones, those queried the longest ago.
        """
        sampled, numbers = self._observer.sampled, self.slices
        quiet = [n for n in numbers if (one := sampled.get(n)) is not None and one.is_quiet]
        quiet.sort(key=lambda n: self._log_ends.get(n, _NOT_ASKED).asked_s)
        return sorted(set(numbers).difference(quiet[quiet_max:]))

    def measured(self, asked_s: float, ends: Mapping[int, Mapping[str, int]]) -> None:
        for number, its_ends in ends.items():
            self._log_ends[number] = _LogEnds(asked_s, its_ends)

    @property
    def stack(self) -> str:
        """What the loop is doing, for reports."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  # its public name
        return "".join(traceback.format_stack(frame))

    @property
    def turn_s(self) -> float:
        since_s = self._turn_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    @property
    def published(self) -> list[bytes]:
        return [one.published for one in list(self._observer.sampled.values())]

    def stop(self) -> None:
        self._stopping.set()
        self.loop.wake()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextmanager
    def looking(self, slice_no: int, timeout_s: float) -> Iterator[Mapping[str, Lane]]:
        """Wait up to ``timeout_s`` seconds for a pause of the loop, and give another thread access
        to the lanes of a slice, by delay topic, within this context. Delivery waits meanwhile.
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
                    self._sample_slices()
                    self._sample_worker()
                self._turn_since_s = None
                self._end()
            except BaseException as exc:  # noqa: BLE001  # the worker must learn of any error
                self.failure = exc
                _log.exception("loop_failed")
            finally:
                self._source.close()

    def _end(self) -> None:
        self.loop.release_all()
        deadline_s = self._clock.monotonic_s() + STOP_WAIT_S
        while self.loop.is_settling and self._clock.monotonic_s() < deadline_s:
            self.loop.release_all()
            self.loop.step()
        self.loop.close()
        self._lanes.stores.close()  # no lane may have been open

    def _serve_wanted(self) -> None:
        # A removal that has to wait for a release is tried again in the next iteration of the loop.
        wanted = self._wanted
        if wanted is self._served:
            return
        self.loop.renew_rates()
        is_done = True
        for number in self.slices:
            if number not in wanted:
                is_done = self._retire(number) and is_done
        for number, topics in wanted.items():
            is_done = self._change_topics(number, topics) and is_done
        if is_done:
            self._served = wanted

    def _retire(self, number: int) -> bool:
        if not self.loop.drop_slice(number):
            return False
        self._observer.sampled.pop(number, None)
        self._log_ends.pop(number, None)
        self._retired(number)
        return True

    def _change_topics(self, number: int, topics: Mapping[str, ServedTopic]) -> bool:
        slice_ = self.loop.slices.get(number)
        lanes, is_done = {} if slice_ is None else slice_.lanes, True
        for name, lane in list(lanes.items()):
            if name not in topics or topics[name].topic_id != lane.topic_id:
                if self.loop.drop_lane(number, name):
                    _log.warning("shard_dropped", slice=number, topic=name)
                else:
                    is_done = False
        added = [topic for name, topic in topics.items() if name not in lanes]
        if added or slice_ is None:
            self.loop.add_lanes(number, [self._lanes.make(t, number, self.loop) for t in added])
        return is_done

    # --- metrics -------------------------------------------------------------------------------

    def _sample_worker(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._sampled_s >= SAMPLE_S:
            self._sampled_s = now_s
            self.worker_metrics = taken = WorkerMetrics(
                cpu_s=process_time(), memory_bytes=_memory_bytes()
            )
            taken.add(self._observer.worker)

    def _sample_slices(self) -> None:
        for slice_ in self.loop.take_tended():
            self._tend(slice_)
            if self._observer.sampled[slice_.number].lag_s >= CATCHING_UP_S:
                self.loop.tend_again(slice_.number)

    def _tend(self, slice_: Slice) -> None:
        """Update a slice's metrics and its standing for the ownership, and encode the metrics,
        because other threads must not read what the loop writes.
        """
        self._observer.of(slice_.number)
        sampled = self._observer.sampled[slice_.number]
        sampled.lag_s = slice_.lag_s(self._recent_ends(slice_.number))
        standing = SliceStanding(slice_.stored, sampled.lag_s, slice_.follower.refusal)
        self._ownership.standing(slice_.number, standing)
        self._sample(slice_, sampled)
        seen = standing.stored, slice_.follower.newest
        is_behind = bool(sampled.lag_s or sampled.state.source_lag)
        sampled.is_quiet = seen == sampled.seen and not is_behind
        sampled.seen = seen
        self._tell_progress(slice_, sampled)

    def _recent_ends(self, slice_no: int) -> Mapping[str, int]:
        asked_s, ends = self._log_ends.get(slice_no, _NOT_ASKED)
        return ends if self._clock.monotonic_s() - asked_s < ENDS_AGE_S_MAX else {}

    def _tell_progress(self, slice_: Slice, sampled: Sampled) -> None:
        now_s = self._clock.monotonic_s()
        is_late = sampled.lag_s >= CATCHING_UP_S and sampled.state.source_lag > 0
        is_behind = is_late and not slice_.follower.refusal
        if is_behind == sampled.was_behind and now_s - sampled.told_s < PROGRESS_S:
            return
        if is_behind:
            stored, left = sum(slice_.stored.values()), sampled.state.source_lag
            percent = round(100 * stored / max(stored + left, 1))
            _log.info("catching_up", slice=slice_.number, percent=percent, left=left)
        elif sampled.was_behind:
            _log.info("caught_up", slice=slice_.number)
        sampled.was_behind = is_behind
        sampled.told_s = now_s

    def _sample(self, slice_: Slice, sampled: Sampled) -> None:
        state, is_owner = sampled.state, slice_.is_owner
        ends = self._log_ends.get(slice_.number, _NOT_ASKED).ends
        lanes = list(slice_.lanes.values())
        for lane in lanes:
            lane.shard.reaches(ends.get(lane.topic, 0))
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        is_time = now_s >= sampled.count_again_s
        sampled.counts = {
            lane.topic: count_lane(
                lane, now_ms, sampled.counts.get(lane.topic, LaneCounts()), is_time=is_time
            )
            for lane in lanes
        }
        if is_time:
            took_s = self._clock.monotonic_s() - now_s
            sampled.count_again_s = now_s + took_s * len(self.loop.slices) / COUNTING_SHARE
        counts = sampled.counts.values()
        dues = [one.next_due_ms for one in counts if one.next_due_ms is not None]
        stored = slice_.stored
        state.source_lag = sum(max(end - stored.get(t, 0), 0) for t, end in ends.items())
        verdict = self._ownership.verdict(slice_.number)
        state.cause, state.reason = verdict.cause.value, verdict.reason
        state.state = "owner" if is_owner else state.cause or "replica"
        state.epoch = slice_.epoch if is_owner else 0
        state.lag_s = sampled.lag_s if sampled.lag_s < float("inf") else -1.0
        state.stored = sum(stored.values())
        state.pending = sum(one.pending for one in counts)
        shown = sampled.counts if is_owner else {}
        state.topics = {topic: topic_counts(one, now_ms) for topic, one in shown.items()}
        state.store_bytes = sum(lane.stats().bytes for lane in lanes)
        state.oldest_due_ms = min(dues, default=None)
        state.cursor_age_s = self.loop.uncommitted_s(slice_)
        state.damaged = slice_.damaged
        state.lost_offsets = slice_.follower.lost_offsets
        state.storing_stopped = bool(self._disk.alarm)
        self._observer.worker.over_cap += slice_.flow.over_cap - sampled.over_cap
        sampled.over_cap = slice_.flow.over_cap
        foreign = self._checkpoints.alarm(slice_.number)
        if foreign and is_owner:
            self.loop.rewrite_checkpoint(slice_.number)
        state.alarm = slice_.alarm or foreign or self._disk.alarm
        sampled.published = encode_slice(state)


def _memory_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
