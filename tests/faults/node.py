"""One node of a fault scenario: started, frozen and stopped any number of times."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from delay_devtools import nodes as devtools
from delay_devtools.service import NodeLog, ServiceProcess

LET_GO: Final = frozenset({"ownership_lost", "handed_over", "slice_interrupted", "loop_failed"})
"""Log events after which the node no longer owns the slice that they name."""
ENDED: Final = frozenset({"worker_died", "stopping"})
"""Log events after which the node owns no slice, as it has one worker in this suite."""

_PROBE: Final = """\
import socket, sys
with socket.create_connection(sys.argv[1:], timeout=1) as connection:
    connection.settimeout(1)
    connection.sendall(b"GET /readyz HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
    sys.exit(b" 200 " not in connection.recv(20))
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a node runs.

    Args:
        wrapper: command that starts the node's command, such as ``ip netns exec NAME``.
        environment: further environment variables.
        state_dir: state folder; None: a new one.
        sets: settings of this node only.
        fault: fault point of its first run, ``NAME:ACTION:N``.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    state_dir: Path | None = None
    sets: Sequence[str] = ()
    fault: str = ""


class Node(devtools.LocalNode):
    """Node that can be started at another place each time, and whose whole log is read.

    Args:
        number: number of the node, whose id is ``n<number>``, and of the broker beside it.
        folder: folder of log and state.
        sets: settings that all nodes share.
        place: where and how its first run takes place.
        name: name of its files, if two nodes have one id.
    """

    def __init__(
        self, number: int, folder: Path, sets: Sequence[str], place: Place, name: str = ""
    ) -> None:
        sets = [*sets, f"node.broker_id={number}"]
        super().__init__(f"n{number}", sets, folder, name=name, state_dir=place.state_dir)
        self.broker_id = number
        self.is_frozen = False
        self.place = place
        """Place of its next run; settings and folder stay those of the first place."""
        self._sets += place.sets
        self._all = NodeLog(self.log_path)

    def start(self, *sets: str, fault: str = "") -> None:
        """Start the node with further settings and a fault point; return at once."""
        assert not self.running, f"{self.node_id} is running already"
        self.is_frozen = False
        self._service = ServiceProcess(
            [*self._sets, *sets],
            self.log_path,
            fault=fault,
            environment=self.place.environment,
            wrapper=self.place.wrapper,
        )

    def start_first(self) -> None:
        """Start the node with the fault point of its place."""
        self.start(fault=self.place.fault)

    def freeze(self) -> None:
        """Send SIGSTOP to the whole tree, as if the machine stood still."""
        self.is_frozen = True
        self.service.freeze()

    def thaw(self) -> None:
        """Send SIGCONT to the whole tree."""
        self.service.thaw()
        self.is_frozen = False

    def worker(self) -> psutil.Process:
        """Return its only worker process."""
        (worker,) = self.service.workers()
        return worker

    def has_stopped_itself(self) -> bool:
        """Return whether a worker stands still at a fault point."""
        return any(one.status() == psutil.STATUS_STOPPED for one in self.service.workers())

    def signal_worker(self, number: signal.Signals) -> None:
        """Send its worker a signal."""
        self.worker().send_signal(number)

    def wipe(self) -> None:
        """Delete the state folder of the node, which must be stopped."""
        assert not self.running, f"stop {self.node_id} before its store is wiped"
        shutil.rmtree(self.state_dir)

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` says within a second that it may own all that it keeps."""
        served = self.told_now("admin_served")
        if not served:
            return False
        command = [*self.place.wrapper, sys.executable, "-I", "-c", _PROBE]
        command += str(served[-1]["url"]).rsplit(":", 1)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Return its log lines of all runs whose message is one of ``names``; no names: all."""
        return self._all.lines(*names)

    def told_now(self, *names: str) -> list[dict[str, Any]]:
        """Return its log lines of this run whose message is one of ``names``; no names: all."""
        return self.service.events(*names)

    def serves(self) -> dict[int, str]:
        """Return the slices that it owns by its own log, with the times of the take-overs."""
        owned: dict[int, str] = {}
        if not self.running or self.is_frozen:
            return owned
        for line in self.told_now("took_over", *LET_GO, *ENDED):
            if line["message"] == "took_over":
                owned[line["slice"]] = str(line["timestamp"])
            elif line["message"] in ENDED:
                owned.clear()
            elif "slice" in line:
                owned.pop(line["slice"], None)
            else:  # the writer of all its slices is lost, or their loop has failed
                owned.clear()
        return owned
