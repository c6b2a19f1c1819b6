"""Environment of a bench: a cluster, topics, the service, and helper processes.

Topics are named ``bench_<id>_<number>_…``, so that no running service serves them and two benches
on one cluster do not interfere. All processes end with the ``Stand``.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    NewTopic,
)
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from prometheus_client.parser import text_string_to_metric_families

from connectors.kafka.topics import TopicKeeper
from delay_devtools import clients
from delay_devtools.bench import wire
from delay_devtools.bench.judge_process import JudgePlan
from delay_devtools.bench.load_process import LoadPlan
from delay_devtools.bench.options import Options
from delay_devtools.bench.passthrough_process import PassthroughPlan
from delay_devtools.bench.tally import Batch
from delay_devtools.bench.wire import Helper
from delay_devtools.nodes import LOGIN, LocalNode, NodeGroup, sets_of_several
from delay_devtools.servers import ANY_PORTS
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.config.kafka import ClientRole
from delayservice.contract.levels import level_topic
from delayservice.smoke.progress import Steps
from delayservice.smoke.sending import QUIET

_METRICS_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.2
_STALL_S: Final = 60.0
_NAMES: Final = {
    "delay_ingested_total": "ingested",
    "delay_settled_total": "settled",
    "delay_transaction_seconds_count": "transactions",
    "delay_transaction_aborts_total": "aborts",
    "delay_pending": "pending",
}


@dataclass(slots=True)
class ServiceCounters:
    """Sums of the service's counters over all slices, up to two seconds old."""

    ingested: int = 0
    settled: int = 0
    transactions: int = 0
    aborts: int = 0
    pending: int = 0

    def __sub__(self, before: ServiceCounters) -> ServiceCounters:
        # pending is a gauge and stays as it is.
        return ServiceCounters(
            self.ingested - before.ingested,
            self.settled - before.settled,
            self.transactions - before.transactions,
            self.aborts - before.aborts,
            self.pending,
        )


class Serving:
    """Service under test (one node), started by the constructor."""

    def __init__(self, sets: Sequence[str], folder: Path, slices: int) -> None:
        self.state_dir = folder / "state"
        self._sets = [*sets, f"node.state_dir={self.state_dir}", *ANY_PORTS]
        self._log_path = folder / "service.log"
        self._slices = slices
        self._process = ServiceProcess(self._sets, self._log_path)
        self._url = ""
        self.workers: list[psutil.Process] = []
        self.processes: list[psutil.Process] = []

    def await_serving(self) -> None:
        self._process.wait_serving(self._slices)
        self._url = f"http://{self._process.events('metrics_served')[-1]['url']}/metrics"
        self.workers = self._process.workers()
        self.processes = self._process.processes()

    def restart_killed(self) -> float:
        self._process.kill()
        started_s = time.time()
        self._process = ServiceProcess(self._sets, self._log_path)
        return started_s

    def counters(self) -> ServiceCounters:
        try:
            with urlopen(self._url, timeout=_METRICS_TIMEOUT_S) as answer:  # noqa: S310 (our own http)
                text = answer.read().decode()
        except (URLError, OSError) as exc:
            raise DelayServiceError(
                f"the service does not answer on {self._url} any more: {exc}; the end of its log "
                f"says why:\n{self._process.log_tail()}"
            ) from exc
        found = ServiceCounters()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _NAMES.get(sample.name)
                if name is not None:
                    setattr(found, name, getattr(found, name) + int(sample.value))
        return found

    def await_count(
        self, name: str, count: int, progress: Callable[[int], None] = lambda _: None
    ) -> ServiceCounters:
        moved_s, before = time.monotonic(), -1
        while True:
            counters = self.counters()
            now = getattr(counters, name)
            progress(min(now, count))
            if now >= count:
                return counters
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() - moved_s > _STALL_S:
                raise DelayServiceError(
                    f"the service has {name} {now} of {count} records and stands still; the end of "
                    f"its log says why:\n{self._process.log_tail()}"
                )
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._process.kill()


_ASK_TIMEOUT_S: Final = 15.0
_TIMEOUT_S: Final = 60.0
_ROLES: Final[tuple[ClientRole, ...]] = ("consumer", "producer", "admin")
_PACKAGE: Final = "delay_devtools.bench"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the topics of one round; ``level_ms``: delay of the level topic, 0: a plain delay
    topic.
    """

    prefix: str
    level_ms: int = 0

    @property
    def delay(self) -> str:
        return level_topic(1, self._levels) if self.level_ms else f"{self.prefix}_delay"

    @property
    def _levels(self) -> str:
        return f"{self.prefix}_level_"

    def target(self, name: str) -> str:
        return f"{self.prefix}_to_{name}"

    def sets(self, partitions: int, delay_topics: Sequence[str]) -> list[str]:
        levels = [f"levels.prefix={self._levels}", f"levels.delays_ms={self.level_ms}"]
        return [
            *(levels if self.level_ms else []),
            f"topics.delay={'' if self.level_ms else ','.join(delay_topics)}",
            "topics.discover=false",
            f"topics.checkpoint={self.prefix}_checkpoint",
            f"topics.dead_letter={self.prefix}_dead_letter",
            f"topics.outcomes={self.prefix}_outcomes",
            f"topics.partitions={partitions}",
            f"targets.default.allow={self.prefix}_to_*",
            f"kafka.transactional_id_prefix={self.prefix}",
        ]


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses and processes of a cluster; ``zookeeper`` is empty: as the settings say."""

    bootstrap: str
    zookeeper: str = ""
    processes: Sequence[psutil.Process] = ()


