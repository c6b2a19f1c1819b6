"""Kafka and ZooKeeper as child processes, for the demo, the tests and the benchmarks.

    with EmbeddedCluster(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

All servers listen on 127.0.0.1 (or one other address) only, without encryption or passwords;
brokers can have a second listener with both. When this process ends for any reason, ``reaper``
kills the servers and, unless they are to be kept, removes the files.
"""

import base64
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from delay_devtools import servers
from delay_devtools.child import Child, Reaper
from delay_devtools.jars import ensure_jars, read_lock
from delay_devtools.servers import (
    LOOPBACK,
    BrokerPlan,
    Jvm,
    ZooKeeperPlan,
    find_java,
    free_ports,
    kafka_probe,
    zookeeper_probe,
)
from delayservice.base.errors import ClusterError
from delayservice.config.layers import ENV_PREFIX
from delayservice.smoke.progress import Steps, ignored_signals

_START_ATTEMPTS = 3
_START_SECONDS_MAX = 120
_FORMAT_SECONDS_MAX = 60
_PORTS_PER_BROKER = 3
_PORTS_PER_ZOOKEEPER = 3
_CLASH_WORDS = ("Address already in use", "BindException")
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def forget_settings() -> list[str]:
    # The service's settings in the environment name another cluster than one that is started here.
    names = [name for name in os.environ if name.startswith(ENV_PREFIX)]
    for name in names:
        del os.environ[name]
    return names


@dataclass(frozen=True, slots=True)
class _Running:
    folder: Path
    jvm: Jvm
    reaper: Reaper


