"""Runs ``docker-compose.yml`` without containers: its environment and commands, as processes.

What a container engine gives each service is mapped, and nothing else: a container's network is a
loopback address of its own, so that ports stay those of the file; a volume is a folder; a host name
is the address of that container. What the images of Kafka and ZooKeeper do with their environment
at the start is done here as their entry points do it.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from delay_devtools import servers
from delay_devtools.child import Child, Reaper
from delay_devtools.jars import ensure_jars, read_lock
from delay_devtools.servers import Jvm, find_java, kafka_probe
from tests.deployed import ROOT, Service, property_of, seconds, services

START_S: Final = 90.0
_ENV: Final = "/usr/bin/env"
_ZOOKEEPER: Final = {
    "dataDir": "/data",
    "dataLogDir": "/datalog",
    "tickTime": "ZOO_TICK_TIME",
    "initLimit": "ZOO_INIT_LIMIT",
    "syncLimit": "ZOO_SYNC_LIMIT",
    "maxClientCnxns": "ZOO_MAX_CLIENT_CNXNS",
    "autopurge.purgeInterval": "ZOO_AUTOPURGE_PURGEINTERVAL",
    "autopurge.snapRetainCount": "ZOO_AUTOPURGE_SNAPRETAINCOUNT",
    "admin.enableServer": "ZOO_ADMINSERVER_ENABLED",
    "4lw.commands.whitelist": "ZOO_4LW_COMMANDS_WHITELIST",
}
"""Lines of zoo.cfg, as the image's docker-entrypoint.sh writes them from these variables."""


