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


def test_a_doubled_record_is_found_and_each_copy_counted() -> None:
    verdict = check(PLAIN, [*CAME, CAME[0], CAME[0]], RULES)
    assert verdict.wrong == {"duplicated": [b"a"]}
    assert verdict.copies_too_many == 2


@pytest.mark.parametrize("by", ["written_ms", "seen_ms"])
def test_an_early_record_is_found_by_either_clock(by: str) -> None:
    changed = {by: PLAIN[0].due_ms - 1}
    early = replace(CAME[0], **changed)  # type: ignore[arg-type]
    assert wrong([early, *CAME[1:]]) == {"early": [b"a"]}


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


EARLY = replace(CAME[0], written_ms=PLAIN[0].due_ms - 1)
DONE = [outcome(VICTIM, b"cancelled"), outcome(CANCEL, b"cancelled")]
TOO_LATE = outcome(CANCEL, b"not_pending")
ROLLED = outcome(replace(VICTIM, offset=99), b"cancelled")
CLOSE = replace(CANCEL, appended_ms=VICTIM.due_ms - RULES.grace_ms + 1)
BEHIND = [arrival(PLAIN[0], 20_000), *CAME[1:]]
ALONE = acked(b"alone", 3, name=b"alone-id")
DELIVERED = {"cancelled_but_delivered": [b"victim"]}
WRONG_OUTCOMES = {"outcomes_wrong": [b"id"]}


@pytest.mark.parametrize(
    ("found", "more", "expected"),
    [
        (CAME[1:], [], {"lost": [b"a"]}),
        ([*CAME, EARLY], [], {"duplicated": [b"a"], "early": [b"a"]}),
        ([*CAME, replace(CAME[0], topic="dead")], [], {"dead_lettered": [b"a"]}),
        ([*CAME, replace(CAME[1], headers=((UID, b"who"),))], [], {"strangers": [b"who"]}),
        ([*CAME, *DONE], [VICTIM, CANCEL], {}),
        ([*CAME, ROLLED, DONE[1]], [VICTIM, CANCEL], {}),  # it has its copy's offset
        ([*CAME, arrival(VICTIM), TOO_LATE], [VICTIM, CANCEL], DELIVERED),
        # A cancel may lose that the service was too late to read; the victim's own lateness
        # excuses nothing.
        ([*CAME, arrival(VICTIM, 30_000), TOO_LATE], [VICTIM, CANCEL], DELIVERED),
        ([*BEHIND, arrival(VICTIM, 30_000), TOO_LATE], [VICTIM, CANCEL], {}),
        # One that came close to the due time may lose, but not do both.
        ([*CAME, arrival(VICTIM), outcome(CLOSE, b"not_pending")], [VICTIM, CLOSE], {}),
        (
            [*CAME, arrival(VICTIM), DONE[0], outcome(CLOSE, b"cancelled")],
            *([VICTIM, CLOSE], WRONG_OUTCOMES),
        ),
        ([*CAME, DONE[1]], [VICTIM, CANCEL], {"lost": [b"victim"], **WRONG_OUTCOMES}),
        ([*CAME, *DONE, DONE[0]], [VICTIM, CANCEL], WRONG_OUTCOMES),
        ([*CAME, *DONE, DONE[1]], [VICTIM, CANCEL], WRONG_OUTCOMES),
        (
            [*CAME, arrival(ALONE), outcome(ALONE, b"expired")],
            *([ALONE], {"outcomes_wrong": [b"alone-id"]}),
        ),
        ([*CAME, *DONE, arrival(CANCEL)], [VICTIM, CANCEL], {"strangers": [b"cancel"]}),
    ],
)
def test_the_checker_reports_faults(
    found: list[Found], more: list[Acked], expected: dict[str, list[bytes]]
) -> None:
    assert wrong(found, *more) == expected


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
