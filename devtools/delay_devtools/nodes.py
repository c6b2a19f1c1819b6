"""Nodes of the service on one machine: started, killed, frozen, and watched by their logs."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from delay_devtools.node_log import NodeLog, tail
from delay_devtools.ownership import (
    HANDED_OVER,
    LOST,
    TOOK_OVER,
    SliceEvent,
    SliceOwnership,
    owners,
)
from delay_devtools.service import START_TIMEOUT_S, ServiceProcess
from delayservice.base.errors import ClusterError

SECRET: Final = "only-on-one-machine-0123456789"  # noqa: S105  # nothing else is signed with it
USER: Final = "delayservice"
LOGIN: Final = ("digest", f"{USER}:{SECRET}")
"""ZooKeeper scheme and login of a group's nodes; other users may not remove their data."""
_LOOK_S: Final = 0.02
_TAIL_LINES: Final = 8
_START_S_MAX: Final = 180.0
"""Time limit for the start of a whole group on a busy machine, in s."""


def sets_of_several(zookeeper: str, root: str) -> list[str]:
    """Return the ``section.key=value`` settings with which nodes share slices by way of ZooKeeper.

    Args:
        zookeeper: ``host:port,…`` of the ensemble.
        root: ZooKeeper path below which these nodes keep their data.
    """
    return [
        f"zookeeper.hosts={zookeeper}",
        f"zookeeper.root={root}",
        "zookeeper.auth=digest",
        f"zookeeper.username={USER}",
        f"zookeeper.password={SECRET}",
        f"node.cluster_secret={SECRET}",
        "placement.leader_stable_s=3",  # else slices come home a minute after a crash
    ]


class LocalNode:
    """One node, which can be started and stopped any number of times, with one log file for all
    starts.

    Args:
        node_id: name of the node.
        sets: ``section.key=value`` settings.
        folder: folder of its state and its log.
        fault: fault point (place in the service's code, see ``delayservice.base.faults``) and
            action, ``NAME:ACTION``; ``spring`` triggers it. Empty: no fault.
        name: prefix of its file names, needed if two nodes have the same id; empty: the id.
        state_dir: state folder of the node; None: one in ``folder``.
    """

    def __init__(
        self,
        node_id: str,
        sets: Sequence[str],
        folder: Path,
        fault: str = "",
        name: str = "",
        state_dir: Path | None = None,
    ) -> None:
        self.node_id = node_id
        name = name or node_id
        self.log_path = folder / f"{name}.log"
        self.state_dir = state_dir or folder / f"{name}-state"
        self._trap = folder / f"{name}.trap"
        self._fault = f"{fault}:{self._trap}" if fault else ""
        self._sets = [*sets, f"node.node_id={node_id}", f"node.state_dir={self.state_dir}"]
        self._service: ServiceProcess | None = None
        self._log = NodeLog(self.log_path, keep=(TOOK_OVER, HANDED_OVER, LOST))
        self._events: list[SliceEvent] = []
        self._held: dict[int, set[int]] = {}
        """Slices that each worker owns, by number of the worker; a worker that loses its writer
        loses all.
        """

    @property
    def service(self) -> ServiceProcess:
        """Return the process tree of the node's current or last start.

        Raises:
            ClusterError: the node was never started.
        """
        if self._service is None:
            raise ClusterError(f"{self.node_id} was never started: call start()")
        return self._service

    @property
    def running(self) -> bool:
        """Return whether the node's supervisor process exists, frozen or not."""
        return self._service is not None and self._service.running

    def start(self) -> None:
        """Start the node's processes, without waiting until it owns slices."""
        self._trap.unlink(missing_ok=True)
        self.slice_events()
        self._held.clear()  # entries of the former start
        self._service = ServiceProcess(self._sets, self.log_path, fault=self._fault)

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node, and wait until they are dead."""
        if self._service is not None:
            self._service.kill()

    def stop(self) -> int:
        """Send SIGTERM to the node, wait for its end, and return the exit status.

        Raises:
            TimeoutExpired: it did not end in time.
        """
        return self.service.stop()

    def stop_in_order(self) -> None:
        """Send SIGTERM to the node, and wait until it has ended with status 0.

        Raises:
            ClusterError: its exit status is not 0, or it did not end in time.
        """
        try:
            status = self.stop()
        except subprocess.TimeoutExpired as exc:
            raise ClusterError(
                f"{self.node_id} did not end within {exc.timeout:.0f} s of SIGTERM, its log ends:\n"
                f"{self.log_tail()}"
            ) from exc
        if status:
            raise ClusterError(f"{self.node_id} ended with status {status} after SIGTERM")

    def spring(self, timeout_s: float) -> bool:
        """Make the next worker that passes the node's fault point stop there (SIGSTOP); return
        whether one did within ``timeout_s`` seconds. If not, no worker stops later.
        """
        self._trap.touch()
        if self.service.wait_stopped(timeout_s):
            return True
        try:
            self._trap.unlink()
        except FileNotFoundError:  # a worker has just removed it, and stops
            return self.service.wait_stopped(timeout_s)
        return False

    def slice_events(self) -> list[SliceEvent]:
        """Return the take-overs, hand-overs and losses of slices in the node's log, from all its
        starts.
        """
        for line in self._log.read_on():
            self._events += slice_events_of(self.node_id, line, self._held)
        return self._events

    def log_tail(self) -> str:
        """Return the last lines of the node's log."""
        return tail(self.log_path, _TAIL_LINES)


