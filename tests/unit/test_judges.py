"""The checker of the fault suite and the judge of smoke runs find each fault, and no other."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Message

from delayservice.smoke.judge import Tally, Verdict, counts, quantile
from delayservice.smoke.load import AFTER, HEAD, SIZE_MIN, WITHDRAWN, Batch, Kind, Loaded
from tests.faults.checker import Rules, check
from tests.faults.checker import Verdict as CheckerVerdict
from tests.faults.facts import UID, Acked, Found, Header, Op, Step
from tests.faults.history import CANCELLERS, Plan, steps

RULES = Rules("delay", "dead", "outcomes", grace_ms=5_000)
T0_MS = 1_800_000_000_000


def acked(
    uid: bytes,
    offset: int,
    delay_ms: int = 1_000,
    op: Op = "schedule",
    *,
    name: bytes | None = None,
    against: bytes | None = None,
    after_ms: int = 0,
    partition: int = 2,
    times: int = 0,
) -> Acked:
    own: tuple[Header, ...] = ((UID, uid), ("trace", b"\x00"), ("trace", None))
    step = Step(uid, partition, b"key", b"value", own, delay_ms, "to", name, against, op, times)
    return Acked(step, offset, T0_MS + after_ms)


def arrival(record: Acked, late_ms: int = 7, *more: Header, number: int = 0) -> Found:
    due_ms = record.due_ms + max(number - 1, 0) * record.step.delay_ms
    headers: list[Header] = [
        *record.step.own,
        ("delay-due-at", b"%d" % due_ms),
        ("delay-source", record.place("delay") + (b"#%d" % number if number else b"")),
        ("delay-settles", b"%d" % (record.offset + 100 * number)),
        *more,
    ]
    if record.step.name is not None:
        headers.append(("delay-id", record.step.name))
    written_ms = due_ms + late_ms
    step = record.step
    return Found(step.target, 0, 0, written_ms, written_ms, step.key, step.value, tuple(headers))


def outcome(record: Acked, fate: bytes, by: Acked | None = None) -> Found:
    headers: list[Header] = [
        ("delay-outcome", fate),
        ("delay-shard", b"delay:2"),
        ("delay-settles", b"%d" % record.offset),
        ("delay-id", record.step.name),
    ]
    if by is None:
        headers.append(("delay-source", record.place("delay")))
    elif by.step.partition == 2:
        headers.append(("delay-settled-by", b"%d" % by.offset))
    else:  # it was forwarded
        headers.append(("delay-settled-by", b"77"))
        headers.append(("delay-settled-by-source", by.place("delay")))
    return Found("outcomes", 0, 0, T0_MS, T0_MS, record.step.name, None, tuple(headers))


THREE = [acked(b"a", 0), acked(b"b", 1, 0), acked(b"c", 2, 10_000)]
CAME = [arrival(one) for one in THREE]
VICTIM = acked(b"victim", 3, 20_000, name=b"id")
CANCEL = acked(b"cancel", 4, 0, "cancel", name=b"id", against=b"victim", after_ms=1_000)
SUCCESSOR = acked(b"next", 4, 3_000, name=b"id", against=b"victim", after_ms=1_000)
FIRE = replace(CANCEL, step=replace(CANCEL.step, op="fire"))
ONCE = replace(VICTIM, step=replace(VICTIM.step, op="absent"))
AGAIN = replace(SUCCESSOR, step=replace(SUCCESSOR.step, op="absent"))
SERIES = acked(b"series", 9, times=2)


def faults(found: list[Found], *more: Acked) -> dict[str, list[bytes]]:
    return check([*THREE, *more], found, RULES).wrong


def test_a_good_history_has_nothing_wrong() -> None:
    verdict = check(THREE, CAME, RULES)
    assert verdict.wrong == {}
    assert (verdict.records, verdict.lateness_ms) == (3, [7, 7, 7])


def test_a_doubled_record_is_found_and_each_copy_counted() -> None:
    verdict = check(THREE, [*CAME, CAME[0], CAME[0]], RULES)
    assert verdict.wrong == {"duplicated": [b"a"]}
    assert verdict.copies_too_many == 2


@pytest.mark.parametrize("by", ["written_ms", "seen_ms"])
def test_an_early_record_is_found_by_either_clock(by: str) -> None:
    changed = {by: THREE[0].due_ms - 1}
    early = replace(CAME[0], **changed)  # type: ignore[arg-type]
    assert faults([early, *CAME[1:]]) == {"early": [b"a"]}


def test_clocks_set_apart_on_purpose_are_allowed_for() -> None:
    early = [replace(CAME[0], written_ms=THREE[0].due_ms - 300), *CAME[1:]]
    assert check(THREE, early, replace(RULES, early_ms=300)).wrong == {}
    assert check(THREE, early, replace(RULES, early_ms=299)).wrong == {"early": [b"a"]}


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
    assert faults([altered, *CAME[1:]]) == {"altered": [b"a"]}


def test_a_record_that_must_be_refused_has_one_letter() -> None:
    rules = replace(RULES, refused=frozenset({b"odd"}))
    letter = Found("dead", 0, 0, T0_MS, T0_MS, None, None, ((UID, b"odd"),))
    assert check(THREE, [*CAME, letter], rules).wrong == {}
    assert check(THREE, CAME, rules).wrong == {"lost": [b"odd"]}
    assert check(THREE, [*CAME, letter, letter], rules).wrong == {"dead_lettered": [b"odd"]}


EARLY = replace(CAME[0], written_ms=THREE[0].due_ms - 1)
DONE = [outcome(VICTIM, b"cancelled", CANCEL), outcome(CANCEL, b"cancelled")]
TOO_LATE = outcome(CANCEL, b"not_pending")
ROLLED = outcome(replace(VICTIM, offset=99), b"cancelled", CANCEL)
CLOSE = replace(CANCEL, appended_ms=VICTIM.due_ms - RULES.grace_ms + 1)
BEHIND = [arrival(THREE[0], 20_000), *CAME[1:]]
HALF_MS = (VICTIM.due_ms - CANCEL.appended_ms) // 2
HALFWAY, LATER = (arrival(THREE[0], HALF_MS + more_ms) for more_ms in (0, 1))
ALONE = acked(b"alone", 3, name=b"alone-id")
DELIVERED = {"ineffective": [b"victim"]}
WRONG_OUTCOMES = {"outcomes_wrong": [b"id"]}
TWICE = {"outcomes_wrong": [b"id", b"delay:2:3"]}
FIRED = [arrival(VICTIM, -18_000, ("delay-fired-by", b"4")), outcome(FIRE, b"fired")]
KEPT = outcome(AGAIN, b"kept")
OCCURRENCES = [arrival(SERIES, number=number) for number in (1, 2)]


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
        # Both may be read too late twice, where they were written and at their home.
        ([HALFWAY, *CAME[1:], arrival(VICTIM), TOO_LATE], [VICTIM, CANCEL], DELIVERED),
        ([LATER, *CAME[1:], arrival(VICTIM), TOO_LATE], [VICTIM, CANCEL], {}),
        # One that came close to the due time may lose, but not do both.
        ([*CAME, arrival(VICTIM), outcome(CLOSE, b"not_pending")], [VICTIM, CLOSE], {}),
        (
            [*CAME, arrival(VICTIM), DONE[0], outcome(CLOSE, b"cancelled")],
            *([VICTIM, CLOSE], TWICE),
        ),
        ([*CAME, DONE[1]], [VICTIM, CANCEL], {"lost": [b"victim"], **WRONG_OUTCOMES}),
        ([*CAME, *DONE, DONE[0]], [VICTIM, CANCEL], TWICE),
        ([*CAME, ROLLED, *DONE], [VICTIM, CANCEL], WRONG_OUTCOMES),
        ([*CAME, *FIRED], [VICTIM, FIRE], {}),
        ([*CAME, FIRED[1]], [VICTIM, FIRE], {"lost": [b"victim"]}),
        (
            [*CAME, FIRED[0], outcome(FIRE, b"not_pending")],
            *([VICTIM, FIRE], {"early": [b"victim"], "altered": [b"victim"], **DELIVERED}),
        ),
        ([*CAME, arrival(VICTIM), FIRED[1]], [VICTIM, FIRE], {"altered": [b"victim"]}),
        ([*CAME, arrival(VICTIM), outcome(FIRE, b"not_pending")], [VICTIM, FIRE], DELIVERED),
        ([*CAME, arrival(ONCE), KEPT], [ONCE, AGAIN], {}),
        ([*CAME, arrival(ONCE)], [ONCE, AGAIN], {"lost": [b"next"], **WRONG_OUTCOMES}),
        ([*CAME, arrival(ONCE), arrival(AGAIN)], [ONCE, AGAIN], DELIVERED),
        ([*CAME, *OCCURRENCES], [SERIES], {}),
        ([*CAME, OCCURRENCES[0]], [SERIES], {"lost": [b"series#2"]}),
        ([*CAME, *OCCURRENCES, OCCURRENCES[1]], [SERIES], {"duplicated": [b"series#2"]}),
        ([*CAME, arrival(THREE[2], number=3)], [], {"strangers": [b"c#3"]}),
        (
            [*CAME, arrival(ALONE), outcome(ALONE, b"expired")],
            *([ALONE], {"outcomes_wrong": [b"alone-id", b"delay:2:3"]}),
        ),
        ([*CAME, *DONE, arrival(CANCEL)], [VICTIM, CANCEL], {"strangers": [b"cancel"]}),
    ],
)
def test_the_checker_reports_faults(
    found: list[Found], more: list[Acked], expected: dict[str, list[bytes]]
) -> None:
    assert faults(found, *more) == expected


@pytest.mark.parametrize(
    ("partition", "ahead_ms", "expected"), [(2, 50, DELIVERED), (3, 50, {}), (3, 1_000, DELIVERED)]
)
def test_only_a_record_of_another_partition_is_overtaken_by_a_canceller_that_follows_at_once(
    partition: int, ahead_ms: int, expected: dict[str, list[bytes]]
) -> None:
    for first, second, fate in ((VICTIM, SUCCESSOR, b"replaced"), (ONCE, AGAIN, b"kept")):
        step = replace(second.step, partition=partition)
        later = replace(second, step=step, appended_ms=T0_MS + ahead_ms)
        if fate == b"kept":
            found = [arrival(later), outcome(first, fate)]
        else:
            found = [arrival(first), outcome(later, fate, first)]
        assert faults([*CAME, *found], first, later) == expected
    cancel = replace(CANCEL, step=replace(CANCEL.step, partition=partition))
    cancel = replace(cancel, appended_ms=T0_MS + ahead_ms)
    late = [arrival(VICTIM), outcome(cancel, b"not_pending")]
    assert faults([*CAME, *late], VICTIM, cancel) == expected
    done = [outcome(VICTIM, b"cancelled", cancel), outcome(cancel, b"cancelled")]
    assert faults([*CAME, *done], VICTIM, cancel) == {}


def test_a_replaced_record_gives_way_to_its_successor() -> None:
    found = [*CAME, arrival(SUCCESSOR), outcome(VICTIM, b"replaced", SUCCESSOR)]
    assert faults(found, VICTIM, SUCCESSOR) == {}
    assert faults([*found, arrival(VICTIM)], VICTIM, SUCCESSOR) == {
        "ineffective": [b"victim"],
        **TWICE,
    }
    assert faults(found[:3], VICTIM, SUCCESSOR) == {
        "lost": [b"victim", b"next"],
        "outcomes_wrong": [b"id"],
    }


def test_the_same_seed_writes_the_same_history() -> None:
    plan = Plan(7, "delay", 4, ("one", "two"), per_s=100)
    first, again = (list(islice(steps(plan), 2_000)) for _ in range(2))
    assert first == again
    assert first != list(islice(steps(replace(plan, seed=8)), 2_000))
    assert {step.partition for step in first} == set(range(4))


def test_a_canceller_follows_its_victim_in_any_partition() -> None:
    plan = Plan(7, "delay", 4, ("one", "two"), per_s=100)
    written: dict[bytes, Step] = {}
    pairs = set()
    for step in islice(steps(plan), 2_000):
        if step.against is not None:
            victim = written[step.against]
            assert victim.name == step.name
            assert victim.delay_ms == plan.victim_delay_ms
            pairs.add((step.op, victim.partition == step.partition))
        assert step.uid not in written
        written[step.uid] = step
    assert pairs == {(op, is_same) for op in CANCELLERS for is_same in (True, False)}


def test_lateness_is_ranked() -> None:
    verdict = CheckerVerdict(lateness_ms=list(range(1, 201)))
    assert [verdict.lateness(percent) for percent in (50, 99, 100)] == [100, 198, 200]
    assert CheckerVerdict().lateness(99) == 0


# --- the judge finds each thing that may go wrong with a record, and nothing else -----------------


BATCH = Batch(b"abcdefgh", 800, 60, 7, is_mixed=True)
PLAIN = Batch(b"abcdefgh", 2_000, 60, 7)
DUE_MS = 1_700_000_000_000
DELAY_MS = 500
SEEN_S = DUE_MS / 1_000 + 0.005
TARGETS = ("orders", "payments")
APPENDED_MS = dict.fromkeys(range(BATCH.n), DUE_MS - DELAY_MS)


def record(
    number: int, batch: Batch = BATCH, due_ms: int = DUE_MS, made_ms: int = DUE_MS + 2
) -> Message:
    is_after = batch.kind(number) in AFTER
    key, value, own = batch.record(number, DELAY_MS if is_after else DUE_MS)
    headers = [*own, ("delay-due-at", b"%d" % due_ms), ("delay-source", b"t:3:%d" % number)]
    topic = TARGETS[number % len(TARGETS)]
    return Message(topic, 0, number, key, value, headers=headers, timestamp=(1, made_ms))


def wanted(batch: Batch = BATCH) -> list[Message]:
    return [record(n, batch) for n in range(batch.n) if batch.kind(n) not in WITHDRAWN]


def judged(records: list[Message], batch: Batch = BATCH, seen_s: float = SEEN_S) -> Verdict:
    tally = Tally(batch, TARGETS)
    tally.add(records, seen_s)
    tally.close(Loaded(batch.n, batch.n - batch.wanted, appended_ms=APPENDED_MS))
    return tally.judged()


def test_a_record_whose_append_time_is_unknown_may_be_due_at_any_time() -> None:
    tally = Tally(BATCH, TARGETS)
    tally.add(wanted(), SEEN_S)
    tally.close(Loaded(BATCH.n, BATCH.n - BATCH.wanted))
    assert wrong(tally.judged()) == {}


def wrong(verdict: Verdict) -> dict[str, int]:
    right = ("sent", "delivered", "withdrawn")
    return {name: n for name, n in counts(verdict).items() if n and name not in right}


@pytest.mark.parametrize("batch", [BATCH, PLAIN])
def test_records_that_arrive_as_sent_are_good(batch: Batch) -> None:
    verdict = judged(wanted(batch), batch)
    assert (wrong(verdict), verdict.is_good) == ({}, True)
    assert verdict.n == batch.n == verdict.delivered + verdict.withdrawn
    assert verdict.lateness_ms == {5: verdict.delivered}


@pytest.mark.parametrize("kind", sorted(set(Kind) - WITHDRAWN))
def test_a_record_of_any_kind_that_is_lost_early_or_doubled_is_found(kind: Kind) -> None:
    rest = [one for one in wanted() if one.offset() != kind]
    early = record(kind, made_ms=DUE_MS - 1)
    for found, faults in (
        (rest, {"lost": 1}),
        ([*rest, early], {"early": 1}),
        ([*wanted(), record(kind)], {"duplicated": 1}),
        ([*wanted(), *[record(kind)] * 300], {"duplicated": 1}),
    ):
        verdict = judged(found)
        assert (wrong(verdict), verdict.is_good) == (faults, False)


@pytest.mark.parametrize("kind", sorted(WITHDRAWN))
def test_a_record_that_was_cancelled_or_replaced_is_unwanted(kind: Kind) -> None:
    later = record(len(Kind), made_ms=DUE_MS - 1, due_ms=DUE_MS - 1)
    assert wrong(judged([*wanted(), record(kind)])) == {}  # it was due before the cancel was read
    rest = [one for one in wanted() if one.offset() != len(Kind)]
    verdict = judged([*rest, later, record(kind)])
    assert (verdict.unwanted, verdict.is_good) == (1, False)
    (example,) = verdict.examples["unwanted"]
    assert example.startswith(f"record {kind:d}, a {kind.name}, at ")


def test_a_record_received_before_its_due_time_is_early() -> None:
    for batch in (BATCH, PLAIN):
        verdict = judged(wanted(batch), batch, seen_s=(DUE_MS - 1) / 1_000)
        assert wrong(verdict) == {"early": verdict.delivered}


@pytest.mark.parametrize(
    "changes",
    [
        {"value": HEAD.pack(9, DUE_MS, BATCH.tag) + b"?"},
        {"key": b"other"},
        {"key": None},
        {"headers": [("more", b""), ("delay-due-at", b"%d" % DUE_MS)]},
        {"headers": [("delay-due-at", b"%d" % (DUE_MS + 1))]},
        {"headers": None},
        {"topic": "elsewhere"},
    ],
    ids=str,
)
def test_an_altered_record_is_found_and_is_not_lost(changes: dict[str, Any]) -> None:
    number = len(Kind) + Kind.KEYED
    sent = record(number)
    facts: dict[str, Any] = {"topic": sent.topic(), "key": sent.key(), "value": sent.value()}
    facts |= {"headers": sent.headers(), "partition": 0, "offset": 0, "timestamp": (1, DUE_MS)}
    changed = Message(**(facts | changes))
    rest = [one for one in wanted() if one.offset() != number]
    assert wrong(judged([*rest, changed])) == {"altered": 1}


@pytest.mark.parametrize("value", [None, b"", b"x" * (SIZE_MIN - 1), HEAD.pack(3, 0, b"another.")])
def test_a_record_of_another_producer_is_a_stranger_and_no_fault(value: bytes | None) -> None:
    verdict = judged([*wanted(), Message("orders", 0, 9, value=value)])
    assert (wrong(verdict), verdict.is_good) == ({"strangers": 1}, True)


def test_a_number_that_was_never_sent_is_a_stranger() -> None:
    tally = Tally(PLAIN)
    tally.add([record(number, PLAIN) for number in range(10)], SEEN_S)
    before = tally.is_complete
    tally.close(Loaded(9))
    assert (before, tally.is_complete) == (False, True)
    tally.add([record(11, PLAIN)], SEEN_S)
    assert wrong(tally.judged()) == {"strangers": 2}


def test_the_lateness_of_the_warm_up_is_not_counted() -> None:
    warm = replace(PLAIN, warm_up=500)
    assert judged(wanted(warm), warm).lateness_ms == {5: 1_500}


def test_the_last_time_is_that_of_the_last_new_record_not_of_a_double() -> None:
    tally = Tally(PLAIN)
    records = wanted(PLAIN)
    for part, seen_s in ((records[:5], 1.0), (records[5:], 2.0), (records[:1], 3.0)):
        tally.add(part, seen_s)
    assert tally.verdict.last_seen_s == 2.0


def test_a_head_takes_the_smallest_size_and_fillers_differ_by_seed() -> None:
    assert HEAD.size == SIZE_MIN
    assert Batch(b"abcdefgh", 1, SIZE_MIN, 1).filler == b""
    assert PLAIN.filler != Batch(b"abcdefgh", 1, 60, 8).filler


def test_a_quantile_is_the_smallest_value_that_so_many_are_at_or_below() -> None:
    histogram = dict.fromkeys(range(1, 101), 1)
    assert [quantile(histogram, f) for f in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile({9: 1, 5: 99}, 0.99) == 5
    assert quantile({}, 0.5) is None
