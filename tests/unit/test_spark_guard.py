"""What may be repaired without a person, decided from what was compared."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.follow import (
    FRESH_S,
    HAS_NO_WITNESS,
    IS_OVER_LIMIT,
    IS_OWNERS,
    IS_SECOND,
    Chosen,
    Known,
    Repairs,
    choose,
    is_fresh,
    known_of,
)
from connectors.spark.reconcile.repair_plan import Copy, RepairStep

OWNER, WRONG_OWNER, RIGHT, WRONG = "owner", "wrong owner", "right", "wrong"


def step(node: str, partition: int = 0, topic: str = "any") -> RepairStep:
    return RepairStep(node=node, topic=topic, topic_id="id", partition=partition, why="1 missing")


def copy(node: str, partition: int = 0, topic: str = "any") -> Copy:
    return node, topic, partition


def known(copies: Mapping[Copy, str]) -> Known:
    return Known(
        frozenset(copies),
        frozenset(one for one, what in copies.items() if what in (OWNER, RIGHT)),
        frozenset((one[0], one[2]) for one, what in copies.items() if what in (OWNER, WRONG_OWNER)),
    )


def repaired(chosen: Chosen) -> list[tuple[str, int]]:
    return [(one.node, one.slice_no) for one in chosen.repairs]


def test_a_replica_is_repaired_while_another_copy_is_right() -> None:
    copies = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n3"): RIGHT}
    chosen = choose([step("n2")], known(copies), 5)
    assert repaired(chosen) == [("n2", 0)]
    assert chosen.repairs[0].steps == (step("n2"),)
    assert chosen.repairs[0].witnesses == (copy("n3"),)  # not the owner's: it has enough to do
    assert chosen.left == {}
    assert choose([step("n2")], known({copy("n1"): OWNER, copy("n2"): WRONG}), 5).repairs


def test_the_owners_copy_is_left_to_people_whatever_is_wrong_with_it() -> None:
    copies = {copy("n1"): WRONG_OWNER, copy("n2"): RIGHT}
    assert choose([step("n1")], known(copies), 5) == Chosen((), {IS_OWNERS: 1})
    of_others = {**copies, copy("n1", topic="other"): WRONG, copy("n2", topic="other"): RIGHT}
    assert choose([step("n1", topic="other")], known(of_others), 5).left == {IS_OWNERS: 1}


def test_a_copy_whose_role_is_not_known_is_left_to_people() -> None:
    assert choose([step("n3")], known({copy("n1"): RIGHT}), 5).left == {IS_OWNERS: 1}


def test_without_another_right_copy_of_each_shard_nothing_is_repaired() -> None:
    wrong = {copy("n1"): WRONG_OWNER, copy("n2"): WRONG}
    assert choose([step("n2")], known(wrong), 5) == Chosen((), {HAS_NO_WITNESS: 1})
    alone = {copy("n2"): RIGHT}
    assert choose([step("n2")], known(alone), 5).left == {HAS_NO_WITNESS: 1}
    half = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n2", topic="other"): WRONG}
    both = [step("n2"), step("n2", topic="other")]
    assert choose(both, known(half), 5).left == {HAS_NO_WITNESS: 2}
    chosen = choose(both, known({**half, copy("n1", topic="other"): OWNER}), 5)
    assert chosen.repairs[0].witnesses == (copy("n1"), copy("n1", topic="other"))


def test_a_right_copy_whose_node_does_not_answer_is_none() -> None:
    copies = known({copy("n1"): OWNER, copy("n2"): WRONG})
    assert choose([step("n2")], copies.confirmed({copy("n1")}), 5).repairs
    left = choose([step("n2")], copies.confirmed({copy("n2")}), 5).left
    assert left == {HAS_NO_WITNESS: 1}


def test_one_copy_of_a_slice_is_repaired_at_a_time() -> None:
    copies = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n3"): WRONG, copy("n4"): RIGHT}
    copies |= {copy("n1", 1): OWNER, copy("n3", 1): WRONG}
    chosen = choose([step("n2"), step("n3"), step("n3", 1)], known(copies), 5)
    assert repaired(chosen) == [("n2", 0), ("n3", 1)]
    assert chosen.left == {IS_SECOND: 1}


def test_no_more_are_made_than_are_left() -> None:
    copies = {
        copy(node, number): OWNER if node == "n1" else WRONG
        for number in range(3)
        for node in ("n1", "n2")
    }
    steps = [step("n2", number) for number in range(3)]
    chosen = choose(steps, known(copies), 2)
    assert (repaired(chosen), chosen.left) == ([("n2", 0), ("n2", 1)], {IS_OVER_LIMIT: 1})
    assert choose(steps, known(copies), 0).repairs == ()


def test_a_node_delivers_a_slice_whatever_topic_says_so() -> None:
    one = Comparison("any", 0, nodes=["n1", "n2"], owners={"n1"})
    other = Comparison("other", 0, nodes=["n1", "n2"])
    found = known_of([one, other], {copy("n2")})
    copies = {copy("n1"): OWNER, copy("n2"): WRONG}
    copies |= {copy("n1", topic="other"): OWNER, copy("n2", topic="other"): RIGHT}
    assert found == known(copies)


def test_a_comparison_is_good_for_a_minute() -> None:
    assert is_fresh(FRESH_S)
    assert not is_fresh(FRESH_S + 0.1)


@pytest.mark.parametrize(
    ("allowed", "made", "stopped"), [(0, 0, False), (2, 1, False), (2, 2, True)]
)
def test_repairs_stop_when_their_number_is_used_up(
    allowed: int, made: int, *, stopped: bool
) -> None:
    repairs = Repairs(allowed, made)
    assert repairs.has_stopped is stopped
    assert repairs.to_json()["stopped"] is stopped