def slice_events_of(
    node_id: str, line: Mapping[str, Any], held: dict[int, set[int]]
) -> list[SliceEvent]:
    """Return the take-overs, hand-overs and losses of slices in a line of a node's log, one for
    each slice; empty: the line is about no slice.

    Args:
        node_id: the node that logged it.
        line: a parsed line: a slice was taken over, handed over or lost.
        held: slices that each worker owns, by number of the worker; updated. A line about a lost
            writer names no slice: it is about all slices of its worker.
    """
    what = str(line["message"])
    if "slice" not in line and what != LOST:
        return []
    mine = held.setdefault(int(line.get("worker", 0)), set())
    numbers = [int(line["slice"])] if "slice" in line else sorted(mine)
    if what == TOOK_OVER:
        mine.update(numbers)
    else:
        mine.difference_update(numbers)
    at_ms = datetime.fromisoformat(line["timestamp"]).timestamp() * 1_000
    epoch, why = int(line.get("epoch", 0)), str(line.get("why", ""))
    return [SliceEvent(at_ms, node_id, what, number, epoch, why) for number in numbers]


class NodeGroup:
    """Nodes that share the slices of a cluster; those that still run at the end of the context are
    killed. Their logs tell which node owns a slice.

    Args:
        nodes: the nodes, not started yet.
        slices: number of partitions of the delay topics.
    """

    def __init__(self, nodes: Iterable[LocalNode], slices: int) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.slices = slices
        self.home: dict[int, str] = {}
        """Name of each slice's owner at the last ``await_calm``, by slice number; slices return
        there when all nodes run.
        """

    def __enter__(self) -> Self:
        """Return the group; no node runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all nodes."""
        for node in self.nodes.values():
            node.kill()

    def start(self) -> None:
        """Start all nodes, and wait until every slice has an owner.

        Raises:
            ClusterError: a node ended, or a slice has no owner in time.
        """
        started_ms = time.time() * 1_000
        for node in self.nodes.values():
            node.start()

        def are_owned() -> bool:
            now = [one for one in self.owners().values() if one.from_ms >= started_ms]
            return len(now) == self.slices

        self.await_true(are_owned, "every slice has an owner", timeout_s=_START_S_MAX)

    def stop(self) -> None:
        """Send SIGTERM to the nodes, one after the other, and wait for the end of each.

        Raises:
            ClusterError: a node's exit status is not 0, or it did not end in time.
        """
        for node in self.nodes.values():
            node.stop_in_order()

    def slice_events(self) -> list[SliceEvent]:
        """Return the take-overs, hand-overs and losses of slices in the logs of all nodes."""
        return [event for node in self.nodes.values() for event in node.slice_events()]

    def owners(self) -> dict[int, SliceOwnership]:
        """Return, by slice number, the ownership of each slice with the highest epoch, whether its
        node still runs or not.
        """
        return owners(self.slice_events())

    def owned_by(self, node: LocalNode) -> dict[int, SliceOwnership]:
        """Return, by slice number, the last ownerships of those slices whose last owner is
        ``node``.
        """
        return {n: one for n, one in self.owners().items() if one.node_id == node.node_id}

    def owner(self, slice_no: int) -> LocalNode:
        """Return the node that was the last owner of a slice."""
        return self.nodes[self.owners()[slice_no].node_id]

    def await_calm(self, quiet_s: float) -> None:
        """Wait until no slice has changed its owner for ``quiet_s`` seconds; set ``home`` to the
        owners.

        Raises:
            ClusterError: the condition does not hold in time, or a node has ended.
        """

        def is_calm() -> bool:
            last_ms = max(tenure.from_ms for tenure in self.owners().values())
            return time.time() * 1_000 - last_ms >= quiet_s * 1_000

        self.await_true(is_calm, "all nodes agree on the owners")
        self.home = self._owner_ids()

    def await_home(self) -> None:
        """Wait until every slice has the owner that it had at the last ``await_calm``.

        Raises:
            ClusterError: the condition does not hold in time, or a node has ended.
        """
        self.await_true(
            lambda: self._owner_ids() == self.home, "every slice is back where it belongs"
        )

    def _owner_ids(self) -> dict[int, str]:
        return {number: tenure.node_id for number, tenure in self.owners().items()}

    def await_successors(
        self, before: Mapping[int, SliceOwnership], resting: Collection[LocalNode]
    ) -> None:
        """Wait until each ownership in ``before`` has been followed by one with a higher epoch.

        Args:
            before: ownerships that have ended, or are about to.
            resting: nodes that do not run or are frozen.

        Raises:
            ClusterError: the condition does not hold in time, or a node has ended.
        """

        def are_followed() -> bool:
            now = self.owners()
            return all(now[n].epoch > tenure.epoch for n, tenure in before.items())

        self.await_true(are_followed, f"others have taken over {sorted(before)}", resting)

    def await_true(
        self,
        condition: Callable[[], bool],
        what: str,
        resting: Collection[LocalNode] = (),
        timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Wait ``timeout_s`` seconds at most until ``condition`` returns True; ``what`` describes
        the condition in the error. Nodes in ``resting`` are stopped or frozen, and need not run.

        Raises:
            ClusterError: the condition does not hold in time, or a node that is not ``resting`` has
                ended.
        """
        deadline_s = time.monotonic() + timeout_s
        tick = threading.Event()  # only a timer: other processes make the condition true
        awake = [node for node in self.nodes.values() if node not in resting]
        while not condition():
            ended = [node for node in awake if not node.running]
            if ended or time.monotonic() > deadline_s:
                tails = "\n".join(
                    f"{node.node_id} {'runs' if node.running else 'has ended'}, its log ends:\n"
                    f"{node.log_tail()}"
                    for node in ended or awake
                )
                raise ClusterError(f"not reached within {timeout_s:.0f} s: {what}; {tails}")
            tick.wait(_LOOK_S)
