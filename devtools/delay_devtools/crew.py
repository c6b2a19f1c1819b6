"""Several nodes of the service on one machine: started, killed, frozen, and watched from outside.

What is known of them is what they log: who took which slice over, with which epoch, and when.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from delay_devtools.service import START_TIMEOUT_S, ServiceProcess
from delay_devtools.tenures import HANDED_OVER, LOST, TOOK_OVER, Tenure, Told, owners
from delayservice.base.errors import ClusterError

SECRET: Final = "only-on-one-machine-0123456789"  # noqa: S105  # nothing else is signed with it
_LOOK_S: Final = 0.02
_TAIL_LINES: Final = 8
_START_S_MAX: Final = 180.0
"""Of all nodes together, with very many slices on a machine that has other work."""


class Node:
    """One node, started and stopped as often as wanted; one log over all its lives.

    Args:
        node_id: its name.
        sets: ``section.key=value`` settings.
        folder: of its state and its log.
        fault: a fault point and what to do there, ``NAME:ACTION``; ``spring`` says when.
    """

    def __init__(self, node_id: str, sets: Sequence[str], folder: Path, fault: str = "") -> None:
        self.node_id = node_id
        self._folder = folder
        self._trap = folder / f"{node_id}.trap"
        self._fault = f"{fault}:{self._trap}" if fault else ""
        self._log_path = folder / f"{node_id}.log"
        self._sets = [
            *sets,
            f"node.node_id={node_id}",
            f"node.state_dir={folder / node_id}",
        ]
        self._service: ServiceProcess | None = None
        self._told: list[Told] = []
        self._held: dict[int, set[int]] = {}
        """Slices that each worker holds: a lost writer loses all of them."""
        self._read_to = 0

    @property
    def service(self) -> ServiceProcess:
        """Its present process tree.

        Raises:
            ClusterError: it was never started.
        """
        if self._service is None:
            raise ClusterError(f"{self.node_id} was never started: call start()")
        return self._service

    @property
    def running(self) -> bool:
        """Return whether its supervisor is there, frozen or not."""
        return self._service is not None and self._service.running

    def start(self) -> None:
        """Begin a life; not awaited."""
        self._trap.unlink(missing_ok=True)
        self.told()
        self._held.clear()  # of the life before
        self._service = ServiceProcess(self._sets, self._log_path, fault=self._fault)

    def kill(self) -> None:
        """SIGKILL to every process of it; all are dead when this returns."""
        if self._service is not None:
            self._service.kill()

    def stop(self) -> None:
        """SIGTERM, and wait until it has gone.

        Raises:
            ClusterError: it did not end in good order, or not in time.
        """
        try:
            status = self.service.stop()
        except subprocess.TimeoutExpired as exc:
            raise ClusterError(
                f"{self.node_id} did not end within {exc.timeout:.0f} s of SIGTERM, its log ends:\n"
                f"{self.log_tail()}"
            ) from exc
        if status:
            raise ClusterError(f"{self.node_id} ended with status {status} after SIGTERM")

    def spring(self, timeout_s: float) -> bool:
        """Have a worker act at the fault point when it next passes; whether it has stopped."""
        self._trap.touch()
        if self.service.wait_stopped(timeout_s):
            return True
        try:
            self._trap.unlink()
        except FileNotFoundError:  # taken at the last moment
            return self.service.wait_stopped(timeout_s)
        return False

    def processes(self) -> list[psutil.Process]:
        """Its supervisor and whatever that has started."""
        top = psutil.Process(self.service.pid)
        return [top, *top.children(recursive=True)]

    def told(self) -> list[Told]:
        """Return what it has logged of its slices, over all lives."""
        if self._log_path.exists():
            self._read_on()
        return self._told

    def _read_on(self) -> None:
        with self._log_path.open("rb") as log:
            log.seek(self._read_to)
            for raw in log:
                if not raw.endswith(b"\n"):
                    return  # being written
                self._read_to += len(raw)
                line = _parsed(raw)
                if line is not None:
                    self._told += told_of(self.node_id, line, self._held)

    def log_tail(self) -> str:
        """The last lines of its log."""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """A line about slices; None for others, and for one that a kill has torn."""
    if not any(name.encode() in raw for name in (TOOK_OVER, HANDED_OVER, LOST)):
        return None
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    named = isinstance(line, dict) and line.get("message") in (TOOK_OVER, HANDED_OVER, LOST)
    return line if named and ("slice" in line or line["message"] == LOST) else None


def told_of(node_id: str, line: Mapping[str, Any], held: dict[int, set[int]]) -> list[Told]:
    """Return what a line of a node's log says of slices, one entry for each.

    Args:
        node_id: whose log it is.
        line: a parsed line.
        held: the slices that each worker holds; followed here. A line about a lost writer names
            no slice: it is about all that its worker holds.
    """
    mine, what = held.setdefault(int(line.get("worker", 0)), set()), str(line["message"])
    numbers = [int(line["slice"])] if "slice" in line else sorted(mine)
    if what == TOOK_OVER:
        mine.update(numbers)
    else:
        mine.difference_update(numbers)
    at_ms = datetime.fromisoformat(line["timestamp"]).timestamp() * 1_000
    epoch, why = int(line.get("epoch", 0)), str(line.get("why", ""))
    return [Told(at_ms, node_id, what, number, epoch, why) for number in numbers]


class Crew:
    """All nodes; whatever still runs at the end is killed.

    Args:
        nodes: not started yet.
        slices: partitions of the delay topics.
    """

    def __init__(self, nodes: Iterable[Node], slices: int) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.slices = slices
        self.home: dict[int, str] = {}
        """Where each slice was when all was calm: there it returns when all nodes run."""

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind."""
        for node in self.nodes.values():
            node.kill()

    def start(self) -> None:
        """Start all, and wait until every slice has an owner.

        Raises:
            ClusterError: a node ended, or it took too long.
        """
        started_ms = time.time() * 1_000
        for node in self.nodes.values():
            node.start()

        def are_owned() -> bool:
            now = [one for one in self.owners().values() if one.from_ms >= started_ms]
            return len(now) == self.slices

        self.await_true(
            are_owned,
            "every slice has an owner",
            timeout_s=_START_S_MAX,
        )

    def stop(self) -> None:
        """SIGTERM to one after the other."""
        for node in self.nodes.values():
            node.stop()

    def told(self) -> list[Told]:
        """Return what all nodes have logged of their slices."""
        return [line for node in self.nodes.values() for line in node.told()]

    def owners(self) -> dict[int, Tenure]:
        """The last owner of each slice."""
        return owners(self.told())

    def owned_by(self, node: Node) -> dict[int, Tenure]:
        """The slices whose last owner is ``node``."""
        return {n: one for n, one in self.owners().items() if one.node_id == node.node_id}

    def owner(self, slice_no: int) -> Node:
        """The last owner of one slice."""
        return self.nodes[self.owners()[slice_no].node_id]

    # --- conditions ----------------------------------------------------------------------------

    def await_calm(self, quiet_s: float) -> None:
        """Wait until no slice has changed its owner for this time; that is its home then.

        Raises:
            ClusterError: as ``await_true``.
        """

        def is_calm() -> bool:
            last_ms = max(tenure.from_ms for tenure in self.owners().values())
            return time.time() * 1_000 - last_ms >= quiet_s * 1_000

        self.await_true(is_calm, "all nodes agree on the owners")
        self.home = {n: tenure.node_id for n, tenure in self.owners().items()}

    def await_home(self) -> None:
        """Wait until every slice is where it was when all was calm.

        Raises:
            ClusterError: as ``await_true``.
        """
        self.await_true(
            lambda: {n: tenure.node_id for n, tenure in self.owners().items()} == self.home,
            "every slice is back where it belongs",
        )

    def await_successors(self, before: Mapping[int, Tenure], resting: Collection[Node]) -> None:
        """Wait until each of these ownerships has been followed by another.

        Args:
            before: ownerships that have ended, or are about to.
            resting: nodes that don't run, or stand still.

        Raises:
            ClusterError: as ``await_true``.
        """

        def are_followed() -> bool:
            now = self.owners()
            return all(now[n].epoch > tenure.epoch for n, tenure in before.items())

        self.await_true(are_followed, f"others have taken over {sorted(before)}", resting)

    def await_true(
        self,
        condition: Callable[[], bool],
        what: str,
        resting: Collection[Node] = (),
        timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Wait until the condition holds.

        Raises:
            ClusterError: it did not in time, or a node that is not ``resting`` has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        tick = threading.Event()  # awaited with a bound: the condition lies in other processes
        awake = [node for node in self.nodes.values() if node not in resting]
        while not condition():
            ended = [node for node in awake if not node.running]
            if ended or time.monotonic() > deadline_s:
                tails = "\n".join(
                    f"{node.node_id} {'runs' if node.running else 'has ended'}, its log ends:\n"
                    f"{node.log_tail()}"
                    for node in ended or awake
                )
                raise ClusterError(
                    f"it did not come to this within {timeout_s:.0f} s: {what}; {tails}"
                )
            tick.wait(_LOOK_S)


USER: Final = "delayservice"
LOGIN: Final = ("digest", f"{USER}:{SECRET}")
"""User as which nodes that are ``several`` write in ZooKeeper: others may not remove that."""


def sets_of_several(zookeeper: str, root: str) -> list[str]:
    """Settings that make nodes several.

    Args:
        zookeeper: ``host:port,…`` of the ensemble.
        root: where in it they meet.
    """
    return [
        f"zookeeper.hosts={zookeeper}",
        f"zookeeper.root={root}",
        "zookeeper.auth=digest",
        f"zookeeper.username={USER}",
        f"zookeeper.password={SECRET}",
        f"node.cluster_secret={SECRET}",
    ]
