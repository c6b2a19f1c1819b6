"""Rules of an election, and of the thread that carries it out, that no transcript reaches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from delayservice.config.settings import Settings
from delayservice.contract.contracts import CONTRACT_VERSION
from delayservice.engine.electability import (
    BROKER_S_MAX,
    DISK_S_MAX,
    ELECTABLE,
    SILENT_S_MAX,
    TURN_S_MAX,
    Cause,
    CopyFacts,
    Verdict,
    WorkerFacts,
    electability,
    rest_s,
)
from delayservice.engine.ports import Role
from delayservice.process.worker_entry import make_ownership
from ha.election import Election
from ha.election_state import Announce, ClaimSlice, ElectionPace, Resign
from ha.notes import LifeNote, NodeNote, OwnerNote, SliceOwner, encode
from ha.ownership import SliceStanding, Standalone
from ha.pipeline import EnsembleError
from ha.placement import SliceFacts
from ha.zookeeper_session import MEMBERS
from tests.transcripts.events import Events
from tests.transcripts.world import Node, World

PACE = ElectionPace(stagger_s=0.5, lag_s_max=10, alert_s=1, tenure_s=20, first_s=2, handed_s=60)
UP_TO_DATE = SliceStanding({}, 0)
COOL_S = 5.0
VACANT = SliceOwner(None)
CUT_OFF = WorkerFacts(kafka="no answer")
HUNG = WorkerFacts(turn_s=99)
SILENT = WorkerFacts(broker="broker 2 does not answer")
MINE = SliceOwner(OwnerNote("me", "me1", 0, 1), is_mine=True)
NODES = {"me": 1, "other": 2, "third": 3}
"""And the broker that each sits beside."""


def note(node_id: str) -> NodeNote:
    return NodeNote(node_id, f"{node_id}1", 1, NODES[node_id])


def beside(*leaders: str) -> list[SliceFacts]:
    """Slices that prefer these nodes, in their order."""
    return [SliceFacts(n, NODES[name], (NODES[name],)) for n, name in enumerate(leaders)]


def elected(
    preferred: Collection[str] = ("me",),
    *,
    live: Iterable[str] = ("me", "other"),
    known: Iterable[str] = NODES,
    replicas: int | None = None,
) -> Election:
    """An election of node ``me``, registered, whose copies are up to date."""
    election = Election(note("me"), 0, replicas, PACE)
    election.nodes([note(name) for name in known])
    election.live(list(live), is_registered=True)
    for slice_no in election.serve(beside(*preferred)):
        election.standing(slice_no, UP_TO_DATE)
    return election


def owning(election: Election, *, since_s: float = 0, is_settling: bool = True) -> Election:
    election.seat(0, VACANT, since_s - 1)
    election.seat(0, MINE, since_s)
    election.settling(0, is_settling=is_settling)
    return election


def ready(election: Election, *names: str) -> None:
    """Let the copies of slice 0 of these nodes be up to date."""
    election.view.set_lives({f"{name}:0": LifeNote(name, f"{name}1", 0, (0,)) for name in names})


def announced(election: Election, heir: str, now_s: float) -> None:
    """As the announcement is carried out."""
    assert election.step(now_s) == [Announce(0, heir)]
    election.seat(0, SliceOwner(OwnerNote("me", "me1", 0, 1, heir), is_mine=True), now_s)
    assert election.step(now_s) == []


class TestGivingUp:
    def test_an_owner_that_should_not_own_resigns_at_once_though_its_loop_settles(self) -> None:
        election = owning(elected())
        ready(election, "other")
        election.judge(HUNG)
        assert [type(effect) for effect in election.step(1)] == [Resign]
        assert election.roles(1) == {0: Role.REPLICA}
        election.judge(WorkerFacts())
        assert [type(effect) for effect in election.step(2)] == [Resign], "once it has let go"

    def test_an_owner_that_should_not_own_goes_on_unless_another_node_may(self) -> None:
        election = owning(elected())
        election.judge(HUNG)
        assert election.step(1) == []
        assert election.roles(1) == {0: Role.OWNER}
        assert election.rivals == {"other:0"}, "it has to know whether another may"
        ready(election, "third")
        assert election.step(2) == [], "that node is dead"
        ready(election, "other")
        assert [type(effect) for effect in election.step(3)] == [Resign]

    def test_an_owner_leaves_for_a_silent_broker_only_once_others_can_have_noticed_it(self) -> None:
        election = owning(elected())
        assert election.judge(SILENT._replace(broker_s=BROKER_S_MAX))
        assert election.rivals == {"other:0"}, "it has to know whether another may"
        ready(election, "other")
        assert election.step(1) == []
        assert election.life(1).caught_up == (), "it does not offer to own meanwhile"
        assert election.judge(SILENT._replace(broker_s=BROKER_S_MAX + 0.1)), "that is news"
        assert [type(effect) for effect in election.step(2)] == [Resign]

    def test_the_cool_down_grows_with_each_failure_and_ends(self) -> None:
        election, now_s, waits_s = elected(), 0.0, []
        for _ in range(6):
            owning(election, since_s=now_s, is_settling=False)
            election.gave_up(0, "broken")
            assert len(election.step(now_s)) == 1
            election.seat(0, VACANT, now_s)
            assert election.step(now_s) == []
            waits_s.append(election.wake_s - now_s)
            now_s = election.wake_s
            assert election.step(now_s) == [ClaimSlice(0)]
        assert waits_s == [5, 10, 20, 40, 60, 60]

    def test_a_failure_counts_once_however_often_resigning_fails(self) -> None:
        election = owning(elected(), is_settling=False)
        election.gave_up(0, "broken")
        for _ in range(5):
            assert election.step(0) == [Resign(0, "broken")]
        election.seat(0, VACANT, 0)
        election.step(0)
        assert election.wake_s == COOL_S

    def test_a_loop_that_serves_again_before_it_was_heard_keeps_its_slice(self) -> None:
        election = owning(elected(), is_settling=False)
        election.gave_up(0, "broken")
        election.settling(0, is_settling=True)
        assert election.step(0) == []
        assert election.roles(0) == {0: Role.OWNER}

    def test_a_loop_that_serves_again_after_it_was_heard_loses_its_slice(self) -> None:
        election = owning(elected(), is_settling=False)
        election.gave_up(0, "broken")
        assert election.step(0) == [Resign(0, "broken")]
        election.settling(0, is_settling=True)
        assert election.step(0) == [Resign(0, "broken")], "resigning has failed, others may know"
        assert election.roles(0) == {0: Role.REPLICA}

    def test_serving_again_ends_the_row_of_failures(self) -> None:
        election = elected()
        for since_s in (0, 100):
            owning(election, since_s=since_s)
            election.gave_up(0, "broken")
            election.step(since_s)
            election.seat(0, VACANT, since_s)
            election.step(since_s)
            assert election.wake_s == since_s + COOL_S


class TestHandOver:
    def test_a_pinned_owner_whose_copy_is_placed_elsewhere_keeps_slice_and_copy(self) -> None:
        election = owning(elected(["other"], live=NODES, known=["me"], replicas=1))
        election.nodes([note("me"), note("other")])
        ready(election, "other")
        announced(election, "other", 0)
        election.pin(is_pinned=True)
        assert election.step(0.1) == [Announce(0, "")]
        assert election.serve(beside("other")) == {0}

    def test_a_pinned_owner_that_can_t_serve_is_relieved(self) -> None:
        election = owning(elected(["other"]))
        ready(election, "other")
        election.pin(is_pinned=True)
        election.judge(CUT_OFF)
        assert [type(effect) for effect in election.step(1000)] == [Resign]

    def test_an_announced_heir_is_taken_back_by_a_pin_and_named_again_after_it(self) -> None:
        election = owning(elected(["other"]))
        ready(election, "other")
        announced(election, "other", 20)
        election.pin(is_pinned=True)
        assert election.step(20.5) == [Announce(0, "")]
        election.pin(is_pinned=False)
        assert election.step(20.6) == []

    def test_a_slice_that_is_not_served_yet_is_not_handed_over(self) -> None:
        election = owning(elected(["other"]), is_settling=False)
        ready(election, "other")
        assert election.step(1000) == []


class TestCopies:
    def test_a_copy_is_kept_until_all_that_are_placed_are_ready(self) -> None:
        election = elected(["other"], live=NODES, known=["me"], replicas=1)
        election.nodes([note("me"), note("other")])
        assert election.serve(beside("other")) == {0}
        assert election.rivals == {"other:0"}
        ready(election, "other")
        assert election.serve(beside("other")) == frozenset()


def test_a_worker_tells_one_position_for_each_slice_however_many_topics_there_are() -> None:
    election = elected(["me"] * 256)
    topics = {f"{'a long name of a delay topic':x<200}{n}": 10**9 for n in range(13)}
    for slice_no in range(256):
        election.standing(slice_no, SliceStanding(topics, 0))
    life = election.life(0)
    assert life.stored == dict.fromkeys(range(256), 13 * 10**9)
    assert len(encode(life)) < 8_000


# --- contract versions ----------------------------------------------------------------------------


def of_version(node_id: str, version: int) -> NodeNote:
    return NodeNote(node_id, f"{node_id}1", 1, contract_version=version)


def test_a_contract_is_of_a_version_that_every_live_node_knows() -> None:
    election = Election(of_version("me", 9), 0, None, PACE)
    election.nodes([of_version("other", 8), of_version("third", 7)])
    versions = []
    for live in (["me", "other", "third"], ["me", "other"], ["me"], ["me", "third"]):
        election.live(live, is_registered=True)
        versions.append(election.view.contract_version)
    assert versions == [7, 8, 9, 7]


def test_an_unknown_node_counts_as_knowing_the_first_version() -> None:
    election = Election(of_version("me", 9), 0, None, PACE)
    assert election.view.contract_version == 1, "nobody else was heard of yet"
    election.nodes([of_version("other", 9)])
    election.live(["me", "other", "stranger"], is_registered=True)
    assert election.view.contract_version == 1
    election.live(["me", "other"], is_registered=True)
    assert election.view.contract_version == 9


# --- what the thread of an election does, over a model of ZooKeeper -------------------------------


def test_the_note_of_a_returning_node_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # It writes its note, then it lives; that it lives is news only to who has looked before.
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


def owning_node() -> tuple[World, Node]:
    world = World(Events())
    node = world.start("a")
    world.run(5)
    assert node.ownership.roles() == dict.fromkeys(range(3), Role.OWNER)
    return world, node


def test_roles_are_the_same_object_until_something_changes() -> None:
    world, node = owning_node()
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


def test_a_slice_won_again_within_one_turn_is_a_change_of_roles() -> None:
    world, node = owning_node()
    roles = node.ownership.roles()
    world.zookeeper.vacate(1)
    world.run(1)
    assert node.ownership.epoch(1) == 2
    assert node.ownership.roles() == roles
    assert node.ownership.roles() is not roles


def test_owned_slices_are_confirmed_together_while_connected() -> None:
    world, node = owning_node()
    assert node.ownership.confirm_all([0, 2, 9]) == {0, 2}
    del world.zookeeper.owners[2]  # and the watch has not come yet
    assert node.ownership.confirm_all(range(3)) == {0, 1}
    world.zookeeper.stop()
    assert node.ownership.confirm_all(range(3)) == frozenset()


def test_an_unconfirmed_slice_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node = owning_node()

    def confirm_all(slice_nos: Iterable[int]) -> Iterator[int]:
        yield from set(slice_nos) - {1}
        raise EnsembleError("1 is not to be read")

    monkeypatch.setattr(node.link, "confirm_all", confirm_all)
    assert node.ownership.confirm_all(range(3)) == {0, 2}


def test_an_unreadable_seat_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_beats_keep_the_lease_while_slices_are_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if each batch of claims took as long as a third of a lease.
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
    world, node = owning_node()
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
    world, _ = owning_node()
    twin = world.start("a")
    world.run(5)
    assert reason(twin).endswith("node_id a is in use by another node: a1")


def test_a_verdict_reaches_the_election_at_once() -> None:
    world, node = owning_node()
    other = world.start("b")
    world.run(60)
    owned = set(node.ownership._election.owned)
    assert owned
    found = node.ownership.judge(WorkerFacts(turn_s=99))
    assert found.cause is Cause.LOOP_HANGS
    world.run(5)
    assert set(node.ownership._election.owned) == set()
    assert owned <= set(other.ownership._election.owned)


# --- the verdict on whether a node may own a slice: every fact by itself, and which one is named --


WELL = WorkerFacts()
UP_TO_DATE_COPY = CopyFacts(lag_s=0.0)


def test_a_worker_that_lacks_nothing_may_own_what_it_has_a_copy_of() -> None:
    assert electability(WELL) == ELECTABLE
    assert electability(WELL, UP_TO_DATE_COPY) == ELECTABLE
    assert ELECTABLE.may_own


@pytest.mark.parametrize(
    ("worker", "cause", "words"),
    [
        (WorkerFacts(silent_s=SILENT_S_MAX + 1), Cause.WORKER_SILENT, "silent for 16 s"),
        (WorkerFacts(silent_s=math.inf), Cause.WORKER_SILENT, "has not reported yet"),
        (WorkerFacts(kafka="no broker"), Cause.KAFKA_UNREACHABLE, "no broker"),
        (WorkerFacts(zookeeper="wrong password"), Cause.ZOOKEEPER_UNUSABLE, "wrong password"),
        (WorkerFacts(turn_s=TURN_S_MAX + 1), Cause.LOOP_HANGS, "lasted 9 s"),
        (WorkerFacts(disk_s=DISK_S_MAX + 1), Cause.DISK_HANGS, "not answered for 9 s"),
        (WorkerFacts(clock="20 s ahead"), Cause.CLOCK_IN_DOUBT, "20 s ahead"),
        (WorkerFacts(broker="broker 2"), Cause.BROKER_UNREACHABLE, "broker 2"),
        (WorkerFacts(crashes=2, lived_s=1.0), Cause.CRASHED, "2 times"),
    ],
)
def test_an_unfit_worker_says_why(worker: WorkerFacts, cause: Cause, words: str) -> None:
    for found in (electability(worker), electability(worker, UP_TO_DATE_COPY)):
        assert not found.may_own
        assert found.cause is cause
        assert words in found.reason


@pytest.mark.parametrize(
    ("copy", "cause", "words"),
    [
        (CopyFacts(), Cause.CATCHING_UP, "not known yet"),
        (CopyFacts(lag_s=11.0), Cause.CATCHING_UP, "11 s behind"),
        (CopyFacts(refusal="another cluster secret"), Cause.REFUSED, "another cluster secret"),
        (CopyFacts(0.0, failure="no coordinator", rest_s=4.0), Cause.FAILING, "no coordinator"),
    ],
)
def test_an_unfit_copy_is_not_owned_and_says_why(copy: CopyFacts, cause: Cause, words: str) -> None:
    found = electability(WELL, copy)
    assert not found.may_own
    assert found.cause is cause
    assert words in found.reason


@pytest.mark.parametrize(
    ("worker", "copy"),
    [
        (WorkerFacts(silent_s=SILENT_S_MAX), UP_TO_DATE_COPY),
        (WorkerFacts(turn_s=TURN_S_MAX, disk_s=DISK_S_MAX), UP_TO_DATE_COPY),
        (WorkerFacts(crashes=1, lived_s=0.0), UP_TO_DATE_COPY),
        (WorkerFacts(crashes=2, lived_s=5.0), UP_TO_DATE_COPY),
        (WELL, CopyFacts(lag_s=10.0)),
        (WELL, CopyFacts(0.0, failure="no coordinator", rest_s=0.0)),
    ],
)
def test_facts_within_their_bounds_do_not_disqualify(worker: WorkerFacts, copy: CopyFacts) -> None:
    assert electability(worker, copy) == ELECTABLE


def test_the_reason_named_is_the_one_that_causes_the_others() -> None:
    all_at_once = WorkerFacts(
        99, "kafka", "zookeeper", 99, 99, "writer", "clock", crashes=9, lived_s=0
    )
    expected: list[tuple[str, Cause, Any]] = [
        ("silent_s", Cause.WORKER_SILENT, 0.0),
        ("kafka", Cause.KAFKA_UNREACHABLE, ""),
        ("zookeeper", Cause.ZOOKEEPER_UNUSABLE, ""),
        ("turn_s", Cause.LOOP_HANGS, 0.0),
        ("disk_s", Cause.DISK_HANGS, 0.0),
        ("writer", Cause.WRITER_REFUSED, ""),
        ("clock", Cause.CLOCK_IN_DOUBT, ""),
        ("crashes", Cause.CRASHED, 0),
    ]
    for fact, cause, mended in expected:
        assert electability(all_at_once, CopyFacts()).cause is cause
        all_at_once = all_at_once._replace(**{fact: mended})
    assert electability(all_at_once, CopyFacts()).cause is Cause.CATCHING_UP


def test_only_what_others_are_merely_preferred_to_is_a_last_resort() -> None:
    unknown = WorkerFacts(clock="not compared yet", is_clock_known=False)
    assert electability(unknown).is_last_resort
    assert electability(WorkerFacts(crashes=3, lived_s=0)).is_last_resort
    assert not electability(WorkerFacts(clock="20 s ahead")).is_last_resort
    assert not electability(WorkerFacts(kafka="no broker")).is_last_resort
    assert not electability(WELL, CopyFacts()).is_last_resort


def test_retries_wait_twice_as_long_each_time_and_a_minute_at_most() -> None:
    assert [rest_s(failures) for failures in range(7)] == [0, 5, 10, 20, 40, 60, 60]
    assert rest_s(2_000) == 60


def test_a_verdict_without_a_cause_has_no_reason() -> None:
    assert Verdict().reason == ""
    assert all(cause.value.islower() for cause in Cause if cause is not Cause.NONE)
