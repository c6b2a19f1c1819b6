"""A worker process: whole slices, each on a thread of its own, sharing nothing but a few caches.

The supervisor (``node``) starts it, reads its metrics from a pipe and starts another if it dies.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing.connection import Connection

import structlog

from connectors.kafka.audits import AuditNews
from connectors.kafka.checkpoint import KafkaCheckpoints
from connectors.kafka.clients import admin_client
from connectors.kafka.copies import CopyLog, RepairCommands
from connectors.kafka.pauses import PauseNews
from connectors.kafka.reach import KafkaReach
from connectors.kafka.sink import KafkaSink, SinkOptions
from connectors.kafka.source import KafkaSource, log_ends
from connectors.kafka.topics import DelayTopic, TargetTopics, TopicKeeper
from delayservice import logs
from delayservice.answering import answer
from delayservice.asking import Answer, answer_questions
from delayservice.clock import ClockWatch, SystemClock
from delayservice.contracts import contract_for
from delayservice.core.digest_rows import Place, retired_row
from delayservice.core.flow import Flow, FlowRules
from delayservice.core.question import HeldTopics, Question, Standings
from delayservice.core.repair import Command
from delayservice.core.settle import Routes
from delayservice.cron import cron_time
from delayservice.disk import DiskWatch, used_percent
from delayservice.errors import KafkaEdgeError
from delayservice.garbage import GarbageCollector
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.copies import CopyKeeper
from delayservice.lanes.digests import ScanTurns, SliceDigests
from delayservice.lanes.lane import Lane
from delayservice.lanes.level import FetchAhead, LevelLane
from delayservice.lanes.slice_loop import REPLICA_WAIT_MS, Limits, SliceLoop
from delayservice.metrics import AuditFacts, SliceMetrics, encode_snapshot
from delayservice.paused import pause_facts
from delayservice.settings import Settings
from delayservice.settings_report import secret_values
from delayservice.slice_thread import MetricsObserver, SliceThread, ThreadGate
from delayservice.stores import kept_slices, make_store, remove_store
from delayservice.turns import Turns
from ha.elected import ElectedOwnership
from ha.leaders import StableLeaders
from ha.notes import NodeNote
from ha.ownership import Ownership, Standalone
from ha.placement import SliceFacts

TURN_S = 1.0
REACH_TURN_S = 0.5
TARGETS_TURN_S = 0.25
STOP_TIMEOUT_S = 20.0
FLUSH_TIMEOUT_S = 2.0
COMMANDS_KEPT = 10_000
_TOLERANCE_MS = 60_000
"""By so much a broker's clock may be behind when it stamps a record that is rolled later."""
RETIRE_TIMEOUT_S = 5.0
EXIT_FAILED = 70
EXIT_ORPHANED = 71

_log = structlog.get_logger(__name__)


def run_worker(
    settings: Settings,
    secret: bytes,
    instance: str,
    index: int,
    pipe: Connection,
    questions: Connection,
) -> None:
    """Be worker ``index``: the entry of the process.

    Ends with status 0 after SIGTERM, with another one when a slice failed.
    """
    hidden = [*secret_values(settings), secret.decode("latin-1")]
    logs.configure(settings.log, settings.node.node_id, index, secrets=hidden)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    worker = Worker(settings, secret, index, make_ownership(settings, instance, index))
    _end_with_supervisor(pipe)
    answer_questions(questions, worker.answer)
    try:
        failed = worker.run(stopping, pipe.send_bytes)
    except BaseException:  # noqa: BLE001  # nobody is left to handle it
        # Left to itself the process would wait for its slices, which nobody stops any more.
        _log.exception("worker_failed", worker=index)
        failed = True
    os._exit(EXIT_FAILED if failed else 0)  # librdkafka's threads may outlive a clean exit


