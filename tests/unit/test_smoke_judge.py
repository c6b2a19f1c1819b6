"""The judge finds each thing that may go wrong with a record, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Message

from delayservice.smoke.judge import Tally, Verdict, counts, quantile
from delayservice.smoke.load import AFTER, HEAD, SIZE_MIN, WITHDRAWN, Batch, Kind, Loaded

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
