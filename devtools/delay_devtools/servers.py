"""Configuration files and command lines of a Kafka broker and of a ZooKeeper server."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Jvm:
    java: Path
    class_path: Sequence[Path]
    log4j_path: Path

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


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    broker_id: int
    host: str
    port: int
    controller_port: int
    folder: Path
    secure_port: int | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def secure_address(self) -> str:
        return f"{SECURE_HOST}:{self.secure_port}"

    @property
    def properties_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"


@dataclass(frozen=True, slots=True)
class ZooKeeperPlan:
    server_id: int
    host: str
    port: int
    quorum_port: int
    election_port: int
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def config_path(self) -> Path:
        return self.folder / "zoo.cfg"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"


def write_log4j(path: Path) -> None:
    path.write_text(_LOG4J, encoding="utf-8")


def write_broker(
    plan: BrokerPlan, peers: Sequence[BrokerPlan], overrides: Mapping[str, str]
) -> None:
    # The first three brokers are the voters of the KRaft quorum; of one or two only the first
    # votes.
    plan.folder.mkdir(parents=True, exist_ok=True)
    properties = _broker_properties(plan, peers) | dict(overrides)
    lines = (f"{name}={value}\n" for name, value in properties.items())
    plan.properties_path.write_text("".join(lines), encoding="utf-8")


def _broker_properties(plan: BrokerPlan, peers: Sequence[BrokerPlan]) -> dict[str, str]:
    voters = peers[: _VOTERS_MAX if len(peers) >= _VOTERS_MAX else 1]
    is_voter = plan in voters
    copies = str(min(3, len(peers)))
    copies_needed = str(max(1, min(2, len(peers) - 1)))
    listener = advertised = f"PLAINTEXT://{plan.address}"
    if plan.secure_port is not None:
        listener += f",SECURE://{plan.host}:{plan.secure_port}"
        advertised += f",SECURE://{plan.secure_address}"
    controller = f",CONTROLLER://{plan.host}:{plan.controller_port}" if is_voter else ""
    return {
        "process.roles": "broker,controller" if is_voter else "broker",
        "node.id": str(plan.broker_id),
        "controller.quorum.voters": ",".join(
            f"{voter.broker_id}@{voter.host}:{voter.controller_port}" for voter in voters
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": listener + controller,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL"
        ),
        "log.dirs": str(plan.folder / "data"),
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


def broker_command(jvm: Jvm, plan: BrokerPlan) -> list[str]:
    # With the normal JIT compiler and G1, as in production: benchmarks use it too.
    options = [f"-Xmx{os.environ.get(HEAP_VARIABLE, '512m')}", "-XX:+UseG1GC"]
    return jvm.command("kafka.Kafka", plan.properties_path, options=options)


def format_command(jvm: Jvm, plan: BrokerPlan, cluster_id: str) -> list[str]:
    arguments = ["format", "--ignore-formatted", "--cluster-id", cluster_id, "--config"]
    return jvm.command(
        "kafka.tools.StorageTool",
        *arguments,
        plan.properties_path,
        # It runs for a second, too short for optimized compilation to pay off.
        options=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    )


def write_zookeeper(
    plan: ZooKeeperPlan, peers: Sequence[ZooKeeperPlan], overrides: Mapping[str, str]
) -> None:
    plan.data.mkdir(parents=True, exist_ok=True)
    settings = {
        "dataDir": str(plan.data),
        "clientPort": str(plan.port),
        "clientPortAddress": plan.host,
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
        (plan.data / "myid").write_text(str(plan.server_id), encoding="utf-8")
        settings |= {
            f"server.{peer.server_id}": f"{peer.host}:{peer.quorum_port}:{peer.election_port}"
            for peer in peers
        }
    lines = (f"{name}={value}\n" for name, value in (settings | dict(overrides)).items())
    plan.config_path.write_text("".join(lines), encoding="utf-8")


def zookeeper_command(jvm: Jvm, plan: ZooKeeperPlan) -> list[str]:
    # The main class depends on the written configuration: whether the server is in an ensemble.
    alone = not (plan.data / "myid").exists()
    package = "org.apache.zookeeper.server"
    main_class = f"{package}.ZooKeeperServerMain" if alone else f"{package}.quorum.QuorumPeerMain"
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-Dzookeeper.jmx.log4j.disable=true"]
    return jvm.command(main_class, plan.config_path, options=options)
