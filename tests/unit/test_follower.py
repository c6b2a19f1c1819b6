"""What a replica makes of checkpoints, and of there being none that it can see."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import (
    Checkpoint,
    Lost,
    ShardCheckpoint,
    WrongSecretError,
    encode_checkpoint,
)
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Checkpoints, ReadBack
from delayservice.slices.follow import Follower
from delayservice.slices.lane import Lane

CONTRACTS = Contracts([(0, Contract())])
OLD_TENURE = Tenure("old", 0)


def checkpoint(
    offset: int, topic_id: str = "id", signed_by: str = "mine", tenure: Tenure = OLD_TENURE
) -> bytes:
    shard = ShardCheckpoint(topic_id, Cursor((5, 5), offset), CONTRACTS)
    shards = {"topic": shard}
    return encode_checkpoint(Checkpoint(0, "n1", 1, signed_by, shards, 1, tenure))


class Replica:
    """A follower with one lane, between ports that a test sets."""

    def __init__(self, stored: int) -> None:
        self.now_s = 100.0
        self.checkpoints = create_autospec(Checkpoints, instance=True)
        self.checkpoints.read_back.return_value = None
        self.checkpoints.is_unserved.return_value = False
        self.lane = create_autospec(Lane, instance=True)
        self.lane.topic_id = "id"
        self.lane.shard = SimpleNamespace(stored=stored)
        self.lane.prune = self.pruned
        self.lane.clamp = lambda cursor, _last_read: cursor
        self.pruned_to: list[Cursor] = []
        clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self.follower = Follower(0, self.checkpoints, cast("Any", clock), ("mine", "also mine"))

    def pruned(self, cursor: Cursor) -> None:
        self.pruned_to.append(cursor)

    def hears(self, data: bytes) -> None:
        self.checkpoints.read_back.return_value = ReadBack(data, 0, 0, 0)
        self.follower.prune({"topic": self.lane}, is_owner=False)

    def lag_s(self) -> float:
        return self.follower.lag_s({"topic": self.lane}, {})


def test_it_prunes_by_the_checkpoint_and_reads_on_by_its_contracts() -> None:
    replica = Replica(stored=40)
    replica.hears(checkpoint(40))
    assert replica.pruned_to == [Cursor((5, 5), 40)]
    replica.lane.adopt.assert_called_once_with(CONTRACTS)
    replica.lane.follow.assert_called_once_with(Cursor((5, 5), 40))
    assert replica.lag_s() == 0


def test_it_counts_the_offsets_that_the_newest_checkpoint_names_as_lost() -> None:
    replica = Replica(stored=40)
    assert replica.follower.lost_offsets == 0
    lost = (Lost(3, 9), Lost(20, 31))
    shard = ShardCheckpoint("id", Cursor((5, 5), 40), CONTRACTS, lost=lost)
    replica.hears(
        encode_checkpoint(Checkpoint(0, "n1", 1, "mine", {"topic": shard}, 1, OLD_TENURE))
    )
    assert replica.follower.lost_offsets == 6 + 11


def test_a_topic_that_was_made_anew_is_not_behind_of_the_old_one() -> None:
    replica = Replica(stored=0)
    replica.hears(checkpoint(1_000_000, "the old topic's id"))
    assert replica.pruned_to == []
    assert replica.lag_s() == 0


def test_it_does_not_know_how_far_it_is_before_anything_was_read_back() -> None:
    replica = Replica(stored=40)
    assert math.isinf(replica.lag_s())
    replica.now_s += 60.0
    assert math.isinf(replica.lag_s()), "the topic may hold a checkpoint that is searched for yet"


def test_a_slice_without_any_checkpoint_is_new() -> None:
    replica = Replica(stored=0)
    replica.checkpoints.is_unserved.return_value = True
    assert replica.lag_s() == 0


def test_a_followed_checkpoint_is_followed_again_by_later_lanes_only() -> None:
    replica = Replica(stored=40)
    replica.hears(checkpoint(40))
    assert replica.follower.prune({"topic": replica.lane}, is_owner=False) is None
    assert replica.pruned_to == [Cursor((5, 5), 40)]
    replica.follower.again()
    assert replica.follower.prune({"topic": replica.lane}, is_owner=False) is not None
    assert len(replica.pruned_to) == 2


def test_an_owner_prunes_by_the_checkpoint_and_keeps_its_own_contracts() -> None:
    replica = Replica(stored=40)
    replica.checkpoints.read_back.return_value = ReadBack(checkpoint(40), 0, 0, 0)
    replica.follower.prune({"topic": replica.lane}, is_owner=True)
    assert replica.pruned_to == [Cursor((5, 5), 40)]
    assert not replica.lane.adopt.called
    assert not replica.lane.follow.called


@pytest.mark.parametrize(("claim", "is_followed"), [(6, True), (7, False), (8, False)])
def test_a_former_owner_follows_a_later_checkpoint_that_it_has_read(
    claim: int,
    is_followed: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    replica = Replica(stored=40)
    data = checkpoint(40, tenure=Tenure("w2", 7))
    replica.checkpoints.read_back.return_value = ReadBack(data, 0, 0, 0)
    lanes: Any = {"topic": replica.lane}
    replica.follower.prune(lanes, is_owner=True)
    replica.follower.stepped_down(lanes, claim)
    assert replica.lane.adopt.called == replica.lane.follow.called == is_followed


def test_a_slice_that_is_served_with_an_unknown_secret_is_refused_until_the_restart() -> None:
    replica = Replica(stored=40)
    replica.hears(checkpoint(40, signed_by="also mine"))
    assert replica.lag_s() == 0
    with pytest.raises(WrongSecretError, match="another cluster secret"):
        replica.hears(checkpoint(50, signed_by="a stranger's"))
    replica.hears(checkpoint(60))  # what the stranger signed meanwhile may still be pending
    assert "another cluster secret" in replica.follower.refusal
    assert replica.pruned_to == [Cursor((5, 5), 40)]
    assert math.isinf(replica.lag_s())