def _end_with_supervisor(pipe: Connection) -> None:
    """Nothing restarts or stops a worker whose supervisor is gone, so it ends at once; that is as
    safe as any crash.
    """

    def watch() -> None:
        with suppress(EOFError, OSError):
            pipe.recv_bytes()
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def make_copy_log(settings: Settings) -> CopyLog | None:
    """Where digests go; None where there are to be none."""
    if not settings.digests.enabled:
        return None
    topics = settings.topics
    return CopyLog(settings.kafka.client_config("producer"), topics.digests, topics.repairs)


def make_ownership(settings: Settings, instance: str, index: int) -> Ownership:
    """How worker ``index`` learns what it owns, working already.

    Args:
        settings: without ``zookeeper.hosts`` there is nobody else.
        instance: tells this node from another one of the same name.
        index: of the worker.
    """
    node = settings.node
    me = NodeNote(
        node.node_id, instance, node.workers, node.broker_id, node.rack, socket.gethostname()
    )
    if settings.standalone:
        return Standalone(me, index)
    alert_s = 1.5 * REPLICA_WAIT_MS / 1000
    clock = SystemClock()
    elected = ElectedOwnership(
        settings.zookeeper,
        settings.placement,
        me,
        index,
        boot_s=clock.boot_s,
        alert_s=alert_s,
        kept=kept_slices(settings),
    )
    elected.start()
    return elected


