"""Owners by real elections: each life of a node is a process of ``tests.transcripts``, whose roles
its loop follows, over one model of ZooKeeper in the schedule's time and by its seed.

Beside the oracle's promises: of all processes, frozen and cut-off ones too, at most one would be
told that it owns a slice; a loop settles only what its process was told to own in that turn, and
was in touch with ZooKeeper; a process resigns only what its loop has let go. Once all trouble has
ended, the node that all prefer serves each slice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from delayservice.base.clock import NOT_COMPARED
from delayservice.config.cluster import Placement
from delayservice.engine.electability import WorkerFacts
from delayservice.engine.ports import Role
from delayservice.slices.slice import Phase
from ha.notes import NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts
from ha.zookeeper_session import MEMBERS
from tests.simulation.history import ViolationError
from tests.transcripts.events import Events
from tests.transcripts.model_zookeeper import SESSION_S, ModelZooKeeper
from tests.transcripts.process import Process, owners_told

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

ELECTION_RATE = 20
"""Seconds of an election in one of the schedule, in which records are due within a second or two.
"""
BY_HAND_S = SESSION_S + 2.0
"""How long an owner may not know that its node was deleted by hand: if it is out of touch, until
it is connected again with the same session, and has looked. No session ends while ZooKeeper is
down."""
_STANDS_STILL_MS = (5, 20, 60, 200)


class SimEvents(Events):
    """The schedule's time, in seconds of an election; what is said goes into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(world.rng)
        self._world = world

    def say(self, who: str, what: str) -> None:
        self._world.trace(f"{who} {what}")


class SimProcess(Process):
    """What its loop is told; see ``ports.OwnershipView``."""

    def __init__(self, node: Node, elections: Elections) -> None:
        self.node = node
        rng, world = node.world.rng, node.world
        instance, broker_id = f"{node.name}{elections.zookeeper.sessions}", world.nodes.index(node)
        if node.process is not None and rng.random() < 0.5:  # a worker that is started again
            instance = node.process.note.instance
        note = NodeNote(node.name, instance, 1, broker_id, contract_version=node.version)
        copies = frozenset(place[1] for place, disk in node.disks.items() if disk.open())
        super().__init__(
            elections.zookeeper,
            elections.placement,
            note,
            kept=copies,
            rate=rng.choice((0.8, 1.0, 1.0, 1.25)),
        )
        self.link.is_failing = lambda: world.flip(world.plan.broken_call)
        self._shown: Mapping[int, Role] = {}
        self.in_turn: set[int] = set()
        """Slices that its loop may settle in this turn."""
        self.may_own = False
        self._tell()

    def _tell(self) -> None:
        """Once a second: what exists."""
        if not self.is_dead:
            if not self.is_frozen:
                self.serve(self.node.world.elections.told(self.node))
            self.events.after(1.0, self._tell)

    def _see(self) -> None:
        roles = self.ownership.roles()
        for number, role in roles.items() if roles is not self._shown else ():
            if role is not self._shown.get(number, Role.REPLICA):
                self.node.trace(f"is {role.value} of slice {number} by {self.note.instance}")
        self._shown = roles

    def report(self) -> None:
        """Once a turn: how far the loop is."""
        loop, world, watch = self.node.loop, self.node.world, self.node.watch
        if loop is None:
            return
        for slice_ in loop.take_tended():
            ends = {p[0]: world.log.partition(p).end for p in slice_.places}
            lag_s = slice_.lag_s(ends) * ELECTION_RATE
            standing = SliceStanding(slice_.stored, lag_s, slice_.follower.refusal)
            self.ownership.standing(slice_.number, standing)
            if lag_s:
                loop.tend_again(slice_.number)
        doubt = watch.doubt()
        if doubt is not None:  # a broker is asked for the time
            now_s = world.elapsed_ms / 1000
            watch.heard_answer(world.now_ms, world.elapsed_ms, now_s, now_s)
        is_known = doubt != NOT_COMPARED
        facts = WorkerFacts(clock=doubt or "", is_clock_known=is_known)
        self.may_own = self.ownership.judge(facts).may_own

    def begin_turn(self) -> None:
        self.in_turn = self._told()

    def _told(self) -> set[int]:
        is_in_touch = self.link.is_connected
        return {n for n in self.kept if is_in_touch and self.is_told_owner(n)}

    def roles(self) -> Mapping[int, Role]:
        self.node.point("which roles?")
        self.in_turn |= self._told()
        return self.ownership.roles()

    def epoch(self, slice_no: int) -> int:
        return self.ownership.epoch(slice_no)

    def contract_version(self) -> int:
        return self.ownership.contract_version()

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        self.ownership.settling(slice_no, is_settling=is_settling)

    def gave_up(self, slice_no: int, why: str) -> None:
        self.ownership.gave_up(slice_no, why)


