"""What may be repaired without a person, decided from what was compared."""

from __future__ import annotations

import pytest

from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.follow import (
    FRESH_S,
    HAS_NO_WITNESS,
    IS_OVER_LIMIT,
    IS_OWNERS,
    IS_SECOND,
    Chosen,
    CopyStanding,
    Repairs,
    choose,
    confirmed,
    is_fresh,
    standings,
)
from connectors.spark.reconcile.repair_plan import Copy, RepairStep

OWNER = CopyStanding(is_owner=True, is_equal=True)
WRONG_OWNER = CopyStanding(is_owner=True, is_equal=False)
RIGHT = CopyStanding(is_owner=False, is_equal=True)
WRONG = CopyStanding(is_owner=False, is_equal=False)


def step(node: str, partition: int = 0, topic: str = "any") -> RepairStep:
    return RepairStep(
        node=node,
        topic=topic,
        topic_id="id",
        partition=partition,
        start_ms=0,
        stop_ms=1,
        first_offset=0,
        stop_offset=1,
        why="1 missing",
    )


def copy(node: str, partition: int = 0, topic: str = "any") -> Copy:
    return node, topic, partition


def repaired(chosen: Chosen) -> list[tuple[str, int]]:
    return [(one.node, one.slice_no) for one in chosen.repairs]


def test_a_replica_is_repaired_while_another_copy_is_right() -> None:
    known = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n3"): RIGHT}
    chosen = choose([step("n2"), step("n2")], known, 5)
    assert repaired(chosen) == [("n2", 0)]
    assert len(chosen.repairs[0].steps) == 2
    assert chosen.repairs[0].witnesses == (copy("n3"),)  # not the owner's: it has enough to do
    assert chosen.left == {}
    assert choose([step("n2")], {copy("n1"): OWNER, copy("n2"): WRONG}, 5).repairs


def test_the_owners_copy_is_left_to_people_whatever_is_wrong_with_it() -> None:
    known = {copy("n1"): WRONG_OWNER, copy("n2"): RIGHT}
    assert choose([step("n1")], known, 5) == Chosen((), {IS_OWNERS: 1})
    of_others = {**known, copy("n1", topic="other"): WRONG, copy("n2", topic="other"): RIGHT}
    assert choose([step("n1", topic="other")], of_others, 5).left == {IS_OWNERS: 1}


def test_a_copy_whose_role_is_not_known_is_left_to_people() -> None:
    assert choose([step("n3")], {copy("n1"): RIGHT}, 5).left == {IS_OWNERS: 1}


def test_without_another_right_copy_of_each_shard_nothing_is_repaired() -> None:
    wrong = {copy("n1"): WRONG_OWNER, copy("n2"): WRONG}
    assert choose([step("n2")], wrong, 5) == Chosen((), {HAS_NO_WITNESS: 1})
    alone = {copy("n2"): RIGHT}
    assert choose([step("n2")], alone, 5).left == {HAS_NO_WITNESS: 1}
    half = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n2", topic="other"): WRONG}
    both = [step("n2"), step("n2", topic="other")]
    assert choose(both, half, 5).left == {HAS_NO_WITNESS: 2}
    chosen = choose(both, {**half, copy("n1", topic="other"): OWNER}, 5)
    assert chosen.repairs[0].witnesses == (copy("n1"), copy("n1", topic="other"))


def test_a_right_copy_whose_node_does_not_answer_is_none() -> None:
    known = {copy("n1"): OWNER, copy("n2"): WRONG}
    assert choose([step("n2")], confirmed(known, {copy("n1")}), 5).repairs
    assert choose([step("n2")], confirmed(known, {copy("n2")}), 5).left == {HAS_NO_WITNESS: 1}


def test_one_copy_of_a_slice_is_repaired_at_a_time() -> None:
    known = {copy("n1"): OWNER, copy("n2"): WRONG, copy("n3"): WRONG, copy("n4"): RIGHT}
    known |= {copy("n1", 1): OWNER, copy("n3", 1): WRONG}
    chosen = choose([step("n2"), step("n3"), step("n3", 1)], known, 5)
    assert repaired(chosen) == [("n2", 0), ("n3", 1)]
    assert chosen.left == {IS_SECOND: 1}


def test_no_more_are_made_than_are_left() -> None:
    known = {
        copy(node, number): OWNER if node == "n1" else WRONG
        for number in range(3)
        for node in ("n1", "n2")
    }
    steps = [step("n2", number) for number in range(3)]
    chosen = choose(steps, known, 2)
    assert (repaired(chosen), chosen.left) == ([("n2", 0), ("n2", 1)], {IS_OVER_LIMIT: 1})
    assert choose(steps, known, 0).repairs == ()


def test_a_node_delivers_a_slice_whatever_topic_says_so() -> None:
    one = Comparison("any", 0, nodes=["n1", "n2"], owners={"n1"})
    other = Comparison("other", 0, nodes=["n1", "n2"])
    found = standings([one, other], {copy("n2")})
    assert found == {
        copy("n1"): OWNER,
        copy("n2"): WRONG,
        copy("n1", topic="other"): OWNER,
        copy("n2", topic="other"): RIGHT,
    }


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
