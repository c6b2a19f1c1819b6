"""Environment of a bench: options, a cluster, topics and the service.

Topics are named ``bench_<id>_<number>_…``, so that no running service serves them and two benches
on one cluster do not interfere. All processes end with the ``Stand``.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    NewTopic,
)
from prometheus_client.parser import text_string_to_metric_families

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.topics import TopicKeeper
from delay_devtools.bench.options import Options
from delay_devtools.nodes import LocalNode, NodeGroup, sets_of_several
from delay_devtools.servers import ANY_PORTS
from delayservice.base.errors import DelayServiceError, KafkaEdgeError, SettingsError
from delayservice.config.kafka import ClientRole
from delayservice.config.settings import Settings, load
from delayservice.smoke.judge import JudgePlan
from delayservice.smoke.load import QUIET, SIZE_MIN, Batch, LoadPlan
from delayservice.smoke.progress import Steps

# Nodes of the bench failover, each beside a broker.
NODES: Final = 3
_SEED: Final = 20_260_101
_SECRET: Final = "only-for-benches-0123456789"  # noqa: S105 (nothing else is signed with it)
_FULL: Final = (
    "rates.per_s.*=10000000",
    "delivery.slot_records_max=1000000",
    "delivery.slot_policy=spread",
    "levels.preset=default",
)


def settings_of(options: Options, bootstrap: str = "127.0.0.1:1", *sets: str) -> Settings:
    config = os.environ.get("DELAYSERVICE_CONFIG")
    asked = sets_of(options, bootstrap, *sets)
    return load(Path(config) if config else None, asked, os.environ)


def sets_of(options: Options, bootstrap: str, *sets: str) -> list[str]:
    return [
        f"kafka.bootstrap={bootstrap}",
        f"node.cluster_secret={_SECRET}",
        # Several nodes share this machine: a second worker each would only slow the others.
        *(("node.workers=1",) if options.bench == "failover" else ()),
        *(_FULL if options.full else ()),
        *sets,
        *(options.sets or ()),
    ]


def check(options: Options) -> None:
    shortest, longest = options.delay_ms
    if options.size < SIZE_MIN:
        raise SettingsError(
            f"--size is {options.size}, but number, due time and tag of a record take {SIZE_MIN} "
            f"bytes: give {SIZE_MIN} or more"
        )
    if not 0 <= shortest <= longest:
        raise SettingsError(
            f"--delay-ms is {shortest} {longest}: give the shortest delay first, 0 or more"
        )
    if not options.per_s and (options.bench != "steady" or options.burst):
        raise SettingsError(
            f"--rate is 0: only steady without --burst takes it; {options.bench} needs a load"
        )
    if options.bootstrap and options.bench in ("failover", "peers"):
        raise SettingsError(f"--bootstrap: {options.bench} starts brokers of its own; leave it out")
    # A wrong --set ends here, not after a cluster has started.
    settings_of(options)


_METRICS_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.2
_STALL_S: Final = 60.0
_NAMES: Final = {
    "delay_ingested_total": "ingested",
    "delay_settled_total": "settled",
    "delay_transaction_seconds_count": "transactions",
    "delay_transaction_aborts_total": "aborts",
}
# Sums of the service's counters, up to two seconds old, by the names above.
ServiceCounters: TypeAlias = Counter[str]


class Serving(LocalNode):
    """Node under test."""

    workers: Sequence[psutil.Process] = ()
    processes: Sequence[psutil.Process] = ()

    def await_serving(self, slices: int) -> None:
        self.service.wait_serving(slices)
        self._url = f"http://{self.service.events('metrics_served')[-1]['url']}/metrics"
        self.workers, self.processes = self.service.workers(), self.service.processes()

    def counters(self) -> ServiceCounters:
        try:
            with urlopen(self._url, timeout=_METRICS_TIMEOUT_S) as answer:  # noqa: S310 (our own http)
                text = answer.read().decode()
        except (URLError, OSError) as exc:
            raise DelayServiceError(
                f"the service does not answer on {self._url} any more: {exc}; the end of its log "
                f"says why:\n{self.log_tail()}"
            ) from exc
        found: ServiceCounters = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _NAMES.get(sample.name)
                if name is not None:
                    found[name] += int(sample.value)
        return found

    def await_count(
        self, name: str, count: int, progress: Callable[[int], None] = lambda _: None
    ) -> ServiceCounters:
        moved_s, before = time.monotonic(), -1
        while True:
            counters = self.counters()
            now = counters[name]
            progress(min(now, count))
            if now >= count:
                return counters
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() - moved_s > _STALL_S:
                raise DelayServiceError(
                    f"the service has {name} {now} of {count} records and stands still; the end of "
                    f"its log says why:\n{self.log_tail()}"
                )
            time.sleep(_LOOK_S)


_ASK_TIMEOUT_S: Final = 15.0
_TIMEOUT_S: Final = 60.0
_ROLES: Final[tuple[ClientRole, ...]] = ("consumer", "producer", "admin")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the topics of one round."""

    prefix: str

    @property
    def delay(self) -> str:
        return f"{self.prefix}_delay"

    def target(self, name: str) -> str:
        return f"{self.prefix}_to_{name}"

    def sets(self, partitions: int) -> list[str]:
        return [
            f"topics.delay={self.delay}",
            f"levels.prefix={self.prefix}_level_",
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
        self._targets: list[str] = []
        settings = settings_of(options, servers.bootstrap)
        self.is_exactly_once = settings.delivery.mode == "exactly_once"
        self.session_timeout_s = float(settings.zookeeper.session_timeout_s)
        self._zookeeper = servers.zookeeper
        self._clients = {role: settings.kafka.client_config(role) for role in _ROLES}
        self._admin = KafkaAdmin(self._clients["admin"], QUIET)

    def check_cluster(self) -> None:
        try:
            self._admin.list_topics(timeout=_ASK_TIMEOUT_S)
        except KafkaException as exc:
            raise DelayServiceError(
                f"no broker answers at {self._bootstrap}: {exc}; is that its address, and does it "
                "take this user? Client options go in with --set kafka.client.NAME=VALUE"
            ) from exc

    # --- topics ----------------------------------------------------------------------------------

    def round(self) -> Names:
        self._rounds += 1
        return Names(f"bench_{self._run}_{self._rounds}")

    def create(self, names: Names, targets: Sequence[str]) -> list[str]:
        sets = names.sets(self.options.partitions)
        settings = settings_of(self.options, self._bootstrap, *sets)
        replication = settings.topics.replication_factor
        made = [names.target(target) for target in targets]
        new = [NewTopic(name, self.options.partitions, replication) for name in made]
        self._targets += made
        try:
            TopicKeeper(self._admin, settings).prepare()
            for future in self._admin.create_topics(new).values():
                future.result(_TIMEOUT_S)
        except (KafkaEdgeError, KafkaException) as exc:
            raise DelayServiceError(
                f"the bench can't make its topics {names.prefix}_*: {exc}; give its user the right "
                "to create and delete topics of that prefix, or leave --bootstrap out"
            ) from exc
        return sets_of(self.options, self._bootstrap, *sets)

    def clean_up(self) -> None:
        # What can't be deleted from the user's cluster is left there.
        with suppress(KafkaException):
            found = self._admin.list_topics(timeout=_ASK_TIMEOUT_S).topics
            own = {name for name in found if name.startswith(f"bench_{self._run}_")}
            # A broker may not list yet what was made a moment ago: the targets are made last.
            own.update(self._targets)
            for future in self._admin.delete_topics(list(own)).values() if own else ():
                with suppress(KafkaException, TimeoutError):
                    future.result(_TIMEOUT_S)

    # --- processes -------------------------------------------------------------------------------

    @contextmanager
    def service(self, names: Names, sets: Sequence[str]) -> Iterator[Serving]:
        with ExitStack() as stack:
            serving = Serving("bench", [*sets, *ANY_PORTS], self._folder_of(names, stack))
            stack.callback(serving.kill)
            with self.steps.doing("Starting the service"):
                serving.start()
                serving.await_serving(self.options.partitions)
            yield serving

    @contextmanager
    def group(self, names: Names, sets: Sequence[str]) -> Iterator[NodeGroup]:
        shared = [*sets_of_several(self._zookeeper, f"/{names.prefix}"), *sets, *ANY_PORTS]
        with ExitStack() as stack:
            folder = self._folder_of(names, stack)
            nodes = [
                LocalNode(f"n{number}", [*shared, f"node.broker_id={number}"], folder)
                for number in range(1, NODES + 1)
            ]
            yield stack.enter_context(NodeGroup(nodes, self.options.partitions))

    def _folder_of(self, names: Names, stack: ExitStack) -> Path:
        folder = self._folder / names.prefix
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def client(self, role: ClientRole) -> dict[str, str]:
        return self._clients[role]

    def batch(self, n: int) -> Batch:
        return Batch(uuid.uuid4().hex[:8].encode(), n, self.options.size, _SEED)

    def load(self, names: Names, target: str, batch: Batch, *, is_hidden: bool = False) -> LoadPlan:
        """Return a load of the options' delays, as fast as it can be sent."""
        shortest, longest = self.options.delay_ms
        return LoadPlan(
            client=self.client("producer"),
            topic=names.delay,
            targets=(names.target(target),),
            batch=batch,
            after_ms=shortest,
            span_ms=longest - shortest,
            is_full=self.options.full,
            transactional_id=f"{names.prefix}_load" if is_hidden else "",
        )

    def judge(self, names: Names, target: str, batch: Batch) -> JudgePlan:
        return JudgePlan(self.client("consumer"), (names.target(target),), batch)
