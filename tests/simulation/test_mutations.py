"""The simulation catches every mistake that the protocol's model caught, and more."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import absent_mutations, election_mutations, mutations
from tests.simulation.home_mutations import WITH_HOMES
from tests.simulation.mutating import Mutation, mistakes_in
from tests.simulation.plan import (
    AT_LEAST_ONCE,
    ELECTED,
    NO_ROLL_MS,
    OUTAGE,
    RECREATED,
    SETTINGS_DIFFER,
    TOPICS,
    TRUNCATED,
    TRUNCATED_LEVELS,
    Plan,
    usual_plan,
    with_homes,
)
from tests.simulation.schedule import run_schedule, silenced
from tests.unit import test_claims, test_log_truncated

SEEDS = 1_500
SEEDS_WITH_HOMES = range(130_000, 130_200)
HANDS: dict[str, Any] = {"slices": 2, "nodes": 3, "moves": 0.4, "late": 0.5, "helper": 0.1} | {
    "crash": 0.02,
    "actions": 200,
    "records": 10,
    "give_up": 0.0,
}
"""Slices change hands all the time."""
OVERLAPS: dict[str, Any] = {"roll_window_ms": 60, "ids": 1, "records": 16, "poll_records": 1} | {
    "append": 0.2,
    "far": 0.6,
    "crash": 0.02,
}
"""Copies come back bit by bit."""
ALONE: dict[str, Any] = {"slices": 1, "nodes": 2, "moves": 0.01, "uncertain": 0.0, "crash": 0.0} | {
    "rivals": 0.0,
    "other_node": 0.0,
    "give_up": 0.0,
    "broken_call": 0.0,
    "lanes_change": False,
    "actions": 200,
}
"""One owner all the time."""
UNTROUBLED: dict[str, Any] = {"late": 0.0, "helper": 0.0, "abort": 0.0, "crash": 0.0} | {
    "give_up": 0.0,
    "uncertain": 0.0,
    "resent": 0.0,
    "forgets": 0.0,
    "intruder": 0.0,
    "broken_call": 0.0,
    "lazy_markers": False,
    "rivals": 0.0,
    "stuck": "",
    "far": 0.0,
    "roll_window_ms": NO_ROLL_MS,
    "recurring": 0.0,
    "targets_fail": False,
    "pauses": False,
    "asked": 0.0,
    "rest_ms": 0,
    "clock_wrong": False,
    "lanes_change": False,
    "levels": (),
    "load": False,
    "poll_records": 50,
    "batch_records": 50,
    "transaction_records": 50,
    "tick": 0.02,
    "foreign": False,
    "queue_full": 0.0,
}
"""Nothing goes wrong but what a plan adds."""
ELECTIONS_AND_TROUBLE: dict[str, Any] = ELECTED | {
    "nodes": 3,
    "moves": 0.2,
    "stands_still": 0.02,
    "near": 0.9,
    "actions": 120,
    "clock_back": True,
}
BENT: dict[str, dict[str, Any]] = {
    # Needs a copy that comes back after both its canceller and its time.
    "dead_copy_delivered": {"roll_window_ms": 15, "ids": 4, "records": 30, "poll_records": 1}
    | {"append": 0.15, "far": 0.3, "near": 0.7, "again": 0.0, "tick": 0.1, "crash": 0.05},
    # Needs a target that is missing when something far away is fired.
    "fired_and_parked_waits": UNTROUBLED
    | {"targets_fail": True, "records": 40, "ids": 4, "slices": 1}
    | {"roll_window_ms": 400, "far": 0.6, "near": 0.4, "append": 0.2, "actions": 300},
    "to_lso": HANDS | {"lazy_markers": True, "slices": 3},
    # Needs outputs that are staged long before the release that carries them.
    "open_release": UNTROUBLED
    | {"settles_early": True, "slices": 1, "nodes": 2, "moves": 0.5, "other_node": 0.25}
    | {"near": 0.95, "records": 120, "append": 0.2, "actions": 250, "transaction_interval_ms": 200},
    "checkpoint_before_fencing": HANDS | {"uncertain": 0.3, "other_node": 0.05},
    "keys_follow_settings": SETTINGS_DIFFER,
    "denied_when_it_is_read": {"denied": 0.3},
    "unserved_cursor_dropped": {"lanes_change": True, "topics": TOPICS, "crash": 0.02},
    "added_lane_in_checkpoint": {"lanes_change": True, "topics": TOPICS, "crash": 0.02}
    | {"late": 0.5, "actions": 200},
    "routing_by_uncommitted_key": ALONE
    | {"transaction_interval_ms": 200, "abort": 0.3, "near": 0.9, "late": 0.5, "append": 0.3}
    | {"tick": 0.1, "ids": 4, "records": 60, "transaction_records": 50, "poll_records": 50}
    | {"batch_records": 50, "queue_max": 50, "far": 0.0, "roll_window_ms": NO_ROLL_MS}
    | {"recurring": 0.0, "targets_fail": False, "pauses": False, "resent": 0.0, "intruder": 0.0},
    # Needs a record that comes late by K, and a clock that steps back before H gets there.
    "early_after_clock_back": UNTROUBLED
    | {"clock_back": True, "records": 80, "near": 0.95, "again": 0.0, "slices": 1, "nodes": 2}
    | {"append": 0.3, "actions": 300, "moves": 0.0},
    "fire_overlaps_roll": OVERLAPS,
    "failed_connection_is_ignored": {"resent": 0.2, "near": 0.9, "actions": 200, "abort": 0.0},
    "aborted_writer_is_used_again": {"resent": 0.2, "near": 0.9, "actions": 200, "abort": 0.4},
    "tombstone_is_ignored": {"intruder": 1.0, "crash": 0.05, "moves": 0.3, "actions": 200},
    "other_slices_checkpoint_is_followed": {"intruder": 0.7, "slices": 3, "records": 20},
    "bad_targets_are_forgotten": {"targets_fail": True, "load": True, "rate_per_s": 0.0},
    "any_clock_is_believed": {"clock_wrong": True, "near": 0.9},
    "blocker_is_waited_for": {"crash": 0.05, "near": 0.9, "give_up": 0.0},
    # Needs large records that are due together, again and again.
    "batches_grow_again": UNTROUBLED
    | {"targets_fail": True, "records": 250, "near": 0.99, "again": 0.0, "ids": 4, "slices": 1}
    | {"append": 0.4, "actions": 600, "transaction_interval_ms": 60},
    "truncation_is_ignored": TRUNCATED,
    "short_log_is_believed_at_once": {"short_ends": 0.3},
    "epoch_is_not_committed": TRUNCATED,
    "level_log_is_taken_for_the_same": TRUNCATED_LEVELS,
    "recreated_topic_keeps_its_cursor": RECREATED,
    "direct_is_not_awaited": AT_LEAST_ONCE | {"near": 0.9},
    "direct_is_sent_twice": AT_LEAST_ONCE,
    "label_is_ignored": SETTINGS_DIFFER,
    "store_is_kept_over_a_change": SETTINGS_DIFFER,
    # Needs a copy that is read with the wrong secret, and a take-over with the right one.
    "any_secret_will_do": {"wrong_secret": 0.5, "roll_window_ms": 60, "far": 0.8, "crash": 0.05}
    | {"again": 0.0, "ids": 4, "records": 30, "actions": 200, "append": 0.05, "moves": 0.15},
    "contracts_dropped_too_early": SETTINGS_DIFFER,
    "contract_begins_below_the_end": SETTINGS_DIFFER,
    "begun_contract_gives_way": SETTINGS_DIFFER,
    "names_are_forgotten": OUTAGE,
    "loss_is_not_told": OUTAGE,
    "lost_controls_are_carried_out": OUTAGE,
}
"""Plans for mistakes that need the rarest of meetings."""


BY_HAND: Mapping[str, Callable[[], None]] = {
    # A claimant sleeps while the writer before it claims again, dies before it serves, and a third
    # node takes over.
    "latest_claim": partial(
        test_claims.test_every_writer_that_may_still_write_is_fenced,
        "old -old between old me",
        "old",
        {"old", "between"},
    ),
    # A node stands still from before a log is cut until another has settled what was written anew.
    "leader_is_not_asked": partial(
        test_log_truncated.test_a_new_owner_that_has_read_the_old_log_asks_before_it_settles, 14
    ),
}
"""Mistakes that schedules meet too seldom, and tests that take their steps."""
ON_A_BROKER = {"to_lso"}
"""Mistakes that the simulated log cannot show: ``tests/integration/test_claims.py`` does."""


CAUGHT_BY = Path(__file__).with_name("caught_by.json")
"""The first seed whose schedule caught each mistake. It is tried first, which saves the schedules
before it; ``python -m tests.simulation.test_mutations`` writes it anew."""
WITH_ABSENT = mistakes_in(absent_mutations)
EVERY = [*mistakes_in(mutations), *mistakes_in(election_mutations), *WITH_HOMES, *WITH_ABSENT]


def plan_of(mutation: Mutation, seed: int) -> Plan:
    if mutation in WITH_HOMES:
        return with_homes(seed, usual_plan(seed), WITH_HOMES[mutation])
    is_elected = mutation.__module__ == election_mutations.__name__
    if mutation in WITH_ABSENT:
        return replace(usual_plan(seed), wrong_secret=0.0, absent=0.6)
    bent = ELECTIONS_AND_TROUBLE if is_elected else BENT.get(mutation.__name__, {})
    return replace(usual_plan(seed), **{"wrong_secret": 0.0} | bent)


def catching_seed(mutation: Mutation, first: Iterable[int] = ()) -> int | None:
    """Return a seed whose schedule breaks a promise, from ``first`` or the next one; None: there is
    none.
    """
    seeds = SEEDS_WITH_HOMES if mutation in WITH_HOMES else range(SEEDS)
    with silenced(), mutation():
        for seed in chain(first, seeds):
            broken = run_schedule(seed, plan=plan_of(mutation, seed)).broken
            if broken is not None:
                assert broken.startswith("ViolationError"), broken
                return seed
    return None


@pytest.mark.parametrize(
    "mutation",
    [mutation for mutation in EVERY if mutation.__name__ not in ON_A_BROKER],
    ids=lambda mutation: mutation.__name__,
)
def test_the_mistake_is_caught(mutation: Mutation) -> None:
    name = mutation.__name__
    if name in BY_HAND:
        BY_HAND[name]()
        with mutation(), pytest.raises(AssertionError):
            BY_HAND[name]()
        return
    known = json.loads(CAUGHT_BY.read_text("utf-8")).get(name)
    seed = catching_seed(mutation, () if known is None else (known,))
    assert seed is not None, "no schedule breaks a promise"


if __name__ == "__main__":
    others = BY_HAND.keys() | ON_A_BROKER
    searched = [one for one in EVERY if one.__name__ not in others]
    with ProcessPoolExecutor() as pool:
        found = zip(searched, pool.map(catching_seed, searched), strict=True)
        seeds = {one.__name__: seed for one, seed in found if seed is not None}
    CAUGHT_BY.write_text(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n", "utf-8")
