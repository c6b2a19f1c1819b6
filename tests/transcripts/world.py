"""Nodes over a model of ZooKeeper in virtual time: the real ``ElectedOwnership`` on each, its
thread replaced by turns, and a slice loop that serves and stops as the real one does.

What holds, checked after every event: of all processes that are not dead, at most one would get
the answer OWNER for a slice if its loop asked now, frozen and cut-off ones included. For a process
is told OWNER only after its session was seen to hold the owner node, and the node goes only

- by its own resignation, before which the answer has changed and the loop has stopped;
- with its session, whose lease has ended before, for both count from the last beat or earlier;
- by hand: then the answer is wrong until the watch has come, or for an owner that is out of touch
  until its lease is over, and Kafka's fencing has to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.ports import Role
from ha import elected_ownership
from ha.elected_ownership import ElectedOwnership
from ha.notes import NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts
from ha.zookeeper_session import MEMBERS
from tests.transcripts.events import Events
from tests.transcripts.model_zookeeper import SESSION_S, Link, ModelZooKeeper

CATCH_UP_S = 1.0
ALERT_S = 0.4
BY_HAND_S = SESSION_S
"""How long an owner may not know that its node was deleted by hand: if it is out of touch, until
its lease is over."""
_LOOK_S = 0.1
_LEAVE_S = 8.0
_TURNS_PER_S_MAX = 200


class _Wake:
    """In place of the event that the thread waits for."""

    def __init__(self, wanted: Callable[[], None]) -> None:
        self._wanted = wanted

    def set(self) -> None:
        """Have a turn soon."""
        self._wanted()


class _Log:
    """In place of the module's log: what an operator would read becomes part of the transcript."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def debug(self, event: str, **facts: Any) -> None:
        """Not shown."""

    def info(self, event: str, **facts: Any) -> None:
        """Shown, without hints."""
        shown = (f"{name}={fact}" for name, fact in facts.items() if name not in {"hint", "node"})
        self._say(" ".join(("log:", event, *shown)))

    warning = error = info


