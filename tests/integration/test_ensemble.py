"""Elections over a real ZooKeeper: what it does at once, what it forgets, and how it goes away."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
import pytest
from kazoo.exceptions import NotEmptyError
from kazoo.security import make_acl

from delay_devtools.cluster import EmbeddedCluster
from delayservice.config.cluster import ZooKeeper
from delayservice.engine.ports import Role
from ha.ensemble import Ensemble
from ha.notes import LifeNote, NodeNote, OwnerNote, SliceOwner
from ha.ownership import SliceStanding
from ha.pipeline import EnsembleError, EnsembleRefusedError, Pipeline
from ha.placement import SliceFacts
from tests.elapsed import at_most
from tests.integration.bench import await_true
from tests.integration.electing import (
    SESSION_S,
    Worker,
    by_hand,
    captured,
    logged,
    new_root,
    options,
    working,
)

pytestmark = pytest.mark.quick

OWNER = {name: OwnerNote(name, f"{name}1", 0, 0) for name in "ab"}
Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """ZooKeeper alone; the tests stop it and leave it running."""
    with EmbeddedCluster(brokers=0) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: EmbeddedCluster) -> ZooKeeper:
    return options(cluster.zookeeper)


@pytest.fixture
def brief(cluster: EmbeddedCluster) -> ZooKeeper:
    """With sessions that end soon."""
    return options(cluster.zookeeper, session_timeout_s=SESSION_S)


@contextmanager
def connected(zookeeper: ZooKeeper) -> Iterator[Ensemble]:
    one = Ensemble(zookeeper, lambda _: None)
    one.session.connect()
    await_true(lambda: one.session.is_connected, "it is connected")
    one.prepare()
    yield one
    one.session.close()


@pytest.fixture
def pair(zookeeper: ZooKeeper) -> Iterator[tuple[Ensemble, Ensemble]]:
    """Two sessions."""
    with connected(zookeeper) as first, connected(zookeeper) as second:
        yield first, second


# --- one session and another -------------------------------------------------------------------


def test_one_of_many_claims_wins_and_epochs_grow(pair: tuple[Ensemble, Ensemble]) -> None:
    for epoch in range(1, 21):
        won = claimed_together(pair)
        assert won.count(True) == 1
        name = "ab"[won.index(True)]
        note = OwnerNote(name, f"{name}1", 0, epoch)
        held = [dict(one.owners([0]))[0] for one in pair]
        assert held == [SliceOwner(note, is_mine=has_won) for has_won in won]
        for one in pair:
            one.resign_all([0])
        assert owner(pair[0]) is None


def claimed_together(pair: tuple[Ensemble, Ensemble]) -> list[bool]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(claim, pair, "ab"))


def claim(one: Ensemble, name: str, slice_no: int = 0) -> bool:
    return slice_no in one.claim_all([slice_no], OWNER[name])


def owner(one: Ensemble, slice_no: int = 0) -> OwnerNote | None:
    return dict(one.owners([slice_no]))[slice_no].owner


def is_confirmed(one: Ensemble) -> bool:
    return list(one.confirm_all([0])) == [0]


def test_another_s_owner_node_is_neither_resigned_nor_announced_nor_evicted(
    pair: tuple[Ensemble, Ensemble],
) -> None:
    first, second = pair
    claim(first, "a")
    held = owner(second)
    second.resign_all([0])
    second.announce_all({0: "b"})
    second.evict_all([0], OWNER["b"].worker_id)
    second.evict_all([0], ("b", "a1", 0))
    second.evict_all([0], ("a", "a1", 1))
    assert owner(second) == held
    assert not is_confirmed(second)
    assert is_confirmed(first)


@pytest.mark.parametrize("change", ["resign", "announce"])
def test_a_release_leaves_a_newer_owners_node_alone(
    pair: tuple[Ensemble, Ensemble], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, second = pair
    claim(first, "a")
    changing: dict[str, Callable[[], None]] = {
        "resign": lambda: first.resign_all([0]),
        "announce": lambda: first.announce_all({0: "a"}),
    }
    looked = first._held

    def look_and_lose(batch: Pipeline, slice_nos: Iterable[int]) -> dict[int, SliceOwner]:
        held = looked(batch, slice_nos)
        second.session.delete(second._owner_path(0))
        claim(second, "b")
        return held

    monkeypatch.setattr(first, "_held", look_and_lose)
    changing[change]()
    held = owner(second)
    assert held is not None
    assert held.node_id == "b"
    assert is_confirmed(second)


def test_an_owner_node_deleted_by_hand_is_not_confirmed(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper, pair: tuple[Ensemble, Ensemble]
) -> None:
    first, _ = pair
    claim(first, "a")
    assert is_confirmed(first)
    with by_hand(cluster.zookeeper) as operator:
        operator.delete(f"{zookeeper.root}/slices/0/owner")
    assert not is_confirmed(first)
    first.resign_all([0])
    first.announce_all({0: "a"})
    assert owner(first) is None


def test_stale_own_nodes_are_replaced_and_those_of_a_namesake_are_not(
    pair: tuple[Ensemble, Ensemble],
) -> None:
    first, second = pair
    life, node = LifeNote("a", "a1", 0), NodeNote("a", "a1", 1)
    assert first.register(node, life) is None
    other = NodeNote("a", "a2", 1)
    assert second.register(other, LifeNote("a", "a2", 0)) == life
    assert second.nodes() == [node], "nor has its note become the other's"
    assert second.register(node, life) is None
    claim(first, "a")
    second.evict_all([0], OWNER["a"].worker_id)
    assert owner(second) is None


def test_a_node_of_a_name_in_use_does_not_register_workers_that_the_other_lacks(
    pair: tuple[Ensemble, Ensemble],
) -> None:
    first, second = pair
    node, life = NodeNote("a", "a1", 1), LifeNote("a", "a1", 0)
    assert first.register(node, life) is None
    assert second.register(NodeNote("a", "a2", 2), LifeNote("a", "a2", 1)) == life
    assert second.nodes() == [node]
    assert second.live() == ["a:0"]
    assert second.register(NodeNote("ab", "ab1", 1), LifeNote("ab", "ab1", 0)) is None
    first.unregister(life)
    assert second.register(NodeNote("a", "a2", 2), LifeNote("a", "a2", 1)) is None


def test_a_beat_tells_when_another_of_its_name_has_registered_meanwhile(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper, pair: tuple[Ensemble, Ensemble]
) -> None:
    first, second = pair
    life, other = LifeNote("a", "a1", 0), LifeNote("a", "a2", 0)
    assert first.register(NodeNote("a", "a1", 1), life) is None
    assert first.beat(life)
    with by_hand(cluster.zookeeper) as operator:
        operator.delete(f"{zookeeper.root}/live/a:0")
    assert not first.beat(life)
    assert second.register(NodeNote("a", "a2", 1), other) is None
    assert not first.beat(life)
    assert second.lives(["a:0"]) == {"a:0": other}, "nor is the other's note overwritten"
    assert second.beat(other)


# --- many slices -------------------------------------------------------------------------------

MANY = range(1_000)


def test_a_thousand_slices_are_claimed_confirmed_and_resigned_together(
    pair: tuple[Ensemble, Ensemble],
) -> None:
    first, second = pair
    assert first.claim_all(MANY, OWNER["a"]) == set(MANY)
    note = msgspec.structs.replace(OWNER["a"], epoch=1)
    assert dict(first.owners(MANY)) == dict.fromkeys(MANY, SliceOwner(note, is_mine=True))
    assert dict(second.owners(MANY)) == dict.fromkeys(MANY, SliceOwner(note, is_mine=False))
    assert set(first.confirm_all(MANY)) == set(MANY)
    assert not set(second.confirm_all(MANY))
    assert [held.owner for held in second.survey(MANY).slices] == ["a"] * len(MANY)
    second.resign_all(MANY)
    assert set(first.confirm_all(MANY)) == set(MANY)
    first.resign_all(MANY)
    assert dict(second.owners(MANY)) == dict.fromkeys(MANY, SliceOwner())
    assert second.claim_all(MANY, OWNER["b"]) == set(MANY)
    assert {held.owner and held.owner.epoch for _, held in second.owners(MANY)} == {2}


def test_a_claim_that_loses_keeps_no_other_from_winning(pair: tuple[Ensemble, Ensemble]) -> None:
    first, second = pair
    assert claim(first, "a", slice_no=1)
    assert second.claim_all(range(3), OWNER["b"]) == {0, 2}
    held = {n: held.owner.node_id for n, held in second.owners(range(3)) if held.owner}
    assert held == {0: "b", 1: "a", 2: "b"}


def test_a_refused_slice_does_not_hold_up_others(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper, pair: tuple[Ensemble, Ensemble]
) -> None:
    first, _ = pair
    with by_hand(cluster.zookeeper) as operator:
        operator.create(f"{zookeeper.root}/slices/1/epoch", b"", makepath=True)
        read_only = [make_acl("world", "anyone", read=True)]
        operator.set_acls(f"{zookeeper.root}/slices/1/epoch", read_only)
        with pytest.raises(EnsembleRefusedError):
            first.claim_all(range(3), OWNER["a"])
        assert set(first.confirm_all(range(3))) == {0, 2}
        unreadable = [make_acl("world", "anyone", write=True)]
        operator.set_acls(f"{zookeeper.root}/slices/0/owner", unreadable)
    read = dict(read_until_refused(first.owners(range(3))))
    confirmed = set(read_until_refused(first.confirm_all(range(3))))
    assert {n: held.owner is not None for n, held in read.items()} == {1: False, 2: True}
    assert confirmed == {2}


def read_until_refused(answers: Iterator[Answer]) -> list[Answer]:
    read = []
    try:
        for answer in answers:
            read.append(answer)  # noqa: PERF402  # what comes before an error counts
    except EnsembleRefusedError:
        return read
    raise AssertionError("nothing was refused")


def test_a_slice_that_appears_while_it_is_looked_for_is_watched(
    pair: tuple[Ensemble, Ensemble], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    changed: list[int] = []
    monkeypatch.setattr(first.session, "_changed", changed.append)
    looked = first._held

    def look_and_lose(*asked: Any, **options: Any) -> dict[int, SliceOwner]:
        held = looked(*asked, **options)
        if options:
            claim(second, "b")
        return held

    monkeypatch.setattr(first, "_held", look_and_lose)
    held = owner(first)
    assert held is not None
    assert held.node_id == "b"
    second.resign_all([0])
    await_true(lambda: 0 in changed, "its end is seen")


def test_slices_that_fall_silent_are_waited_for_once(
    cluster: EmbeddedCluster, brief: ZooKeeper
) -> None:
    with connected(brief) as first:
        cluster.signal_zookeeper(1, signal.SIGSTOP)
        try:
            with at_most(10 * SESSION_S), pytest.raises(EnsembleError):
                first.claim_all(MANY, OWNER["a"])
        finally:
            cluster.signal_zookeeper(1, signal.SIGCONT)
        await_true(lambda: first.session.is_connected, "it is connected again")


def test_a_worker_owns_a_thousand_slices_and_leaves_them(zookeeper: ZooKeeper) -> None:
    worker = Worker(zookeeper)
    worker.ownership.serve([SliceFacts(n, ord("a")) for n in MANY])
    for slice_no in MANY:
        worker.ownership.standing(slice_no, SliceStanding({}, 0))
    changes: list[None] = []
    worker.ownership.on_change(lambda: changes.append(None))
    worker.ownership.start()
    everything = dict.fromkeys(MANY, Role.OWNER)
    await_true(lambda: worker.ownership.roles() == everything, "it owns them all")
    assert worker.ownership.confirm_all([*MANY, 1_000]) == set(MANY)
    assert {worker.ownership.epoch(n) for n in MANY} == {1}
    roles, told = worker.ownership.roles(), len(changes)
    time.sleep(SESSION_S)
    assert worker.ownership.roles() is roles, "nothing has changed"
    assert len(changes) == told
    worker.ownership.close()
    assert not worker.ownership.has_failed
    with working(zookeeper, "b") as other:
        assert other.ownership.epoch(0) == 2


# --- one worker --------------------------------------------------------------------------------


def test_a_deleted_owner_node_is_won_again_in_the_next_epoch(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper
) -> None:
    with working(zookeeper) as worker, by_hand(cluster.zookeeper) as operator:
        operator.delete(f"{zookeeper.root}/slices/0/owner")
        await_true(lambda: worker.ownership.epoch(0) == 2, "the next epoch")
        worker.await_role(Role.OWNER)


@pytest.mark.parametrize("epoch", [b"foo", b"-3", b"9" * 30, b"\xff"])
def test_an_epoch_that_is_no_number_counts_from_0_and_is_told_once(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper, pair: tuple[Ensemble, Ensemble], epoch: bytes
) -> None:
    with captured() as lines, by_hand(cluster.zookeeper) as operator:
        for _ in range(2):
            operator.ensure_path(f"{zookeeper.root}/slices/0/epoch")
            operator.set(f"{zookeeper.root}/slices/0/epoch", epoch)
            assert claim(pair[0], "a")
            held = owner(pair[0])
            assert held is not None
            assert held.epoch == 1
            pair[0].resign_all([0])
    assert len(logged(lines, "epoch_not_readable")()) == 1


def test_an_owner_node_that_no_session_holds_is_removed(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper
) -> None:
    with captured() as lines, by_hand(cluster.zookeeper) as operator:
        operator.create(f"{zookeeper.root}/slices/0/owner", b"mine", makepath=True)
        with working(zookeeper) as worker:
            assert worker.ownership.epoch(0) == 1
    assert logged(lines, "owner_node_foreign")()


def test_one_that_can_not_be_removed_keeps_no_other_slice_from_its_owner(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper
) -> None:
    with by_hand(cluster.zookeeper) as operator:
        operator.create(f"{zookeeper.root}/slices/1/owner/below", b"", makepath=True)
        worker = Worker(zookeeper)
        worker.ownership.serve([SliceFacts(n, ord("a")) for n in range(3)])
        for slice_no in range(3):
            worker.ownership.standing(slice_no, SliceStanding({}, 0))
        worker.ownership.start()
        await_true(
            lambda: worker.ownership.roles().get(2, Role.REPLICA) is Role.OWNER,
            "it owns the others",
        )
        assert worker.ownership.roles().get(1, Role.REPLICA) is Role.REPLICA
        worker.ownership.close()


def test_everything_may_be_deleted_by_hand(cluster: EmbeddedCluster, zookeeper: ZooKeeper) -> None:
    with working(zookeeper) as worker, by_hand(cluster.zookeeper) as operator:
        for _ in range(100):  # at any moment of the worker's own turn
            with suppress(NotEmptyError):  # the worker is at it again already
                operator.delete(zookeeper.root, recursive=True)
        await_true(lambda: operator.exists(f"{zookeeper.root}/live/a:0"), "it is registered again")
        await_true(lambda: operator.exists(f"{zookeeper.root}/nodes/a"), "and known")
        await_true(lambda: operator.exists(f"{zookeeper.root}/slices/0/owner"), "and owns")
        worker.await_role(Role.OWNER)


def test_an_expired_session_is_followed_by_another_without_a_restart(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper
) -> None:
    with captured() as lines, working(zookeeper) as worker, by_hand(cluster.zookeeper):
        before = worker.session
        expire(cluster, worker)
        await_true(lambda: worker.session not in (before, None), "a new session")
        await_true(lambda: worker.ownership.epoch(0) == 2, "the next epoch")
        worker.await_role(Role.OWNER)
    assert logged(lines, "session_lost")()


def expire(cluster: EmbeddedCluster, worker: Worker) -> None:
    """A second connection takes the session over, and ends it."""
    kazoo = worker.ownership.ensemble.session.client
    with by_hand(cluster.zookeeper) as thief:
        thief.stop()
        thief._session_id, thief._session_passwd = kazoo.client_id
        thief.start(10)


def test_a_second_worker_of_one_name_says_so_and_takes_over_when_the_first_has_left(
    zookeeper: ZooKeeper,
) -> None:
    with (
        captured() as lines,
        working(zookeeper, "a", "a1") as first,
        working(zookeeper, "a", "a2", role=None) as second,
    ):
        await_true(logged(lines, "node_id_in_use"), "it says so")
        assert second.role is not Role.OWNER
        assert first.role is Role.OWNER
        first.ownership.close()
        second.await_role(Role.OWNER)
    assert [line["by"] for line in logged(lines, "node_id_in_use")()] == ["a1"]


# --- without ZooKeeper -------------------------------------------------------------------------


def test_the_contract_version_that_all_know_follows_who_comes_and_goes(
    zookeeper: ZooKeeper,
) -> None:
    def agree(version: int, *workers: Worker) -> bool:
        return all(worker.ownership.contract_version() == version for worker in workers)

    with working(zookeeper, "a", version=9) as first:
        assert agree(9, first)
        with working(zookeeper, "b", version=8, role=None) as second:
            await_true(lambda: agree(8, first, second), "both know the lower version")
            with working(zookeeper, "c", role=None) as third:
                await_true(lambda: agree(1, first, second, third), "one is older")
            await_true(lambda: agree(8, first, second), "the older one has left")
        await_true(lambda: agree(9, first), "it is alone")
        with working(zookeeper, "b", "b2", version=9, role=None) as upgraded:
            await_true(lambda: agree(9, first, upgraded), "the other was upgraded")


def test_zookeeper_may_come_later(cluster: EmbeddedCluster, zookeeper: ZooKeeper) -> None:
    cluster.stop_zookeeper()
    with captured() as lines, working(zookeeper, role=None) as worker:
        await_true(logged(lines, "waiting_for_zookeeper", "refused"), "it waits and says why")
        assert worker.role is Role.REPLICA
        cluster.start_zookeeper()
        worker.await_role(Role.OWNER)
    reasons = [line["why"] for line in logged(lines, "waiting_for_zookeeper")()]
    assert len(reasons) == len(set(reasons)), "each is told once"


def test_a_stopped_zookeeper_pauses_an_owner_at_once_and_its_lease_ends_it(
    cluster: EmbeddedCluster, brief: ZooKeeper
) -> None:
    with working(brief) as worker:
        cluster.stop_zookeeper()
        with at_most(10 * SESSION_S):
            worker.await_role(Role.PAUSED)
            assert not worker.ownership.confirm_all([0])
            worker.await_role(Role.REPLICA)
        cluster.start_zookeeper()
        worker.await_role(Role.OWNER)


def test_a_frozen_zookeeper_ends_an_owner_with_its_lease(
    cluster: EmbeddedCluster, brief: ZooKeeper
) -> None:
    with working(brief) as worker:
        cluster.signal_zookeeper(1, signal.SIGSTOP)
        with at_most(10 * SESSION_S):
            worker.await_role(Role.REPLICA)
        cluster.signal_zookeeper(1, signal.SIGCONT)
        worker.await_role(Role.OWNER)


def test_a_worker_leaves_quickly_though_zookeeper_is_frozen(
    cluster: EmbeddedCluster, brief: ZooKeeper
) -> None:
    worker = Worker(brief)
    worker.ownership.start()
    worker.await_role(Role.OWNER)
    cluster.signal_zookeeper(1, signal.SIGSTOP)
    try:
        with at_most(10 * SESSION_S):
            worker.ownership.close()
    finally:
        cluster.signal_zookeeper(1, signal.SIGCONT)


def test_an_ensemble_goes_on_without_one_server_and_no_one_owns_without_its_quorum() -> None:
    with EmbeddedCluster(brokers=0, zookeepers=3) as ensemble:
        root = new_root()
        with (
            working(options(ensemble.zookeeper, root), "a") as first,
            working(options(ensemble.zookeeper, root), "b", role=None) as second,
        ):
            both = (first, second)

            def owners() -> list[Worker]:
                return [one for one in both if one.ownership.confirm_all([0])]

            lost = leader_of(ensemble)
            ensemble.stop_zookeeper(lost, kill=True)
            await_true(lambda: len(owners()) == 1, "one owner is confirmed by the others")
            another = lost % 3 + 1
            ensemble.stop_zookeeper(another, kill=True)
            await_true(lambda: not owners(), "one server confirms nobody")
            ensemble.start_zookeeper(another)
            await_true(lambda: len(owners()) == 1, "one of them owns it again")
            (owning,) = owners()
            (other,) = (one for one in both if one is not owning)
            owning.ownership.close()
            other.await_role(Role.OWNER)


def leader_of(ensemble: EmbeddedCluster) -> int:
    """Its death is the worst that can happen."""
    for number, host in enumerate(ensemble.zookeeper.split(","), 1):
        with by_hand(host) as client:
            if "Mode: leader" in client.command(b"srvr"):
                return number
    raise AssertionError("there is no leader")
