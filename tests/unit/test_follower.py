"""What a replica makes of checkpoints, and how far it is behind of them."""

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
from delayservice.engine.electability import Lag
from delayservice.engine.estimates import AHEAD_MS, Growth
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
        self.lane.store = SimpleNamespace(prune=self.pruned)
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
    lost = (Lost(3, 9), Lost(20, 31, before=1_000))
    shard = ShardCheckpoint("id", Cursor((5, 5), 40), CONTRACTS, lost=lost)
    replica.hears(
        encode_checkpoint(Checkpoint(0, "n1", 1, "mine", {"topic": shard}, 1, OLD_TENURE))
    )
    assert replica.follower.lost_offsets == 1_000 + 11


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


def test_a_checkpoint_says_nothing_about_a_copy_while_newer_ones_are_not_read() -> None:
    replica = Replica(stored=40)
    replica.checkpoints.is_newest.return_value = False
    replica.hears(checkpoint(40))
    assert math.isinf(replica.lag_s()), "its consumer has just begun, with old checkpoints"
    replica.hears(checkpoint(70))
    replica.checkpoints.is_newest.return_value = True
    assert math.isinf(replica.lag_s()), "a newer one may have been read since it was looked"
    replica.hears(checkpoint(90))
    assert math.isinf(replica.lag_s()), "it is behind of the newest, whatever old ones it has"
    replica.lane.shard.stored = 90
    assert replica.lag_s() == 0


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
def test_a_former_owner_follows_a_later_checkpoint(claim: int, *, is_followed: bool) -> None:
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


# --- how far behind a copy is, told from the checkpoints that it has passed -----------------------


def test_nobody_knows_before_a_checkpoint_was_heard() -> None:
    assert math.isinf(Lag().lag_s({"t": 5}, 10))


def test_a_slice_that_was_never_served_has_nothing_to_be_behind_of() -> None:
    lag = Lag()
    lag.never_served(10)
    assert lag.lag_s({"t": 0}, 11) == 0


def test_a_copy_that_has_everything_is_not_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 20) == 0


def test_a_copy_that_has_never_caught_up_is_infinitely_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert math.isinf(lag.lag_s({"t": 4}, 11))


def test_a_copy_is_behind_by_the_age_of_the_newest_checkpoint_that_it_has_passed() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert math.isinf(lag.lag_s({"t": 0}, 11))
    lag.heard({"t": 9}, 12)
    assert lag.lag_s({"t": 6}, 13) == 3  # it has that of 10, not that of 12
    assert lag.lag_s({"t": 8}, 14) == 4  # the goal is the one of 12 now


def test_under_load_a_copy_that_keeps_up_stays_a_little_behind() -> None:
    lag = Lag()
    for second in range(100):
        lag.heard({"t": 10 * second}, second)
        late_s = lag.lag_s({"t": 10 * second - 5}, second)
    assert late_s <= 2


def test_a_copy_that_stands_still_falls_behind() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 10) == 0
    lag.heard({"t": 6}, 11)
    assert lag.lag_s({"t": 5}, 40) == 30


def test_a_wiped_copy_is_behind_until_it_has_caught_up_again() -> None:
    lag = Lag()
    lag.heard({"t": 5}, 10)
    assert lag.lag_s({"t": 5}, 10) == 0
    assert math.isinf(lag.lag_s({"t": 0}, 11))
    assert lag.lag_s({"t": 5}, 12) == 0


def test_every_shard_counts_that_is_served_here_and_no_other() -> None:
    lag = Lag()
    lag.heard({"t": 5, "u": 7, "removed": 9}, 10)
    assert math.isinf(lag.lag_s({"t": 5, "u": 6}, 10))
    assert lag.lag_s({"t": 5, "u": 7}, 10) == 0


def test_a_copy_at_the_end_of_a_shortened_log_has_no_lag() -> None:
    lag = Lag()
    lag.heard({"t": 100}, 10)
    assert math.isinf(lag.lag_s({"t": 40}, 11, {}))
    assert math.isinf(lag.lag_s({"t": 40}, 11, {"t": 50}))
    assert lag.lag_s({"t": 50}, 12, {"t": 50}) == 0


def test_a_log_that_goes_on_asks_for_no_more_than_the_checkpoint() -> None:
    lag = Lag()
    lag.heard({"t": 100}, 10)
    assert lag.lag_s({"t": 100}, 11, {"t": 900}) == 0


# --- how many offsets a log is expected to grow by, from the records that were read of it ---------


NOW_MS = 1_900_000_000_000


def steady(per_s: int, until_ms: int = NOW_MS, seconds: int = 60) -> Growth:
    """A log that has grown evenly for a while, read in runs of 10 ms."""
    growth = Growth()
    for step in range(seconds * 100 + 1):
        growth.note(step * per_s // 100, until_ms - seconds * 1_000 + step * 10)
    return growth


def test_a_log_of_which_nothing_was_read_gives_no_reason_to_wait() -> None:
    assert Growth().offsets_ahead(1_000_000, NOW_MS) == 0


def test_a_log_that_grows_evenly_is_expected_to_go_on() -> None:
    expected = steady(per_s=2_000).offsets_ahead(120_000, NOW_MS)
    assert 0.85 * 2 * AHEAD_MS <= expected <= 2 * AHEAD_MS


def test_a_log_that_rests_is_expected_to_rest() -> None:
    growth = steady(per_s=2_000, until_ms=NOW_MS - 3_600_000)
    assert growth.offsets_ahead(120_001, NOW_MS) == 0


def test_a_burst_counts_as_what_came_of_it_so_far() -> None:
    growth = Growth()
    growth.note(0, NOW_MS - 10)
    assert growth.offsets_ahead(500, NOW_MS) == 500


def test_a_short_burst_that_is_over_and_was_read_whole_is_not_expected_again() -> None:
    growth = Growth()
    growth.note(0, NOW_MS - 13_000)
    growth.note(49, NOW_MS - 12_900)
    assert growth.offsets_ahead(50, NOW_MS) == 0


def test_unread_records_count_as_spread_evenly_since_the_last_read() -> None:
    growth = steady(per_s=100, until_ms=NOW_MS - 4 * AHEAD_MS)
    assert growth.offsets_ahead(6_000 + 4 * AHEAD_MS, NOW_MS) == AHEAD_MS


def test_a_log_that_is_read_again_or_has_lost_its_end_is_not_expected_to_shrink() -> None:
    growth = steady(per_s=100)
    growth.note(0, NOW_MS - 60_000)
    assert growth.offsets_ahead(10, NOW_MS) == 0


def test_a_clock_behind_the_brokers_changes_little() -> None:
    growth = steady(per_s=1_000)
    assert 0 < growth.offsets_ahead(60_000, NOW_MS - 500) <= AHEAD_MS + 500