class Node:
    """One process. Ends by ``kill`` or, in order, by ``leave``."""

    def __init__(self, world: World, note: NodeNote) -> None:
        self.world = world
        self.note = note
        self.name = note.node_id
        self.is_dead = self.is_frozen = False
        self.behind_s = 0.0
        self.serving: set[int] = set()
        self.roles: dict[int, Role] = {}
        self._taking: set[int] = set()
        self._stopping: set[int] = set()
        self._kept_since_s: dict[int, float] = {}
        self._turn_due_s = math.inf
        self._turns: list[float] = []
        self.link = Link(world.zookeeper, self._changed)
        with patch.object(elected_ownership, "Ensemble", lambda *_: self.link):
            self.ownership = ElectedOwnership(
                ZooKeeper(hosts="model:2181"),
                world.placement,
                note,
                0,
                boot_s=world.now_s,
                alert_s=ALERT_S,
            )
        self.ownership.wake = _Wake(self._turn_soon)  # type: ignore[assignment]
        self.link.connect()
        self._tell()
        self._look()
        self._turn_soon()

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.is_frozen

    def _changed(self, what: int) -> None:
        self.ownership.changed(what)

    # --- turns of the thread -------------------------------------------------------------------

    def _turn_soon(self) -> None:
        self._turn_at(self.world.events.now_s + self.world.events.delay_s("turn"))

    def _turn_at(self, time_s: float) -> None:
        if time_s < self._turn_due_s and not math.isinf(time_s):
            self._turn_due_s = time_s
            self.world.events.at(time_s, lambda: self._turn(time_s))

    def _turn(self, time_s: float) -> None:
        if time_s != self._turn_due_s or not self.is_running:
            return
        self._turn_due_s = math.inf
        self._count_turn(time_s)
        with self.world.speaking(self):
            self.ownership.turn()
        self._turn_at(max(time_s + self.ownership.wait_s(), time_s + 0.001))
        self._see()

    def _count_turn(self, time_s: float) -> None:
        """A thread that spins shows here."""
        self._turns = [*(t for t in self._turns if t > time_s - 1), time_s]
        assert len(self._turns) < _TURNS_PER_S_MAX, f"{self.name} spins at {time_s:.3f}"

    # --- the slice loops -----------------------------------------------------------------------

    def _tell(self) -> None:
        """Once a second: what exists, and how far its copies are."""
        if self.is_dead:
            return
        if not self.is_frozen:
            now_s = self.world.events.now_s
            told = self.world.told(self.name)
            kept = self.ownership.serve(told)
            hidden = self._kept_since_s.keys() - {facts.slice_no for facts in told}
            assert hidden <= kept, f"{self.name} forgets {hidden - kept}, of which it heard nothing"
            if kept != self._kept_since_s.keys():
                copies = ", ".join(map(str, sorted(kept))) or "none"
                self.world.events.say(self.name, f"keeps copies of {copies}")
            self._kept_since_s = {n: self._kept_since_s.get(n, now_s) for n in sorted(kept)}
            for slice_no, since_s in self._kept_since_s.items():
                lag_s = self.behind_s if now_s - since_s >= CATCH_UP_S else math.inf
                self.ownership.standing(slice_no, SliceStanding({}, lag_s))
        self.world.events.after(1.0, self._tell)

    def _look(self) -> None:
        if not self.is_dead:
            self._see()
            self.world.events.after(_LOOK_S, self._look)

    def _see(self) -> None:
        """What the loops find when they ask for their roles."""
        if not self.is_running:
            return
        for slice_no in self._kept_since_s.keys() | self.serving:
            role = self.ownership.roles().get(slice_no, Role.REPLICA)
            if role is not self.roles.get(slice_no, Role.REPLICA):
                epoch = f", epoch {self.ownership.epoch(slice_no)}" if role is Role.OWNER else ""
                self.world.events.say(self.name, f"slice {slice_no}: {role.value}{epoch}")
            self.roles[slice_no] = role
            self._follow(slice_no, role)

    def _follow(self, slice_no: int, role: Role) -> None:
        events = self.world.events
        if role is Role.OWNER and slice_no not in self.serving | self._taking:
            self._taking.add(slice_no)
            events.after(events.delay_s("take over"), lambda: self._take_over(slice_no))
        elif not role.keeps_owning and slice_no in self.serving - self._stopping:
            self._stopping.add(slice_no)
            events.after(events.delay_s("transaction"), lambda: self._stop(slice_no))

    def _take_over(self, slice_no: int) -> None:
        self._taking.discard(slice_no)
        if (
            not self.is_running
            or self.ownership.roles().get(slice_no, Role.REPLICA) is not Role.OWNER
        ):
            return
        if slice_no in self.world.broken.get(self.name, ()):
            self.world.events.say(self.name, f"slice {slice_no}: gives up")
            self.ownership.gave_up(slice_no, "broken")
        elif self.ownership.confirm_all([slice_no]):
            epoch = self.ownership.epoch(slice_no)
            self.world.events.say(self.name, f"slice {slice_no}: serves in epoch {epoch}")
            self.serving.add(slice_no)
            self.ownership.settling(slice_no, is_settling=True)

    def _stop(self, slice_no: int) -> None:
        self._stopping.discard(slice_no)
        if self.is_running:
            self.serving.discard(slice_no)
            self.world.events.say(self.name, f"slice {slice_no}: has stopped")
            self.ownership.settling(slice_no, is_settling=False)

    # --- what may happen to it -----------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL."""
        self.is_dead = True
        self.link.is_alive = self.link.is_connected = False
        self.link.fall_silent()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True
        self.link.is_alive = False
        self.link.fall_silent()

    def wake(self) -> None:
        """SIGCONT."""
        self.is_frozen = False
        self.link.is_alive = True
        self.link.speak_again()
        self._see()
        self._turn_due_s = math.inf
        self._turn_soon()

    def cut(self) -> None:
        """Its network to ZooKeeper is gone."""
        self.link.is_cut = True
        self.link.fall_silent()

    def mend(self) -> None:
        """Its network is back."""
        self.link.is_cut = False
        self.link.speak_again()

    def leave(self) -> None:
        """SIGTERM."""
        self.ownership.leaving.set()
        self._turn_soon()
        deadline_s = self.world.events.now_s + _LEAVE_S
        self._end_when_left(deadline_s)

    def _end_when_left(self, deadline_s: float) -> None:
        if self.is_dead:
            return
        if self.ownership.left.is_set() or self.world.events.now_s >= deadline_s:
            self.world.events.say(self.name, "ends")
            self.is_dead = True
            self.link.close()
        else:
            self.world.events.after(0.02, lambda: self._end_when_left(deadline_s))