class Stand:
    def __init__(self, options: Options, servers: Servers, folder: Path, steps: Steps) -> None:
        self.options = options
        self.brokers = servers.processes
        self.steps = steps
        self._bootstrap = servers.bootstrap
        self._folder = folder
        self._run = uuid.uuid4().hex[:8]
        self._rounds = 0
        # Names of created topics, each once: the Kafka client crashes if a list has a name twice.
        self._created: set[str] = set()
        self._roots: list[str] = []
        settings = options.settings(servers.bootstrap)
        self.zookeeper = servers.zookeeper or settings.zookeeper.hosts
        self.session_timeout_s = float(settings.zookeeper.session_timeout_s)
        self.roll_window_s = settings.roll_window_ms // 1_000
        self._clients = {role: settings.kafka.client_config(role) for role in _ROLES}
        self._admin = clients.admin(self._clients["admin"])

    def check_cluster(self) -> None:
        try:
            self._admin.list_topics(timeout=_ASK_TIMEOUT_S)
        except KafkaException as exc:
            raise DelayServiceError(
                f"no broker answers at {self._bootstrap}: {exc}; is that its address, and does it "
                "take this user? Client options go in with --set kafka.client.NAME=VALUE"
            ) from exc

    # --- topics ----------------------------------------------------------------------------------

    def round(self, level_ms: int = 0) -> Names:
        self._rounds += 1
        return Names(f"bench_{self._run}_{self._rounds}", level_ms)

    def create(self, names: Names, targets: Sequence[str] = (), delay_topics: int = 1) -> list[str]:
        topics = [names.delay, *(f"{names.delay}_{n}" for n in range(2, delay_topics + 1))]
        sets = names.sets(self.options.partitions, topics)
        settings = self.options.settings(self._bootstrap, sets)
        made = settings.topics
        own = (made.checkpoint, made.claims_topic, made.dead_letter, made.outcomes)
        self._created |= {*topics, *own, *map(names.target, targets)}
        replication = settings.topics.replication_factor
        new = [NewTopic(names.target(t), self.options.partitions, replication) for t in targets]
        try:
            TopicKeeper(self._admin, settings).prepare()
            for future in self._admin.create_topics(new).values() if new else ():
                future.result(_TIMEOUT_S)
        except (KafkaEdgeError, KafkaException) as exc:
            raise DelayServiceError(
                f"the bench can't make its topics {names.prefix}_*: {exc}; give its user the right "
                "to create and delete topics of that prefix, or leave --bootstrap out"
            ) from exc
        return self.options.sets_of(self._bootstrap, sets)

    def clean_up(self) -> None:
        # What can't be deleted from the user's cluster is left there.
        if self._created:
            self._delete_topics()
        if self._roots:
            self._delete_roots()

    def _delete_roots(self) -> None:
        # Errors are ignored, such as those of another user's ACL.
        client = KazooClient(
            self.zookeeper, timeout=_ASK_TIMEOUT_S, logger=QUIET, auth_data=[LOGIN]
        )
        with suppress(KazooException, KazooTimeoutError):
            client.start(_ASK_TIMEOUT_S)
            for root in self._roots:
                client.delete(root, recursive=True)
        client.stop()
        client.close()

    def _delete_topics(self) -> None:
        for future in self._admin.delete_topics(sorted(self._created)).values():
            with suppress(KafkaException, TimeoutError):  # it was never made, or there is no answer
                future.result(_TIMEOUT_S)

    # --- processes -------------------------------------------------------------------------------

    @contextmanager
    def service(self, names: Names, sets: Sequence[str]) -> Iterator[Serving]:
        folder = self._folder / names.prefix
        folder.mkdir()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            with self.steps.doing("Starting the service"):
                serving = Serving(sets, folder, self.options.partitions)
                stack.callback(serving.stop)
                serving.await_serving()
            yield serving

    @contextmanager
    def group(self, names: Names, sets: Sequence[str]) -> Iterator[NodeGroup]:
        folder, root = self._folder / names.prefix, f"/{names.prefix}"
        folder.mkdir()
        self._roots.append(root)
        brokers = sorted(self._admin.list_topics(timeout=_ASK_TIMEOUT_S).brokers)
        shared = [*sets_of_several(self.zookeeper, root), *sets, *ANY_PORTS]
        nodes = []
        for number in range(1, self.options.nodes + 1):
            # With fewer brokers than nodes, some nodes are beside no broker.
            beside = [f"node.broker_id={brokers[number - 1]}"] if number <= len(brokers) else []
            nodes.append(LocalNode(f"n{number}", [*shared, *beside], folder))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield stack.enter_context(NodeGroup(nodes, self.options.partitions))

    @contextmanager
    def helper(
        self,
        kind: str,
        plan: LoadPlan | JudgePlan | PassthroughPlan,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Helper]:
        helper = Helper(f"{_PACKAGE}.{kind}_process", plan, self._folder / f"{kind}.log", progress)
        try:
            helper.expect(wire.READY, timeout_s=_TIMEOUT_S)
            yield helper
        finally:
            helper.close()

    def client(self, role: ClientRole) -> dict[str, str]:
        return self._clients[role]

    def batch(self, n: int) -> Batch:
        return Batch(uuid.uuid4().hex[:8], n, self.options.size, self.options.seed)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
