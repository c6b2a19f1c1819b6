"""A fault scenario on real servers: nodes beside brokers, a load, a consumer and a verdict."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from connectors.kafka.topic_configs import CHECKPOINT_CONFIG, DELAY_CONFIG
from delay_devtools.cluster import EmbeddedCluster
from tests.faults.checker import Rules, Verdict, check
from tests.faults.history import History, Plan
from tests.faults.node import Node, Place
from tests.faults.watch import Watch
from tests.integration.bench import await_true

SECRET: Final = "only-for-faults-0123456789"  # noqa: S105  # nothing else is signed with it
START_S_MAX: Final = 180.0
_TARGET_PARTITIONS: Final = 3
_FLOWING: Final = 20
_NO_PLACE: Final = Place()


@dataclass(frozen=True, slots=True)
class Script:
    """Options of a scenario.

    Args:
        nodes: number of nodes; one alone runs without ZooKeeper.
        slices: number of partitions of the delay topic.
        per_s: number of records written each second.
        mode: setting ``delivery.mode``.
        sets: settings of every node.
        places: where and how single nodes run, by node number.
        session_s: ZooKeeper session timeout of the nodes, in s.
        grace_ms: time before the due time, in ms, from which a cancel must win: longer than any
            outage of the scenario. See ``checker.Rules``.
        early_ms: tolerance for early delivery, in ms, where clocks differ on purpose.
        duplicates_max: number of duplicates that are allowed; 0 in exactly_once.
        settle_s: time after the last due time within which all records must arrive, in s.
        named: share of records that are cancelled or replaced.
        lossy: delay topic or checkpoint, or neither: it has two replicas, on the first brokers, and
            either may lead without what the other has.
    """

    nodes: int = 3
    slices: int = 4
    per_s: int = 200
    mode: str = "exactly_once"
    sets: tuple[str, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict)
    session_s: int = 3
    grace_ms: int = 15_000
    victim_delay_ms: int = 20_000
    early_ms: int = 0
    duplicates_max: int = 0
    settle_s: float = 60.0
    named: float = 0.04
    lossy: Literal["", "delay", "checkpoint"] = ""


class Stage:
    """Running scenario: ``open`` starts nodes and load, ``judge`` ends both and compares."""

    def __init__(
        self, cluster: EmbeddedCluster, folder: Path, script: Script, seed: int, name: str
    ) -> None:
        self.cluster = cluster
        self.script = script
        self.random = random.Random(f"{name}-{seed}")
        self.run = uuid.uuid4().hex[:8]
        self.root = f"/faults/{self.run}"
        self.delay_topic = f"delay_topic_{self.run}"
        self.targets = (f"to_{self.run}_one", f"to_{self.run}_two")
        self.checkpoint = f"delay_checkpoint_{self.run}"
        self.dead_letter = f"delay_dead_letter_{self.run}"
        self.outcomes = f"delay_outcomes_{self.run}"
        self.refused: set[bytes] = set()
        """Uids of records beside the history that have to be dead-lettered."""
        self.cut: set[bytes] = set()
        """Uids of records that the log has lost."""
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._folder = folder
        self.nodes = [self.make_node(number) for number in range(1, script.nodes + 1)]
        self._extras: list[Node] = []
        self._keeper: KazooClient | None = None
        self._watch: Watch | None = None
        plan = Plan(
            seed,
            self.delay_topic,
            script.slices,
            self.targets,
            script.per_s,
            script.victim_delay_ms,
            script.named,
        )
        self.history = History(cluster.bootstrap, plan)

    # --- nodes -----------------------------------------------------------------------------------

    def settings(self) -> list[str]:
        """Return the ``--set`` arguments that all nodes share."""
        several = (
            f"zookeeper.hosts={self.cluster.zookeeper}",
            f"zookeeper.root={self.root}",
            f"zookeeper.session_timeout_s={self.script.session_s}",
            "placement.leader_stable_s=2",
        )
        return [
            f"kafka.bootstrap={self.cluster.bootstrap}",
            f"kafka.transactional_id_prefix=tx-{self.run}",
            f"topics.delay={self.delay_topic}",
            "topics.discover=false",
            f"topics.checkpoint={self.checkpoint}",
            f"topics.dead_letter={self.dead_letter}",
            f"topics.outcomes={self.outcomes}",
            f"topics.partitions={self.script.slices}",
            "topics.refresh_s=1",
            f"targets.default.allow=to_{self.run}_*",
            f"node.cluster_secret={SECRET}",
            "node.workers=1",
            "metrics.listen=127.0.0.1:0",
            "admin.listen=127.0.0.1:0",
            f"delivery.mode={self.script.mode}",
            # Half of the delays are longer than the window, so rolls are always in flight.
            "wheel.slots=60",
            "wheel.slot_ms=1s",
            "delivery.roll_window_ms=4s",
            *(several if self.script.nodes > 1 else ()),
            *self.script.sets,
        ]

    def make_node(self, number: int, name: str = "") -> Node:
        """Create a node, not started; ``name`` names its files if two nodes have one number."""
        place = self.script.places.get(number, _NO_PLACE)
        return Node(number, self._folder, self.settings(), _NO_PLACE if name else place, name)

    def add_node(self, number: int, name: str) -> Node:
        """Start one more node with the id of another."""
        node = self.make_node(number, name)
        self._extras.append(node)
        node.start_first()
        return node

    @property
    def everyone(self) -> list[Node]:
        """Return all nodes, including those that have the id of another one."""
        return [*self.nodes, *self._extras]

    def owner(self, slice_no: int) -> Node | None:
        """Return the node that delivers a slice by its own log, the last if there are several."""
        claims = [(node.serves().get(slice_no, ""), node) for node in self.everyone]
        since, node = max(claims, key=lambda claim: claim[0])
        return node if since else None

    def any_owner(self) -> Node:
        """Return a node that owns a slice, chosen by the seed."""
        owners = [node for node in self.nodes if node.serves()]
        return self.random.choice(owners)

    def is_served(self) -> bool:
        """Return whether every slice has an owner that runs."""
        return all(self.owner(slice_no) for slice_no in range(self.script.slices))

    def await_served(self, timeout_s: float = START_S_MAX) -> None:
        """Wait ``timeout_s`` seconds at most until every slice has an owner that runs."""
        await_true(self.is_served, "every slice has an owner", timeout_s)

    def takeovers(self) -> int:
        """Return the number of take-overs of all slices."""
        return sum(len(node.told("took_over")) for node in self.everyone)

    # --- conditions ------------------------------------------------------------------------------

    def await_true(self, condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        """Wait ``timeout_s`` seconds at most for ``condition``; else fail with ``what``."""
        await_true(condition, what, timeout_s)

    def await_written(self, records: int) -> None:
        """Wait until this number of further records is acknowledged."""
        enough = len(self.history.acked) + records
        await_true(
            lambda: len(self.history.acked) >= enough, f"{records} more records were written", 120
        )

    def await_delivered(self, records: int) -> None:
        """Wait until the consumer has received this number of further records."""
        enough = len(self.watch.uids) + records
        await_true(lambda: len(self.watch.uids) >= enough, f"{records} more records came", 120)

    @property
    def watch(self) -> Watch:
        """Return the consumer of the targets."""
        assert self._watch is not None, "the stage is not open"
        return self._watch

    # --- ZooKeeper -------------------------------------------------------------------------------

    @property
    def keeper(self) -> KazooClient:
        """Return a client of ZooKeeper, connected at the first use."""
        if self._keeper is None:
            retry = {"max_tries": 20, "delay": 0.2, "backoff": 1}
            self._keeper = KazooClient(self.cluster.zookeeper, timeout=30, command_retry=retry)
            self._keeper.start(timeout=30)
        return self._keeper

    def owner_path(self, slice_no: int) -> str:
        """Return the path in ZooKeeper at which the owner of a slice is registered."""
        return f"{self.root}/slices/{slice_no}/owner"

    def registered_owner(self, slice_no: int) -> str | None:
        """Return the node id that ZooKeeper has as the owner of a slice; None: no owner."""
        try:
            data, _ = self.keeper.retry(self.keeper.get, self.owner_path(slice_no))
        except NoNodeError:
            return None
        found: dict[str, Any] = json.loads(data)
        return str(found["node_id"])

    # --- servers ---------------------------------------------------------------------------------

    @contextmanager
    def broker_down(self, broker_id: int, *, kill: bool = False) -> Iterator[None]:
        """Stop a broker while the block runs, and start it again."""
        self.cluster.stop_broker(broker_id, kill=kill)
        try:
            yield
        finally:
            self.cluster.start_broker(broker_id)

    @contextmanager
    def zookeeper_down(self, *, kill: bool = False) -> Iterator[None]:
        """Stop ZooKeeper while the block runs, and start it again."""
        self.cluster.stop_zookeeper(kill=kill)
        try:
            yield
        finally:
            self.cluster.start_zookeeper()

    # --- begin and end ---------------------------------------------------------------------------

    def open(self) -> Self:
        """Create the targets, start the nodes, and begin to write and to read."""
        config = {"message.timestamp.type": "LogAppendTime"}
        fresh = [NewTopic(name, _TARGET_PARTITIONS, 3, config=config) for name in self.targets]
        if self.script.lossy:
            fresh += self._lossy_topics()
        for made in self.admin.create_topics(fresh, operation_timeout=30).values():
            made.result(30)
        for node in self.nodes:
            node.start_first()
        self.await_served()
        topics = (*self.targets, self.dead_letter, self.outcomes)
        self._watch = Watch(self.cluster.bootstrap, topics)
        self._watch.start()
        self.history.start()
        # A fault that meets a cold start would say little about a service at work.
        self.await_delivered(_FLOWING)
        return self

    def _lossy_topics(self) -> Iterator[NewTopic]:
        is_delay, count = self.script.lossy == "delay", self.script.slices
        unsafe = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        name, config = self.delay_topic, DELAY_CONFIG
        if not is_delay:
            # No node serves a delay topic that has more copies than the checkpoints.
            safe = {**config, "min.insync.replicas": "1"}
            yield NewTopic(name, count, replica_assignment=[[3, 1]] * count, config=safe)
            name, config = self.checkpoint, CHECKPOINT_CONFIG
        unsafe |= config
        yield NewTopic(name, count, replica_assignment=[[1, 2]] * count, config=unsafe)

    def settle(self) -> None:
        """End the load, wait for the remaining records, and stop the nodes."""
        self.history.finish()
        last_due_ms = max((one.due_ms for one in self.history.acked), default=0)
        left_s = max(last_due_ms / 1_000 - time.time(), 0.0) + self.script.settle_s
        # A record that does not arrive in time is lost: the checker names it.
        with suppress(AssertionError):
            await_true(self._is_all_here(), "all came", left_s)
            # A cancelled record that is delivered by mistake arrives at its due time.
            await_true(lambda: time.time_ns() // 1_000_000 > last_due_ms, "all is due", left_s)
        for node in self.everyone:
            if node.running:
                node.stop()

    def judge(self) -> Verdict:
        """End load and nodes, and compare."""
        self.settle()
        self.watch.read_to_end()
        rules = Rules(
            self.delay_topic,
            self.dead_letter,
            self.outcomes,
            self.script.grace_ms,
            self.script.early_ms,
            frozenset(self.refused),
            frozenset(self.cut),
        )
        return check(self.history.acked, self.watch.found, rules)

    def _is_all_here(self) -> Callable[[], bool]:
        """Return whether all is delivered that nothing may have stopped, each cancel and fire has
        its outcome, and of two schedules of an id one is delivered.
        """
        acked, uids = self.history.acked, self.watch.uids
        pairs = [(one.step.against, one.step.uid) for one in acked if one.step.against is not None]
        unsure = {uid for pair in pairs for uid in pair} | self.cut
        sure = {uid for one in acked for uid in one.step.arrivals if one.step.uid not in unsure}
        sure |= {one.place(self.delay_topic) for one in acked if one.step.is_control}
        controls = {one.step.uid for one in acked if one.step.is_control}
        pairs = [pair for pair in pairs if pair[1] not in controls]
        return lambda: sure <= uids and all(one in uids or other in uids for one, other in pairs)

    def abandon(self) -> None:
        """Stop all nodes and clients, and delete the topics."""
        self.history.abandon()
        for node in self.everyone:
            node.kill()
        if self._watch is not None:
            self._watch.close()
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper.close()
        self._delete_topics()

    def _delete_topics(self) -> None:
        """Delete the scenario's topics, which would burden the next one."""
        names = [name for name in self.admin.list_topics(timeout=30).topics if self.run in name]
        if names:
            self.admin.delete_topics(names)
