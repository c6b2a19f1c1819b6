"""What is asked of ZooKeeper and written into it, and examples of placement."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from delayservice.config.settings import load
from delayservice.engine.ports import Role
from delayservice.process.node import node_instance
from ha.election_state import Lease, RoleViews
from ha.notes import LifeNote, NodeNote, OwnerNote, decode, encode, worker_name, worker_of
from ha.pipeline import REQUESTS_MAX, EnsembleError, EnsembleRefusedError, Pipeline
from ha.placement import PlacedMember, SliceFacts, StableLeaders, place, rank_owners
from tests.elapsed import Clock


class SilenceError(Exception):
    """An answer that has not come in time."""


class Server:
    """A client of kazoo's as a pipeline uses it, whose answers are set beforehand."""

    def __init__(self) -> None:
        self.connected = True
        self.handler = SimpleNamespace(timeout_exception=SilenceError)
        self.waiting = 0
        self.waiting_max = 0
        self.sent = 0
        self.waits_s: list[float] = []

    def request(self, answer: object) -> Callable[[], Any]:
        def get(timeout: float) -> object:
            self.waits_s.append(timeout)
            self.waiting -= 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        def send() -> Any:
            self.sent += 1
            self.waiting += 1
            self.waiting_max = max(self.waiting_max, self.waiting)
            return SimpleNamespace(get=get)

        return send

    def transaction(self, *results: object) -> Any:
        """A transaction with these results of its parts."""
        return SimpleNamespace(commit_async=self.request(list(results)))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def pipeline(server: Server) -> Pipeline:
    return Pipeline(server, 6.0)


def test_a_batch_is_sent_without_waiting_and_bounded(server: Server, pipeline: Pipeline) -> None:
    asked = {n: server.request(n * n) for n in range(1_000)}
    assert pipeline.ask_all(asked) == {n: n * n for n in range(1_000)}
    assert server.waiting_max == REQUESTS_MAX
    pipeline.raise_failure()


def test_how_the_nodes_are_is_an_answer_of_a_batch(server: Server, pipeline: Pipeline) -> None:
    errors = [NoNodeError(), NodeExistsError(), BadVersionError()]
    assert pipeline.ask_all(dict(enumerate(map(server.request, errors)))) == dict(enumerate(errors))
    pipeline.raise_failure()
    with pytest.raises(NoNodeError):
        pipeline.ask(server.request(NoNodeError()))


def test_a_failure_is_raised_after_all_other_answers(server: Server, pipeline: Pipeline) -> None:
    answers = [0, NoAuthError(), 2, ConnectionLoss(), 4]
    assert pipeline.ask_all(dict(enumerate(map(server.request, answers)))) == {0: 0, 2: 2, 4: 4}
    assert pipeline.ask_all({5: server.request(5)}) == {5: 5}
    with pytest.raises(EnsembleRefusedError, match="NoAuth"):
        pipeline.raise_failure()


def test_after_silence_nothing_is_sent_or_awaited(server: Server, pipeline: Pipeline) -> None:
    silence = {n: server.request(SilenceError()) for n in range(REQUESTS_MAX * 2)}
    assert pipeline.ask_all(silence) == {}
    assert server.sent == REQUESTS_MAX
    assert server.waits_s == [6.0] + [0.0] * (REQUESTS_MAX - 1)
    assert pipeline.ask_all({0: server.request(0)}) == {}
    with pytest.raises(EnsembleError, match="no answer"):
        pipeline.raise_failure()


def test_nothing_is_sent_while_disconnected(server: Server, pipeline: Pipeline) -> None:
    server.connected = False
    assert pipeline.ask_all({0: server.request(0)}) == {}
    assert server.sent == 0
    with pytest.raises(EnsembleError, match="out of reach"):
        pipeline.raise_failure()


