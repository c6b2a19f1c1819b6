"""Nodes over a model of ZooKeeper in virtual time, for logs to read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from delayservice.config.cluster import Placement
from delayservice.engine.ports import Role
from ha.notes import NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts
from ha.zookeeper_session import MEMBERS
from tests.transcripts.events import Events
from tests.transcripts.model_zookeeper import ModelZooKeeper
from tests.transcripts.process import Process, owners_told

CATCH_UP_S = 1.0
_LOOK_S = 0.1
_LEAVE_S = 8.0


class Node(Process):
    """A process with a slice loop that serves and stops as the real one does."""

    def __init__(self, world: World, note: NodeNote) -> None:
        self.world = world
        self.behind_s = 0.0
        self.serving: set[int] = set()
        self.roles: dict[int, Role] = {}
        self._taking: set[int] = set()
        self._stopping: set[int] = set()
        self._kept_since_s: dict[int, float] = {}
        super().__init__(world.zookeeper, world.placement, note)
        self._tell()
        self._look()
        self._turn_soon()

    def _tell(self) -> None:
        """Once a second: what exists, and how far its copies are."""
        if self.is_dead:
            return
        if not self.is_frozen:
            now_s = self.events.now_s
            if self.serve(self.world.told(self.name)):
                copies = ", ".join(map(str, sorted(self.kept))) or "none"
                self.events.say(self.name, f"keeps copies of {copies}")
            self._kept_since_s = {n: self._kept_since_s.get(n, now_s) for n in sorted(self.kept)}
            for slice_no, since_s in self._kept_since_s.items():
                lag_s = self.behind_s if now_s - since_s >= CATCH_UP_S else math.inf
                self.ownership.standing(slice_no, SliceStanding({}, lag_s))
        self.events.after(1.0, self._tell)

    def _look(self) -> None:
        if not self.is_dead:
            self._see()
            self.events.after(_LOOK_S, self._look)

    def _see(self) -> None:
        """What the loops find when they ask for their roles."""
        if not self.is_running:
            return
        for slice_no in self._kept_since_s.keys() | self.serving:
            role = self.ownership.roles().get(slice_no, Role.REPLICA)
            if role is not self.roles.get(slice_no, Role.REPLICA):
                epoch = f", epoch {self.ownership.epoch(slice_no)}" if role is Role.OWNER else ""
                self.events.say(self.name, f"slice {slice_no}: {role.value}{epoch}")
            self.roles[slice_no] = role
            self._follow(slice_no, role)

    def _follow(self, slice_no: int, role: Role) -> None:
        events = self.events
        if role is Role.OWNER and slice_no not in self.serving | self._taking:
            self._taking.add(slice_no)
            events.after(events.delay_s("take over"), lambda: self._take_over(slice_no))
        elif not role.keeps_owning and slice_no in self.serving - self._stopping:
            self._stopping.add(slice_no)
            events.after(events.delay_s("transaction"), lambda: self._stop(slice_no))

    def _take_over(self, slice_no: int) -> None:
        self._taking.discard(slice_no)
        if not self.is_running or not self.is_told_owner(slice_no):
            return
        if slice_no in self.world.broken.get(self.name, ()):
            self.events.say(self.name, f"slice {slice_no}: gives up")
            self.ownership.gave_up(slice_no, "broken")
        elif self.ownership.confirm_all([slice_no]):
            epoch = self.ownership.epoch(slice_no)
            self.events.say(self.name, f"slice {slice_no}: serves in epoch {epoch}")
            self.serving.add(slice_no)
            self.ownership.settling(slice_no, is_settling=True)

    def _stop(self, slice_no: int) -> None:
        self._stopping.discard(slice_no)
        if self.is_running:
            self.serving.discard(slice_no)
            self.events.say(self.name, f"slice {slice_no}: has stopped")
            self.ownership.settling(slice_no, is_settling=False)

    def leave(self) -> None:
        """SIGTERM."""
        self.ownership.leaving.set()
        self._turn_soon()
        self._end_when_left(self.events.now_s + _LEAVE_S)

    def _end_when_left(self, deadline_s: float) -> None:
        if self.is_dead:
            return
        if self.ownership.left.is_set() or self.events.now_s >= deadline_s:
            self.events.say(self.name, "ends")
            self.end()
        else:
            self.events.after(0.02, lambda: self._end_when_left(deadline_s))


class World:
    """The nodes, the slices and ZooKeeper."""

    def __init__(self, events: Events, slices: int = 3, **placement: Any) -> None:
        self.events = events
        self.placement = Placement(**placement)
        self.zookeeper = ModelZooKeeper(events)
        self.slices: list[SliceFacts] = []
        self.processes: list[Node] = []
        self.broken: dict[str, set[int]] = {}
        self.leaders: dict[str, int] = {}
        events.check = self._check
        self.grow(slices)

    def now_s(self) -> float:
        """The clock of every node."""
        return self.events.now_s

    def grow(self, slices: int) -> None:
        """So many slices exist now; partition n is led by broker 1, 2, 3, 1, 2, 3 and so on."""
        self.slices = [SliceFacts(n, 1 + n % 3, (1 + n % 3,)) for n in range(slices)]

    def told(self, name: str) -> list[SliceFacts]:
        """What a node hears from Kafka, and which leaders count for it."""
        leader = self.leaders.get(name)
        return [replace(f, leader=leader) if leader else f for f in self.slices]

    def run(self, for_s: float) -> None:
        """Let time pass."""
        self.events.run(self.events.now_s + for_s)

    def start(self, name: str, *, again_as: str = "") -> Node:
        """Start a process; node a sits beside broker 1, b beside 2, and so on."""
        instance = again_as or f"{name}{sum(p.name == name for p in self.processes) + 1}"
        note = NodeNote(name, instance, workers=1, broker_id=1 + ord(name[0]) - ord("a"))
        self.events.say(name, f"starts as {instance}")
        node = Node(self, note)
        self.processes.append(node)
        return node

    def node(self, name: str) -> Node:
        """The process of that name that was started last."""
        return next(p for p in reversed(self.processes) if p.name == name)

    def do(self, name: str, what: str) -> None:
        """Something happens to a node: kill, freeze, wake, cut, mend, leave."""
        self.events.say("---", f"{what} {name}")
        getattr(self.node(name), what)()

    def unregister(self, name: str) -> None:
        """By hand."""
        self.events.say("---", f"the live node of {name} is deleted by hand")
        del self.zookeeper.lives[f"{name}:0"]
        self.zookeeper.changed(MEMBERS)

    def serving(self) -> dict[int, list[str]]:
        """Who serves each slice."""
        alive = [p for p in self.processes if p.is_running]
        return {f.slice_no: [p.name for p in alive if f.slice_no in p.serving] for f in self.slices}

    def _check(self) -> None:
        for facts in self.slices:
            owners = owners_told(self.processes, facts.slice_no)
            assert len(owners) <= 1, f"slice {facts.slice_no} is owned by {owners}"
