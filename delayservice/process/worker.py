"""A worker: the slices of one process, its Kafka clients, and their maintenance.

The supervisor (``node``) starts it, reads its metrics from a pipe and replaces it if it dies.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from connectors.kafka.audits import AuditWatcher
from connectors.kafka.broker_clock import BrokerClock
from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import log_ends
from connectors.kafka.node_topics import NodeTopic, NodeTopicReader
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from connectors.kafka.take_over_client import KafkaTakeOverClient
from connectors.kafka.topic_facts import PartitionCounts, ServedTopic
from connectors.kafka.topics import TopicKeeper
from delayservice.base.clock import NOT_COMPARED, ClockWatch, SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.contract import contract_for
from delayservice.config.settings import Settings
from delayservice.engine.checkpoint import decode_checkpoint, longest_waits_ms
from delayservice.engine.electability import ELECTABLE, Cause, Verdict, WorkerFacts
from delayservice.inspection.asking import Answer
from delayservice.inspection.query import HeldTopics, Question, Standings
from delayservice.metrics.snapshot import Snapshot, encode_snapshot
from delayservice.metrics.status import pause_facts
from delayservice.process.answering import answer, hour_records
from delayservice.process.lanes import LaneMaker, flow_rules, routes_of, writer_options
from delayservice.process.observer import MetricsObserver
from delayservice.process.slice_copies import SliceCopies
from delayservice.process.stores import Stores
from delayservice.process.watches import (
    DiskWatch,
    MadeAgain,
    TargetWatch,
    TopicWatcher,
    used_percent,
)
from delayservice.process.worker_thread import Turns, WorkerThread
from delayservice.slices.edges import Edges, limits_of
from delayservice.slices.loop import WorkerLoop
from ha.ownership import Ownership
from ha.placement import SliceFacts, StableLeaders

COLLECT_INTERVAL_S: Final = 30.0
# Of so many collections, one visits all objects.
COLLECT_ALL_EVERY: Final = 120
_collections: Final = itertools.count(1)


def collect_garbage() -> None:
    """Collect reference cycles, which Python's own collector no longer does after the first call:
    it works after a number of new objects.

    Every record is some ten small tuples and lists until its batch ends. Python's collector counts
    those as new objects and visits all of them again and again: it took 60 % of the hot path's time
    (``bench whole``). Yet they are never in a cycle, and are freed with the last reference. Cycles
    come only from rare objects, such as exceptions and clients of ZooKeeper.
    """
    # It takes milliseconds in which no thread of the process runs. Surviving objects are excluded
    # from later collections, because visiting those of a thousand slices takes a tenth of a second;
    # they are still freed with their last reference, or if they are in a cycle, once an hour.
    if next(_collections) % COLLECT_ALL_EVERY == 0:
        gc.unfreeze()
    if gc.isenabled():
        gc.disable()
    else:  # the first time, it would take a tenth of a second, and find little
        gc.collect()
    gc.freeze()


# The shortest limit that is judged is 5.5 s (``electability``).
_JUDGED_EVERY_S: Final = 0.25
_ASKED_EVERY_S: Final = 0.5
_DISK_EVERY_S: Final = 1.0
# Interval at which a worker checks its threads, assigns slices and reports its metrics, in s.
TURN_S = 1.0
# Number of slices whose metrics are reported per second; with more slices, reports are rarer.
PUBLISHED_PER_S = 200
# Longest interval between two reports of metrics to the supervisor, in s.
PUBLISHED_EVERY_S_MAX = 5.0
# Longest wait for the end of the loop's thread when the worker stops, in s.
STOP_TIMEOUT_S = 20.0
# Longest wait for the last digests to be written when the worker stops, in s.
FLUSH_TIMEOUT_S = 2.0
# Largest number of idle slices whose log ends are queried each time the topics are read.
QUIET_MEASURED = 64
# Number of threads for take-overs and other blocking calls to Kafka.
HELPERS = 4
# Number of threads that read logs again.
LOG_READERS = 2
# Exit status of a worker process after a failure.
EXIT_FAILED = 70
# Exit status of a worker process whose supervisor has ended.
EXIT_ORPHANED = 71

_log = structlog.get_logger(__name__)


class Worker:
    """The slices of one process, with their Kafka clients and the threads that maintain them."""

    def __init__(
        self,
        settings: Settings,
        secrets: tuple[bytes, ...],
        index: int,
        ownership: Ownership,
        layout: PartitionCounts,
        stores: Stores,
        # Consecutive earlier processes of this worker that ended soon after their start.
        crashes: int,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._layout = layout
        self._ownership = ownership
        self._clock = SystemClock()
        self._clock_watch = ClockWatch(self._clock, settings.delivery.clock_tolerance_ms)
        self._admin = admin_client(settings.kafka.client_config("admin"))
        self._keeper = TopicKeeper(
            self._admin, settings, lambda: longest_waits_ms(self._checkpoints.newest_of_all())
        )
        self._targets = TargetWatch(settings, self._admin)
        self._name = f"{settings.node.node_id}-{index}"
        self._options = writer_options(settings, self._name, layout.checkpoint_partitions)
        self._checkpoints = KafkaCheckpoints(
            self._options,
            self._clock,
            self._name,
            settings.digests.interval_ms if settings.digests.enabled else 0,
        )
        self._copies = SliceCopies(
            settings,
            self._checkpoints,
            self._clock,
            lambda command: hour_records(command, self._thread, self._clock.wall_ms()),
        )
        self._routes = routes_of(settings, secrets)
        self._disk = DiskWatch(
            settings.disk.watermarks, lambda: used_percent(settings.node.state_dir)
        )
        hears_audits = settings.digests.enabled and index == 0
        self._audits = AuditWatcher(settings.topics.audit) if hears_audits else None
        self._published_s = float("-inf")
        # Slices kept, and topics served, as last passed to the loop; None: nothing yet.
        self._placed: tuple[frozenset[int], set[tuple[str, str, int]]] | None = None
        self._topics = TopicWatcher(
            lambda: self._keeper.look(layout),
            self._has_checkpoint,
            self._clock.monotonic_s,
            settings.topics.refresh_s,
        )
        self._node_topic_reader: NodeTopicReader | None = None
        self._facts: list[SliceFacts] = []
        self._leaders = StableLeaders(settings.placement.leader_stable_s)
        self._asking: list[threading.Thread] = []
        self._thread = self._make_thread()
        self._crashes = crashes
        self._started_s = self._clock.monotonic_s()
        producer: Mapping[str, str] = settings.kafka.client_config("producer")
        self._broker_clock = BrokerClock(
            producer, settings.topics.claims_topic, self._name, self._heard
        )
        # Whether the worker may own slices.
        self._verdict: Verdict = ELECTABLE
        self._judge()

    def begin(self) -> None:
        self._checkpoints.start()
        self._refresh()
        self._thread.start()
        refresh_s = self._settings.topics.refresh_s
        self._repeat("topics", refresh_s, self._refresh, first_s=refresh_s)
        self._repeat("targets", 0.0, self._targets.topics.serve)
        if self._settings.node.store != "memory":
            self._repeat("disk", _DISK_EVERY_S, self._disk.look)
        self._repeat("kafka-reach", _ASKED_EVERY_S, self._targets.reach.check)
        self._repeat("broker-clock", _ASKED_EVERY_S, self._ask_the_time)
        self._repeat("verdict", _JUDGED_EVERY_S, self._judge)
        client = self._settings.kafka.client_config("consumer")
        self._node_topic_reader = NodeTopicReader(self._node_topics(), client, self._name)

    def run(self, stopping: threading.Event, publish: Callable[[bytes], None]) -> bool:
        """Serve until ``stopping`` is set or a thread fails, and stop. Return whether a thread
        failed, or did not stop in time. ``publish``: sends encoded metrics to the supervisor.
        """
        self._repeat("garbage", COLLECT_INTERVAL_S, collect_garbage)
        while not stopping.is_set():
            self._place()
            if self._has_failed:
                break
            self._publish(publish)
            self._copies.serve()
            stopping.wait(TURN_S)
        return self._stop()

    def answer(self, question: Question) -> Answer:
        if isinstance(question, Standings):
            return self._ownership.survey()
        if isinstance(question, HeldTopics):
            return self._targets.pauses.keys()
        return answer(question, self._thread)

    def _judge(self) -> None:
        # From the latest facts, without waiting.
        doubt, reach = self._clock_watch.doubt(), self._targets.reach
        facts = WorkerFacts(
            kafka=reach.trouble,
            turn_s=self._thread.turn_s,
            disk_s=self._disk.waiting_s,
            writer=self._thread.loop.writer_trouble,
            clock=doubt or "",
            is_clock_known=doubt != NOT_COMPARED,
            broker=reach.broker,
            broker_s=reach.silent_s,
            crashes=self._crashes,
            lived_s=self._clock.monotonic_s() - self._started_s,
        )
        before, self._verdict = self._verdict, self._ownership.judge(facts)
        if self._verdict.cause is before.cause:
            return
        cause, why = self._verdict.cause.value, self._verdict.reason
        if doubt == NOT_COMPARED and cause == Cause.CLOCK_IN_DOUBT.value:
            _log.info("clock_not_compared", why=why)  # at every start
        elif self._verdict.may_own:
            _log.info("worker_electable", was=before.cause.value)
        else:
            hangs = self._verdict.cause is Cause.LOOP_HANGS
            where = {"stack": self._thread.stack} if hangs else {}
            _log.warning("worker_not_electable", cause=cause, why=why, **where)

    def _ask_the_time(self) -> None:
        """Query a broker's time if the wall clock is not trusted. If it is, close the client that
        queries, because the boot clock is enough to check the wall clock.
        """
        if self._clock_watch.doubt() is None:
            self._broker_clock.close()
        else:
            self._broker_clock.ask()

    def _heard(self, broker_ms: int, sent_s: float, acknowledged_s: float) -> None:
        boot_ms = int(self._clock.boot_s() * 1000)
        self._clock_watch.heard_answer(broker_ms, boot_ms, sent_s, acknowledged_s)

    def _node_topics(self) -> list[NodeTopic]:
        topics: list[NodeTopic] = [self._targets.pauses]
        if self._audits is not None:
            topics.append(self._audits)
        repairs = self._copies.watcher(self._thread.loop.attend)
        if repairs is not None:
            topics.append(repairs)
        return topics

    def _repeat(
        self, name: str, every_s: float, ask: Callable[[], object], *, first_s: float = 0.0
    ) -> None:
        # On a thread of its own, as ``ask`` may block.
        turn = threading.Event()

        def run() -> None:
            turn.wait(first_s)
            while True:
                ask()
                turn.wait(every_s)

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
            verdict = self._verdict
            snapshot = Snapshot(
                os.getpid(),
                problems=self._problems(),
                disk_used_percent=self._disk.used,
                audit=None if self._audits is None else self._audits.newest,
                slices_there=len(self._facts),
                pauses=pause_facts(self._targets.pauses.newest),
                topics_age_s=self._topics.age_s,
                verdict=(verdict.cause.value, verdict.reason),
                turn_s=self._thread.turn_s,
                worker=self._thread.worker_metrics,
                pinned=self._ownership.pinned(),
                copies=None if self._audits is None else self._audits.copies,
            )
            publish(encode_snapshot(snapshot, slices))

    def _problems(self) -> list[str]:
        pauses = self._targets.pauses
        unheard = [pauses.problem] if pauses.problem else []
        unheard += [self._checkpoints.problem] if self._checkpoints.problem else []
        return unheard + self._topics.problems() + self._targets.topics.problems()

    def _stop(self) -> bool:
        self._ownership.close()
        self._thread.stop()
        is_late = not self._thread.join(STOP_TIMEOUT_S)
        self._copies.flush(FLUSH_TIMEOUT_S)
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

    def _refresh(self) -> None:
        made_again = self._topics.refresh()
        if made_again is None:
            return
        for one in made_again:
            self._renew_clients(one)
        self._checkpoints.policy_problem = "; ".join(
            one.text for one in self._topics.seen.own_problems
        )
        self._facts = self._make_facts(self._topics.topics)
        try:
            self._measure(self._topics.served)
        except KafkaEdgeError as exc:  # asked again with the next refresh
            _log.warning("log_ends_not_known", why=str(exc))

    def _renew_clients(self, made_again: MadeAgain) -> None:
        """Renew the clients that know a topic which was deleted and created again: they would keep
        its former leaders and positions. ``KafkaSource.serve`` does so for delay topics. The writer
        has noticed itself that a topic of dead letters or outcomes was missing.
        """
        topic = made_again.topic
        self._checkpoints.made_again(topic)
        if self._node_topic_reader is not None:
            self._node_topic_reader.made_again(topic)
        outlets = (self._settings.topics.dead_letter, self._settings.topics.outcomes)
        if topic not in outlets or not made_again.was_missing:
            self._thread.loop.renew_writer(f"{topic} was deleted and made again")

    def _has_checkpoint(self, topic: ServedTopic) -> bool:
        for number in range(topic.partitions):
            read_back = self._checkpoints.read_back(number)
            if read_back is None:
                continue
            with suppress(KafkaEdgeError):  # the take-over of the slice reports the error
                shard = decode_checkpoint(read_back.data).shards.get(topic.name)
                if shard is not None and shard.topic_id == topic.topic_id:
                    return True
        return False

    def _place(self) -> None:
        kept = self._ownership.serve(self._facts)
        topics = self._topics.served
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
        self._thread.want(wanted)

    def _measure(self, topics: list[ServedTopic]) -> None:
        slices = self._thread.to_measure(QUIET_MEASURED)
        places = [(t.name, n) for t in topics for n in slices if t.partitions > n]
        asked_s = self._clock.monotonic_s()
        mine: dict[int, dict[str, int]] = {slice_no: {} for slice_no in slices}
        for (topic, slice_no), end in log_ends(self._admin, places).items():
            mine[slice_no][topic] = end
        self._thread.measured(asked_s, mine)

    def _make_facts(self, found: Sequence[ServedTopic]) -> list[SliceFacts]:
        """Return stable leader and replicas of each slice's partition, which decide where the slice
        is placed, of the first delay topic in the settings that has the partition, served or not.
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
        # A node that keeps the slice again fills its store from the log.
        there = [topic for topic in self._topics.topics if topic.topic_id]
        for topic in there:
            self._stores.remove(topic.topic_id, slice_no)
        self._copies.retire(slice_no, [topic.name for topic in there])
        _log.info("slice_retired", slice=slice_no)

    def _make_thread(self) -> WorkerThread:
        settings = self._settings
        kafka = settings.kafka
        places = self._layout.places // settings.node.workers
        source = KafkaSource(kafka.client_config("consumer"), self._admin, self._name, places)
        take_over_client = KafkaTakeOverClient(
            self._options, self._checkpoints, self._admin, self._ownership.confirm_all
        )
        observer = MetricsObserver()
        turns = Turns()

        edges = Edges(
            node_id=settings.node.node_id,
            source=source,
            sink=KafkaSink(self._options, self._targets.topics),
            checkpoints=self._checkpoints,
            take_over_client=take_over_client,
            background=ThreadPoolExecutor(HELPERS, "helper"),
            reading=ThreadPoolExecutor(LOG_READERS, "log-reader"),
            writing=ThreadPoolExecutor(1, "writer"),
            clock=self._clock,
            gate=self._ownership,
            clock_watch=self._clock_watch,
            observer=observer,
            routes=self._routes,
            contract_of=partial(contract_for, settings),
            partitions_of=(
                self._topics.partitions_of if settings.delivery.id_partitions is None else None
            ),
            limits=limits_of(self._settings),
            flow_rules=lambda: flow_rules(settings, self._topics.slices),
            disk_level=lambda: self._disk.level,
            copies_of=self._copies.keeper_of,
            pausing=turns.pausing,
            is_held=self._targets.pauses.holds,
        )
        return WorkerThread(
            WorkerLoop(edges),
            observer,
            self._ownership,
            self._clock,
            LaneMaker(settings, self._stores, source, self._routes, self._targets.topics),
            source,
            self._disk,
            self._checkpoints,
            self._retired,
            turns,
        )
