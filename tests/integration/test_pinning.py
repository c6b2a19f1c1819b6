"""Owners that an operator has pinned, on a real ensemble, pinned and unpinned by the command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delayservice.config.cluster import ZooKeeper
from delayservice.engine.ports import Role
from ha.election_state import ElectionPace
from tests.integration.bench import await_true
from tests.integration.electing import by_hand, captured, logged, options, typed, working

TENURE_S = ElectionPace().tenure_s


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=0) as running:
        yield running


@pytest.fixture
def zookeeper(cluster: EmbeddedCluster) -> ZooKeeper:
    return options(cluster.zookeeper)


def test_a_pinned_slice_stays_until_it_is_unpinned(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with captured() as lines, working(zookeeper, "b") as owner:
        owner.ownership.settling(0, is_settling=True)
        said = typed(zookeeper, tmp_path, "pin", "--reason", "an upgrade\x1b[31m")
        assert said == {"pinned": True, "was_pinned": False}
        await_true(lambda: "an upgrade" in owner.ownership.pinned(), "it hears of it")
        assert "\x1b" not in owner.ownership.pinned()
        with working(zookeeper, "a", role=None) as preferred:
            epoch, since_s = owner.ownership.epoch(0), time.monotonic()
            await_true(lambda: time.monotonic() - since_s > 2 * TENURE_S, "time has passed")
            assert owner.role is Role.OWNER
            assert owner.ownership.epoch(0) == epoch
            assert typed(zookeeper, tmp_path, "unpin")["was_pinned"]
            await_true(lambda: owner.role is Role.REPLICA, "it stops")
            owner.ownership.settling(0, is_settling=False)
            preferred.await_role(Role.OWNER)
            assert preferred.ownership.pinned() == ""
    assert len(logged(lines, "ownership_pinned")()) == 2, "each worker says it once"
    assert logged(lines, "ownership_unpinned")()
    assert not typed(zookeeper, tmp_path, "unpin")["was_pinned"], "it may be repeated"


def test_the_owner_of_a_pinned_slice_that_dies_is_replaced_and_does_not_get_it_back(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with captured(), ExitStack() as first:
        # Alone until it is the owner: were the other faster, it would keep the slice, for an owner
        # that does not settle hands nothing over.
        first.enter_context(working(zookeeper, "a"))
        with working(zookeeper, "b", role=None) as other:
            assert not typed(zookeeper, tmp_path, "pin", "--reason", "an upgrade")["was_pinned"]
            assert typed(zookeeper, tmp_path, "pin", "--reason", "still")["was_pinned"]
            await_true(lambda: "still" in other.ownership.pinned(), "it hears of both")
            first.close()
            other.await_role(Role.OWNER)
            other.ownership.settling(0, is_settling=True)
            with working(zookeeper, "a", "a2", role=None):
                since_s = time.monotonic()
                await_true(lambda: time.monotonic() - since_s > 2 * TENURE_S, "time has passed")
                assert other.role is Role.OWNER
            other.ownership.settling(0, is_settling=False)


def test_a_pin_node_written_by_hand_pins_too(
    cluster: EmbeddedCluster, zookeeper: ZooKeeper
) -> None:
    with working(zookeeper) as worker, by_hand(cluster.zookeeper) as operator:
        operator.create(f"{zookeeper.root}/pinned", b"yes")
        await_true(worker.ownership.pinned, "it counts")
        operator.delete(f"{zookeeper.root}/pinned")
        await_true(lambda: not worker.ownership.pinned(), "it is over")