class Composed:
    """The services of the file, started in its order.

    Args:
        folder: of volumes, configurations and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.services = services()
        self._folder = folder
        self._reaper = Reaper(None)
        self._children: dict[str, Child] = {}
        net = f"127.{random.randrange(64, 250)}.{random.randrange(250)}"
        self._addresses: dict[str, str] = {}
        for number, one in enumerate(self.services.values(), 1):
            self._addresses[one.name] = f"{net}.{number}"
        for one in self.services.values():
            beside = self._beside(one)
            if beside is not None:
                self._addresses[one.name] = self._addresses[beside]
        log4j = folder / "log4j2.properties"
        servers.write_log4j(log4j)
        self._jvm = Jvm(find_java(), ensure_jars(read_lock()), log4j)

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""
        for child in reversed(self._children.values()):
            child.stop(kill=True)
        self._reaper.dismiss()

    # --- what a container engine does ----------------------------------------------------------

    @staticmethod
    def _beside(one: Service) -> str | None:
        """Whose network it shares."""
        mode = str(one.facts.get("network_mode", ""))
        return mode.removeprefix("service:") if mode.startswith("service:") else None

    def address(self, name: str) -> str:
        """Where a service listens."""
        return self._addresses[name]

    def volume(self, name: str) -> Path:
        """The folder of a named volume."""
        path = self._folder / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def mapped(self, one: Service, text: str) -> str:
        """A value or an argument of a service, with this machine's addresses and folders."""
        here = self._addresses[one.name]
        for name in sorted(self._addresses, key=len, reverse=True):
            if name.startswith(("kafka", "zookeeper")):
                text = re.sub(rf"\b{re.escape(name)}(?=:\d)", self._addresses[name], text)
        text = re.sub(r"\b(localhost|0\.0\.0\.0)(?=:\d)|(?<=//)(?=:\d)", here, text)
        for volume in one.facts.get("volumes", []):
            source, inside, *_ = volume.split(":")
            if not source.startswith("."):
                text = text.replace(inside, str(self.volume(source)))
        return text

    def _environment(self, one: Service, image: Mapping[str, str]) -> dict[str, str]:
        both = {**image, **one.environment}
        return {name: self.mapped(one, value) for name, value in both.items()}

    def _child(self, name: str, command: list[str]) -> Child:
        log = self._folder / f"{name.partition(' ')[0]}.log"
        self._children[name] = Child(name, command, log, self._reaper)
        return self._children[name]

    # --- Kafka and ZooKeeper, as their images start them ---------------------------------------

    def start_servers(self) -> None:
        """The ensemble and the brokers, until all of them serve."""
        ensemble = [one for name, one in self.services.items() if name.startswith("zookeeper")]
        brokers = [one for name, one in self.services.items() if name.startswith("kafka")]
        for one in ensemble:
            config = self._zookeeper_config(one)
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            self._child(one.name, self._jvm.command(main, config, options=["-Xmx128m"]))
        formats = [self._format(one) for one in brokers]
        for one, formatting in zip(brokers, formats, strict=True):
            formatting.wait_exit(START_S)
            config = self._folder / f"{one.name}.properties"
            self._child(one.name, self._jvm.command("kafka.Kafka", config, options=["-Xmx512m"]))
        deadline_s = time.monotonic() + START_S
        ids = frozenset(int(one.environment["KAFKA_NODE_ID"]) for one in brokers)
        for one in brokers:
            cluster_id = one.environment["CLUSTER_ID"]
            probe = kafka_probe(f"{self.address(one.name)}:9092", cluster_id, ids)
            self._children[one.name].wait_until(probe, deadline_s)

    def _format(self, one: Service) -> Child:
        environment = self._environment(one, {})
        config = self._folder / f"{one.name}.properties"
        properties = {
            property_of(name): value
            for name, value in environment.items()
            if name.startswith("KAFKA_")
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        arguments = ["format", "--ignore-formatted", "--cluster-id", environment["CLUSTER_ID"]]
        tool = "kafka.tools.StorageTool"
        command = self._jvm.command(tool, *arguments, "--config", config, options=["-Xmx256m"])
        return self._child(f"{one.name} format", command)

    def _zookeeper_config(self, one: Service) -> Path:
        environment = self._environment(one, {})
        data = Path(self.mapped(one, "/data"))
        (data / "myid").write_text(environment["ZOO_MY_ID"])
        lines = [
            f"{name}={environment[source] if source[0] != '/' else self.mapped(one, source)}"
            for name, source in _ZOOKEEPER.items()
        ]
        # The client port of each server, on the address of that server.
        lines += [
            re.sub(r"=([\d.]+)(:.*);(\d+)$", r"=\1\2;\1:\3", server)
            for server in environment["ZOO_SERVERS"].split()
        ]
        config = self._folder / f"{one.name}.cfg"
        config.write_text("\n".join(lines) + "\n")
        return config

    # --- ours ----------------------------------------------------------------------------------

    def start_node(self, one: Service) -> None:
        """A node, as its image starts it; not awaited."""
        self._child(one.name, self._command(one))

    def run(self, one: Service) -> subprocess.CompletedProcess[str]:
        """A one-shot, until it has ended."""
        return subprocess.run(
            self._command(one), check=False, capture_output=True, text=True, timeout=240
        )

    def stop_node(self, one: Service) -> None:
        """SIGTERM, and a good end within the time that the file gives it."""
        child = self._children[one.name]
        child.signal(15)  # type: ignore[arg-type]
        child.wait_exit(seconds(one.facts["stop_grace_period"]))

    def log(self, name: str) -> str:
        """What a service has logged."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _command(self, one: Service) -> list[str]:
        """With the environment of the image and of the file, and nothing of this process's."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        environment = {**own, **self._environment(one, image_environment())}
        entry = one.facts.get("entrypoint", [sys.executable, "-m", "delayservice"])
        words = [self.mapped(one, word) for word in [*entry, *one.command]]
        return [_ENV, "-i", "-C", str(ROOT), *(f"{n}={v}" for n, v in environment.items()), *words]


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets, but for the path of its programs."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    found = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    pairs = [pair.partition("=") for line in found for pair in line.split()]
    return {name: value for name, _, value in pairs if name != "PATH"}
