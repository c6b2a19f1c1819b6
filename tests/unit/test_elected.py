"""What the thread of an election does, over a model of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ha.ensemble import MEMBERS
from tests.transcripts.events import Events
from tests.transcripts.world import World


def test_the_note_of_a_node_that_comes_back_while_others_look_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes its note, then it lives; that it lives is news only to who has looked before."""
    world = World(Events())
    world.start("a")
    world.start("b")
    world.run(5)
    node = world.node("a")
    again = msgspec.structs.replace(world.zookeeper.nodes["b"], workers=2)
    life = world.zookeeper.lives.pop("b:0")
    looked: list[str] = []

    def come_back_after(what: str) -> Callable[[], object]:
        asked = getattr(node.link, what)

        def ask() -> object:
            answer: object = asked()
            looked.append(what)
            if len(looked) == 1:
                world.zookeeper.nodes["b"] = again
                world.zookeeper.lives["b:0"] = life
                if what == "live":
                    node.ownership._changed(MEMBERS)
            return answer

        return ask

    for what in ("nodes", "live"):
        monkeypatch.setattr(node.link, what, come_back_after(what))
    node.ownership._changed(MEMBERS)
    world.run(0.5)
    assert node.ownership._election._nodes["b"].workers == 2
