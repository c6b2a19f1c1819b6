"""Kafka and ZooKeeper as child processes, for the demo, the tests and the benchmarks.

    with EmbeddedCluster(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

All servers listen on 127.0.0.1 (or one other address) only, without encryption or passwords;
brokers can have a second listener with both. When this process ends for any reason, the servers
end, and the files are removed unless they are to be kept.
"""

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Self

from delay_devtools import servers
from delay_devtools.child import Child, remover
from delay_devtools.jars import ensure_jars, read_lock
from delay_devtools.servers import (
    LOOPBACK,
    PORTS,
    Broker,
    Jvm,
    Server,
    ZooKeeper,
    find_java,
    free_ports,
)
from delayservice.base.errors import ClusterError
from delayservice.config.layers import ENV_PREFIX
from delayservice.smoke.progress import Steps, ignored_signals

_START_ATTEMPTS = 3
_START_SECONDS_MAX = 120
_FORMAT_SECONDS_MAX = 60
_CLASH_WORDS = ("Address already in use", "BindException")
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def forget_settings() -> list[str]:
    # The service's settings in the environment name another cluster than one that is started here.
    names = [name for name in os.environ if name.startswith(ENV_PREFIX)]
    for name in names:
        del os.environ[name]
    return names


class EmbeddedCluster:
    """Kafka brokers 1..N in KRaft mode and ZooKeeper servers 1..M, started and stopped as one.

    Args:
        brokers: number of brokers, 0 or more; of three or more, the first three vote.
        zookeepers: number of ZooKeeper servers, 0 or more; two or more form an ensemble.
        folder: folder of configuration, logs and data. It is kept, and a later cluster on the same
            folder finds its data again. None means a temporary folder, removed at the end.
        keep: keep the temporary folder as well.
        broker_properties: Kafka broker settings that override those of ``servers.Broker``.
        zookeeper_properties: ZooKeeper settings that override those of ``servers.ZooKeeper``.
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
        # While it runs.
        self._folder: Path | None = None
        self._remover: subprocess.Popen[bytes] | None = None
        self._brokers: list[Broker] = []
        self._zookeepers: list[ZooKeeper] = []
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
        return ",".join(broker.address for broker in self._brokers)

    @property
    def secure_bootstrap(self) -> str:
        return ",".join(broker.secure_address for broker in self._brokers)

    @property
    def zookeeper(self) -> str:
        return ",".join(server.address for server in self._zookeepers)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(broker.number for broker in self._brokers)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ClusterError("The cluster is not started. Call start().")
        return self._folder

    def start(self) -> None:
        if self._folder is not None:
            raise ClusterError("The cluster is already started. Stop it before starting it again.")
        forget_settings()
        java, class_path = find_java(), ensure_jars(read_lock(self._kafka))
        self._folder = self._open_folder()
        self._remover = None if self._is_kept else remover(self._folder)
        log4j_path = self._folder / "log4j2.properties"
        self._jvm = Jvm(java, class_path, log4j_path, lasts=self._for_bench)
        try:
            servers.write_log4j(log4j_path)
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._folder is None:
            return
        # Data that is deleted needs no orderly shutdown.
        self._stop_children(kill=not self._is_kept)
        if self._remover is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._remover.kill()
            self._remover.wait()
        self._folder = self._remover = None

    def stop_broker(self, broker_id: int, *, kill: bool = False) -> None:
        """Stop a broker; its ports and data stay reserved for it.

        Kill brokers only in clusters of three with replication factor 3. Where a partition's only
        replica is on the killed broker, Kafka 4.3 can leave a transaction hanging that was
        committed within the last moments: after the restart its coordinator finds the partition
        without a leader, takes it for deleted and skips the marker ("Couldn't find leader endpoint"
        in the broker's log), and read_committed consumers hang there for ever.
        """
        self._child(f"broker {broker_id}").end(kill=kill)

    def start_broker(self, broker_id: int) -> None:
        self._restart(f"broker {broker_id}")

    def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        self._child(f"broker {broker_id}").signal(number)

    def stop_zookeeper(self, server_id: int = 1, *, kill: bool = False) -> None:
        self._child(f"zookeeper {server_id}").end(kill=kill)

    def start_zookeeper(self, server_id: int = 1) -> None:
        self._restart(f"zookeeper {server_id}")

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
        ports = iter(free_ports((brokers + zookeepers) * PORTS, self._host))
        self._brokers = [
            Broker(number, self._host, list(islice(ports, PORTS)), self.folder, self._secure)
            for number in range(1, brokers + 1)
        ]
        self._zookeepers = [
            ZooKeeper(number, self._host, list(islice(ports, PORTS)), self.folder)
            for number in range(1, zookeepers + 1)
        ]
        for broker in self._brokers:
            broker.write(self._brokers, self._broker_properties)
        for server in self._zookeepers:
            server.write(self._zookeepers, self._zookeeper_properties)

    def _launch_all(self) -> None:
        # ZooKeeper starts, and brokers' data folders are formatted, at the same time; each broker
        # starts as soon as its folder is formatted.
        for server in self._zookeepers:
            self._launch(server)
        formats = []
        for broker in self._brokers:
            name = f"format of {broker.name}"
            command = broker.format_command(self._jvm, self._cluster_id())
            self._children[name] = Child(name, command, broker.log_path)
            formats.append(self._children[name])
        for broker, formatting in zip(self._brokers, formats, strict=True):
            formatting.wait_exit(_FORMAT_SECONDS_MAX)
            self._launch(broker)
        for one in (*self._brokers, *self._zookeepers):
            self._await(one, frozenset(self.broker_ids))

    def _launch(self, server: Server) -> None:
        command = server.command(self._jvm)
        self._children[server.name] = Child(server.name, command, server.log_path)

    def _await(self, server: Server, expected: frozenset[int]) -> None:
        probe = server.probe(self._cluster_id(), expected)
        self._child(server.name).wait_until(probe, _START_SECONDS_MAX)

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
        every = (*self._brokers, *self._zookeepers)
        server = next(one for one in every if one.name == name)
        self._launch(server)
        self._await(server, frozenset({server.number}))

    def _stop_children(self, *, kill: bool) -> None:
        # Signalled in reverse order of their start, brokers first.
        children = list(reversed(self._children.values()))
        for child in children:
            # A frozen process would not handle SIGTERM.
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGKILL if kill else signal.SIGTERM)
        for child in children:
            child.end(kill=kill)
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
