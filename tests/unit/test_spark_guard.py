"""What may be repaired without a person, decided from what was compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.follow import (
    FRESH_S,
    HAS_NO_WITNESS,
    IS_OVER_LIMIT,
    IS_OWNERS,
    IS_SECOND,
    IS_STALE,
    RepairPolicy,
)
from connectors.spark.reconcile.repair_plan import Copy, RepairStep

OWNER, WRONG_OWNER, RIGHT, WRONG = "owner", "wrong owner", "right", "wrong"


def step(node: str, partition: int = 0, topic: str = "any") -> RepairStep:
    return RepairStep(node=node, topic=topic, topic_id="id", partition=partition, why="1 missing")


def copy(node: str, partition: int = 0, topic: str = "any") -> Copy:
    return node, topic, partition


def choose(
    steps: list[RepairStep],
    copies: Mapping[Copy, str],
    allowed: int = 5,
    answered: Collection[Copy] | None = None,
) -> tuple[list[list[RepairStep]], dict[str, int]]:
    compared: dict[tuple[str, int], Comparison] = {}
    for (node, topic, partition), what in copies.items():
        one = compared.setdefault((topic, partition), Comparison(topic, partition))
        one.nodes[node] = None
        one.owners |= {node} if what in (OWNER, WRONG_OWNER) else set()
    right = {one for one, what in copies.items() if what in (OWNER, RIGHT)}
    policy = RepairPolicy(allowed)
    chosen = policy.choose(
        steps, list(compared.values()), right if answered is None else right & {*answered}
    )
    return chosen, policy.left


def test_a_replica_is_repaired_while_another_copy_is_right() -> None:
    for right in (OWNER, RIGHT):
        copies = {copy("n1"): right, copy("n2"): WRONG}
        assert choose([step("n2")], copies) == ([[step("n2")]], {})


def test_the_owners_copy_is_left_to_people_whatever_is_wrong_with_it() -> None:
    copies = {copy("n1"): WRONG_OWNER, copy("n2"): RIGHT}
    assert choose([step("n1")], copies) == ([], {IS_OWNERS: 1})
    # A node delivers a slice whichever topic says so.
    of_others = {**copies, copy("n1", topic="other"): WRONG, copy("n2", topic="other"): RIGHT}
    assert choose([step("n1", topic="other")], of_others) == ([], {IS_OWNERS: 1})


def test_a_copy_whose_role_is_not_known_is_left_to_people() -> None:
    assert choose([step("n3")], {copy("n1"): RIGHT}) == ([], {IS_OWNERS: 1})


def test_without_another_right_copy_of_each_shard_nothing_is_repaired() -> None:
    wrong = {copy("n1"): WRONG_OWNER, copy("n2"): WRONG}
    assert choose([step("n2")], wrong) == ([], {HAS_NO_WITNESS: 1})
    assert choose([step("n2")], {copy("n2"): RIGHT}) == ([], {HAS_NO_WITNESS: 1})
    half = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n2", topic="other"): WRONG}
    both = [step("n2"), step("n2", topic="other")]
    assert choose(both, half) == ([], {HAS_NO_WITNESS: 2})
    assert choose(both, {**half, copy("n1", topic="other"): OWNER}) == ([both], {})


def test_a_right_copy_whose_node_does_not_answer_is_none() -> None:
    copies = {copy("n1"): OWNER, copy("n2"): WRONG}
    assert choose([step("n2")], copies, answered={copy("n1")})[0]
    assert choose([step("n2")], copies, answered={copy("n2")}) == ([], {HAS_NO_WITNESS: 1})


def test_one_copy_of_a_slice_is_repaired_at_a_time() -> None:
    copies = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n3"): WRONG, copy("n4"): RIGHT}
    copies |= {copy("n1", 1): OWNER, copy("n3", 1): WRONG}
    steps = [step("n2"), step("n3"), step("n3", 1)]
    assert choose(steps, copies) == ([steps[:1], steps[2:]], {IS_SECOND: 1})


def test_no_more_are_made_than_are_left() -> None:
    copies = {
        copy(node, number): OWNER if node == "n1" else WRONG
        for number in range(3)
        for node in ("n1", "n2")
    }
    steps = [step("n2", number) for number in range(3)]
    assert choose(steps, copies, 2) == ([steps[:1], steps[1:2]], {IS_OVER_LIMIT: 1})
    assert choose(steps, copies, 0)[0] == []


def test_a_comparison_is_good_for_a_minute() -> None:
    policy, repair = RepairPolicy(2), [step("n2")]
    assert policy.may_make(repair, FRESH_S)
    assert not policy.may_make(repair, FRESH_S + 0.1)
    assert (policy.made, policy.left) == (1, {IS_STALE: 1})


@pytest.mark.parametrize(
    ("allowed", "made", "stopped"), [(0, 0, False), (2, 1, False), (2, 2, True)]
)
def test_repairs_stop_when_their_number_is_used_up(
    allowed: int, made: int, *, stopped: bool
) -> None:
    assert RepairPolicy(allowed, made).to_json()["stopped"] is stopped