def test_a_lost_transaction_stops_no_other(server: Server, pipeline: Pipeline) -> None:
    transactions = {
        0: server.transaction("stat", "path"),
        1: server.transaction(BadVersionError(), RuntimeInconsistency()),
        2: server.transaction(RolledBackError(), NodeExistsError()),
        3: server.transaction("stat", "path"),
    }
    assert pipeline.commit_all(transactions) == {0, 3}
    pipeline.raise_failure()


def test_a_refused_transaction_is_raised_last(server: Server, pipeline: Pipeline) -> None:
    transactions = {
        0: server.transaction(NoAuthError(), RuntimeInconsistency()),
        1: server.transaction("stat", "path"),
    }
    assert pipeline.commit_all(transactions) == {1}
    with pytest.raises(EnsembleRefusedError):
        pipeline.raise_failure()


# --- a lease ends before the session can, whatever the node hears or does not hear ----------------


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def test_a_lease_is_not_valid_before_the_first_answer(clock: Clock) -> None:
    assert not Lease(clock).is_valid


def test_a_lease_counts_from_the_sent_beat_and_ends_before_the_session(clock: Clock) -> None:
    lease = Lease(clock)
    sent_s = lease.now_s()
    clock.now_s += 3  # the answer took a while
    lease.renew(sent_s, 6)
    clock.now_s = sent_s + 3.99
    assert lease.is_valid
    clock.now_s = sent_s + 4
    assert not lease.is_valid


def test_a_late_answer_does_not_shorten_a_lease(clock: Clock) -> None:
    lease = Lease(clock)
    lease.renew(100, 6)
    lease.renew(98, 6)
    clock.now_s = 103.9
    assert lease.is_valid


def test_a_lost_session_ends_its_lease_at_once(clock: Clock) -> None:
    lease = Lease(clock)
    lease.renew(100, 6)
    lease.end()
    assert not lease.is_valid


def test_a_disconnected_owner_is_paused_and_then_a_replica() -> None:
    views = RoleViews({0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}, {0: 7})
    assert views.owning == {0: Role.OWNER, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.paused == {0: Role.PAUSED, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.ended == {0: Role.REPLICA, 1: Role.HEIR, 2: Role.REPLICA}
    assert views.epochs == {0: 7}


def test_without_an_owner_a_disconnection_changes_nothing() -> None:
    views = RoleViews({1: Role.HEIR}, {})
    assert views.owning is views.paused
    assert views.owning is views.ended


# --- what nodes write into ZooKeeper can be read back, and what others write there does no harm ---


@pytest.mark.parametrize(
    "note",
    [
        NodeNote("a", "a1", 2, 1, "rack", "host:1", 7),
        LifeNote("a", "a1", 1, (0, 2), {0: 5}),
        OwnerNote("a", "a1", 1, 7, "b"),
    ],
    ids=lambda note: type(note).__name__,
)
def test_a_note_is_read_as_it_was_written(note: msgspec.Struct) -> None:
    assert decode(encode(note), type(note)) == note


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"\xff", b'{"node_id": "\xff"}', b'{"node_id": 5}', b'{"worker": 1}'),
        b'{"node_id": "a", "instance": "a1", "workers": 0}',  # slices are numbered by workers
    ],
)
@pytest.mark.parametrize("kind", [OwnerNote, NodeNote])
def test_invalid_zookeeper_note_is_ignored(data: bytes, kind: type[OwnerNote | NodeNote]) -> None:
    assert decode(data, kind) is None


def test_a_note_of_a_later_version_is_read_without_what_is_new() -> None:
    data = b'{"node_id": "a", "instance": "a1", "worker": 0, "epoch": 3, "news": [1]}'
    assert decode(data, OwnerNote) == OwnerNote("a", "a1", 0, 3)


def test_a_worker_is_found_by_its_name() -> None:
    assert worker_of(worker_name("rack:1.a", 12)) == ("rack:1.a", 12)


@pytest.mark.parametrize("name", ["", "a", ":1", "a:", "a:b", "a:-1", "a:1 "])
def test_other_names_are_nobodys(name: str) -> None:
    assert worker_of(name) is None


