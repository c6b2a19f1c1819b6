"""One slice on a thread of its own: its loop with everything it needs, and its metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog

from connectors.kafka.topics import DelayTopic
from delayservice.clock import NOT_COMPARED, Clock, ClockWatch
from delayservice.core.outcome import OUTCOME_NAMES, Tally
from delayservice.core.role import Role
from delayservice.errors import KafkaEdgeError
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.level import LevelLane
from delayservice.lanes.ports import ReadBack
from delayservice.lanes.slice_loop import SliceLoop
from delayservice.metrics import SliceMetrics, encode_slice
from delayservice.turns import Turns
from ha.ownership import Ownership, Standing

SAMPLE_S = 1.0
CATCHING_UP_S = 5.0
CATCHING_UP_SAMPLE_S = 0.1
"""A copy that is this far behind is looked at more often: somebody may be waiting for it."""
PROGRESS_S = 5.0
"""How often a copy that is catching up says how far it is."""
ENDS_AGE_S_MAX = 10.0
RETRY_S = 1.0
"""Wait after an error of the cluster before the slice is tried again."""

_log = structlog.get_logger(__name__)


class ThreadGate:
    """Whether the slice may be settled: owned, the clock believed, and the service not stopping."""

    def __init__(self, ownership: Ownership, watch: ClockWatch) -> None:
        self._ownership = ownership
        self._watch = watch

    def role(self, slice_no: int) -> Role:
        """What this node may do with the slice now."""
        return self._ownership.role(slice_no)

    def confirm(self, slice_no: int) -> bool:
        """Whether it is the owner beyond doubt."""
        return self._ownership.confirm(slice_no)

    def epoch(self, slice_no: int) -> int:
        """The least number of this ownership."""
        return self._ownership.epoch(slice_no)

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """The slice has been taken over, or its last transaction is over."""
        self._ownership.settling(slice_no, is_settling=is_settling)

    def gave_up(self, slice_no: int, why: str) -> None:
        """The slice can't be served here now."""
        self._ownership.gave_up(slice_no, why)

    def standing(self, slice_no: int, standing: Standing) -> None:
        """How far the copy is."""
        self._ownership.standing(slice_no, standing)

    def frozen(self) -> str | None:
        """Why the wall clock is not believed, or None."""
        return self._watch.doubt()

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """Compare the broker's clock with ours."""
        if read_back is None:
            self._watch.heard(broker_ms)
        else:
            self._watch.heard_answer(broker_ms, read_back.wall_ms, read_back.boot_ms, sent_s)


def doubt_that_counts(doubt: str | None, *, is_owner: bool) -> str | None:
    """Give what of the clock's doubt people are to hear: a clock that was never compared stops an
    owner, and nobody else has a commit to compare it by.
    """
    return None if doubt == NOT_COMPARED and not is_owner else doubt


class MetricsObserver:
    """Puts what the loop reports into the slice's metrics, once per batch."""

    def __init__(self, metrics: SliceMetrics) -> None:
        self._metrics = metrics

    def ingested(self, records: int) -> None:
        """Source records were stored."""
        self._metrics.add_ingested(records)

    def settled(self, tally: Tally, now_ms: int) -> None:
        """Outputs were committed."""
        metrics = self._metrics
        for kind, count in enumerate(tally.counts):
            if count:
                metrics.add_settled(OUTCOME_NAMES[kind], count)
        metrics.observe_lateness([now_ms - due_ms for due_ms in tally.due_ms])
        for code in tally.codes:
            metrics.add_rejected(code)

    def transaction(self, seconds: float, *, committed: bool) -> None:
        """A transaction ended."""
        if committed:
            self._metrics.observe_transaction(seconds)
        else:
            self._metrics.add_abort()


