"""A worker process: whole slices, each on a thread of its own, sharing nothing but a few caches.

The supervisor (``node``) starts it, reads its metrics from a pipe and starts another if it dies.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing.connection import Connection

import structlog

from connectors.kafka.audits import AuditWatcher
from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import admin_client
from connectors.kafka.control_topics import ControlReader, ControlTopic
from connectors.kafka.copies import CopyLog, RepairWatcher
from connectors.kafka.log_ends import log_ends
from connectors.kafka.pauses import PauseWatcher
from connectors.kafka.reach import CONNECTION, KafkaReach
from connectors.kafka.sink import KafkaSink
from connectors.kafka.sink_options import SinkOptions
from connectors.kafka.source import KafkaSource
from connectors.kafka.succession import KafkaSuccession
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_facts import DelayTopic, Layout
from connectors.kafka.topic_terms import compresses
from connectors.kafka.topics import TopicKeeper
from delayservice.base.clock import ClockWatch, SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.contract import allowlist_for, contract_for
from delayservice.config.reference import secret_values
from delayservice.config.settings import Settings
from delayservice.contract.contracts import CONTRACT_VERSION
from delayservice.engine.checkpoint import decode_checkpoint, longest_waits_ms
from delayservice.engine.flow import FlowRules
from delayservice.engine.routes import Routes
from delayservice.inspection.asking import Answer, answer_questions
from delayservice.inspection.query import HeldTopics, Question, Standings
from delayservice.metrics.counts import AuditFacts, ReconcileFacts
from delayservice.metrics.paused import pause_facts
from delayservice.metrics.snapshot import encode_snapshot
from delayservice.process import logs
from delayservice.process.answering import answer
from delayservice.process.cron import cron_time
from delayservice.process.disk import DiskWatch, used_percent
from delayservice.process.garbage import GarbageCollector
from delayservice.process.gate import WorkerGate
from delayservice.process.observer import MetricsObserver
from delayservice.process.stores import Stores
from delayservice.process.topic_watch import TopicWatcher
from delayservice.process.turns import Turns
from delayservice.process.waiting import STOPPED, reporting, wait_for_kafka
from delayservice.process.worker_thread import Wanted, WorkerThread
from delayservice.process.worker_watch import WorkerWatch
from delayservice.replicas.commands import Command
from delayservice.replicas.digest_rows import Place, retired_row
from delayservice.slices.any_lane import AnyLane
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import ScanTurns, SliceDigests
from delayservice.slices.edges import Edges
from delayservice.slices.lane import Lane
from delayservice.slices.level import FetchAhead, LevelLane
from delayservice.slices.limits import limits_of
from delayservice.slices.slice import Slice
from delayservice.slices.worker_loop import WorkerLoop
from delayservice.store.base import Store
from ha.election_thread import ElectedOwnership
from ha.leaders import StableLeaders
from ha.notes import NodeNote
from ha.ownership import Ownership, Standalone
from ha.placement import SliceFacts

TURN_S = 1.0
ALERT_S = 0.3
"""From when an heir is named until the slice is let go: its loop has heard of it by then, and has
begun to open a writer."""
PUBLISHED_PER_S = 200
"""Slices whose metrics go to the supervisor in a second: with more of them, less often."""
PUBLISHED_EVERY_S_MAX = 5.0
STOP_TIMEOUT_S = 20.0
FLUSH_TIMEOUT_S = 2.0
COMMANDS_KEPT = 10_000
QUIET_MEASURED = 64
"""Slices to which nothing happens whose logs are measured with each refresh of the topics."""
HELPERS = 4
"""Threads for take-overs and for what else asks Kafka and waits."""
EXIT_FAILED = 70
EXIT_ORPHANED = 71

_log = structlog.get_logger(__name__)


def run_worker(
    settings: Settings,
    secrets: tuple[bytes, ...],
    instance: str,
    index: int,
    crashes: int,
    pipe: Connection,
    questions: Connection,
) -> None:
    """Be worker ``index``: the entry of the process. The first of ``secrets`` signs copies.
    ``crashes``: lives in a row before this one that ended soon after their start.

    Ends with status 0 after SIGTERM, with another one when a slice failed.
    """
    hidden = [*secret_values(settings), *(secret.decode("latin-1") for secret in secrets)]
    logs.configure(settings.log, settings.node.node_id, index, secrets=hidden)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    keeper = TopicKeeper(admin_client(settings.kafka.client_config("admin")), settings)
    _end_with_supervisor(pipe)
    try:
        with reporting(pipe.send_bytes) as report:
            layout = wait_for_kafka(keeper.layout, stopping, report.waits)
            if layout is STOPPED:
                return
            ownership = make_ownership(settings, instance, index)
            worker = Worker(settings, secrets, index, ownership, layout, crashes)
            answer_questions(questions, worker.answer)
            worker.begin()
        failed = worker.run(stopping, pipe.send_bytes)
    except BaseException:  # noqa: BLE001  # the process has no other handler
        # Left to itself the process would wait for its slices for ever.
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
    """Make the log of digests; None where digests are off."""
    if not settings.digests.enabled:
        return None
    topics = settings.topics
    return CopyLog(settings.kafka.client_config("producer"), topics.digests, topics.repairs)


def make_ownership(settings: Settings, instance: str, index: int) -> Ownership:
    """Make and start what tells worker ``index`` which slices it owns.

    Args:
        settings: without ``zookeeper.hosts`` there is no other node.
        instance: tells this node from another one of the same name.
        index: of the worker.
    """
    node = settings.node
    me = NodeNote(
        node.node_id,
        instance,
        node.workers,
        node.broker_id,
        node.rack,
        socket.gethostname(),
        CONTRACT_VERSION,
    )
    if settings.standalone:
        return Standalone(me, index)
    clock = SystemClock()
    elected = ElectedOwnership(
        settings.zookeeper,
        settings.placement,
        me,
        index,
        boot_s=clock.boot_s,
        alert_s=ALERT_S,
        kept=Stores(settings, index).kept_slices(),
    )
    elected.start()
    return elected


class Worker:
    """The slices of one process."""

    def __init__(
        self,
        settings: Settings,
        secrets: tuple[bytes, ...],
        index: int,
        ownership: Ownership,
        layout: Layout,
        crashes: int = 0,
    ) -> None:
        self._settings = settings
        self._stores = Stores(settings, index)
        self._layout = layout
        self._index = index
        self._ownership = ownership
        self._clock = SystemClock()
        self._clock_watch = ClockWatch(self._clock, settings.delivery.clock_tolerance_ms)
        self._admin = admin_client(settings.kafka.client_config("admin"))
        self._keeper = TopicKeeper(
            self._admin, settings, lambda: longest_waits_ms(self._checkpoints.newest_of_all())
        )
        self._pauses = PauseWatcher(settings.topics.pauses, self._forget_fit)
        asking = settings.kafka.client_config("admin") | CONNECTION
        self._reach = KafkaReach(admin_client(asking), self._forget_fit)
        self._targets = TargetTopics(
            self._admin,
            why_paused=self._why_paused,
            compresses=compresses(settings.kafka.client_config("producer")),
            own=(settings.topics.dead_letter, settings.topics.outcomes),
            silent=lambda: self._reach.silent,
            is_delay_topic=self._is_delay_topic,
        )
        self._name = f"{settings.node.node_id}-{index}"
        self._checkpoints = KafkaCheckpoints(
            settings.topics.checkpoint,
            layout.checkpoint_partitions,
            settings.topics.claims_topic,
            settings.kafka.client_config("consumer"),
            self._clock,
            self._name,
            settings.digests.interval_ms if settings.digests.enabled else 0,
        )
        self._copy_log = make_copy_log(settings)
        self._scan_turns = ScanTurns()
        self._routes = Routes(
            dead_letter=settings.topics.dead_letter,
            outcomes=settings.topics.outcomes,
            secret=secrets[0],
            roll_window_ms=settings.roll_window_ms,
            roll_spread_ms=settings.roll_spread_ms,
            park_delays_ms=settings.delivery.park_delays_ms,
            cron_time=cron_time,
            held_ms=settings.delivery.held_ms,
            accepted=secrets[1:],
            allowlist=partial(allowlist_for, settings),
            parks_missing=settings.delivery.missing_target == "park",
        )
        self._disk = DiskWatch(
            settings.disk.watermarks, lambda: used_percent(settings.node.state_dir)
        )
        hears_audits = settings.digests.enabled and index == 0
        self._audits = AuditWatcher(settings.topics.audit) if hears_audits else None
        self._keepers: dict[int, CopyKeeper] = {}
        self._unplaced: deque[Command] = deque(maxlen=COMMANDS_KEPT)
        """For slices that are not placed here yet, or are another worker's."""
        self._slices_there = range(0)
        self._published_s = float("-inf")
        self._placed: tuple[frozenset[int], set[tuple[str, str, int]]] | None = None
        """The slices that are kept here, and the topics that are served."""
        self._topics = TopicWatcher(
            lambda: self._keeper.look(layout),
            self._has_checkpoint,
            self._clock.monotonic_s,
            settings.topics.refresh_s,
        )
        self._facts: list[SliceFacts] = []
        self._leaders = StableLeaders(settings.placement.leader_stable_s)
        self._asking: list[threading.Thread] = []
        self._thread = self._make_thread()
        self._watch = WorkerWatch(
            settings,
            self._name,
            self._reach,
            ownership,
            self._clock,
            self._clock_watch,
            self._disk,
            lambda: self._thread.turn_s,
            crashes,
        )

    def begin(self) -> None:
        """Start all threads; Kafka is asked, which may take a while."""
        self._checkpoints.start()
        self._refresh()
        self._thread.start()
        self._repeat("topics", self._settings.topics.refresh_s, self._refresh)
        looking = threading.Thread(
            target=self._targets.serve, args=(threading.Event(),), name="targets", daemon=True
        )
        looking.start()
        self._asking.append(looking)
        self._watch.start(self._repeat)
        client = self._settings.kafka.client_config("consumer")
        ControlReader(self._control_topics(), client, self._name)

    def run(self, stopping: threading.Event, publish: Callable[[bytes], None]) -> bool:
        """Serve until told to stop; whether anything failed."""
        garbage = GarbageCollector()
        while not stopping.is_set():
            self._place()
            if self._has_failed:
                break
            self._publish(publish)
            if self._copy_log is not None:
                self._copy_log.serve()
            garbage.collect_when_time()
            stopping.wait(TURN_S)
        return self._stop()

    def _forget_fit(self) -> None:
        """Something else is paused, or other brokers answer: judge the targets anew."""
        self._targets.changed()

    def _why_paused(self, topic: str) -> str | None:
        """Return why a target topic is paused; the service's own topics go on under any pattern."""
        if topic in self._settings.topics.own or self._is_delay_topic(topic):
            return None
        return self._pauses.why(topic)

    def _is_delay_topic(self, topic: str) -> bool:
        topics = self._settings.topics
        return fnmatchcase(topic, topics.pattern) or topic in topics.delay

    def answer(self, question: Question) -> Answer:
        """Answer queries about this worker's slices; on any thread.

        Raises:
            DelayServiceError: it can't be answered now.
        """
        if isinstance(question, Standings):
            return self._ownership.survey()
        if isinstance(question, HeldTopics):
            return self._pauses.keys()
        return answer(question, self._thread)

    def _control_topics(self) -> list[ControlTopic]:
        topics: list[ControlTopic] = [self._pauses]
        if self._audits is not None:
            topics.append(self._audits)
        if self._copy_log is not None:
            node_id = self._settings.node.node_id
            topics.append(RepairWatcher(self._settings.topics.repairs, node_id, self._ask_copy))
        return topics

    def _repeat(self, name: str, every_s: float, ask: Callable[[], object]) -> None:
        """Ask Kafka on a thread of its own: the call may have to wait, and what goes on here,
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
        slices = self._thread.published
        now_s = self._clock.monotonic_s()
        if now_s - self._published_s < min(len(slices) / PUBLISHED_PER_S, PUBLISHED_EVERY_S_MAX):
            return
        self._published_s = now_s
        with suppress(BrokenPipeError):  # the supervisor is gone; its watch ends this process
            told = self._problems(), self._disk.used, self._audit_facts, len(self._facts)
            paused = pause_facts(self._pauses.newest)
            verdict, turn_s = self._watch.verdict, self._thread.turn_s
            rest = paused, self._topics.age_s, (verdict.cause.value, verdict.reason), turn_s
            more = self._thread.worker_metrics, self._ownership.pinned(), self._copies_facts
            publish(encode_snapshot(os.getpid(), slices, *told, *rest, *more))

    @property
    def _audit_facts(self) -> AuditFacts | None:
        news = self._audits.newest if self._audits is not None else None
        return None if news is None else AuditFacts(news.at_ms, news.records, news.findings)

    @property
    def _copies_facts(self) -> ReconcileFacts | None:
        return None if self._audits is None else self._audits.copies

    def _problems(self) -> list[str]:
        unheard = [self._pauses.problem] if self._pauses.problem else []
        return unheard + self._topics.problems() + self._targets.problems()

    def _stop(self) -> bool:
        self._ownership.close()
        self._thread.stop()
        is_late = not self._thread.join(STOP_TIMEOUT_S)
        if self._copy_log is not None:
            self._copy_log.flush(FLUSH_TIMEOUT_S)
        if is_late:
            _log.error("loop_did_not_stop", waited_s=STOP_TIMEOUT_S)
        return is_late or self._has_failed

    @property
    def _has_failed(self) -> bool:
        return (
            self._checkpoints.has_failed
            or self._ownership.has_failed
            or self._thread.failure is not None
            or not all(thread.is_alive() for thread in self._asking)
        )

    # --- topics and slices ---------------------------------------------------------------------

    def _refresh(self) -> None:
        """Look at the topics, and find out where their slices belong and how far the logs go."""
        if not self._topics.refresh():
            return
        self._checkpoints.policy_problem = "; ".join(self._topics.seen.own_problems)
        self._slices_there = range(max((t.partitions for t in self._topics.fit), default=0))
        self._facts = self._make_facts(self._topics.topics)
        try:
            self._measure(self._topics.fit)
        except KafkaEdgeError as exc:  # asked again with the next look
            _log.warning("log_ends_not_known", why=str(exc))

    def _has_checkpoint(self, topic: DelayTopic) -> bool:
        for number in range(topic.partitions):
            read_back = self._checkpoints.read_back(number)
            if read_back is None:
                continue
            with suppress(KafkaEdgeError):  # the take-over of the slice says what is wrong
                shard = decode_checkpoint(read_back.data).shards.get(topic.name)
                if shard is not None and shard.topic_id == topic.topic_id:
                    return True
        return False

    def _place(self) -> None:
        """Serve the slices whose copies belong here, as nodes come and go."""
        kept = self._ownership.serve(self._facts)
        topics = self._topics.fit
        placed = kept, {(topic.name, topic.topic_id, topic.partitions) for topic in topics}
        if placed == self._placed:
            return
        self._placed = placed
        wanted = {
            number: {topic.name: topic for topic in topics if topic.partitions > number}
            for number in sorted(kept)
        }
        for number in wanted:
            self._checkpoints.follow(number)
        self._thread.want(Wanted(wanted))

    def _measure(self, fit: list[DelayTopic]) -> None:
        """Find out how far the logs go: what is to be stored yet."""
        slices = self._thread.to_measure(QUIET_MEASURED)
        places = [(t.name, n) for t in fit for n in slices if t.partitions > n]
        asked_s = self._clock.monotonic_s()
        mine: dict[int, dict[str, int]] = {slice_no: {} for slice_no in slices}
        for (topic, slice_no), end in log_ends(self._admin, places).items():
            mine[slice_no][topic] = end
        self._thread.measured(asked_s, mine)

    def _make_facts(self, found: Sequence[DelayTopic]) -> list[SliceFacts]:
        """Return what decides where slices go: the first delay topic of the settings that has such
        a partition speaks for the slice, fit or not.
        """
        order = {name: number for number, name in enumerate(self._settings.topics.delay)}
        topics = sorted(found, key=lambda topic: (order.get(topic.name, len(order)), topic.name))
        now_s = self._clock.monotonic_s()
        facts = []
        for slice_no in range(max((topic.partitions for topic in found), default=0)):
            leader, replicas = next(t.brokers[slice_no] for t in topics if t.partitions > slice_no)
            facts.append(self._leaders.settle(SliceFacts(slice_no, leader, replicas), now_s))
        return facts

    def _retired(self, slice_no: int) -> None:
        """Remove the stores of a slice of which no copy is kept any more: other nodes do. A node
        that keeps it again begins with the log.
        """
        self._keepers.pop(slice_no, None)
        for topic in self._topics.topics:
            if not topic.topic_id:  # it is gone
                continue
            self._stores.remove(topic.topic_id, slice_no)
            if self._copy_log is not None:
                place = Place(self._settings.node.node_id, topic.name, "", slice_no, "")
                self._copy_log.write(retired_row(place), lambda: None)
        _log.info("slice_retired", slice=slice_no)

    def _make_thread(self) -> WorkerThread:
        settings = self._settings
        topics, kafka = settings.topics, settings.kafka
        places = self._layout.places // settings.node.workers
        source = KafkaSource(kafka.client_config("consumer"), self._admin, self._name, places)
        options = SinkOptions(
            name_prefix=f"{kafka.transactional_id_prefix}-{self._name}",
            checkpoint_topic=topics.checkpoint,
            claims_topic=topics.claims_topic,
            checkpoint_partition=self._checkpoints.partition,
            exactly_once=settings.delivery.mode == "exactly_once",
            partitioner=settings.delivery.partitioner,
            client=kafka.client_config("producer"),
        )
        succession = KafkaSuccession(
            self._checkpoints,
            self._admin,
            consumer=kafka.client_config("consumer"),
            producer=kafka.client_config("producer"),
            checkpoint_topic=topics.checkpoint,
            claims_topic=topics.claims_topic,
            legacy_prefix=kafka.transactional_id_prefix,
            confirm=self._ownership.confirm_all,
        )
        observer = MetricsObserver()
        gate = WorkerGate(self._ownership, self._clock_watch)
        turns = Turns()

        def make_loop(tended: Callable[[Slice], bool]) -> WorkerLoop:
            edges = Edges(
                node_id=settings.node.node_id,
                source=source,
                sink=KafkaSink(options, self._targets),
                checkpoints=self._checkpoints,
                succession=succession,
                background=ThreadPoolExecutor(HELPERS, "helper"),
                writing=ThreadPoolExecutor(1, "writer"),
                clock=self._clock,
                gate=gate,
                observer=observer,
                routes=self._routes,
                contract_of=partial(contract_for, settings),
                limits=limits_of(self._settings),
                flow_rules=self._flow_rules,
                disk_level=lambda: self._disk.level,
                copies_of=self._make_keeper,
                pausing=turns.pausing,
                is_held=self._pauses.holds,
                tended=tended,
            )
            return WorkerLoop(edges)

        def make_lane(topic: DelayTopic, partition: int, loop: WorkerLoop) -> AnyLane:
            slice_ = loop.slices.get(partition) or loop.add_slice(partition)
            place = (topic.name, partition, topic.topic_id)
            flow, lanes = slice_.flow, slice_.lanes
            if topic.name in settings.levels.by_topic:

                def park_topic() -> str | None:
                    return next((name for name in topics.delay if name in lanes), None)

                ahead = self._fetch_ahead
                return LevelLane(
                    *place, source, self._routes, ahead, park_topic, flow, self._targets
                )
            store: Store = self._stores.shard(topic.topic_id, partition)
            if slice_.copies is not None:
                store = slice_.copies.digests.keep(topic.name, topic.topic_id, store)
            return Lane(*place, store, source, self._routes, flow, self._targets)

        return WorkerThread(
            make_loop,
            observer,
            gate,
            self._ownership,
            self._clock,
            make_lane,
            source.close,
            lambda: self._disk.alarm,
            self._checkpoints.alarm,
            self._retired,
            turns,
        )

    def _make_keeper(self, slice_no: int) -> CopyKeeper | None:
        digests = self._make_digests(slice_no)
        return None if digests is None else self._keepers[slice_no]

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
            self._thread.loop.attend(command.partition)

    def _hand_over(self, keeper: CopyKeeper, slice_no: int) -> None:
        """Hand over what came for a slice, also before it was placed here."""
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
