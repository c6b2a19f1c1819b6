"""Elections and hand-overs as event logs to read. ``REWRITE_TRANSCRIPTS=1`` writes them anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ha.election_state import ElectionPace
from tests.transcripts.events import Events
from tests.transcripts.world import World

FOLDER = Path(__file__).parent
Story = Callable[[World], None]
HANDED_S = ElectionPace().handed_s


def cold_start(world: World) -> None:
    """Three nodes start at the same time."""
    for name in "abc":
        world.start(name)
    world.run(10)
    assert world.serving() == {0: ["a"], 1: ["b"], 2: ["c"]}


def three_at_work(world: World) -> None:
    """How that goes is written down once."""
    cold_start(world)
    world.events.lines.clear()
    world.events.say("---", "a serves slice 0, b serves 1, c serves 2")


def owner_frozen(world: World) -> None:
    """An owner is frozen past its session, and finds itself replaced when it wakes."""
    three_at_work(world)
    world.do("b", "freeze")
    world.run(8)
    successor = world.serving()[1]
    assert successor in (["a"], ["c"])
    world.do("b", "wake")
    world.run(HANDED_S - 10)
    assert world.serving()[1] == successor
    world.run(20)
    assert world.serving()[1] == ["b"]


def frozen_for_less(world: World) -> None:
    """An owner is frozen for longer than its lease, but not than its session, and goes on."""
    three_at_work(world)
    world.do("b", "freeze")
    world.run(5)
    world.do("b", "wake")
    world.run(2)
    assert world.serving()[1] == ["b"]


def preferred_comes_back(world: World) -> None:
    """The preferred node was away; its slice is handed over when it has caught up."""
    world.start("a")
    world.start("c")
    world.run(5)
    world.start("b")
    world.run(6)
    assert world.serving() == {0: ["a"], 1: ["b"], 2: ["c"]}


def rolling_restart(world: World) -> None:
    """Each node in turn leaves and comes back; each slice is always in somebody's hands."""
    three_at_work(world)
    for name in "abc":
        world.do(name, "leave")
        world.run(1)
        world.start(name)
        world.run(6)
    assert world.serving() == {0: ["a"], 1: ["b"], 2: ["c"]}


def last_one_leaves(world: World) -> None:
    """Nobody is left to hand over to, so there is nothing to wait for."""
    world.start("a")
    world.run(5)
    world.do("a", "leave")
    world.run(1)
    assert world.node("a").is_dead


def worker_restarted(world: World) -> None:
    """A worker is started again before its session has ended: what it left is not waited for."""
    three_at_work(world)
    world.do("b", "kill")
    world.run(1)
    world.start("b", again_as="b1")
    world.run(7)
    assert world.serving()[1] in (["a"], ["c"])
    world.run(HANDED_S)
    assert world.serving()[1] == ["b"]


def zookeeper_gone_for_long(world: World) -> None:
    """ZooKeeper is away for longer than the lease: owners stop, and begin again."""
    three_at_work(world)
    world.events.say("---", "all ZooKeeper servers stop")
    world.zookeeper.stop()
    world.run(30)
    world.events.say("---", "all ZooKeeper servers start")
    world.zookeeper.start()
    world.run(8)
    assert world.serving() == {0: ["a"], 1: ["b"], 2: ["c"]}


def two_of_one_name(world: World) -> None:
    """A second node takes a name that is in use; it waits until the first has left."""
    three_at_work(world)
    world.start("b")
    second = world.node("b")
    world.run(4)
    assert not second.serving
    first = next(p for p in world.processes if p.note.instance == "b1")
    world.events.say("---", "leave b1")
    first.leave()
    world.run(10)
    assert second.serving == {1}


def name_taken(world: World) -> None:
    """A node's registration is deleted by hand and a second one takes its name. The first
    notices, goes on with what it owns, and hands it over when it is stopped.
    """
    three_at_work(world)
    first = world.node("b")
    world.start("b")
    world.run(2)
    world.unregister("b")
    world.run(3)
    assert first.serving == {1}
    world.events.say("---", "leave b1")
    first.leave()
    world.run(10)
    assert first.is_dead
    assert world.node("b").serving == {1}


def leaders_in_doubt(world: World) -> None:
    """For a minute another leader counts for each of two nodes. They don't hand over and over."""
    world.grow(1)
    world.leaders = {"a": 2, "b": 1}
    for name in "ab":
        world.start(name)
    world.run(60)
    assert world.zookeeper.epochs[0] <= 3, "two changes of owner at most"
    world.events.say("---", "broker 1 is the leader for both")
    world.leaders = {"a": 1, "b": 1}
    world.run(10)
    assert world.serving() == {0: ["a"]}


def lagging_replica(world: World) -> None:
    """The preferred node is too far behind to own; it gets its slice once it has caught up."""
    three_at_work(world)
    world.do("b", "kill")
    world.run(8)
    world.start("b").behind_s = 60
    world.run(6)
    world.run(HANDED_S)
    assert world.serving()[1] in (["a"], ["c"])
    world.events.say("---", "b has caught up")
    world.node("b").behind_s = 0
    world.run(4)
    assert world.serving()[1] == ["b"]


def given_up(world: World) -> None:
    """A node can't serve a slice; another can, and has it for a minute at least."""
    world.broken = {"b": {1}}
    for name in "abc":
        world.start(name)
    world.run(30)
    assert world.serving()[1] in (["a"], ["c"])
    world.events.say("---", "b is whole again")
    world.broken = {}
    world.run(HANDED_S)
    assert world.serving()[1] == ["b"]


def two_copies_of_five(world: World) -> None:
    """Two copies on five nodes; one node is gone for good and others build its copies."""
    for name in "abcde":
        world.start(name)
    world.run(12)
    assert all(len(names) == 1 for names in world.serving().values())
    world.do("b", "kill")
    world.run(8)
    assert all(len(names) == 1 for names in world.serving().values())
    world.run(20)
    assert all(len(names) == 1 for names in world.serving().values())
    kept = [p.ownership.serve(world.slices) for p in world.processes if p.is_running]
    assert sorted(n for slices in kept for n in slices) == [0, 0, 1, 1, 2, 2]


STORIES: list[Story] = [
    cold_start,
    owner_frozen,
    frozen_for_less,
    preferred_comes_back,
    rolling_restart,
    last_one_leaves,
    worker_restarted,
    zookeeper_gone_for_long,
    two_of_one_name,
    name_taken,
    leaders_in_doubt,
    lagging_replica,
    given_up,
    two_copies_of_five,
]


def transcript(story: Story) -> str:
    settings = {"replicas": 2, "away_ms": 15_000} if story is two_copies_of_five else {}
    world = World(Events(), **settings)
    story(world)
    title = " ".join((story.__doc__ or "").split())
    return "\n".join((title, "", *world.events.lines, ""))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_elections_go_as_written_down(story: Story) -> None:
    path = FOLDER / f"{story.__name__}.txt"
    told = transcript(story)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(told, encoding="utf-8")
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert told == written, "if that is how it should be, see REWRITE_TRANSCRIPTS above"


def test_every_transcript_belongs_to_a_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {story.__name__ for story in STORIES}
