"""The checker of the fault suite finds each fault, and finds none where there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from tests.faults.checker import Rules, Verdict, check
from tests.faults.facts import UID, Acked, Found, Header, Step
from tests.faults.history import Plan, steps

RULES = Rules("delay", "dead", "outcomes", grace_ms=5_000)
T0_MS = 1_800_000_000_000


def acked(
    uid: bytes,
    offset: int,
    delay_ms: int | None = 1_000,
    *,
    name: bytes | None = None,
    against: bytes | None = None,
    after_ms: int = 0,
) -> Acked:
    own: tuple[Header, ...] = ((UID, uid), ("trace", b"\x00"), ("trace", None))
    step = Step(uid, 2, b"key", b"value", own, delay_ms, "to", name, against)
    return Acked(step, offset, T0_MS + after_ms)


def arrival(record: Acked, late_ms: int = 7) -> Found:
    headers: list[Header] = [
        *record.step.own,
        ("delay-due-at", b"%d" % record.due_ms),
        ("delay-source", b"delay:2:%d" % record.offset),
        ("delay-settles", b"%d" % record.offset),
    ]
    if record.step.name is not None:
        headers.append(("delay-id", record.step.name))
    written_ms = record.due_ms + late_ms
    step = record.step
    return Found(step.target, 0, 0, written_ms, written_ms, step.key, step.value, tuple(headers))


def outcome(record: Acked, fate: bytes) -> Found:
    headers: list[Header] = [
        ("delay-outcome", fate),
        ("delay-shard", b"delay:2"),
        ("delay-settles", b"%d" % record.offset),
        ("delay-id", record.step.name),
    ]
    return Found("outcomes", 0, 0, T0_MS, T0_MS, record.step.name, None, tuple(headers))


PLAIN = [acked(b"a", 0), acked(b"b", 1, 0), acked(b"c", 2, 10_000)]
CAME = [arrival(one) for one in PLAIN]
VICTIM = acked(b"victim", 3, 20_000, name=b"id")
CANCEL = acked(b"cancel", 4, None, name=b"id", against=b"victim", after_ms=1_000)
SUCCESSOR = acked(b"next", 4, 3_000, name=b"id", against=b"victim", after_ms=1_000)


def wrong(found: list[Found], *more: Acked) -> dict[str, list[bytes]]:
    return check([*PLAIN, *more], found, RULES).wrong


def test_a_good_history_has_nothing_wrong() -> None:
    verdict = check(PLAIN, CAME, RULES)
    assert verdict.wrong == {}
    assert (verdict.records, verdict.lateness_ms) == (3, [7, 7, 7])


def test_a_lost_record_is_found() -> None:
    assert wrong(CAME[1:]) == {"lost": [b"a"]}


def test_a_doubled_record_is_found_and_each_copy_counted() -> None:
    verdict = check(PLAIN, [*CAME, CAME[0], CAME[0]], RULES)
    assert verdict.wrong == {"duplicated": [b"a"]}
    assert verdict.copies_too_many == 2


@pytest.mark.parametrize("by", ["written_ms", "seen_ms"])
def test_an_early_record_is_found_by_either_clock(by: str) -> None:
    changed = {by: PLAIN[0].due_ms - 1}
    early = replace(CAME[0], **changed)  # type: ignore[arg-type]
    assert wrong([early, *CAME[1:]]) == {"early": [b"a"]}


def test_a_record_is_early_even_if_a_second_copy_is_not() -> None:
    early = replace(CAME[0], written_ms=PLAIN[0].due_ms - 1)
    assert wrong([*CAME, early]) == {"duplicated": [b"a"], "early": [b"a"]}


def test_clocks_set_apart_on_purpose_are_allowed_for() -> None:
    early = [replace(CAME[0], written_ms=PLAIN[0].due_ms - 300), *CAME[1:]]
    assert check(PLAIN, early, replace(RULES, early_ms=300)).wrong == {}
    assert check(PLAIN, early, replace(RULES, early_ms=299)).wrong == {"early": [b"a"]}


@pytest.mark.parametrize(
    "change",
    [
        {"value": b"valu"},
        {"value": None},
        {"key": None},
        {"topic": "elsewhere"},
        {"headers": CAME[0].headers[:1] + CAME[0].headers[2:]},
        {"headers": (*CAME[0].headers, ("more", b""))},
        {"headers": (*CAME[0].headers, ("delay-source", b"delay:2:1"))},
        {"headers": (*CAME[0].headers, ("delay-due-at", b"1"))},
        {"headers": (*CAME[0].headers, ("delay-id", b"invented"))},
    ],
)
def test_an_altered_record_is_found(change: dict[str, object]) -> None:
    altered = replace(CAME[0], **change)  # type: ignore[arg-type]
    assert wrong([altered, *CAME[1:]]) == {"altered": [b"a"]}


def test_a_record_that_must_be_refused_has_one_letter() -> None:
    rules = replace(RULES, refused=frozenset({b"odd"}))
    letter = Found("dead", 0, 0, T0_MS, T0_MS, None, None, ((UID, b"odd"),))
    assert check(PLAIN, [*CAME, letter], rules).wrong == {}
    assert check(PLAIN, CAME, rules).wrong == {"lost": [b"odd"]}
    assert check(PLAIN, [*CAME, letter, letter], rules).wrong == {"dead_lettered": [b"odd"]}


def test_a_dead_letter_and_a_record_that_nobody_sent_are_found() -> None:
    dead = replace(CAME[0], topic="dead")
    stranger = replace(CAME[1], headers=((UID, b"who"),))
    assert wrong([*CAME, dead, stranger]) == {"dead_lettered": [b"a"], "strangers": [b"who"]}


def test_a_cancelled_record_that_did_not_come_is_well() -> None:
    found = [*CAME, outcome(VICTIM, b"cancelled"), outcome(CANCEL, b"cancelled")]
    assert wrong(found, VICTIM, CANCEL) == {}


def test_a_victim_that_was_rolled_is_settled_by_its_copys_offset() -> None:
    copy = replace(VICTIM, offset=99)
    found = [*CAME, outcome(copy, b"cancelled"), outcome(CANCEL, b"cancelled")]
    assert wrong(found, VICTIM, CANCEL) == {}


def test_a_record_delivered_though_cancelled_in_good_time_is_found() -> None:
    found = [*CAME, arrival(VICTIM), outcome(CANCEL, b"not_pending")]
    assert wrong(found, VICTIM, CANCEL) == {"cancelled_but_delivered": [b"victim"]}


def test_a_cancel_that_the_service_was_too_late_to_read_may_lose() -> None:
    """The victim's own lateness excuses nothing."""
    found = [arrival(VICTIM, 30_000), outcome(CANCEL, b"not_pending")]
    behind = [arrival(PLAIN[0], 20_000), *CAME[1:]]
    assert wrong([*CAME, *found], VICTIM, CANCEL) == {"cancelled_but_delivered": [b"victim"]}
    assert wrong([*behind, *found], VICTIM, CANCEL) == {}


