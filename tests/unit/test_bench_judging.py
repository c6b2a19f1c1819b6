"""The bench's judge: each thing that may go wrong with a record is found, and nothing else; and its
trace: who delivered first, and how long nobody did.
"""

from __future__ import annotations

import pytest

from delay_devtools.bench.tally import (
    HEAD,
    KEYS,
    SIZE_MIN,
    Batch,
    BatchTally,
    BenchVerdict,
    Trace,
    keys,
)

BATCH = Batch("abcdefgh", 2_000, 60, 7)
KNOWN, FILLER = keys(), BATCH.filler()
DUE_MS = 1_000_000
SEEN_S = 1_000.005
Sent = tuple[bytes | None, bytes | None]


def record(number: int, *, due_ms: int = DUE_MS, tag: str = BATCH.tag) -> Sent:
    return KNOWN[number % KEYS], HEAD.pack(number, due_ms, tag.encode()) + FILLER


def add(tally: BatchTally, records: list[Sent], seen_s: float = SEEN_S) -> None:
    tally.add([key for key, _ in records], [value for _, value in records], seen_s)


def judged(records: list[Sent]) -> BenchVerdict:
    tally = BatchTally(BATCH)
    add(tally, records)
    tally.close(BATCH.n)
    return tally.verdict()


def all_records() -> list[Sent]:
    return [record(number) for number in range(BATCH.n)]


def wrong(verdict: BenchVerdict) -> dict[str, int]:
    names = ("lost", "duplicated", "early", "altered", "strangers")
    return {name: count for name in names if (count := getattr(verdict, name))}


def test_what_arrives_as_it_was_sent_is_good() -> None:
    verdict = judged(all_records())
    assert wrong(verdict) == {}
    assert verdict.seen == verdict.n == BATCH.n
    assert verdict.lateness_ms == {5: BATCH.n}


def test_a_lost_record_is_found() -> None:
    records = all_records()
    del records[1_234]
    assert wrong(judged(records)) == {"lost": 1}


@pytest.mark.parametrize("times", [1, 300])
def test_a_doubled_record_is_found_and_counted_once_however_often_it_comes(times: int) -> None:
    assert wrong(judged([*all_records(), *[record(3)] * times])) == {"duplicated": 1}


def test_an_early_record_is_found() -> None:
    records = all_records()
    records[7] = record(7, due_ms=int(SEEN_S * 1_000) + 1)
    verdict = judged(records)
    assert wrong(verdict) == {"early": 1}
    assert verdict.lateness_ms[-1] == 1


@pytest.mark.parametrize("where", ["filler", "key", "no key", "longer", "shorter"])
def test_an_altered_record_is_found_and_is_not_lost(where: str) -> None:
    key, value = record(9)
    assert value is not None
    changed: dict[str, Sent] = {
        "filler": (key, value[:-1] + bytes([value[-1] ^ 1])),
        "key": (b"key-10", value),
        "no key": (None, value),
        "longer": (key, value + b"x"),
        "shorter": (key, value[:-1]),
    }
    records = all_records()
    records[9] = changed[where]
    assert wrong(judged(records)) == {"altered": 1}


@pytest.mark.parametrize("value", [None, b"", b"x" * (SIZE_MIN - 1)])
def test_a_value_that_cannot_be_read_is_altered_and_its_number_lost(value: bytes | None) -> None:
    records = all_records()
    records[9] = (b"key-9", value)
    assert wrong(judged(records)) == {"altered": 1, "lost": 1}


def test_a_record_that_was_never_sent_is_a_stranger() -> None:
    others = [record(3, tag="hgfedcba"), record(BATCH.n)]
    assert wrong(judged([*all_records(), *others])) == {"strangers": 2}


def test_the_time_of_the_last_is_that_of_the_last_missing_number_not_of_a_double() -> None:
    tally = BatchTally(BATCH)
    tally.close(BATCH.n)
    records = all_records()
    for part, seen_s in ((records[:5], 1.0), (records[5:], 2.0), (records[:1], 3.0)):
        assert tally.is_complete == (seen_s == 3.0)
        add(tally, part, seen_s)
    assert tally.verdict().last_seen_s == 2.0


def test_a_load_that_ends_early_is_complete_only_when_its_end_is_known() -> None:
    tally = BatchTally(BATCH)
    add(tally, all_records()[:10])
    before = tally.is_complete
    tally.close(9)
    assert (before, tally.is_complete) == (False, True)
    assert wrong(tally.verdict()) == {"strangers": 1}


def test_what_is_missing_below_the_end_of_an_open_load_is_lost() -> None:
    tally = BatchTally(BATCH)
    add(tally, all_records()[1:10])
    tally.close(10)
    assert wrong(tally.verdict()) == {"lost": 1}


def test_the_smallest_value_is_a_head_without_filler() -> None:
    assert Batch("abcdefgh", 1, SIZE_MIN, 1).filler() == b""
    assert BATCH.filler() != Batch("abcdefgh", 1, 60, 8).filler()


def trace(*deliveries: tuple[int, int]) -> Trace:
    return Trace({3: dict(deliveries)})


def test_records_of_one_slice_and_millisecond_are_one_delivery_seen_first() -> None:
    found = Trace()
    found.add([(3, 20), (1, 20), (3, 10)], 25)
    found.add([(3, 20), (3, 21)], 26)
    assert found.seen_ms == {3: {20: 25, 10: 25, 21: 26}, 1: {20: 25}}


def test_what_a_dead_owner_had_produced_is_no_delivery_of_its_successor() -> None:
    found = trace((100, 190), (150, 300), (200, 310), (210, 305))
    assert found.first_seen_ms(3, 150.9) == 305
    assert found.first_seen_ms(3, 210) is None
    assert found.first_seen_ms(4, 0) is None


def test_a_pause_is_between_the_last_before_and_the_first_after() -> None:
    found = trace((230, 260), (100, 110), (150, 170), (231, 250))
    assert found.pause_ms(3, 150.2) == 80
    assert found.pause_ms(3, 99) is None
    assert found.pause_ms(3, 231) is None
    assert found.pause_ms(0, 150) is None
