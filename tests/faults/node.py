"""One node of a scenario: its lives, its log, its troubles."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

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


class Node:
    """A node, started and stopped as often as a scenario likes; one log over all its lives.

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
        self.node_id = f"n{number}"
        self.broker_id = number
        name = name or self.node_id
        self.log_path = folder / f"{name}.log"
        self.state_dir = place.state_dir or folder / f"{name}-state"
        self.is_frozen = False
        self.place = place
        """Where its next life runs; settings and folder stay those of the first place."""
        self._sets = [
            *sets,
            f"node.node_id={self.node_id}",
            f"node.broker_id={number}",
            f"node.state_dir={self.state_dir}",
            *place.sets,
        ]
        self._service: ServiceProcess | None = None
        self._lines: list[dict[str, Any]] = []
        self._read_to = 0
        self._life_from = 0

    @property
    def running(self) -> bool:
        """Whether its supervisor is there, frozen or not."""
        return self._service is not None and self._service.running

    @property
    def service(self) -> ServiceProcess:
        """Its present process tree."""
        assert self._service is not None, f"{self.node_id} was never started"
        return self._service

    def start(self, *sets: str, fault: str = "") -> None:
        """Begin a life; not awaited."""
        assert not self.running, f"{self.node_id} is running already"
        self._life_from = len(self.told())
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

    def kill(self) -> None:
        """SIGKILL to the whole tree."""
        if self._service is not None:
            self._service.kill()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        return self.service.stop()

    def freeze(self) -> None:
        """SIGSTOP to the whole tree, as if the machine stood still."""
        self.is_frozen = True
        self.service.freeze()

    def thaw(self) -> None:
        """SIGCONT to the whole tree."""
        self.service.thaw()
        self.is_frozen = False

    def worker(self) -> psutil.Process:
        """Its only worker process."""
        (worker,) = self.service.workers()
        return worker

    def has_stopped_itself(self) -> bool:
        """Whether a worker stands still at a fault point."""
        return any(one.status() == psutil.STATUS_STOPPED for one in self.service.workers())

    def signal_worker(self, number: signal.Signals) -> None:
        """Send its worker a signal."""
        self.worker().send_signal(number)

    def wipe(self) -> None:
        """Lose its store, between two lives."""
        assert not self.running, f"stop {self.node_id} before its store is wiped"
        shutil.rmtree(self.state_dir)

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Its log lines over all lives, or those of these names."""
        self._read_on()
        return [line for line in self._lines if not names or line.get("message") in names]

    def told_now(self, *names: str) -> list[dict[str, Any]]:
        """Its log lines of this life, or those of these names."""
        lines = self.told()[self._life_from :]
        return [line for line in lines if not names or line.get("message") in names]

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

    def _read_on(self) -> None:
        if not self.log_path.exists():
            return
        with self.log_path.open("rb") as log:
            log.seek(self._read_to)
            for raw in log:
                if not raw.endswith(b"\n"):
                    return  # being written
                self._read_to += len(raw)
                line = _parsed(raw)
                if line is not None:
                    self._lines.append(line)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None  # a traceback, or a line that a kill tore
    return line if isinstance(line, dict) else None
