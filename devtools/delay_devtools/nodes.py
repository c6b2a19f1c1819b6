"""Nodes of the service on one machine: started, killed, frozen, and watched by their logs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from delay_devtools.child import START_S, tail
from delay_devtools.service import NodeLog, ServiceProcess
from delayservice.base.errors import ClusterError

TOOK_OVER: Final = "took_over"
HANDED_OVER: Final = "handed_over"
LOST: Final = "ownership_lost"
# Part of a logged reason for a loss: the broker refused a commit, as the slice has a newer owner.
FENCED: Final = "fenced"


@dataclass(frozen=True, slots=True)
class SliceEvent:
    at_ms: float
    node_id: str
    what: str
    slice_no: int
    epoch: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class SliceOwnership:
    # handed_over_ms: None if the node did not hand the slice over.
    slice_no: int
    node_id: str
    epoch: int
    from_ms: float
    handed_over_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    # at_ms: time of the signal; dead_ms: end of the node's last process.
    at_ms: float
    dead_ms: float
    slices: tuple[int, ...]


def ownerships(events: Sequence[SliceEvent]) -> list[SliceOwnership]:
    let_go = {
        (one.slice_no, one.node_id, one.epoch): one.at_ms
        for one in events
        if one.what == HANDED_OVER
    }
    taken = sorted(
        (one.slice_no, one.epoch, one.node_id, one.at_ms) for one in events if one.what == TOOK_OVER
    )
    return [
        SliceOwnership(number, node_id, epoch, at_ms, let_go.get((number, node_id, epoch)))
        for number, epoch, node_id, at_ms in taken
    ]


def owners(events: Sequence[SliceEvent]) -> dict[int, SliceOwnership]:
    return {tenure.slice_no: tenure for tenure in ownerships(events)}


def are_calm(owned: Iterable[SliceOwnership], now_ms: float, quiet_ms: float) -> bool:
    """Return whether no slice is on its way to another node, and none has come to its owner within
    the last ``quiet_ms``.
    """
    # On a busy machine the next owner may take longer than that to take over.
    return all(one.handed_over_ms is None and now_ms - one.from_ms >= quiet_ms for one in owned)


def hand_overs(events: Sequence[SliceEvent]) -> list[tuple[int, float]]:
    every = ownerships(events)
    return [
        (before.slice_no, before.handed_over_ms)
        for before, after in pairwise(every)
        if before.slice_no == after.slice_no
        and before.handed_over_ms is not None
        # A node that was frozen may hand over a slice that has another owner already.
        and before.handed_over_ms <= after.from_ms
    ]


SECRET: Final = "only-on-one-machine-0123456789"  # noqa: S105  # nothing else is signed with it
USER: Final = "delayservice"
_LOOK_S: Final = 0.02
_TAIL_LINES: Final = 8
_START_S_MAX: Final = 180.0


def sets_of_several(zookeeper: str, root: str) -> list[str]:
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
    """One node, which can be started and stopped any number of times, with one log for all starts.

    ``fault`` is a fault point (``delayservice.base.faults``) and action, ``NAME:ACTION``, triggered
    by ``spring``. ``name`` is the prefix of file names, needed if two nodes have the same id.
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
        # Slices that each worker owns, by number of the worker; a worker that loses its writer
        # loses all.
        self._held: dict[int, set[int]] = {}

    @property
    def service(self) -> ServiceProcess:
        if self._service is None:
            raise ClusterError(f"{self.node_id} was never started: call start()")
        return self._service

    @property
    def running(self) -> bool:
        return self._service is not None and self._service.running

    def start(self) -> None:
        self._trap.unlink(missing_ok=True)
        self.slice_events()
        self._held.clear()  # entries of the former start
        self._service = ServiceProcess(self._sets, self.log_path, fault=self._fault)

    def kill(self) -> None:
        if self._service is not None:
            self._service.kill()

    def stop(self) -> int:
        return self.service.stop()

    def stop_in_order(self) -> None:
        try:
            status = self.stop()
        except subprocess.TimeoutExpired as exc:
            late = f"did not end within {exc.timeout:.0f} s of SIGTERM"
            raise ClusterError(self.service.explain(late)) from exc
        if status:
            raise ClusterError(f"{self.node_id} ended with status {status} after SIGTERM")

    def spring(self, timeout_s: float) -> bool:
        # If no worker passes the fault point in time, none stops later.
        self._trap.touch()
        if self.service.wait_stopped(timeout_s):
            return True
        try:
            self._trap.unlink()
        except FileNotFoundError:  # a worker has just removed it, and stops
            return self.service.wait_stopped(timeout_s)
        return False

    def slice_events(self) -> list[SliceEvent]:
        for line in self._log.read_on():
            self._events += slice_events_of(self.node_id, line, self._held)
        return self._events

    def log_tail(self) -> str:
        return tail(self.log_path, _TAIL_LINES)


