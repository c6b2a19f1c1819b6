"""RocketMQ and NATS on this machine: fetched by hash, started in a folder, killed and restarted.

Both keep their defaults, except for addresses, folders, RocketMQ's heap (that of the embedded
Kafka), and its timer's precision: the finest that it takes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from delay_devtools.child import Child
from delay_devtools.jars import cache_folder, ensure_jars, parse_lock
from delay_devtools.servers import HEAP_VARIABLE, LOOPBACK, find_java, free_ports
from delayservice.base.errors import ClusterError

_READY: Final = re.compile("boot success|Server is ready")
_BUILD_TIMEOUT_S: Final = 540.0
_HERE: Final = resources.files(__package__)
_NATS_MODULE: Final = "github.com/nats-io/nats-server/v2"
# As in rocketmq.lock and nats/go.mod.
ROCKETMQ: Final = "5.4.0"
NATS: Final = "2.15.2"


@dataclass(frozen=True, slots=True)
class Peer:
    """Running system that is compared; ``client`` is empty if it is used with Kafka clients."""

    name: str
    setup: str
    client: dict[str, str]
    restart: Callable[[], None]
    pids: Callable[[], list[int]]


@contextmanager
def rocketmq(folder: Path) -> Iterator[Peer]:
    java = str(find_java())
    lock = parse_lock(_HERE.joinpath("rocketmq.lock").read_text("utf-8"))
    class_path = os.pathsep.join(map(str, ensure_jars(lock, cache_folder() / "rocketmq")))
    names_port, port, copies_port = free_ports(3)
    home = folder / "rocketmq"
    home.mkdir()
    _compile_client(java, class_path, home)
    heap = f"-Xmx{os.environ.get(HEAP_VARIABLE, '512m')}"
    places = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    base = [java, heap, *places, "-cp", f"{class_path}{os.pathsep}{home}"]
    start = "org.apache.rocketmq"
    address = f"{LOOPBACK}:{names_port}"
    broker = {
        "namesrvAddr": address,
        "brokerIP1": LOOPBACK,
        "listenPort": port,
        "haListenPort": copies_port,
        "storePathRootDir": home / "store",
        "timerPrecisionMs": 100,
    }
    with _children(folder) as own:
        own.launch(
            "name server", [*base, f"{start}.namesrv.NamesrvStartup"], {"listenPort": names_port}
        )
        yield Peer(
            name=f"RocketMQ {ROCKETMQ}",
            setup="name server, broker; timerPrecisionMs=100",
            client={
                "command": json.dumps([*base, "Peer"]),
                "servers": address,
                "log": str(home / "client.log"),
            },
            restart=own.launch("broker", [*base, f"{start}.broker.BrokerStartup"], broker),
            pids=own.pids,
        )


@contextmanager
def nats(folder: Path) -> Iterator[Peer]:
    (port,) = free_ports(1)
    words = [str(_nats_server()), "-js", "-sd", str(folder / "nats"), "-a", LOOPBACK, "-p"]
    with _children(folder) as own:
        yield Peer(
            name=f"NATS {NATS}",
            setup="nats-server -js; stream in files",
            client={"port": str(port)},
            restart=own.launch("NATS", [*words, str(port)], {}),
            pids=own.pids,
        )


def _compile_client(java: str, class_path: str, folder: Path) -> None:
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn"]
    with resources.as_file(_HERE.joinpath("Peer.java")) as program:
        command = [*compiler, "-d", str(folder), "-cp", class_path, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ClusterError(
            f"the client of RocketMQ could not be compiled with {java}. It needs a JDK of version "
            f"17 or later, on PATH or in JAVA_HOME:\n{done.stdout}{done.stderr}"
        )


def _nats_server() -> Path:
    # Built from sources that go.sum pins.
    path = cache_folder().parent / f"nats-server-{NATS}"
    if path.exists():
        return path
    go = shutil.which("go")
    if go is None:
        raise ClusterError("NATS is built from its Go module: install Go, and put it on PATH")
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    with resources.as_file(_HERE.joinpath("nats")) as module:
        done = subprocess.run(  # noqa: S603 (the user's Go)
            [go, "build", "-mod=readonly", "-o", made, _NATS_MODULE],
            cwd=module,
            env=os.environ | {"GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"NATS could not be built with {go}:\n{done.stderr.strip()}")
    return made.replace(path)


class _Servers(dict[str, Child]):
    """Servers of one system, by name, which end together."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def launch(
        self, name: str, command: Sequence[str], settings: Mapping[str, object]
    ) -> Callable[[], None]:
        """Start a server; return what kills it and starts it again."""
        path = self._folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        words = [*command, *(["-c", str(path)] if settings else [])]

        def restart() -> None:
            if name in self:
                self[name].end(kill=True)
            child = self[name] = Child(name, words, self._folder / f"{name}.log")
            child.wait_until(lambda: _READY.search(child.log_tail()) is not None)

        restart()
        return restart

    def pids(self) -> list[int]:
        return [child.pid for child in self.values()]


@contextmanager
def _children(folder: Path) -> Iterator[_Servers]:
    servers = _Servers(folder)
    try:
        yield servers
    finally:
        for child in servers.values():
            child.end(kill=True)
