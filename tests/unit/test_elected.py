"""What the thread of an election does, over a model of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import pytest

from delayservice.config.settings import Settings
from delayservice.contract.contracts import CONTRACT_VERSION
from delayservice.engine.electability import Cause, WorkerFacts
from delayservice.engine.ports import Role
from delayservice.process.worker_entry import make_ownership
from ha.notes import NodeNote, OwnerNote, SliceOwner
from ha.ownership import Standalone
from ha.pipeline import EnsembleError
from ha.placement import SliceFacts
from ha.zookeeper_session import MEMBERS
from tests.transcripts.events import Events
from tests.transcripts.world import Node, World


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
                    node.ownership.changed(MEMBERS)
            return answer

        return ask

    for what in ("nodes", "live"):
        monkeypatch.setattr(node.link, what, come_back_after(what))
    node.ownership.changed(MEMBERS)
    world.run(0.5)
    assert node.ownership._election.view.nodes["b"].workers == 2


def owning() -> tuple[World, Node]:
    """A node that owns slices 0 to 2."""
    world = World(Events())
    node = world.start("a")
    world.run(5)
    assert node.ownership.roles() == dict.fromkeys(range(3), Role.OWNER)
    return world, node


def test_roles_are_the_same_object_until_something_changes() -> None:
    world, node = owning()
    roles = node.ownership.roles()
    changes = counted(node)
    world.run(30)
    assert node.ownership.roles() is roles
    assert changes == []
    world.grow(4)
    world.run(5)
    assert node.ownership.roles() is not roles
    assert node.ownership.roles() == dict.fromkeys(range(4), Role.OWNER)
    assert changes[-1] == node.ownership.roles()


def counted(node: Node) -> list[Mapping[int, Role]]:
    """The roles at each change that a loop is woken for."""
    changes: list[Mapping[int, Role]] = []
    node.ownership.on_change(lambda: changes.append(node.ownership.roles()))
    return changes


def test_an_owner_pauses_while_disconnected_and_gets_its_roles_back() -> None:
    world, node = owning()
    roles = node.ownership.roles()
    changes = counted(node)
    world.zookeeper.stop()
    assert node.ownership.roles() == dict.fromkeys(range(3), Role.PAUSED)
    assert node.ownership.roles() is node.ownership.roles()
    world.run(1)
    world.zookeeper.start()
    world.run(2)
    assert node.ownership.roles() is roles
    assert [set(seen.values()) for seen in changes] == [{Role.PAUSED}, {Role.OWNER}]


def test_a_loop_is_woken_when_the_lease_ends() -> None:
    world, node = owning()
    changes = counted(node)
    world.zookeeper.stop()
    end_s = node.ownership._lease.end_s
    world.run(end_s - world.now_s() - 0.01)
    assert set(changes[-1].values()) == {Role.PAUSED}
    world.run(0.02)
    assert set(changes[-1].values()) == {Role.REPLICA}
    assert node.ownership.roles() is changes[-1]


def test_a_slice_won_again_within_one_turn_is_a_change_of_roles() -> None:
    world, node = owning()
    roles = node.ownership.roles()
    world.zookeeper.vacate(1)
    world.run(1)
    assert node.ownership.epoch(1) == 2
    assert node.ownership.roles() == roles
    assert node.ownership.roles() is not roles


def test_owned_slices_are_confirmed_together_while_connected() -> None:
    world, node = owning()
    assert node.ownership.confirm_all([0, 2, 9]) == {0, 2}
    del world.zookeeper.owners[2]  # and the watch has not come yet
    assert node.ownership.confirm_all(range(3)) == {0, 1}
    world.zookeeper.stop()
    assert node.ownership.confirm_all(range(3)) == frozenset()


def test_a_slice_that_can_not_be_confirmed_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, node = owning()

    def confirm_all(slice_nos: Iterable[int]) -> Iterator[int]:
        yield from set(slice_nos) - {1}
        raise EnsembleError("1 is not to be read")

    monkeypatch.setattr(node.link, "confirm_all", confirm_all)
    assert node.ownership.confirm_all(range(3)) == {0, 2}


def test_a_seat_that_can_not_be_read_keeps_no_other_from_being_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Events())
    node = world.start("a")
    read = node.link.owners

    def owners(slice_nos: Iterable[int]) -> Iterator[tuple[int, SliceOwner]]:
        yield from read(set(slice_nos) - {1})
        if 1 in slice_nos:
            raise EnsembleError("1 is not to be read")

    monkeypatch.setattr(node.link, "owners", owners)
    world.run(5)
    seats = [node.ownership._election.seat_of(n) for n in range(3)]
    assert [seat is not None for seat in seats] == [True, False, True]


def test_a_beat_keeps_the_lease_while_many_slices_are_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if each batch of claims took as long as a third of a lease."""
    world = World(Events(), slices=1_000)
    node = world.start("a")
    claimed = node.link.claim_all
    sizes: list[int] = []
    leases: list[bool] = []

    def claim_all(slice_nos: list[int], owner: OwnerNote) -> frozenset[int]:
        sizes.append(len(slice_nos))
        world.events.now_s += 1.4
        leases.append(node.ownership._lease.is_valid)
        return claimed(slice_nos, owner)

    monkeypatch.setattr(node.link, "claim_all", claim_all)
    world.run(3)
    assert sizes == [256, 256, 256, 232]
    assert all(leases)
    assert set(node.ownership.roles().values()) == {Role.OWNER}


