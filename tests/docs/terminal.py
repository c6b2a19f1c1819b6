"""A terminal on the machine of a node, and the machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import psutil

from delay_devtools.servers import LOOPBACK, free_ports
from delay_devtools.service import is_worker
from tests.docs.kafka_tools import put_tools, stand_in
from tests.docs.pages import ROOT, Command, bare
from tests.docs.tables import ASKS, SERVERS, STATUSES
from tests.integration.bench import await_true

_WAIT_S: Final = 90.0
_COMMAND_S: Final = 480.0
_OURS: Final = ("connectors", "deploy", "requirements", "tests")
"""What somebody who types has of the repository."""


class Machine:
    """A folder where things are typed, with what stands in for the rest of a machine.

    ``systemctl`` starts and stops the node, ``journalctl`` shows its log, Kafka's tools are its own
    classes. All else is what it is.

    Args:
        folder: empty.
        environment: of every terminal.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.servers: dict[str, Server] = {}
        self._tools = folder / "tools"
        for name in ("tools", "etc", "units"):
            (folder / name).mkdir()
        for name in _OURS:
            (folder / name).symlink_to(ROOT / name)
        metrics, admin = free_ports(2)
        self._status_url = f"http://{LOOPBACK}:{metrics}/status"
        self.says = {
            "/etc/systemd/system": str(folder / "units"),
            "/etc/delayservice": str(folder / "etc"),
            "/var/lib/delayservice": str(folder / "delayservice-state"),
            "localhost:9464": f"{LOOPBACK}:{metrics}",
            "127.0.0.1:9465": f"{LOOPBACK}:{admin}",
        }
        """What stands on the pages, and what it is here."""
        self.environment = {
            **os.environ,
            **environment,
            "PATH": os.pathsep.join(
                [str(self._tools), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "DELAYSERVICE_METRICS__LISTEN": f"{LOOPBACK}:{metrics}",
            "DELAYSERVICE_ADMIN__LISTEN": f"{LOOPBACK}:{admin}",
            "DELAYSERVICE_LOG__FORMAT": "json",
        }
        log4j = folder / "log4j2.properties"
        log4j.write_text("rootLogger.level = OFF\n", "utf-8")
        put_tools(self._tools, log4j)
        stand_in(self._tools / "journalctl", f'exec cat "{self.log_of(SERVERS[1])}"')

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Newest first, as the service ends before its broker."""
        for server in reversed(self.servers.values()):
            server.stop()

    def has_broker(self, bootstrap: str) -> None:
        """Say where the broker is, as ``dev up`` has told it."""
        port = bootstrap.rpartition(":")[2]
        self.says |= {"127.0.0.1:PORT": f"{LOOPBACK}:{port}", "localhost:9092": bootstrap}
        self.environment["B"] = bootstrap

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses and folders of this machine."""
        for said, here in self.says.items():
            text = text.replace(said, here)
        return text

    def log_of(self, server: str) -> Path:
        return self.folder / f"{re.sub(r'[^a-z]+', '-', server)}.log"

    def serve(self, command: str, environment: Mapping[str, str] | None = None) -> Server:
        """Type it in a terminal that is left open; once for all pages."""
        if command not in self.servers:
            log = self.log_of(command)
            given = self.environment | dict(environment or {})
            self.servers[command] = Server(self.here(command), log, self.folder, given)
        return self.servers[command]

    def systemctl(self, verb: str) -> None:
        """Stop or start the node, or both, and wait until it is healthy."""
        node = self.servers[SERVERS[1]]
        if verb in {"stop", "restart"}:
            assert node.stop() == 0
        if verb in {"start", "restart"}:
            if node.process.poll() is not None:  # else it runs, as systemd would see
                node.start()
            self.await_node()

    def await_node(self) -> None:
        await_true(self._is_healthy, "the node is healthy", _WAIT_S)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self._status_url, timeout=5) as answer:  # noqa: S310 (loopback)
                return bool(json.load(answer)["healthy"])
        except (OSError, ValueError):
            return False

    def worker_pid(self) -> int:
        node = psutil.Process(self.servers[SERVERS[1]].process.pid)
        return next(p.pid for p in node.children(recursive=True) if is_worker(p))


class Server:
    """A command of a page that runs until it is ended."""

    def __init__(
        self, command: str, log: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.command = command
        self.log = log
        self._how: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {bare(self.command)}"],  # noqa: S607 (from the PATH)
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._how,
            )

    def stop(self) -> int:
        """Press Ctrl-C, so to say, unless it has ended; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_WAIT_S)

    def await_said(self, pattern: str) -> str:
        """Until it has said something; the first group of it."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            assert self.process.poll() is None, f"{self.command} ended: {self.log.read_text()}"
            found.extend(re.finditer(pattern, self.log.read_text(errors="replace")))
            return bool(found)

        await_true(said, f"{self.command} says {pattern}", _WAIT_S)
        return found[0][1]


class Terminal:
    """One shell, in which variables stay what they were set to."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shell = subprocess.Popen(
            ["bash"],  # noqa: S607 (from the PATH)
            cwd=machine.folder,
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.exported: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Return the machine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, and whatever it still does."""
        self._shell.kill()
        self._shell.communicate()

    def type(self, command: Command, more: str = "") -> str:
        """Type a command of a page and give what it shows; it must end as it should.

        Args:
            command: of a page; a server is left running in a terminal of its own.
            more: is added to it.
        """
        said = bare(command.text)
        if said in SERVERS:
            self._machine.serve(said, self.exported)
            return ""
        if said.startswith("systemctl "):
            self._machine.systemctl(said.split()[1])
            return ""
        if said.startswith("export "):
            name, _, value = self._machine.here(said.removeprefix("export ")).partition("=")
            self.exported[name] = value
        # With its remarks and folds: what is typed is what stands there.
        line = self._machine.here(bare(command.text) + more if more else command.text)
        if "$PID" in line:
            line = f"PID={self._machine.worker_pid()}; {line}"
        shown, status = self._run(_asked(said, line))
        allowed = next((may for begin, may in STATUSES.items() if said.startswith(begin)), {0})
        assert status in allowed, f"{command.place}: {said}\nended with {status}:\n{shown}"
        return shown

    def _run(self, line: str) -> tuple[str, int]:
        mark = uuid.uuid4().hex
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        # Without a person at the keyboard: what would read waits for nobody.
        self._shell.stdin.write(f"{{ {line}\n}} </dev/null\nstatus=$?\necho\necho {mark} $status\n")
        self._shell.stdin.flush()
        watchdog = threading.Timer(_COMMAND_S, self._shell.kill)
        watchdog.start()
        shown: list[str] = []
        try:
            for read in self._shell.stdout:
                if read.startswith(mark):
                    return "".join(shown), int(read.split()[1])
                shown.append(read)
        finally:
            watchdog.cancel()
        raise AssertionError(f"{line}: the shell ended:\n{''.join(shown)}")


def _asked(said: str, line: str) -> str:
    """With a keyboard on which ``y`` is typed, where a person is asked."""
    return f"echo y | script -qec '{line}' /dev/null" if said in ASKS else line