# --- what tells two nodes of one name apart -------------------------------------------------------


def instance_in(state_dir: Path) -> str:
    return node_instance(load(None, [f"node.state_dir={state_dir}"], {}))


def test_a_node_stays_the_same_in_its_folder_wherever_that_is_moved(tmp_path: Path) -> None:
    first = instance_in(tmp_path / "here")
    assert instance_in(tmp_path / "here") == first
    (tmp_path / "here").rename(tmp_path / "there")
    assert instance_in(tmp_path / "there") == first


def test_a_copy_of_the_folder_is_another_node(tmp_path: Path) -> None:
    first = instance_in(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert instance_in(tmp_path / "there") != first


# --- examples of placement; the rules for any input are in the property tests ---------------------


SLICES = [SliceFacts(slice_no) for slice_no in range(64)]


def nodes(count: int, racks: int = 0) -> list[PlacedMember]:
    """node-0 beside broker 0, and so on, in turn in each rack."""
    return [PlacedMember(f"node-{i}", i, f"r{i % racks}" if racks else "") for i in range(count)]


def on(*numbers: int) -> frozenset[str]:
    return frozenset(f"node-{number}" for number in numbers)


def preferred(ranked: Mapping[int, tuple[str, ...]]) -> dict[int, str]:
    return {slice_no: order[0] for slice_no, order in ranked.items()}


def test_no_replica_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="1 replica or more, not 0"):
        place(nodes(3), SLICES, 0)


def test_every_release_and_every_machine_computes_this() -> None:
    placed = place(nodes(5), SLICES[:4], 2)
    assert placed == {0: on(1, 4), 1: on(0, 3), 2: on(3, 4), 3: on(1, 2)}
    assert rank_owners(placed, nodes(5), SLICES[:4]) == {
        0: ("node-4", "node-1"),
        1: ("node-0", "node-3"),
        2: ("node-3", "node-4"),
        3: ("node-2", "node-1"),
    }


@pytest.mark.parametrize("first", range(20))
def test_a_slice_that_gives_way_to_another_keeps_its_racks_apart(first: int) -> None:
    # The last two slices find four full nodes, and need one of them each.
    racks = dict(
        zip(["node-0", "node-1", "node-2", "node-3", "x", "y", "z"], "abcdabb", strict=True)
    )
    members = [PlacedMember(node, i, rack) for i, (node, rack) in enumerate(racks.items())]
    slices = [SliceFacts(first + i, replicas=(0, 1, 2, 3)) for i in range(5)]
    late = [SliceFacts(first + 5), SliceFacts(first + 6)]
    placed = place(members, slices + late, 4)
    assert all({"x", "y", "z"} < placed[facts.slice_no] for facts in late)
    for kept in placed.values():
        if on(2, 3) <= kept:
            assert {racks[node] for node in kept} == set("abcd")


def test_unknown_racks_are_not_one_rack() -> None:
    members = [*(PlacedMember(f"node-{i}") for i in range(6)), PlacedMember("known", rack="a")]
    plain = [PlacedMember(member.node_id) for member in members]
    assert place(members, SLICES, 2) == place(plain, SLICES, 2)


def test_a_leader_whose_node_is_dead_or_keeps_no_copy_is_passed_over() -> None:
    placed = {0: on(0, 1), 1: on(1, 2)}
    slices = [SliceFacts(0, leader=2), SliceFacts(1, leader=3)]
    ranked = rank_owners(placed, nodes(3), slices)
    assert {i: frozenset(order) for i, order in ranked.items()} == placed
    slices = [SliceFacts(0, leader=1), SliceFacts(1, leader=2)]
    assert rank_owners(placed, nodes(2), slices) == {0: ("node-1", "node-0"), 1: ("node-1",)}