def test_a_node_alone_owns_its_share_and_tells_when_that_changes() -> None:
    alone = Standalone(NodeNote("a", "a1", 2), 1)
    changes: list[int] = []
    alone.on_change(lambda: changes.append(len(alone.roles())))
    alone.serve([SliceFacts(n) for n in range(4)])
    roles = alone.roles()
    assert roles == {1: Role.OWNER, 3: Role.OWNER}
    alone.serve([SliceFacts(n) for n in range(4)])
    assert alone.roles() is roles
    assert alone.confirm_all([1, 3]) == {1, 3}
    alone.serve([SliceFacts(n) for n in range(6)])
    assert alone.roles() == dict.fromkeys([1, 3, 5], Role.OWNER)
    assert changes == [2, 3]


def test_a_node_advertises_the_newest_contract_version_that_it_knows() -> None:
    assert make_ownership(Settings(), "a1", 0).contract_version() == CONTRACT_VERSION


def reason(node: Node) -> str:
    """Why a worker that lacks nothing else may own nothing."""
    return node.ownership.judge(WorkerFacts()).reason


def test_a_worker_may_own_once_it_is_registered_and_says_why_not_before() -> None:
    world = World(Events())
    node = world.start("a")
    assert reason(node) == "ZooKeeper can't be used: there is no session yet"
    world.run(5)
    assert reason(node) == ""
    assert node.ownership.verdict(0).may_own


def test_a_disconnection_counts_when_the_lease_is_over_and_no_sooner() -> None:
    world, node = owning()
    world.zookeeper.stop()
    end_s = node.ownership._lease.end_s
    world.run(end_s - world.now_s() - 0.01)
    assert reason(node) == ""
    world.run(0.02)
    assert reason(node) == "ZooKeeper can't be used: connection lost"
    world.zookeeper.start()
    world.run(10)
    assert reason(node) == ""


def test_a_worker_whose_name_is_taken_says_so() -> None:
    world, _ = owning()
    twin = world.start("a")
    world.run(5)
    assert reason(twin).endswith("node_id a is in use by another node: a1")


def test_a_verdict_reaches_the_election_at_once() -> None:
    world, node = owning()
    other = world.start("b")
    world.run(60)
    owned = set(node.ownership._election.owned)
    assert owned
    found = node.ownership.judge(WorkerFacts(turn_s=99))
    assert found.cause is Cause.LOOP_HANGS
    world.run(5)
    assert set(node.ownership._election.owned) == set()
    assert owned <= set(other.ownership._election.owned)