class Elections:
    """ZooKeeper, the processes, and what happens to them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.zookeeper = ModelZooKeeper(world.events)
        self.zookeeper.resigning = self._check_resigned
        self.placement = Placement(
            replicas=world.plan.replicas or "all", leader_stable_s=10, away_ms=20_000
        )
        self.processes: list[SimProcess] = []
        self._shift: dict[str, int] = {}
        """Of the leaders, as far as a node has heard."""
        self._hidden: dict[str, int] = {}
        """A slice that a node can't see."""
        self._by_hand_s = dict.fromkeys(range(world.plan.slices), -math.inf)
        self._stopped_s = 0.0
        world.events.check = self.check

    def start(self, node: Node) -> SimProcess:
        process = SimProcess(node, self)
        self.processes = [p for p in self.processes if not p.is_dead] + [process]
        return process

    def told(self, node: Node) -> list[SliceFacts]:
        """Which slices a node sees, and who leads them as far as it knows."""
        plan, shift = self._world.plan, self._shift.get(node.name, 0)
        leaders = {n: (n + shift) % plan.nodes for n in range(plan.slices)}
        hidden = self._hidden.get(node.name, -1)
        return [SliceFacts(n, led, (led,)) for n, led in leaders.items() if n != hidden]

    # --- trouble -------------------------------------------------------------------------------

    def strike(self, node: Node) -> None:
        """One thing that happens to a process, to ZooKeeper or to a slice."""
        rng, process, zookeeper = self._world.rng, node.process, self.zookeeper
        choice = rng.random()
        if process is not None and process.is_frozen:
            self._world.trace(f"{node.name} wakes")
            process.wake()
        elif process is not None and process.link.is_cut:
            self._world.trace(f"{node.name} reaches ZooKeeper")
            process.mend()
        elif not zookeeper.is_running:
            self._start_zookeeper()
        elif choice < 0.15:
            self._world.trace("ZooKeeper stops")
            self._stopped_s = self._world.events.now_s
            zookeeper.stop()
        elif choice < 0.45:
            self._strike_slice(node)
        elif process is not None and process.is_running and not node.is_running:
            is_cut = choice < 0.7
            self._world.trace(f"{node.name} {'is cut off from ZooKeeper' if is_cut else 'freezes'}")
            (process.cut if is_cut else process.freeze)()

    def _strike_slice(self, node: Node) -> None:
        rng, plan, zookeeper = self._world.rng, self._world.plan, self.zookeeper
        number = rng.randrange(plan.slices)
        match rng.randrange(6):
            case 0 if number in zookeeper.owners:
                self._world.trace(f"the owner of slice {number} is deleted by hand")
                self._by_hand_s[number] = self._world.events.now_s
                zookeeper.vacate(number)
            case 1 if f"{node.name}:0" in zookeeper.lives:
                self._world.trace(f"{node.name} is struck from those that live")
                del zookeeper.lives[f"{node.name}:0"]
                zookeeper.changed(MEMBERS)
            case 2 if node.name in zookeeper.nodes:
                self._world.trace(f"{node.name} is struck from the nodes")
                del zookeeper.nodes[node.name]
                zookeeper.changed(MEMBERS)
            case 3:
                self._hidden = {} if self._hidden else {node.name: number}
            case _:
                self._shift[node.name] = rng.randrange(plan.nodes)

    def stand_still(self, node: Node) -> None:
        """Freeze a process in the middle of a call, while others go on."""
        world, process = self._world, node.process
        if process is None or not process.is_running:
            return
        world.trace(f"{node.name} stands still")
        process.freeze()
        for _ in range(world.rng.randrange(1, 16)):
            world.pass_time(world.rng.choice(_STANDS_STILL_MS) / 1000)
            world.let(world.rng.choice([n for n in world.nodes if n is not node]), 2)
        if not process.is_dead:
            world.trace(f"{node.name} goes on")
            process.wake()

    def calm(self) -> None:
        self._shift.clear()
        self._hidden.clear()
        if not self.zookeeper.is_running:
            self._start_zookeeper()
        for process in self.processes:
            if process.is_frozen:
                process.wake()
            if process.link.is_cut:
                process.mend()

    def _start_zookeeper(self) -> None:
        self._world.trace("ZooKeeper starts")
        for number in self._by_hand_s:
            self._by_hand_s[number] += self._world.events.now_s - self._stopped_s
        self.zookeeper.start()

    # --- promises ------------------------------------------------------------------------------

    def check(self) -> None:
        """At most one process is told that it owns a slice."""
        for number, by_hand_s in self._by_hand_s.items():
            owners = owners_told(self.processes, number)
            if len(owners) > 1 and self._world.events.now_s - by_hand_s > BY_HAND_S:
                raise ViolationError(f"slice {number} is owned by {owners}")

    def check_settles(self, node: Node, slice_no: int) -> None:
        """A loop settles only what it was told in this turn that it owns."""
        if node.process is not None and slice_no not in node.process.in_turn:
            raise ViolationError(f"{node.name} settles slice {slice_no}, which it does not own")

    def _check_resigned(self, instance: str, slice_no: int) -> None:
        process = next(p for p in self.processes if p.note.instance == instance and not p.is_dead)
        slice_ = process.node.slice_of(slice_no)
        is_served = slice_ is not None and slice_.phase is Phase.OWNER and not slice_.trouble
        if is_served and process.may_own:
            raise ViolationError(f"{process.name} resigns slice {slice_no}, which it still serves")

    @property
    def is_at_rest(self) -> bool:
        """Whether the node that all prefer serves each slice, and nobody else."""
        alive = [node.process for node in self._world.nodes if node.process is not None]
        ranked = [p.ownership._election.view._ranked for p in alive if p.is_running]
        if len(ranked) < len(self._world.nodes) or any(a != b for a, b in pairwise(ranked)):
            return False
        expected = {number: {names[0]: Phase.OWNER} for number, names in ranked[0].items() if names}
        return expected == {n: self._holders(n) for n in self._by_hand_s}

    def _holders(self, number: int) -> dict[str, Phase]:
        """Whose loops hold a slice, and how far they are with it."""
        slices = {node.name: node.slice_of(number) for node in self._world.nodes}
        return {n: one.phase for n, one in slices.items() if one and one.phase is not Phase.REPLICA}

    def swap(self) -> None:
        """Every owner goes, in order or not; others may have lost their disks."""
        rng = self._world.rng
        for node in self._world.nodes:
            if any(node.name in self._holders(n) for n in self._by_hand_s):
                rng.choice((node.stop, node.crash))()
            elif rng.random() < 0.5:
                for disk in node.disks.values():
                    disk.wipe()
                node.crash()