class Worker:
    """The slices of one process."""

    def __init__(self, settings: Settings, secret: bytes, index: int, ownership: Ownership) -> None:
        self._settings = settings
        self._index = index
        self._ownership = ownership
        self._clock = SystemClock()
        self._clock_watch = ClockWatch(self._clock, settings.delivery.clock_tolerance_ms)
        self._admin = admin_client(settings.kafka.client_config("admin"))
        self._keeper = TopicKeeper(self._admin, settings)
        self._pauses = PauseNews(
            settings.topics.pauses,
            settings.kafka.client_config("consumer"),
            f"{settings.node.node_id}-{index}",
        )
        self._targets = TargetTopics(self._admin, why_paused=self._why_paused)
        self._checkpoints = KafkaCheckpoints(
            settings.topics.checkpoint,
            settings.kafka.client_config("consumer"),
            self._admin,
            self._clock,
            f"{settings.node.node_id}-{index}",
            settings.digests.interval_ms if settings.digests.enabled else 0,
        )
        self._copy_log = make_copy_log(settings)
        self._scan_turns = ScanTurns()
        self._routes = Routes(
            dead_letter=settings.topics.dead_letter,
            outcomes=settings.topics.outcomes,
            secret=secret,
            roll_window_ms=settings.roll_window_ms,
            roll_spread_ms=settings.roll_spread_ms,
            park_delays_ms=settings.delivery.park_delays_ms,
            cron_time=cron_time,
            held_ms=settings.delivery.held_ms,
        )
        self._disk = DiskWatch(
            settings.disk.watermarks, lambda: used_percent(settings.node.state_dir)
        )
        self._audits = self._hear_audits() if index == 0 else None
        self._slices: dict[int, SliceThread] = {}
        self._keepers: dict[int, CopyKeeper] = {}
        self._unplaced: deque[Command] = deque(maxlen=COMMANDS_KEPT)
        """For slices that are not placed here yet, or are another worker's."""
        self._retiring: set[int] = set()
        self._slices_there = range(0)
        self._topics: list[DelayTopic] = []
        self._facts: list[SliceFacts] = []
        self._leaders = StableLeaders(settings.placement.leader_stable_s)
        self._explained: dict[str, tuple[str, ...]] = {}
        self._asking: list[threading.Thread] = []

    def run(self, stopping: threading.Event, publish: Callable[[bytes], None]) -> bool:
        """Serve until told to stop; whether a slice failed."""
        garbage = GarbageCollector()
        self._refresh()
        self._repeat("topics", self._settings.topics.refresh_s, self._refresh)
        self._repeat("targets", TARGETS_TURN_S, self._targets.look_again)
        if not self._settings.standalone:
            reach = KafkaReach(self._admin, self._settings.topics.checkpoint)
            self._repeat(
                "kafka-reach", REACH_TURN_S, lambda: self._ownership.fit(is_fit=reach.check())
            )
        if self._copy_log is not None:
            RepairCommands(
                self._settings.topics.repairs,
                self._settings.kafka.client_config("consumer"),
                self._settings.node.node_id,
                str(self._index),
                self._ask_copy,
            )
        while not stopping.is_set():
            self._place()
            if self._has_failed:
                break
            if self._settings.node.store != "memory":
                self._disk.look()
            self._publish(publish)
            if self._copy_log is not None:
                self._copy_log.serve()
            garbage.collect_when_time()
            stopping.wait(TURN_S)
        return self._stop()

    def _why_paused(self, topic: str) -> str | None:
        """Of target topics; what the service writes for itself goes on under any pattern."""
        topics = self._settings.topics
        if topic in topics.own or fnmatchcase(topic, topics.pattern) or topic in topics.delay:
            return None
        return self._pauses.why(topic)

    def answer(self, question: Question) -> Answer:
        """What people ask of this worker's slices; any thread may.

        Raises:
            DelayServiceError: it can't be answered now.
        """
        if isinstance(question, Standings):
            return self._ownership.survey()
        if isinstance(question, HeldTopics):
            return self._pauses.keys()
        return answer(question, self._slices)

    def _hear_audits(self) -> AuditNews | None:
        settings = self._settings
        if not settings.digests.enabled:
            return None
        client = settings.kafka.client_config("consumer")
        return AuditNews(settings.topics.audit, client, settings.node.node_id)

    def _repeat(self, name: str, every_s: float, ask: Callable[[], object]) -> None:
        """Ask Kafka on a thread of its own: whoever asks may have to wait, and what goes on here,
        the end above all, has not.
        """
        turn = threading.Event()

        def run() -> None:
            while not turn.wait(every_s):
                ask()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._asking.append(thread)

    def _publish(self, publish: Callable[[bytes], None]) -> None:
        with suppress(BrokenPipeError):  # the supervisor is gone; its watch ends this process
            slices = [thread.published for thread in self._slices.values()]
            told = self._problems(), self._disk.used, self._audit_facts, len(self._facts)
            paused = pause_facts(self._pauses.newest)
            publish(encode_snapshot(os.getpid(), slices, *told, paused))

    @property
    def _audit_facts(self) -> AuditFacts | None:
        news = self._audits.newest if self._audits is not None else None
        return None if news is None else AuditFacts(news.at_ms, news.records, news.findings)

    def _problems(self) -> list[str]:
        unheard = [self._pauses.problem] if self._pauses.problem else []
        return unheard + [
            f"{topic} is not served: {problem}"
            for topic, problems in self._explained.items()
            for problem in problems
        ]

    def _stop(self) -> bool:
        self._ownership.close()
        for thread in self._slices.values():
            thread.stop()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        late = [
            number
            for number, thread in self._slices.items()
            if not thread.join(max(deadline_s - time.monotonic(), 0.0))
        ]
        if self._copy_log is not None:
            self._copy_log.flush(FLUSH_TIMEOUT_S)
        if late:
            _log.error("slices_did_not_stop", slices=late, waited_s=STOP_TIMEOUT_S)
        return bool(late) or self._has_failed

    @property
    def _has_failed(self) -> bool:
        return (
            self._checkpoints.has_failed
            or self._ownership.has_failed
            or any(thread.failure is not None for thread in self._slices.values())
            or not all(thread.is_alive() for thread in self._asking)
        )

    # --- topics and slices ---------------------------------------------------------------------

    def _refresh(self) -> None:
        """Find new topics, added partitions and recreated topics; stop serving unfit ones."""
        try:
            found = self._keeper.delay_topics()
            fit = [topic for topic in found if not topic.problems]
            slices = max((topic.partitions for topic in fit), default=0)
            self._keeper.grow_checkpoint(slices)
        except KafkaEdgeError as exc:
            _log.warning("topics_not_refreshed", why=str(exc))
            return
        self._explain(found)
        self._slices_there = range(slices)
        self._topics = found
        self._facts = self._make_facts(found)
        self._measure(fit)

    def _place(self) -> None:
        """Serve the slices whose copies belong here, as nodes come and go."""
        kept = self._ownership.serve(self._facts)
        elsewhere = {facts.slice_no for facts in self._facts} - kept
        for slice_no in sorted((self._slices.keys() & elsewhere) | self._retiring):
            self._retire(slice_no)
        for slice_no in sorted((kept | self._slices.keys()) - self._retiring):
            self._serve(slice_no)

    def _measure(self, fit: list[DelayTopic]) -> None:
        """Tell each slice how far its logs go: what it has to store yet."""
        slices = dict(self._slices)
        places = [(t.name, n) for t in fit for n in slices if t.partitions > n]
        asked_s = self._clock.monotonic_s()
        ends = log_ends(self._admin, places)
        mine: dict[int, dict[str, int]] = {slice_no: {} for slice_no in slices}
        for (topic, slice_no), end in ends.items():
            mine[slice_no][topic] = end
        for slice_no, thread in slices.items():
            thread.log_ends = (asked_s, mine[slice_no])

    def _make_facts(self, found: list[DelayTopic]) -> list[SliceFacts]:
        """What decides where slices go: the first delay topic of the settings that has such a
        partition speaks for the slice, fit or not.
        """
        order = {name: number for number, name in enumerate(self._settings.topics.delay)}
        topics = sorted(found, key=lambda topic: (order.get(topic.name, len(order)), topic.name))
        now_s = self._clock.monotonic_s()
        facts = []
        for slice_no in range(max((topic.partitions for topic in found), default=0)):
            leader, replicas = next(t.brokers[slice_no] for t in topics if t.partitions > slice_no)
            facts.append(self._leaders.settle(SliceFacts(slice_no, leader, replicas), now_s))
        return facts

    def _serve(self, slice_no: int) -> None:
        topics = {
            topic.name: topic
            for topic in self._topics
            if not topic.problems and topic.partitions > slice_no
        }
        thread = self._slices.get(slice_no)
        if thread is not None:
            thread.serve(topics)
            return
        thread = self._slices[slice_no] = self._make_slice(slice_no)
        thread.serve(topics)
        thread.start()

    def _retire(self, slice_no: int) -> None:
        """Keep no copy of a slice any more: other nodes do. Its stores go when its thread has
        ended; whoever keeps it again begins with the log.
        """
        self._retiring.add(slice_no)
        thread = self._slices[slice_no]
        thread.stop()
        if not thread.join(RETIRE_TIMEOUT_S):
            _log.warning("slice_did_not_stop", slice=slice_no, waited_s=RETIRE_TIMEOUT_S)
            return
        del self._slices[slice_no]
        self._keepers.pop(slice_no, None)
        self._retiring.remove(slice_no)
        for topic in self._topics:
            remove_store(self._settings, topic.topic_id, slice_no)
            if self._copy_log is not None:
                place = Place(self._settings.node.node_id, topic.name, "", slice_no, "")
                self._copy_log.write(retired_row(place), lambda: None)
        _log.info("slice_retired", slice=slice_no)

    def _explain(self, found: list[DelayTopic]) -> None:
        before = self._explained
        # A new dictionary: another thread reads it.
        self._explained = {topic.name: topic.problems for topic in found}
        for topic in found:
            if topic.problems == before.get(topic.name, ()):
                continue
            if topic.problems:
                _log.error("topic_not_served", topic=topic.name, problems=topic.problems)
            else:
                _log.info("topic_served_again", topic=topic.name)

    def _make_slice(self, slice_no: int) -> SliceThread:
        settings = self._settings
        self._checkpoints.follow(slice_no)
        source = KafkaSource(slice_no, settings.kafka.client_config("consumer"), self._admin)
        options = SinkOptions(
            slice_no=slice_no,
            transactional_id=f"{settings.kafka.transactional_id_prefix}-{slice_no}",
            checkpoint_topic=settings.topics.checkpoint,
            exactly_once=settings.delivery.mode == "exactly_once",
            partitioner=settings.delivery.partitioner,
            client=settings.kafka.client_config("producer"),
        )
        metrics = SliceMetrics(slice=slice_no)
        gate = ThreadGate(self._ownership, self._clock_watch)
        flow = Flow(self._flow_rules())
        digests = self._make_digests(slice_no)
        turns = Turns()
        loop = SliceLoop(
            slice_no,
            node_id=settings.node.node_id,
            source=source,
            sink=KafkaSink(options, self._targets),
            checkpoints=self._checkpoints,
            clock=self._clock,
            gate=gate,
            observer=MetricsObserver(metrics),
            routes=self._routes,
            contract_of=partial(contract_for, settings),
            limits=self._limits(),
            flow=flow,
            disk_level=lambda: self._disk.level,
            copies=self._keepers.get(slice_no),
            pausing=turns.pausing,
            is_held=self._pauses.holds,
        )

        def park_topic() -> str | None:
            return next((name for name in settings.topics.delay if name in loop.lanes), None)

        def make_lane(topic: DelayTopic, partition: int) -> AnyLane:
            place = (topic.name, partition, topic.topic_id)
            if topic.name in settings.levels.by_topic:
                return LevelLane(*place, source, self._routes, self._fetch_ahead, park_topic, flow)
            store = make_store(settings, topic.topic_id, partition)
            if digests is not None:
                store = digests.keep(topic.name, topic.topic_id, store)
            return Lane(*place, store, source, self._routes, flow)

        return SliceThread(
            loop,
            metrics,
            gate,
            self._clock,
            make_lane,
            source.close,
            lambda: self._disk.alarm,
            turns,
        )

    def _make_digests(self, slice_no: int) -> SliceDigests | None:
        settings, log = self._settings, self._copy_log
        if log is None:
            return None
        digests = SliceDigests(
            slice_no,
            settings.node.node_id,
            checkpoints=self._checkpoints,
            clock=self._clock,
            log=log,
            turns=self._scan_turns,
            scan_interval_ms=settings.digests.scan_interval_ms,
            store_kind=settings.node.store,
            far_ms=settings.roll_window_ms - settings.roll_spread_ms - _TOLERANCE_MS,
        )
        keeper = CopyKeeper(digests, log, settings.node.node_id, self._clock)
        self._keepers[slice_no] = keeper
        self._hand_over(keeper, slice_no)
        return digests

    def _ask_copy(self, command: Command) -> None:
        """Hand a command to the slice that it is for; several workers of a node hear it."""
        self._unplaced.append(command)
        keeper = self._keepers.get(command.partition)
        if keeper is not None:
            self._hand_over(keeper, command.partition)

    def _hand_over(self, keeper: CopyKeeper, slice_no: int) -> None:
        """What came for a slice, if need be before it was placed here."""
        for command in [one for one in self._unplaced if one.partition == slice_no]:
            with suppress(ValueError):  # another thread was faster
                self._unplaced.remove(command)
                keeper.ask(command)

    @property
    def _fetch_ahead(self) -> FetchAhead:
        levels = self._settings.levels
        return FetchAhead(levels.fetch_ahead_records, int(levels.fetch_ahead_bytes))

    def _flow_rules(self) -> FlowRules:
        """Limits of the whole cluster are shared evenly by its slices."""
        settings = self._settings
        slices = max(len(self._slices_there), 1)
        return FlowRules(
            tuple((pattern, rate / slices) for pattern, rate in settings.rates.per_s.items()),
            settings.delivery.slot_records_max,
            settings.delivery.slot_policy,
        )

    def _limits(self) -> Limits:
        """A node's budget of transactions is shared by its slices."""
        delivery = self._settings.delivery
        budget_ms = 1000 * len(self._slices_there) / delivery.transactions_per_s_max
        return Limits(
            batch_records=delivery.batch_records_max,
            batch_bytes=int(delivery.batch_bytes_max),
            visible_at_commit=delivery.mode == "exactly_once",
            transaction_interval_ms_min=max(delivery.transaction_interval_ms_min, budget_ms),
            transaction_interval_ms_max=max(delivery.transaction_interval_ms_max, budget_ms),
        )
