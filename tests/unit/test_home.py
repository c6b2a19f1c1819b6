"""Ids find home: how records are sent there, what waits, and how they are read at home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.codes import (
    TARGET_ASKED,
    TARGET_DOWN,
    TARGET_LATER,
    TARGET_PAUSED,
    TOO_LARGE,
)
from delayservice.contract.contracts import (
    Contract,
    Contracts,
)
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import (
    CANCEL,
    COPY,
    FIRE,
    HOMEBOUND,
    INVALID,
    OFFSET_MAX,
    SCHEDULE,
    Entry,
    Headers,
)
from delayservice.contract.home import (
    SETTLES_NOTHING,
    read_claimed_envelope,
    taken_along,
    waiting_group,
)
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.engine import outcome
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.outcome import Output, Routes, Target
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets, any_target

TOPIC = "delay_topic_any"
SECRET = b"secret"
PARTITIONS = 2
NOW_MS = 5_000_000
WINDOW_MS = 1_000_000
ROUTES = Routes("letters", "outcomes", SECRET, WINDOW_MS, 0, (), cron_time, allowlist=any_target)
HOMES = Contracts([(0, Contract(id_partitions=PARTITIONS))])

ID = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, PARTITIONS) == 0)
"""At home in partition 0; users write to partition 1."""
AWAY = {(TOPIC, 0): (TARGET_DOWN, "its leader does not answer")}


def schedule(after_ms: int = 60_000, **more: bytes) -> Headers:
    headers = {"delay-after": b"%d" % after_ms, "delay-target-topic": b"orders", "delay-id": ID}
    headers |= {name.replace("_", "-"): text for name, text in more.items()}
    return [*headers.items(), ("own", b"1")]


def control(op: bytes) -> Headers:
    return [("delay-id", ID), ("delay-op", op)]


def told_of(outputs: list[Output]) -> list[tuple[str, int]]:
    """Outcome and offset of each."""
    return [(outcome.OUTCOME_NAMES[output[0]], output[7]) for output in outputs]


def header(output: Output, name: str) -> bytes | None:
    return dict(output[5]).get(name)


@dataclass
class Partition:
    """A partition with its reader, its shard and its store, and what its owner has settled."""

    number: int
    contracts: Contracts = HOMES
    blocked: Mapping[Target, tuple[str, str]] = field(default_factory=dict)
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        """Own the partition from its beginning."""
        self.targets = KnownTargets(dict(self.blocked))
        self.verdicts = Verdicts()
        settler = Settler(TOPIC, self.number, ROUTES, self.verdicts, targets=self.targets)
        settler.requeuer.contracts = self.contracts
        self.reader = RecordReader(TOPIC, self.number, self.contracts, [SECRET])
        self.shard = Shard(settler, 0)
        self.shard.take_over(Cursor(), [], 0)
        self.store = MemoryStore()
        self.end = 0

    def write(self, headers: Headers, value: bytes | None = b"v", key: bytes | None = b"k") -> int:
        """Append a record; return its offset."""
        entry = self.reader.read(self.end, self.now_ms, key, value, headers)
        scans = self.shard.scans_needed(self.end, [entry], self.end + 1)
        assert not scans
        added = self.shard.ingest(self.end, [entry], self.end + 1, {}, self.store.latest_unmarked)
        self.store.append(added.frames, added.named, added.marks, self.end + 1)
        self.end += 1
        return self.end - 1

    def read(self, headers: Headers, value: bytes | None = b"v", key: bytes | None = b"k") -> Entry:
        """What a record is that comes next."""
        return self.reader.read(self.end, self.now_ms, key, value, headers)

    def settle(self) -> list[Output]:
        """Walk H and K as far as they go, and commit; what comes back is appended at once."""
        outputs = self.shard.advance_offset(self.now_ms, 100, self._pending_at)
        frames = list(self.store.scanner().frames(self.shard.staged.key, self.now_ms))
        outputs += self.shard.advance_key(frames, self.now_ms)
        self.shard.commit()
        for output in outputs:
            if output[0] in outcome.COPIES:
                assert output[1:3] == (TOPIC, self.number)
                self.write(output[5], output[4], output[3])
        return outputs

    def arrive(self, outputs: list[Output]) -> None:
        """Append what was sent here."""
        for output in outputs:
            if output[0] == outcome.FORWARDED:
                assert output[1:3] == (TOPIC, self.number)
                self.write(output[5], output[4], output[3])

    def _pending_at(self, key: Key) -> Payload:
        frames = self.store.scanner().frames((key[0], key[1] - 1), key[0])
        return next(decode_payload(frame[3]) for frame in frames if frame[1] == key[1])


def test_a_record_goes_home_as_it_was_and_keeps_its_first_timestamp_and_provenance() -> None:
    away, home = Partition(1), Partition(0, now_ms=NOW_MS + 30_000)
    away.write(schedule(delay_expires_at=b"9000000"), b"value", b"key")
    sent = away.settle()
    assert told_of(sent) == [("forwarded", 0)]
    assert away.shard.staged.offset == 1
    assert not list(away.store.scanner().frames((0, -1), OFFSET_MAX))
    arrived = read_claimed_envelope((sent[0][3], sent[0][4], sent[0][5]))
    assert arrived is not None
    assert arrived[1:] == (0, f"{TOPIC}:1")
    home.arrive(sent)
    assert home.settle() == []
    home.now_ms = NOW_MS + 60_000
    [delivered] = home.settle()
    kind, topic, _, key, value, headers, due_ms, offset = delivered
    assert (kind, topic, key, value) == (outcome.DELIVERED, "orders", b"key", b"value")
    assert (due_ms, offset) == (NOW_MS + 60_000, 0), "the delay counts from the first timestamp"
    assert headers[0] == ("own", b"1")
    assert dict(headers)["delay-source"] == b"%b:1:0" % TOPIC.encode()
    assert dict(headers)["delay-shard"] == b"%b:0" % TOPIC.encode()
    assert not any(name.startswith("delay-home") for name, _ in headers)


@pytest.mark.parametrize(
    ("op", "kind", "fate"), [(b"cancel", CANCEL, "cancelled"), (b"fire", FIRE, "fired")]
)
def test_a_control_goes_home_without_its_content_and_finds_its_record(
    op: bytes, kind: int, fate: str
) -> None:
    away, home = Partition(1), Partition(0)
    home.write(schedule())
    away.write([*control(op), ("own", b"x" * 100)], b"value")
    sent = away.settle()
    assert (sent[0][3], sent[0][4]) == (None, None)
    assert home.read(sent[0][5], None, None)[1] == kind
    home.arrive(sent)
    told = home.settle()
    assert told_of(told) == [(fate, 0), (fate, 1)]
    assert header(told[1], "delay-source") == b"%b:1:0" % TOPIC.encode()
    if kind == CANCEL:
        assert header(told[0], "delay-settled-by-source") == b"%b:1:0" % TOPIC.encode()


def test_a_record_at_home_is_never_forwarded_again() -> None:
    away = Partition(1)
    away.write(schedule())
    sent = away.settle()
    other = Contracts([(0, Contract(id_partitions=97))])
    off = Contracts([(0, Contract())])
    for contracts in (other, off):
        assert Partition(0, contracts).read(sent[0][5])[1] == SCHEDULE


def test_an_envelope_is_worth_nothing_elsewhere_or_changed() -> None:
    away = Partition(1)
    away.write(schedule())
    [(_, _, _, key, value, headers, _, _)] = away.settle()
    home = Partition(0)
    assert home.reader.read(0, NOW_MS, key, value, headers)[1] == SCHEDULE
    forged = [
        (0, key, b"other", headers),
        (0, b"other", value, headers),
        (0, key, value, [*headers, ("more", b"")]),
        (0, key, value, [("own", b"2"), *headers]),
        (0, key, value, [(n, b"{}" if n == "delay-home" else t) for n, t in headers]),
        (0, key, value, [one for one in headers if one[0] != "delay-home-mac"]),
        (1, key, value, headers),
    ]
    for partition, forged_key, forged_value, forged_headers in forged:
        reader = Partition(partition).reader
        entry = reader.read(0, NOW_MS, forged_key, forged_value, forged_headers)
        assert (entry[1], entry[5][0]) == (INVALID, "copy-forged")
        assert reader.has_refused


def test_an_invalid_record_is_not_forwarded_and_its_letter_names_its_source() -> None:
    assert Partition(1).read([*schedule(), ("delay-at", b"x")])[1] == INVALID
    away = Partition(1)
    away.write(schedule(after_ms=90_000))
    sent = away.settle()
    short = Contracts([(0, replace(HOMES.at(0), max_delay_ms=1_000))])
    home = Partition(0, short)
    home.arrive(sent)
    [letter] = home.settle()
    assert header(letter, "delay-error") == b"delay-too-long"
    assert header(letter, "delay-source") == b"%b:1:0" % TOPIC.encode()
    assert ("own", b"1") in letter[5]


def test_it_settles_first_what_is_pending_where_it_lies() -> None:
    """What was pending before ids had homes is found from there only."""
    began = Contracts([(0, Contract()), (1, HOMES.at(0))])
    replaced = Partition(1, began)
    replaced.write(schedule())
    replaced.write(schedule())
    assert told_of(replaced.settle()) == [("replaced", 0), ("forwarded", 1)]
    for op, fate in ((b"cancel", "cancelled"), (b"fire", "fired")):
        done = Partition(1, began)
        done.write(schedule())
        done.write(control(op))
        assert told_of(done.settle()) == [(fate, 0), (fate, 1)], "it has done its work"
        done.write(control(op))
        assert told_of(done.settle()) == [("forwarded", 2)]


def test_a_home_that_takes_nothing_is_waited_for_without_holding_anything_up() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(schedule(delay_expires_at=b"%d" % (NOW_MS + 70_000)))
    [waiting] = away.settle()
    assert (waiting[0], away.shard.staged.offset) == (outcome.PARKED, 1)
    assert away.reader.read(1, NOW_MS, b"k", b"v", waiting[5])[1] == COPY
    for _ in range(20):
        away.now_ms += 20_000
        assert told_of(away.settle()) in ([], [("parked", away.end - 2)])
    assert away.now_ms > NOW_MS + 70_000, "and it does not expire on its way"
    away.targets.why = {}
    away.now_ms += 20_000
    [sent] = away.settle()
    assert told_of([sent]) == [("forwarded", away.end - 1)]
    home = Partition(0, now_ms=away.now_ms)
    home.arrive([sent])
    assert told_of(home.settle()) == [("expired", 0)]


def test_a_forward_waits_for_its_lookup_and_ignores_a_pause() -> None:
    away = Partition(1, blocked={(TOPIC, 0): (TARGET_ASKED, "asked")})
    away.write(schedule())
    assert away.settle() == []
    assert away.shard.staged.offset == 0
    away.targets.why = {(TOPIC, 0): (TARGET_PAUSED, "deliveries are paused")}
    assert told_of(away.settle()) == [("forwarded", 0)]


def test_records_waiting_for_a_home_are_forwarded_in_order() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(schedule())
    away.settle()
    away.write(control(b"cancel"))
    [second] = away.settle()
    payload = away.read(second[5], None, None)[4]
    assert taken_along(payload) == 1
    assert [one.kind for one in waiting_group(payload)] == [SCHEDULE, CANCEL]
    away.targets.why = {}
    away.now_ms += 20_000
    sent = away.settle()
    assert told_of(sent) == [("forwarded", 3)] * 2
    settled = [read_claimed_envelope((one[3], one[4], one[5])) for one in sent]
    assert [one.settles for one in settled if one is not None] == [SETTLES_NOTHING, 3]
    home = Partition(0, now_ms=away.now_ms)
    home.arrive(sent)
    assert told_of(home.settle()) == [("cancelled", 0), ("cancelled", 1)]


def test_a_schedule_replaces_the_one_that_waits_just_before_it_at_once() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(schedule())
    away.settle()
    away.write(schedule())
    assert told_of(away.settle()) == [("replaced", 1), ("parked", 2)]
    away.targets.why = {}
    away.write(schedule())
    sent = away.settle()
    assert told_of(sent) == [("replaced", 3), ("forwarded", 4)]


def test_a_forward_settles_each_record_that_it_carries() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(control(b"fire"))
    away.settle()
    away.targets.why = {}
    away.write(schedule())
    sent = away.settle()
    settled = [read_claimed_envelope((one[3], one[4], one[5])) for one in sent]
    assert [one.settles for one in settled if one is not None] == [1, 2]


def test_a_refused_forward_is_dead_lettered_and_later_ones_go_on() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(control(b"cancel"))
    away.settle()
    away.write(schedule())
    away.verdicts.refuse([(2, ("too-large", "larger than the topic takes"))])
    assert told_of(away.settle()) == [("parked", 1), ("dead_lettered", 2)]


def test_a_large_record_is_forwarded_in_a_full_transaction() -> None:
    away = Partition(1)
    away.write(schedule(), value=b"v" * 600_000)
    for code, told in ((TARGET_LATER, "forwarded"), (TOO_LARGE, "dead_lettered")):
        found = {TOPIC: (code, "the transaction has much, or this is too much")}
        with patch.object(away.targets, "refusal", lambda topic, *_, found=found: found.get(topic)):
            assert told_of(away.settle()) == [(told, away.end - 1)]
        away.write(schedule(), value=b"v" * 600_000)


def test_a_replacements_source_is_told_for_forwarded_records() -> None:
    away, home = Partition(1), Partition(0)
    home.write(schedule())
    again = [one for one in schedule(delay_every=b"60000") if one[0] != "delay-after"]
    home.write(again)
    [here] = home.settle()
    assert told_of([here]) == [("replaced", 0)]
    assert header(here, "delay-settled-by-source") is None
    away.write(again)
    home.arrive(away.settle())
    [told] = home.settle()
    assert told_of([told]) == [("replaced", 1)]
    assert header(told, "delay-settled-by-source") == b"%b:1:0" % TOPIC.encode()


def test_each_waiting_record_of_a_refused_forward_is_dead_lettered() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(schedule())
    away.settle()
    away.write(control(b"cancel"))
    away.settle()
    away.verdicts.refuse([(3, ("too-large", "the limit was lowered"))])
    away.now_ms += 20_000
    letters = away.settle()
    assert told_of(letters) == [("dead_lettered", 3)] * 2
    assert [header(one, "delay-settles") for one in letters] == [b"-1", b"3"]
    sources = [header(one, "delay-source") for one in letters]
    assert sources == [b"%b:1:%d" % (TOPIC.encode(), n) for n in (0, 2)]


def test_nothing_is_in_flight_if_the_record_that_takes_it_along_has_to_wait() -> None:
    away = Partition(1, blocked=AWAY)
    away.write(control(b"cancel"))
    away.settle()
    away.write(schedule())
    away.verdicts.refuse([(2, ("too-large", "larger than the topic takes"))])
    away.targets.why = {**AWAY, ("letters", -1): (TARGET_LATER, "not now")}
    assert away.settle() == []
    away.targets.why = AWAY
    assert told_of(away.settle()) == [("parked", 1), ("dead_lettered", 2)]


def test_a_contract_never_gives_ids_other_homes() -> None:
    for wanted in (0, 4):
        contract = Contract(id_partitions=wanted, max_delay_ms=7)
        for end in (0, 10):
            extended = HOMES.extended(end, contract)
            assert extended.at(OFFSET_MAX).id_partitions == PARTITIONS
            assert extended.at(OFFSET_MAX).max_delay_ms == 7


@pytest.mark.parametrize("op", [b"cancel", b"fire", b"schedule", b"other", None])
@pytest.mark.parametrize("record_id", [b"a", b"", None, b"x" * 513])
@pytest.mark.parametrize("contract", [Contract(), HOMES.at(0), Contract(level_ms=9)])
def test_a_plain_control_is_read_as_one_that_says_the_same_twice(
    op: bytes | None, record_id: bytes | None, contract: Contract
) -> None:
    reader = RecordReader(TOPIC, 0, Contracts([(0, contract)]), [SECRET])
    plain: Headers = [("delay-op", op), ("delay-id", record_id)]
    for headers in (plain, plain[::-1]):
        short = reader.read(0, NOW_MS, b"k", b"v", headers)
        long = reader.read(0, NOW_MS, b"k", b"v", [*headers, headers[0]])
        assert short[:4] == long[:4]
        assert short[5] == long[5]


@given(
    identity=st.binary(min_size=1, max_size=20),
    partition=st.integers(0, 3),
    is_plain=st.booleans(),
)
def test_both_ways_of_reading_agree_on_what_is_at_home(
    identity: bytes, partition: int, *, is_plain: bool
) -> None:
    contracts = Contracts([(0, Contract(id_partitions=4))])
    reader = RecordReader(TOPIC, partition, contracts, [SECRET])
    headers = schedule(delay_id=identity)
    headers += [] if is_plain else [("delay-expires-at", b"9000000")]
    entry = reader.read(0, NOW_MS, b"k", b"v", headers)
    again = reader.read(1, NOW_MS, b"k", b"v", headers)
    home = partition_for(identity, 4)
    assert entry[1] == again[1] == (SCHEDULE if home == partition else HOMEBOUND)
    if home != partition:
        assert entry[2:] == (0, identity, (b"k", b"v", headers), (SCHEDULE, NOW_MS, home))
