"""One node of a scenario: its lives, its log, its troubles."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from delay_devtools import nodes as devtools
from delay_devtools.node_log import NodeLog
from delay_devtools.service import ServiceProcess

LET_GO: Final = frozenset({"ownership_lost", "handed_over", "slice_interrupted", "loop_failed"})
"""Events after which the slice that they name is not this node's."""
ENDED: Final = frozenset({"worker_died", "stopping"})
"""Events after which no slice is, for the suite gives each node one worker."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a node runs.

    Args:
        wrapper: a command in front of its own, such as one that enters a network namespace.
        environment: more environment variables.
        state_dir: its folder; by default one of its own.
        sets: settings of this node only.
        fault: a fault point of its first life, ``NAME:ACTION:N``.
    """

    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    state_dir: Path | None = None
    sets: Sequence[str] = ()
    fault: str = ""


class Node(devtools.LocalNode):
    """A node whose next life may run elsewhere, and whose whole log is read.

    Args:
        number: makes its id ``n<number>``, and is the broker that it sits beside.
        folder: its log and state.
        sets: settings that all nodes share.
        place: what is its own.
        name: of its log, where two nodes bear one id.
    """

    def __init__(
        self, number: int, folder: Path, sets: Sequence[str], place: Place, name: str = ""
    ) -> None:
        sets = [*sets, f"node.broker_id={number}"]
        super().__init__(f"n{number}", sets, folder, name=name, state_dir=place.state_dir)
        self.broker_id = number
        self.is_frozen = False
        self.place = place
        """Where its next life runs; settings and folder stay those of the first place."""
        self._sets += place.sets
        self._all = NodeLog(self.log_path)

    def start(self, *sets: str, fault: str = "") -> None:
        """Begin a life; not awaited."""
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
        """Begin the first life, with the fault of its place."""
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
        """Lose its store, between two lives."""
        assert not self.running, f"stop {self.node_id} before its store is wiped"
        shutil.rmtree(self.state_dir)

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Return its log lines over all lives, or those of these names."""
        return self._all.lines(*names)

    def told_now(self, *names: str) -> list[dict[str, Any]]:
        """Return its log lines of this life, or those of these names."""
        return self.service.events(*names)

    def serves(self) -> dict[int, str]:
        """Slices that it delivers, by its own word, and since when; none while it can't."""
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
