"""How ids find home, and the walks of H and K that settle records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.codes import TARGET_ASKED, TARGET_LATER, TARGET_PAUSED, TOO_LARGE
from delayservice.contract.contracts import Contract, Contracts
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
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.engine import outcome
from delayservice.engine.cursor import NO_MARK, Additions, Cursor, Key
from delayservice.engine.outcome import Output, Routes, Target
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.lane import Lane
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets, any_target
from tests.unit.loop_stage import Logs

TOPIC = "delay_topic_any"
SECRET = b"secret"
PARTITIONS = 2
NOW_MS = 5_000_000
WINDOW_MS = 1_000_000
ROUTES = Routes("letters", "outcomes", SECRET, WINDOW_MS, 0, (), cron_time, allowlist=any_target)
HOMES = Contracts([(0, Contract(id_partitions=PARTITIONS))])

ID = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, PARTITIONS) == 0)
"""At home in partition 0; users write to partition 1."""


def schedule(after_ms: int = 60_000, **more: bytes) -> Headers:
    headers = {"delay-after": b"%d" % after_ms, "delay-target-topic": b"orders", "delay-id": ID}
    headers |= {name.replace("_", "-"): text for name, text in more.items()}
    return [*headers.items(), ("own", b"1")]


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
        for output in outputs:
            if output[0] == outcome.FORWARDED:
                assert output[1:3] == (TOPIC, self.number)
                self.write(output[5], output[4], output[3])

    def _pending_at(self, key: Key) -> Payload:
        frames = self.store.scanner().frames((key[0], key[1] - 1), key[0])
        return next(decode_payload(frame[3]) for frame in frames if frame[1] == key[1])


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
    identity=st.binary(min_size=1, max_size=20), partition=st.integers(0, 3), is_plain=st.booleans()
)
def test_both_readers_agree_on_homes(identity: bytes, partition: int, *, is_plain: bool) -> None:
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


def told_of(outputs: list[Output]) -> list[tuple[str, int]]:
    return [(outcome.OUTCOME_NAMES[output[0]], output[7]) for output in outputs]


def test_a_forward_waits_for_its_lookup_and_ignores_a_pause() -> None:
    away = Partition(1, blocked={(TOPIC, 0): (TARGET_ASKED, "asked")})
    away.write(schedule())
    assert away.settle() == []
    assert away.shard.staged.offset == 0
    away.targets.why = {(TOPIC, 0): (TARGET_PAUSED, "deliveries are paused")}
    assert told_of(away.settle()) == [("forwarded", 0)]


def test_a_large_record_is_forwarded_in_a_full_transaction() -> None:
    away = Partition(1)
    away.write(schedule(), value=b"v" * 600_000)
    for code, told in ((TARGET_LATER, "forwarded"), (TOO_LARGE, "dead_lettered")):
        found = {TOPIC: (code, "the transaction has much, or this is too much")}
        with patch.object(away.targets, "refusal", lambda topic, *_, found=found: found.get(topic)):
            assert told_of(away.settle()) == [(told, away.end - 1)]
        away.write(schedule(), value=b"v" * 600_000)


# --- the walk of H where it could take long, and the walk of K beside it --------------------------


NARROW = Routes("letters", "outcomes", b"secret", 1_000, 0, (), cron_time, allowlist=any_target)
IDS = st.sampled_from([b"a", b"b", b"c"])
OFFSETS = st.integers(0, 5)


def shard() -> Shard:
    made = Shard(Settler("delay_topic_any", 0, NARROW, Verdicts(), KnownTargets()), 0)
    made.take_over(Cursor(), [], 0)
    return made


def nothing_pending(_: Key) -> Payload:
    raise AssertionError("nothing is pending")


FAR: Payload = ("orders", -1, None, b"", [], 9_000, None)


def fire(offset: int) -> Entry:
    return (offset, FIRE, 0, b"%d" % (offset % 100), (None, None, []), None)


def test_fired_records_are_read_within_the_time_limit_but_at_least_one() -> None:
    # Each may lie anywhere; a turn is not to take minutes.
    walked = shard()
    walked.walk.victims = {n: {(9_000, n - 100): None} for n in range(100, 200)}
    walked.staged = walked.committed = Cursor((0, 2**63 - 1), 100)
    walked.read = walked.stored = walked.seen = 100
    walked.ingest(100, [fire(n) for n in range(100, 200)], 200, {}, lambda _, __: None)
    reads: list[Key] = []

    def pending_at(key: Key) -> Payload:
        reads.append(key)
        return FAR

    turns = []
    while walked.staged.offset < 200:
        before = len(reads)
        walked.advance_offset(1, 10_000, pending_at, lambda: len(reads) % 40 != 0)
        turns.append(len(reads) - before)
    assert turns == [40, 40, 20]


def test_a_copy_that_came_back_late_is_fired_without_reading_the_log() -> None:
    # A new client for each of them would take the loop's time.
    walked = shard()
    walked.take_over(Cursor((5_000, 0), 0), [], 0)
    copy: Entry = (1, COPY, 4_000, b"0", (*FAR[:6], (b"0", b"source", 2, None)), 0)
    walked.ingest(0, [fire(0), copy], 2, {1: 0}, lambda _, __: None)
    outputs = walked.advance_offset(1, 10_000, nothing_pending)
    assert [(output[0], output[7]) for output in outputs] == [
        (outcome.FIRED, 1),
        (outcome.FIRED, 0),
    ]


def test_a_copy_that_is_read_again_is_not_taken_for_the_other_one_in_flight() -> None:
    walked = shard()
    walked.take_over(Cursor((5_000, 0), 0), [], 0)
    for _ in range(2):
        walked.walk._flying([(outcome.ROLLED, "delay_topic_any", 0, None, None, [], 0, 0)], b"0", 0)
    copies: list[Entry] = [
        (offset, COPY, 6_000, b"0", (*FAR[:6], (b"0", b"source", 2, None)), 0) for offset in (0, 1)
    ]
    for start, copy in ((0, copies[0]), (0, copies[0]), (1, copies[1])):
        assert walked.walk.waits
        walked.ingest(start, [copy], start + 1, {start: NO_MARK}, lambda _, __: None)
    assert not walked.walk.waits


def test_a_copy_of_an_earlier_owner_is_not_taken_for_one_in_flight() -> None:
    walked = shard()
    walked.take_over(Cursor((5_000, 0), 0), [], 1)
    walked.walk._flying([(outcome.ROLLED, "delay_topic_any", 0, None, None, [], 0, 0)], b"0", 0)
    for offset, waits in ((0, True), (1, False)):
        copy: Entry = (offset, COPY, 6_000, b"0", (*FAR[:6], (b"0", b"source", 2, None)), 0)
        walked.ingest(offset, [copy], offset + 1, {offset: NO_MARK}, lambda _, __: None)
        assert walked.walk.waits == waits


@given(st.lists(st.tuples(st.booleans(), IDS, OFFSETS)), IDS, OFFSETS)
def test_a_flying_copy_is_found(
    changes: list[tuple[bool, bytes, int]], asked: bytes, offset: int
) -> None:
    walk, pairs = shard().walk, list[tuple[bytes, int]]()
    copy: Output = (outcome.ROLLED, "delay_topic_any", 0, None, None, [], 0, 0)
    for is_new, record_id, base in changes:
        if is_new:
            walk._flying([copy], record_id, base)
            pairs.append((record_id, base))
        else:
            walk.came_back(record_id, base)
            if (record_id, base) in pairs:
                pairs.remove((record_id, base))
    assert walk.waits == bool(pairs)
    found = any(name == asked and base <= offset for name, base in pairs)
    assert walk._awaits_copy(asked, offset) == found


# --- the two walks ------------------------------------------------------------------------------

WALK_MS = 1_900_000_000_000
WIDE = Routes("letters", "outcomes", b"secret", 3_600_000, 0, (), cron_time, allowlist=any_target)


def test_staged_outputs_reserve_their_size_in_the_transaction() -> None:
    walked = Walked()
    walked.targets.small = {"orders"}
    walked.cancel(b"nothing", WALK_MS)
    walked.write(10, 20)
    walked.own()
    walked.read()
    walked.walk_h(WALK_MS)
    assert walked.targets.reserved == walked.staged != []
    walked.walk_k(WALK_MS + 10)
    assert walked.targets.reserved == walked.staged
    assert len(walked.staged) == 2


class Walked:
    """A lane, its log, and what it has staged."""

    def __init__(self) -> None:
        self.log = Logs()
        self.targets = KnownTargets()
        self.lane = Lane(TOPIC, 0, "id", MemoryStore(), self.log, WIDE, targets=self.targets)
        self.lane.adopt(Contracts([(0, Contract())]))
        self.staged: list[Output] = []

    def write(self, *delays_ms: int, at_ms: int = WALK_MS) -> None:
        self.log.write((TOPIC, 0), at_ms, delays_ms)

    def cancel(self, record_id: bytes, at_ms: int) -> None:
        rows = self.log.rows.setdefault((TOPIC, 0), [])
        asked: Headers = [("delay-op", b"cancel"), ("delay-id", record_id)]
        rows.append((len(rows), at_ms, None, None, asked))

    def read(self) -> None:
        for run in self.log.poll(0, 1_000):
            self.lane.ingest(run)

    def own(self) -> None:
        self.lane.take_over(Cursor(), self.log.bounds((TOPIC, 0)))

    def walk_h(self, now_ms: int) -> None:
        self.staged += self.lane.settle_late(now_ms, 1_000, lambda: True)

    def walk_k(self, now_ms: int) -> list[tuple[int, int]]:
        chunks = self.lane.settle_due(now_ms, 1_000, 1 << 20)
        outputs = [output for chunk in chunks for output in chunk]
        self.staged += outputs
        return [(output[0], output[7]) for output in outputs]


@pytest.mark.parametrize(("waited_ms", "goes"), [(0, False), (249, False), (250, True)])
def test_k_waits_for_h_no_longer_than_a_quarter_of_a_second(waited_ms: int, *, goes: bool) -> None:
    walked = Walked()
    walked.own()
    walked.write(0, 100)
    walked.read()
    walked.walk_h(WALK_MS)
    walked.write(60_000, at_ms=WALK_MS + 50)  # read, and H does not get to it
    walked.read()
    now_ms = WALK_MS + 50 + waited_ms
    due = [0, 1] if goes else [0]
    assert walked.walk_k(now_ms) == [(outcome.DELIVERED, offset) for offset in due]


def test_fires_that_hit_nothing_read_nothing_and_are_walked_at_once() -> None:
    walked = shard()
    added = walked.ingest(0, [fire(n) for n in range(100)], 100, {}, lambda _, __: None)
    assert added == Additions()
    outputs = walked.advance_offset(1, 10_000, nothing_pending)
    assert [output[0] for output in outputs] == [outcome.NOT_PENDING] * 100


def test_an_owner_that_fills_its_store_again_keeps_only_marks_that_h_has_not_passed() -> None:
    owner = Shard(Settler("delay_topic_any", 0, NARROW, Verdicts(), KnownTargets()), 0)
    owner.take_over(Cursor((1, 0), 1_000), [], 1_200)
    latest: dict[bytes, Key] = {}
    for offset in range(0, 1_200, 2):
        payload: Payload = ("orders", -1, None, b"", [], 9_000, (b"id", None, 1, None))
        pair: list[Entry] = [
            (offset, SCHEDULE, 9_000, b"id", payload, None),
            (offset + 1, CANCEL, 0, b"id", (None, None, []), None),
        ]
        added = owner.ingest(offset, pair, offset + 2, {}, lambda name, _: latest.get(name))
        assert [mark[3] for mark in added.marks] == [offset + 1]  # the store marks each
    assert sorted(owner.walk.victims) == list(range(1_001, 1_200, 2))