class EmbeddedCluster:
    """Kafka brokers 1..N in KRaft mode and ZooKeeper servers 1..M, started and stopped as one.

    Args:
        brokers: number of brokers, 0 or more; of three or more, the first three vote.
        zookeepers: number of ZooKeeper servers, 0 or more; two or more form an ensemble.
        folder: folder of configuration, logs and data. It is kept, and a later cluster on the same
            folder finds its data again. None means a temporary folder, removed at the end.
        keep: keep the temporary folder as well.
        broker_properties: Kafka broker settings that override those of ``servers.write_broker``.
        zookeeper_properties: ZooKeeper settings that override those of ``servers.write_zookeeper``.
        host: address of this machine that everything listens on, for clients in a network
            namespace of their own, which can't reach 127.0.0.1.
        kafka: one of ``jars.KAFKA_LOCKS``; None: that of ``DELAY_DEV_KAFKA``, or the default.
        secure: whether each broker has a second listener, ``SECURE``, with SASL over TLS; its keys
            and mechanisms are in ``broker_properties``.
        for_bench: whether brokers optimize their code as in production, which takes processors for
            some minutes.
    """

    def __init__(
        self,
        brokers: int = 1,
        zookeepers: int = 1,
        *,
        folder: Path | None = None,
        keep: bool = False,
        broker_properties: Mapping[str, str] = _NO_PROPERTIES,
        zookeeper_properties: Mapping[str, str] = _NO_PROPERTIES,
        host: str = LOOPBACK,
        kafka: str | None = None,
        secure: bool = False,
        for_bench: bool = False,
    ) -> None:
        if min(brokers, zookeepers) < 0 or brokers + zookeepers < 1:
            raise ClusterError(
                f"A cluster of {brokers} brokers and {zookeepers} ZooKeeper servers was asked for. "
                "Ask for at least one server, and for no negative number."
            )
        self._sizes = (brokers, zookeepers)
        self._kept_folder = folder.absolute() if folder else None
        self._is_kept = keep or folder is not None
        self._broker_properties = dict(broker_properties)
        self._zookeeper_properties = dict(zookeeper_properties)
        self._host = host
        self._kafka = kafka
        self._secure = secure
        self._for_bench = for_bench
        self._running: _Running | None = None
        self._brokers: dict[int, BrokerPlan] = {}
        self._zookeepers: dict[int, ZooKeeperPlan] = {}
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def servers(self) -> str:
        kinds = ("Kafka", "ZooKeeper")
        return " and ".join(kind for kind, size in zip(kinds, self._sizes, strict=True) if size)

    @property
    def bootstrap(self) -> str:
        return ",".join(plan.address for plan in self._brokers.values())

    @property
    def secure_bootstrap(self) -> str:
        return ",".join(plan.secure_address for plan in self._brokers.values())

    @property
    def zookeeper(self) -> str:
        return ",".join(f"{plan.host}:{plan.port}" for plan in self._zookeepers.values())

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(self._brokers)

    @property
    def folder(self) -> Path:
        return self._started().folder

    def _started(self) -> _Running:
        if self._running is None:
            raise ClusterError("The cluster is not started. Call start().")
        return self._running

    def start(self) -> None:
        if self._running is not None:
            raise ClusterError("The cluster is already started. Stop it before starting it again.")
        forget_settings()
        java, class_path = find_java(), ensure_jars(read_lock(self._kafka))
        folder = self._open_folder()
        jvm = Jvm(java, class_path, folder / "log4j2.properties", lasts=self._for_bench)
        self._running = _Running(folder, jvm, Reaper(None if self._is_kept else folder))
        try:
            servers.write_log4j(jvm.log4j_path)
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._running is None:
            return
        # Data that is deleted needs no orderly shutdown.
        self._stop_children(kill=not self._is_kept)
        if not self._is_kept:
            shutil.rmtree(self._running.folder, ignore_errors=True)
        self._running.reaper.dismiss()
        self._running = None

    def stop_broker(self, broker_id: int, *, kill: bool = False) -> None:
        """Stop a broker; its ports and data stay reserved for it.

        Kill brokers only in clusters of three with replication factor 3. Where a partition's only
        replica is on the killed broker, Kafka 4.3 can leave a transaction hanging that was
        committed within the last moments: after the restart its coordinator finds the partition
        without a leader, takes it for deleted and skips the marker ("Couldn't find leader endpoint"
        in the broker's log), and read_committed consumers hang there for ever.
        """
        self._child(f"broker {broker_id}").stop(kill=kill)

    def start_broker(self, broker_id: int) -> None:
        self._restart(f"broker {broker_id}")
        self._launch_broker(self._brokers[broker_id])
        self._await_brokers([broker_id])

    def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        self._child(f"broker {broker_id}").signal(number)

    def stop_zookeeper(self, server_id: int = 1, *, kill: bool = False) -> None:
        self._child(f"zookeeper {server_id}").stop(kill=kill)

    def start_zookeeper(self, server_id: int = 1) -> None:
        self._restart(f"zookeeper {server_id}")
        self._launch_zookeeper(self._zookeepers[server_id])
        self._await_zookeepers([server_id])

    def signal_zookeeper(self, server_id: int, number: signal.Signals) -> None:
        self._child(f"zookeeper {server_id}").signal(number)

    def pids(self) -> tuple[int, ...]:
        return tuple(child.pid for child in self._children.values() if child.running)

    def _open_folder(self) -> Path:
        try:
            if self._kept_folder:
                self._kept_folder.mkdir(parents=True, exist_ok=True)
            return self._kept_folder or Path(tempfile.mkdtemp(prefix="delay-cluster-"))
        except OSError as exc:
            raise ClusterError(
                f"The cluster's folder can't be made: {exc}. Choose another one, or set TMPDIR."
            ) from exc

    def _start_all(self) -> None:
        # If a port was taken meanwhile, all servers start over with other ports.
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._plan()
            try:
                self._launch_all()
            except ClusterError:
                if attempt == _START_ATTEMPTS or not self._clashed():
                    raise
                self._stop_children(kill=True)
            else:
                return

    def _clashed(self) -> bool:
        tails = [child.log_tail() for child in self._children.values()]
        return any(word in tail for tail in tails for word in _CLASH_WORDS)

    def _plan(self) -> None:
        brokers, zookeepers = self._sizes
        needed = brokers * _PORTS_PER_BROKER + zookeepers * _PORTS_PER_ZOOKEEPER
        ports = iter(free_ports(needed, self._host))
        self._brokers = {
            number: BrokerPlan(
                number,
                self._host,
                next(ports),
                next(ports),
                self.folder / f"broker-{number}",
                next(ports) if self._secure else None,
            )
            for number in range(1, brokers + 1)
        }
        self._zookeepers = {
            number: ZooKeeperPlan(
                number,
                self._host,
                next(ports),
                next(ports),
                next(ports),
                self.folder / f"zookeeper-{number}",
            )
            for number in range(1, zookeepers + 1)
        }
        for broker in self._brokers.values():
            servers.write_broker(broker, tuple(self._brokers.values()), self._broker_properties)
        for zookeeper in self._zookeepers.values():
            peers = tuple(self._zookeepers.values())
            servers.write_zookeeper(zookeeper, peers, self._zookeeper_properties)

    def _launch_all(self) -> None:
        # ZooKeeper starts, and brokers' data folders are formatted, at the same time; each broker
        # starts as soon as its folder is formatted.
        for zookeeper in self._zookeepers.values():
            self._launch_zookeeper(zookeeper)
        cluster_id = self._cluster_id()
        formats = [self._launch_format(plan, cluster_id) for plan in self._brokers.values()]
        for plan, formatting in zip(self._brokers.values(), formats, strict=True):
            formatting.wait_exit(_FORMAT_SECONDS_MAX)
            self._launch_broker(plan)
        self._await_zookeepers(self._zookeepers)
        self._await_brokers(self._brokers)

    def _launch_format(self, plan: BrokerPlan, cluster_id: str) -> Child:
        command = servers.format_command(self._started().jvm, plan, cluster_id)
        return self._launch(f"format of broker {plan.broker_id}", command, plan.log_path)

    def _launch_broker(self, plan: BrokerPlan) -> None:
        command = servers.broker_command(self._started().jvm, plan)
        self._launch(f"broker {plan.broker_id}", command, plan.log_path)

    def _launch_zookeeper(self, plan: ZooKeeperPlan) -> None:
        command = servers.zookeeper_command(self._started().jvm, plan)
        self._launch(f"zookeeper {plan.server_id}", command, plan.log_path)

    def _launch(self, name: str, command: Sequence[str], log_path: Path) -> Child:
        self._children[name] = Child(name, command, log_path, self._started().reaper)
        return self._children[name]

    def _await_brokers(self, broker_ids: Iterable[int]) -> None:
        expected = frozenset(broker_ids)
        for broker_id in sorted(expected):
            probe = kafka_probe(self._brokers[broker_id].address, self._cluster_id(), expected)
            deadline = time.monotonic() + _START_SECONDS_MAX
            self._child(f"broker {broker_id}").wait_until(probe, deadline)

    def _await_zookeepers(self, server_ids: Iterable[int]) -> None:
        for server_id in server_ids:
            plan = self._zookeepers[server_id]
            probe = zookeeper_probe(plan.host, plan.port, plan.data)
            deadline = time.monotonic() + _START_SECONDS_MAX
            self._child(f"zookeeper {server_id}").wait_until(probe, deadline)

    def _cluster_id(self) -> str:
        path = self.folder / "cluster-id"
        if not path.exists():
            text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # A leading dash would read as an option.
            path.write_text(text.replace("-", "A"), encoding="utf-8")
        return path.read_text(encoding="utf-8")

    def _child(self, name: str) -> Child:
        child = self._children.get(name)
        if child is None:
            known = ", ".join(self._children) or "nothing: it is not started"
            raise ClusterError(
                f"There is no {name} in this cluster, which has {known}. Name one of these."
            )
        return child

    def _restart(self, name: str) -> None:
        if self._child(name).running:
            raise ClusterError(f"{name} is running. Stop it before starting it again.")

    def _stop_children(self, *, kill: bool) -> None:
        # Signalled in reverse order of their start, brokers first.
        children = list(reversed(self._children.values()))
        for child in children:
            if child.running:
                # A frozen process would not handle SIGTERM.
                child.signal(signal.SIGCONT)
                child.signal(signal.SIGKILL if kill else signal.SIGTERM)
        for child in children:
            child.stop(kill=kill)
        self._children.clear()


@contextmanager
def started(cluster: EmbeddedCluster, shown: Steps) -> Iterator[EmbeddedCluster]:
    with shown.doing(f"Starting {cluster.servers}"):
        cluster.start()
    try:
        yield cluster
    finally:
        undisturbed(cluster.stop)


def undisturbed(clean_up: Callable[[], None]) -> None:
    # A second Ctrl-C would interrupt the clean-up.
    with ignored_signals():
        clean_up()