def test_a_node_beside_no_broker_is_not_beside_an_unknown_leader() -> None:
    members = [PlacedMember("x"), *nodes(4)]
    placed = place(members, SLICES, None)
    beside = [PlacedMember(member.node_id, 9) for member in members]
    assert rank_owners(placed, members, SLICES) == rank_owners(placed, beside, SLICES)


def test_of_two_facts_about_one_node_or_slice_the_same_one_always_counts() -> None:
    members = [*nodes(5), PlacedMember("node-0", 3)]
    slices = [*(SliceFacts(i, i % 5, (i % 5,)) for i in range(16)), SliceFacts(0, 1, (1, 2))]
    placed = place(members, slices, 2)
    assert place(members[::-1], slices[::-1], 2) == placed
    ranked = rank_owners(placed, members, slices)
    assert rank_owners(placed, members[::-1], slices[::-1]) == ranked
    assert ranked.keys() == placed.keys()


def test_the_only_way_to_keep_the_bound_is_found_through_a_chain_of_moves() -> None:
    # Four slices and five nodes: one each. Every leader lures its slice to the place of another.
    placed = {0: on(0), 1: on(0, 1), 2: on(1, 2), 3: on(2, 3, 4)}
    slices = [SliceFacts(1, leader=0), SliceFacts(2, leader=1), SliceFacts(3, leader=2)]
    owners = preferred(rank_owners(placed, nodes(5), slices))
    assert owners.pop(3) in on(3, 4)
    assert owners == {0: "node-0", 1: "node-1", 2: "node-2"}


def test_a_bound_that_cannot_be_kept_is_passed_by_no_more_than_needed() -> None:
    # Two nodes must own eight slices, where 3 is the share; the leader lures to the first.
    placed = {i: on(0) if i < 3 else on(0, 1) for i in range(8)} | {i: on(i) for i in (8, 9, 10)}
    slices = [SliceFacts(i, leader=0) for i in range(3, 8)]
    owners = Counter(preferred(rank_owners(placed, nodes(11), slices)).values())
    assert owners["node-0"] == owners["node-1"] == 4


def test_slices_of_a_node_that_dies_spread_over_the_others() -> None:
    placed = place(nodes(5), SLICES, None)
    ranked = rank_owners(placed, nodes(5), SLICES)
    orphans = [i for i, order in ranked.items() if order[0] == "node-0"]
    heirs = Counter(ranked[i][1] for i in orphans)
    assert heirs.keys() == on(1, 2, 3, 4)
    after = rank_owners(placed, nodes(5)[1:], SLICES)
    as_said = sum(ranked[i][1] == after[i][0] for i in orphans)
    assert as_said >= 0.8 * len(orphans)


# --- a leader counts once it has stayed for a while -----------------------------------------------


def settle(leaders: StableLeaders, leader: int | None, now_s: float) -> int | None:
    return leaders.settle(SliceFacts(0, leader, (1, 2)), now_s).leader


def test_a_new_leader_counts_once_it_has_stayed() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    assert settle(leaders, 2, 10) == 1
    assert settle(leaders, 2, 69.9) == 1
    assert settle(leaders, 2, 70) == 2


def test_a_leader_that_goes_and_comes_back_changes_nothing() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    settle(leaders, 2, 10)
    settle(leaders, 1, 50)
    assert settle(leaders, 1, 200) == 1
    assert settle(leaders, 2, 201) == 1, "its time counts from its return"


def test_a_partition_without_a_leader_keeps_the_one_that_counted() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    settle(leaders, None, 10)
    assert settle(leaders, None, 100) == 1


def test_the_first_leader_of_a_partition_that_had_none_counts_at_once() -> None:
    leaders = StableLeaders(60)
    assert settle(leaders, None, 0) is None
    assert settle(leaders, 2, 1) == 2


def test_slices_have_leaders_of_their_own_and_keep_their_replicas() -> None:
    leaders = StableLeaders(60)
    settle(leaders, 1, 0)
    other = SliceFacts(1, 2, (2, 3))
    assert leaders.settle(other, 1) == other