class SliceThread:
    """Runs a slice's loop until told to stop, and survives what the cluster does.

    A store that can't be trusted, or anything unforeseen, is not survived: ``failure`` is set, and
    the worker ends so that the supervisor starts a clean one.
    """

    def __init__(
        self,
        loop: SliceLoop,
        metrics: SliceMetrics,
        gate: ThreadGate,
        clock: Clock,
        make_lane: Callable[[DelayTopic, int], AnyLane],
        close_edges: Callable[[], None],
        disk_alarm: Callable[[], str],
        turns: Turns,
    ) -> None:
        self.loop = loop
        self._turns = turns
        self.published = encode_slice(metrics)
        self.failure: BaseException | None = None
        self._metrics = metrics
        self._gate = gate
        self._clock = clock
        self._sampled_s = float("-inf")
        self._lag_s = float("inf")
        self._was_behind = False
        self._told_s = float("-inf")
        self.log_ends: tuple[float, dict[str, int]] = (float("-inf"), {})
        """When it was asked (monotonic seconds), and where the slice's logs ended then, by delay
        topic; the worker asks for all slices at once."""
        self._trouble = ""
        self._make_lane = make_lane
        self._close_edges = close_edges
        self._disk_alarm = disk_alarm
        self._topics: dict[str, DelayTopic] = {}
        self._topics_changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"slice-{loop.slice_no}")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def serve(self, topics: dict[str, DelayTopic]) -> None:
        """From now on, serve this slice's partition of these topics and no others."""
        before = self._topics
        self._topics = topics
        if {name: topic.topic_id for name, topic in topics.items()} != {
            name: topic.topic_id for name, topic in before.items()
        }:
            self._topics_changed.set()

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to finish its transaction and end."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextmanager
    def looking(self, timeout_s: float) -> Iterator[Mapping[str, AnyLane]]:
        """Around a look at the lanes, by another thread; delivery waits meanwhile.

        Raises:
            BusyError: the slice has too much to do now, or is served here no longer.
        """
        with self._turns.looking(timeout_s):
            yield self.loop.lanes

    def _run(self) -> None:
        with self._turns.working():
            self._work()

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
            self.loop.close()
        except BaseException as exc:  # noqa: BLE001  # whatever it is, the worker has to know
            self.failure = exc
            _log.exception("slice_failed", slice=self.loop.slice_no)
        finally:
            self._close_edges()

    def _turn(self) -> None:
        try:
            if self._topics_changed.is_set():
                self._topics_changed.clear()
                self._change_topics()
            self.loop.step()
            self._trouble = ""
        except KafkaEdgeError as exc:
            _log.warning("slice_interrupted", slice=self.loop.slice_no, why=str(exc))
            self._trouble = str(exc)
            self.loop.release()
            self._gate.gave_up(self.loop.slice_no, str(exc))
            with self._turns.pausing():
                self._stopping.wait(RETRY_S)
        self._sample_when_time()

    def _change_topics(self) -> None:
        """Serve what is wanted now; tried again when the cluster interrupts it."""
        wanted = self._topics
        lanes = self.loop.lanes
        try:
            for name, lane in list(lanes.items()):
                if name not in wanted or wanted[name].topic_id != lane.topic_id:
                    self.loop.drop_lane(name)
            for name in wanted.keys() - lanes.keys():
                self.loop.add_lanes([self._make_lane(wanted[name], self.loop.slice_no)])
        except KafkaEdgeError:
            self._topics_changed.set()
            raise

    def _sample_when_time(self) -> None:
        now_s = self._clock.monotonic_s()
        every_s = SAMPLE_S if self._lag_s < CATCHING_UP_S else CATCHING_UP_SAMPLE_S
        if now_s - self._sampled_s < every_s:
            return
        self._sampled_s = now_s
        self._take_standing()
        self._sample()
        self._tell_progress(now_s)

    def _recent_ends(self) -> dict[str, int]:
        asked_s, ends = self.log_ends
        return ends if self._clock.monotonic_s() - asked_s < ENDS_AGE_S_MAX else {}

    def _take_standing(self) -> None:
        try:
            self._lag_s = self.loop.lag_s(self._recent_ends())
        except KafkaEdgeError as exc:
            _log.debug("lag_not_known", slice=self.loop.slice_no, why=str(exc))
        self._gate.standing(self.loop.slice_no, Standing(self.loop.stored, self._lag_s))

    @property
    def _is_behind(self) -> bool:
        return self._lag_s >= CATCHING_UP_S and self._metrics.source_lag > 0

    def _tell_progress(self, now_s: float) -> None:
        """A copy that was wiped takes its time; say how far it is."""
        if self._is_behind == self._was_behind and now_s - self._told_s < PROGRESS_S:
            return
        if self._is_behind:
            stored, left = sum(self.loop.stored.values()), self._metrics.source_lag
            percent = round(100 * stored / max(stored + left, 1))
            _log.info("catching_up", slice=self.loop.slice_no, percent=percent, left=left)
        elif self._was_behind:
            _log.info("caught_up", slice=self.loop.slice_no)
        self._was_behind = self._is_behind
        self._told_s = now_s

    def _sample(self) -> None:
        """Publish it packed, so that the worker never reads what this thread writes."""
        metrics, loop = self._metrics, self.loop
        lanes = list(loop.lanes.values())
        for lane in lanes:
            if isinstance(lane, LevelLane):  # it fetches no more than it needs
                lane.shard.reaches(self.log_ends[1].get(lane.topic, 0))
        due = [lane.next_due_ms() for lane in lanes]
        stats = [lane.store.stats() for lane in lanes]
        doubt = doubt_that_counts(self._gate.frozen(), is_owner=loop.owner)
        replica = "catching_up" if self._is_behind else "replica"
        metrics.state = "owner" if loop.owner else replica
        stored = loop.stored
        metrics.source_lag = sum(
            max(end - stored.get(topic, 0), 0) for topic, end in self.log_ends[1].items()
        )
        metrics.epoch = loop.epoch if loop.owner else 0
        metrics.lag_s = self._lag_s if self._lag_s < float("inf") else -1.0
        # A store prunes in lumps, so it may count settled records; with nothing due, none waits.
        metrics.pending = sum(s.pending for s, at in zip(stats, due, strict=True) if at is not None)
        metrics.store_bytes = sum(s.bytes for s in stats)
        metrics.oldest_due_ms = min((at for at in due if at is not None), default=None)
        metrics.cursor_age_s = loop.uncommitted_s
        metrics.damaged = loop.damaged
        metrics.clock_frozen = doubt is not None
        metrics.storing_stopped = bool(self._disk_alarm())
        metrics.counters.over_cap = loop.flow.over_cap
        metrics.alarm = self._trouble or doubt or self._disk_alarm()
        self.published = encode_slice(metrics)
