"""Whatever happens to the nodes and to ZooKeeper: one owner at most, and in the end the right one.

The rules are in ``world``; what is added here is that it all ends well once the world is calm, and
that a vacant slice is not fought over.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.transcripts.events import Events
from tests.transcripts.world import Node, World

SEEDS = range(80)
NAMES = "abcd"
CALM_S = 40.0


class Fate:
    """What happens, drawn at random: every kind of harm, and its end."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance

    def strike(self) -> None:
        self._chance.choice(
            [self._harm_node, self._harm_node, self._harm_zookeeper, self._harm_slice]
        )()

    def calm(self) -> None:
        """Everything that can come back does."""
        world = self._world
        if not world.zookeeper.is_running:
            world.zookeeper.start()
        for name in NAMES:
            self._heal(name)
        world.broken = {}
        world.hidden = {}
        for process in world.processes:
            process.behind_s = 0.0

    def _harm_node(self) -> None:
        name = self._chance.choice(NAMES)
        node = self._latest(name)
        if node is None or node.is_dead:
            self._world.start(name, again_as=self._supervised(node))
        elif node.is_frozen:
            self._world.do(name, "wake")
        elif node.link.is_cut:
            self._world.do(name, "mend")
        else:
            self._world.do(name, self._chance.choice(["kill", "freeze", "cut", "leave"]))

    def _harm_zookeeper(self) -> None:
        zookeeper = self._world.zookeeper
        if zookeeper.is_running:
            self._world.events.say("---", "zookeeper stops")
            zookeeper.stop()
        else:
            self._world.events.say("---", "zookeeper starts")
            zookeeper.start()

    def _harm_slice(self) -> None:
        slice_no = self._chance.randrange(len(self._world.slices))
        name = self._chance.choice(NAMES)
        node = self._latest(name)
        match self._chance.randrange(6):
            case 0:
                self._world.delete_owner(slice_no)
            case 1 if node is not None:
                node.behind_s = self._chance.choice([0.0, 60.0])
            case 2:
                self._world.broken = self._chance.choice([{}, {name: {slice_no}}])
            case 3:
                self._world.hide(slice_no, *self._chance.choice([name, NAMES]))
            case 4:
                self._world.hidden = {}
            case _:
                self._world.grow(min(len(self._world.slices) + 1, 6))

    def _heal(self, name: str) -> None:
        node = self._latest(name)
        if node is None or node.is_dead or node.ownership.leaving.is_set():
            self._world.run(10)  # one that leaves has its time
            self._world.start(name)
            return
        if node.is_frozen:
            self._world.do(name, "wake")
        if node.link.is_cut:
            self._world.do(name, "mend")

    def _latest(self, name: str) -> Node | None:
        return next((p for p in reversed(self._world.processes) if p.name == name), None)

    def _supervised(self, node: Node | None) -> str:
        """A worker that died is started again by the same node, or the node is new."""
        return node.note.instance if node is not None and self._chance.random() < 0.5 else ""


@pytest.mark.parametrize("seed", SEEDS)
def test_one_owner_at_most_and_the_preferred_one_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    copies = chance.choice([{}, {"replicas": 2, "away_ms": 20_000}])
    world = World(Events(chance), slices=chance.randint(1, 5), leader_stable_s=10, **copies)
    fate = Fate(world, chance)
    for name in NAMES:
        world.start(name)
    for _ in range(chance.randint(5, 25)):
        world.run(chance.choice([0.05, 0.5, 2.0, 7.0]))
        fate.strike()
    fate.calm()
    world.run(CALM_S)
    assert_calm(world)


def assert_calm(world: World) -> None:
    alive = [p for p in world.processes if p.is_running]
    ranked = [p.ownership._election.view._ranked for p in alive]
    assert all(one == other for one, other in pairwise(ranked)), "they disagree on who is preferred"
    expected = {slice_no: [names[0]] for slice_no, names in ranked[0].items()}
    assert world.serving() == expected, "\n".join(world.events.lines)
    # Of four nodes: the heir, the first, and one that hears late of both.
    assert world.zookeeper.attempts_max <= 3, "a herd"