class World:
    """The nodes, the slices and ZooKeeper."""

    def __init__(self, events: Events, slices: int = 3, **placement: Any) -> None:
        self.events = events
        self.placement = Placement(**placement)
        self.zookeeper = ModelZooKeeper(events)
        self.slices: list[SliceFacts] = []
        self.processes: list[Node] = []
        self.broken: dict[str, set[int]] = {}
        self.hidden: dict[str, set[int]] = {}
        self.leaders: dict[str, int] = {}
        self._by_hand_s: dict[int, float] = {}
        self._epochs: dict[int, int] = {}
        self._speaker = ""
        self.grow(slices)

    def now_s(self) -> float:
        """The clock of every node."""
        return self.events.now_s

    @contextmanager
    def speaking(self, node: Node) -> Iterator[None]:
        """Whose log it is."""
        log = _Log(lambda what: self.events.say(node.name, what))
        with (
            patch.object(elected_ownership, "_log", log),
        ):
            yield

    def grow(self, slices: int) -> None:
        """So many slices exist now; partition n is led by broker 1, 2, 3, 1, 2, 3 and so on."""
        self.slices = [SliceFacts(n, 1 + n % 3, (1 + n % 3,)) for n in range(slices)]

    def hide(self, slice_no: int, *names: str) -> None:
        """These nodes are not told of a slice any more: a topic can't be described."""
        self.events.say("---", f"{', '.join(names)} can't see slice {slice_no}")
        for name in names:
            self.hidden.setdefault(name, set()).add(slice_no)

    def told(self, name: str) -> list[SliceFacts]:
        """What a node hears from Kafka, and which leaders count for it."""
        told = (f for f in self.slices if f.slice_no not in self.hidden.get(name, ()))
        leader = self.leaders.get(name)
        return [f if leader is None else SliceFacts(f.slice_no, leader, f.replicas) for f in told]

    def run(self, for_s: float) -> None:
        """Let time pass."""
        self.events.run(self.events.now_s + for_s, self._check)

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

    def delete_owner(self, slice_no: int) -> None:
        """By hand."""
        self.events.say("---", f"the owner node of slice {slice_no} is deleted by hand")
        self._by_hand_s[slice_no] = self.events.now_s
        self.zookeeper.vacate(slice_no)

    def forget(self, name: str) -> None:
        """By hand, or by others in the very moment of its return."""
        self.events.say("---", f"{name} is struck from the nodes")
        del self.zookeeper.nodes[name]
        self.zookeeper.changed(MEMBERS)

    def unregister(self, name: str) -> None:
        """By hand."""
        self.events.say("---", f"the live node of {name} is deleted by hand")
        del self.zookeeper.lives[f"{name}:0"]
        self.zookeeper.changed(MEMBERS)

    def owners(self, slice_no: int) -> list[Node]:
        """Who would be told that it is the owner."""
        asked = (p for p in self.processes if not p.is_dead)
        return [p for p in asked if p.ownership.roles().get(slice_no, Role.REPLICA) is Role.OWNER]

    def serving(self) -> dict[int, list[str]]:
        """Who serves each slice."""
        alive = [p for p in self.processes if p.is_running]
        return {f.slice_no: [p.name for p in alive if f.slice_no in p.serving] for f in self.slices}

    def _check(self) -> None:
        for facts in self.slices:
            owners = self.owners(facts.slice_no)
            by_hand_s = self._by_hand_s.get(facts.slice_no, -math.inf)
            names = [(p.name, p.note.instance) for p in owners]
            is_known = self.events.now_s - by_hand_s < BY_HAND_S
            assert len(owners) <= 1 or is_known, f"slice {facts.slice_no} is owned by {names}"
        for slice_no, epoch in self.zookeeper.epochs.items():
            assert epoch >= self._epochs.get(slice_no, 0)
        self._epochs = dict(self.zookeeper.epochs)
