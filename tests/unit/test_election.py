"""Rules of an election that no transcript reaches; all others are in ``tests/transcripts``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from delayservice.engine.electability import BROKER_S_MAX, Cause, WorkerFacts
from delayservice.engine.ports import Role
from ha.election import Election
from ha.election_state import Announce, ClaimSlice, ElectionPace, Resign
from ha.notes import LifeNote, NodeNote, OwnerNote, SliceOwner, encode
from ha.ownership import SliceStanding
from ha.placement import SliceFacts

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


def others(owner: str, epoch: int = 1, heir: str = "") -> SliceOwner:
    return SliceOwner(OwnerNote(owner, f"{owner}1", 0, epoch, heir))


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


def vacated(election: Election, now_s: float = 0, slice_no: int = 0) -> None:
    """Slice 0 was another's and is nobody's from ``now_s`` on."""
    election.seat(slice_no, others("third"), now_s - 1)
    election.seat(slice_no, VACANT, now_s)


def owning(election: Election, *, since_s: float = 0, is_settling: bool = True) -> Election:
    election.seat(0, VACANT, since_s - 1)
    election.seat(0, MINE, since_s)
    election.settling(0, is_settling=is_settling)
    return election


def ready(election: Election, *names: str) -> None:
    ready_for(election, 0, *names)


def ready_for(election: Election, slice_no: int, *names: str) -> None:
    election.view.set_lives(
        {f"{name}:0": LifeNote(name, f"{name}1", 0, (slice_no,)) for name in names}
    )


def announced(election: Election, heir: str, now_s: float) -> None:
    """As the announcement is carried out."""
    assert election.step(now_s) == [Announce(0, heir)]
    election.seat(0, SliceOwner(OwnerNote("me", "me1", 0, 1, heir), is_mine=True), now_s)
    assert election.step(now_s) == []


class TestClaims:
    @pytest.mark.parametrize(
        "facts",
        [
            WorkerFacts(clock="20 s ahead"),
            WorkerFacts(turn_s=99),
            WorkerFacts(disk_s=99),
            WorkerFacts(zookeeper="no session"),
        ],
    )
    def test_an_unfit_worker_does_not_take_its_preferred_slice(self, facts: WorkerFacts) -> None:
        election = elected()
        vacated(election)
        election.judge(facts)
        assert election.step(1000) == []
        assert election.life(1000).caught_up == (), "nobody hands over to it either"

    @pytest.mark.parametrize(
        "facts",
        [
            WorkerFacts(clock="not compared yet", is_clock_known=False),
            WorkerFacts(crashes=2, lived_s=0),
            WorkerFacts(broker="broker 2 does not answer", broker_s=99),
        ],
    )
    def test_a_last_resort_claims_what_nobody_else_does(self, facts: WorkerFacts) -> None:
        election = elected()
        vacated(election)
        election.judge(facts)
        assert election.life(0).caught_up == ()
        assert election.step(ElectionPace().last_s - 0.01) == []
        assert election.step(ElectionPace().last_s) == [ClaimSlice(0)]


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

    def test_an_owner_stays_while_a_broker_that_was_silent_has_to_prove_itself(self) -> None:
        election = owning(elected())
        ready(election, "other")
        election.judge(SILENT._replace(broker_s=0.0))
        assert election.step(1) == []

    def test_a_worker_that_resigned_waits_like_one_that_could_not_serve(self) -> None:
        election = owning(elected())
        ready(election, "other")
        election.judge(HUNG)
        election.step(0)
        election.seat(0, VACANT, 0)
        election.judge(WorkerFacts())
        assert election.step(0) == []
        assert election.wake_s == COOL_S
        assert election.verdict(0, 1).cause is Cause.FAILING

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
    def test_a_pinned_owner_keeps_its_slice_until_it_has_to_go(self) -> None:
        election = owning(elected(["other"]))
        ready(election, "other")
        election.pin(is_pinned=True)
        assert election.step(1000) == []
        election.leave()
        assert election.step(1001) == [Announce(0, "other")]

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

    def test_progress_is_asked_of_the_preferred_node_only_while_it_is_not_the_owner(self) -> None:
        assert owning(elected(["other"], live=NODES)).rivals == {"other:0"}
        assert owning(elected(["me"], live=NODES)).rivals == frozenset()
        assert elected(["other"], live=NODES).rivals == frozenset()


class TestCopies:
    def test_a_copy_is_kept_until_all_that_are_placed_are_ready(self) -> None:
        election = elected(["other"], live=NODES, known=["me"], replicas=1)
        election.nodes([note("me"), note("other")])
        assert election.serve(beside("other")) == {0}
        assert election.rivals == {"other:0"}
        ready(election, "other")
        assert election.serve(beside("other")) == frozenset()

    def test_a_slice_that_is_not_told_of_for_a_while_stays_as_it_is(self) -> None:
        election = owning(elected(["me", "other"]))
        before = dict(election.view._ranked)
        assert election.serve([]) == {0, 1}
        assert election.slices == {0, 1}
        assert election.roles(0) == {0: Role.OWNER, 1: Role.REPLICA}
        assert election.view._ranked == before, "nor do others move"
        election.gave_up(0, "broken")
        assert election.step(0) == [Resign(0, "broken")], "it can still be left to others"


class TestRoles:
    @pytest.mark.parametrize(
        ("preferred", "seat", "role"),
        [
            ("me", None, Role.REPLICA),
            ("me", MINE, Role.OWNER),
            ("other", MINE, Role.OWNER),
            ("me", VACANT, Role.HEIR),
            ("other", VACANT, Role.REPLICA),
            ("me", others("other"), Role.REPLICA),
            ("me", others("other", heir="me"), Role.HEIR),
            ("me", others("other", heir="third"), Role.REPLICA),
        ],
    )
    def test_role_follows_from_seat(
        self, preferred: str, seat: SliceOwner | None, role: Role
    ) -> None:
        election = elected([preferred])
        if seat is not None:
            election.seat(0, seat, 0)
        assert election.roles(0) == {0: role}


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