def slice_events_of(
    node_id: str, line: Mapping[str, Any], held: dict[int, set[int]]
) -> list[SliceEvent]:
    # A line about a lost writer names no slice: it is about all slices of its worker (held).
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
    """Nodes that share the slices of a cluster. Their logs tell which node owns a slice."""

    def __init__(self, nodes: Iterable[LocalNode], slices: int) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.slices = slices
        # Name of each slice's owner at the last await_calm, by slice number; slices return there
        # when all nodes run.
        self.home: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()

    def start(self) -> None:
        started_ms = time.time() * 1_000
        for node in self.nodes.values():
            node.start()

        def are_owned() -> bool:
            now = [one for one in self.owners().values() if one.from_ms >= started_ms]
            return len(now) == self.slices

        self.await_true(are_owned, "every slice has an owner", timeout_s=_START_S_MAX)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop_in_order()

    def slice_events(self) -> list[SliceEvent]:
        return [event for node in self.nodes.values() for event in node.slice_events()]

    def owners(self) -> dict[int, SliceOwnership]:
        # Whether the node still runs or not.
        return owners(self.slice_events())

    def owned_by(self, node: LocalNode) -> dict[int, SliceOwnership]:
        return {n: one for n, one in self.owners().items() if one.node_id == node.node_id}

    def owner(self, slice_no: int) -> LocalNode:
        return self.nodes[self.owners()[slice_no].node_id]

    def await_calm(self, quiet_s: float) -> None:
        # home: the owners to which slices return when all nodes run.
        self.await_true(
            lambda: are_calm(self.owners().values(), time.time() * 1_000, quiet_s * 1_000),
            "all nodes agree on the owners",
        )
        self.home = self._owner_ids()

    def await_home(self) -> None:
        self.await_true(
            lambda: self._owner_ids() == self.home, "every slice is back where it belongs"
        )

    def _owner_ids(self) -> dict[int, str]:
        return {number: tenure.node_id for number, tenure in self.owners().items()}

    def await_successors(
        self, before: Mapping[int, SliceOwnership], resting: Collection[LocalNode]
    ) -> None:
        def are_followed() -> bool:
            now = self.owners()
            return all(now[n].epoch > tenure.epoch for n, tenure in before.items())

        self.await_true(are_followed, f"others have taken over {sorted(before)}", resting)

    def kill_owner(self, slice_no: int) -> Kill:
        # The node is started again as soon as others own what it had.
        node = self.owner(slice_no)
        before = self.owned_by(node)
        at_ms = time.time() * 1_000
        node.kill()
        dead_ms = time.time() * 1_000
        self.await_successors(before, [node])
        node.start()
        return Kill(at_ms, dead_ms, tuple(before))

    def await_true(
        self,
        condition: Callable[[], bool],
        what: str,
        resting: Collection[LocalNode] = (),
        timeout_s: float = START_S,
    ) -> None:
        # Nodes in resting are stopped or frozen, and need not run.
        deadline_s = time.monotonic() + timeout_s
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
            time.sleep(_LOOK_S)