def test_a_cancel_that_came_close_to_the_due_time_may_lose_but_not_do_both() -> None:
    late = replace(CANCEL, appended_ms=VICTIM.due_ms - RULES.grace_ms + 1)
    lost = [*CAME, arrival(VICTIM), outcome(late, b"not_pending")]
    both = [*CAME, arrival(VICTIM), outcome(VICTIM, b"cancelled"), outcome(late, b"cancelled")]
    assert wrong(lost, VICTIM, late) == {}
    assert wrong(both, VICTIM, late) == {"outcomes_wrong": [b"id"]}


def test_a_cancelled_record_without_its_outcome_is_lost() -> None:
    found = [*CAME, outcome(CANCEL, b"cancelled")]
    assert wrong(found, VICTIM, CANCEL) == {"lost": [b"victim"], "outcomes_wrong": [b"id"]}


@pytest.mark.parametrize("doubled", [VICTIM, CANCEL])
def test_a_doubled_outcome_is_found(doubled: Acked) -> None:
    fates = [outcome(one, b"cancelled") for one in (VICTIM, CANCEL, doubled)]
    assert wrong([*CAME, *fates], VICTIM, CANCEL) == {"outcomes_wrong": [b"id"]}


def test_an_outcome_of_a_name_that_nobody_cancelled_is_found() -> None:
    alone = acked(b"alone", 3, name=b"alone-id")
    found = [*CAME, arrival(alone), outcome(alone, b"expired")]
    assert wrong(found, alone) == {"outcomes_wrong": [b"alone-id"]}


def test_a_replaced_record_gives_way_to_its_successor() -> None:
    found = [*CAME, arrival(SUCCESSOR), outcome(VICTIM, b"replaced")]
    assert wrong(found, VICTIM, SUCCESSOR) == {}
    assert wrong([*found, arrival(VICTIM)], VICTIM, SUCCESSOR) == {
        "cancelled_but_delivered": [b"victim"],
        "outcomes_wrong": [b"id"],
    }
    assert wrong(found[:3], VICTIM, SUCCESSOR) == {
        "lost": [b"victim", b"next"],
        "outcomes_wrong": [b"id"],
    }


def test_a_cancel_that_is_delivered_itself_is_a_stranger() -> None:
    found = [*CAME, outcome(VICTIM, b"cancelled"), outcome(CANCEL, b"cancelled"), arrival(CANCEL)]
    assert wrong(found, VICTIM, CANCEL) == {"strangers": [b"cancel"]}


def test_the_same_seed_writes_the_same_history() -> None:
    plan = Plan(7, "delay", 4, ("one", "two"), per_s=100)
    first, again = (list(islice(steps(plan), 2_000)) for _ in range(2))
    assert first == again
    assert first != list(islice(steps(replace(plan, seed=8)), 2_000))
    assert {step.partition for step in first} == set(range(4))


def test_a_canceller_follows_its_victim_in_the_same_partition() -> None:
    plan = Plan(7, "delay", 4, ("one", "two"), per_s=100)
    written: dict[bytes, Step] = {}
    fates = set()
    for step in islice(steps(plan), 2_000):
        if step.against is not None:
            victim = written[step.against]
            assert (victim.partition, victim.name) == (step.partition, step.name)
            assert victim.delay_ms == plan.victim_delay_ms
            fates.add(step.delay_ms is None)
        assert step.uid not in written
        written[step.uid] = step
    assert fates == {True, False}


def test_lateness_is_ranked() -> None:
    verdict = Verdict(lateness_ms=list(range(1, 201)))
    assert [verdict.lateness(percent) for percent in (50, 99, 100)] == [100, 198, 200]
    assert Verdict().lateness(99) == 0
