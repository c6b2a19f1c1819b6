"""Dead letters and their replay, and copies: how they are signed and shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.spark.schedule.check import RowRules, ScheduleCheck
from delayservice.commands import dlq
from delayservice.commands import record as showing
from delayservice.commands.dlq import LetterOptions
from delayservice.commands.sending import Forecast, Outgoing
from delayservice.config.settings import load
from delayservice.contract import names, replays
from delayservice.contract.codec import Meta, Payload
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import (
    COPY,
    HOMEBOUND,
    INVALID,
    SCHEDULE,
    UNREADABLE,
    Entry,
    Headers,
    Original,
    PolledRecord,
    RecordPlace,
)
from delayservice.contract.names import Header
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import Provenance, dead_letter_headers
from delayservice.contract.record import RecordReader
from delayservice.contract.replays import DeadLetter
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import Cursor
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.inspection import looking
from tests.unit.known_targets import KnownTargets, some
from tests.unit.test_admin_answers import ROW
from tests.unit.test_settle import ROUTES

TOPIC, PARTITION = "delay_topic_any", 3
NOW_MS = 5_000_000
CONTRACT = Contract(header_bytes_max=256, id_bytes_max=256)
LEVEL = Contract(level_ms=5_000)
ASKED: Headers = [("delay-at", b"5000000"), ("delay-target-topic", b"orders"), ("own", b"\xff")]


def read(headers: Headers, key: bytes | None = b"k", value: bytes | None = b"v") -> Entry:
    """The record as the service reads it, at offset 7."""
    reader = RecordReader(TOPIC, PARTITION, Contracts([(0, CONTRACT)]), [b"secret"])
    return reader.read(7, NOW_MS, key, value, headers)


def refused(entry: Entry) -> DeadLetter:
    """The dead letter of a record that can't be read, or that its target refuses."""
    verdicts = Verdicts(refused={7: ("target-unauthorized", "not allowed")})
    settler = Settler(TOPIC, PARTITION, ROUTES, verdicts, KnownTargets())
    offset, kind, key_ms, _, payload, extra = entry
    if kind == INVALID:
        output = settler.undelivered.dead_letter(offset, payload, *extra)
    else:
        output = settler.settle(offset, key_ms, payload, NOW_MS, 8)
    assert output is not None
    return some(replays.read_letter(0, (50, NOW_MS, output[3], output[4], output[5])))


def again(letter: DeadLetter, time: Header | None = None) -> tuple[Headers, Entry]:
    """The record as it is written again, and as the service reads it then."""
    assert replays.refusal(letter, 3, lambda *_: True, retimed=time is not None) is None
    assert letter.source is not None
    topic, partition, key, value, headers = replays.rewritten(letter, letter.source, time)
    assert (topic, partition) == (TOPIC, PARTITION)
    return headers, read(headers, key, value)


# --- what is replayed is what was asked for ------------------------------------------------------

PROVENANCE: Headers = [("delay-replayed-from", b"delay_topic_any:3:7"), ("delay-replays", b"1")]

VALID: list[tuple[Headers, bytes | None, bytes | None]] = [
    (ASKED, b"k", b"v"),
    (ASKED, None, None),
    ([*ASKED, ("delay-target-key", b"other")], b"k", b"v"),
    ([*ASKED, ("delay-target-key", None)], b"k", b"v"),
    ([*ASKED, ("delay-target-key", b"")], b"k", b""),
    ([*ASKED, ("delay-target-partition", b"2"), ("delay-id", b"\x00id")], b"k", b"v"),
    ([*ASKED, ("delay-id", b"id")], None, None),
    ([*ASKED, ("delay-expires-at", b"9000000")], b"k", b"v"),
    ([*ASKED, ("delay-expires-at", b"0001-01-01T00:00:00Z")], b"k", b"v"),
    ([("scheduler-epoch", b"5000"), ("scheduler-target-topic", b"orders")], b"id", b"v"),
    ([("schedule_target_epoch", b"5000"), ("schedule_target_topic", b"orders")], b"id", b"v"),
    (
        [("TIMER_DELIVER_MS", b"5000000"), ("UNIQ_KEY", b"u"), ("delay-target-topic", b"orders")],
        b"k",
        b"v",
    ),
]


@pytest.mark.parametrize(("headers", "key", "value"), VALID)
def test_a_record_refused_at_its_target_is_replayed_as_it_was_read(
    headers: Headers, key: bytes | None, value: bytes | None
) -> None:
    first = read(headers, key, value)
    assert first[1] == SCHEDULE
    _, second = again(refused(first))
    *asked, own, due_ms, meta = first[4]
    assert second[4] == (*asked, own + PROVENANCE, due_ms, meta)
    assert (second[2], second[3]) == (first[2], first[3])


def test_a_record_that_could_not_be_read_is_replayed_byte_for_byte() -> None:
    headers: Headers = [("delay-after", b"1"), ("delay-target-topic", b"delay_denied"), ("a", None)]
    letter = refused(read(headers, b"\x00k", b"\xffv"))
    assert letter.code == "target-denied"
    written, entry = again(letter)
    assert written == headers + PROVENANCE
    assert entry[4][:2] == (b"\x00k", b"\xffv")


def test_a_record_that_exhausted_its_retries_begins_anew() -> None:
    backoff: Header = ("delay-backoff", b"1s,5s")
    letter = refused(read([*ASKED[1:], backoff, ("delay-retries", b"2")]))
    assert letter.code == "retries-exhausted"
    written, entry = again(letter)
    assert backoff in written
    assert (entry[1], entry[2]) == (SCHEDULE, NOW_MS + 1_000)


# --- another due time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "identity", "output_key"),
    [
        ([("delay-at", b"soon")], None, b"k"),
        ([("delay-at", b"1"), ("delay-after", b"1")], None, b"k"),
        ([("delay-backoff", b"1s"), ("delay-retries", b"1")], None, b"k"),
        ([("TIMER_DELAY_SEC", b"x"), ("DELAY", b"4")], None, b"k"),
        ([("schedule_target_epoch", b"x")], b"k", None),
        ([("scheduler-epoch", b"x")], b"k", None),
        ([("UNIQ_KEY", b"u"), ("TIMER_DELIVER_MS", b"x")], b"u", b"k"),
        ([], None, b"k"),
    ],
)
@pytest.mark.parametrize(
    ("time", "due_ms"), [(("delay-at", b"7000000"), 7_000_000), (("delay-after", b"5"), 5_000_005)]
)
def test_another_due_time_replaces_whatever_said_when_and_nothing_else(
    headers: Headers, identity: bytes | None, output_key: bytes | None, time: Header, due_ms: int
) -> None:
    letter = refused(read([*headers, ("delay-target-topic", b"orders")]))
    _, entry = again(letter, time)
    assert (entry[1], entry[3]) == (SCHEDULE, identity)
    assert (entry[4][2], entry[4][5]) == (output_key, due_ms)


@pytest.mark.parametrize("time", [None, ("delay-after", b"0")])
def test_a_replay_to_a_level_topic_has_no_time_headers(time: Header | None) -> None:
    letter = refused(read(ASKED))
    source = RecordPlace("delay_topic_5s", 0, 1)
    headers = replays.rewritten(letter, source, time, is_level=True).headers
    reader = RecordReader(source.topic, 0, Contracts([(0, LEVEL)]), ())
    entry = reader.read(9, NOW_MS, b"k", b"v", headers)
    assert (entry[1], entry[2]) == (SCHEDULE, NOW_MS + 5_000)
    assert reader.read(9, NOW_MS, b"k", b"v", [*headers, ("delay-at", b"0")])[1] == INVALID


def test_an_occurrence_begins_its_schedule_again() -> None:
    every: Header = ("delay-every", b"5000")
    first = read([*ASKED, every, ("delay-times", b"4"), ("delay-id", b"id")])
    letter = refused(first)
    assert letter.source == RecordPlace(TOPIC, PARTITION, 7)
    headers, second = again(letter)
    assert every in headers
    *asked, own, due_ms, meta = first[4]
    assert second[4] == (*asked, own + PROVENANCE, due_ms, meta)


def test_a_recurring_schedule_gets_no_other_time() -> None:
    headers: Headers = [("delay-cron", b"x"), ("delay-target-topic", b"orders")]
    letter = replace(refused(read([("delay-target-topic", b"orders")])), headers=headers)
    always = lambda *_: True  # noqa: E731
    assert replays.refusal(letter, 3, always, retimed=True) == replays.RECURRING
    assert replays.refusal(letter, 3, always, retimed=False) is None


# --- what can't be replayed ----------------------------------------------------------------------


def test_letters_that_cannot_be_replayed_say_why() -> None:
    letter = refused(read([("own", b"1")]))

    def why(found: DeadLetter, *, is_ours: bool = True) -> str | None:
        return replays.refusal(found, 3, lambda *_: is_ours, retimed=False)

    assert why(letter) is None
    assert why(letter, is_ours=False) == replays.NO_SOURCE
    assert why(replace(letter, source=None)) == replays.NO_SOURCE
    assert why(refused(read([("delay-copy", b"{}")]))) == replays.FORGED
    assert why(refused(read(UNREADABLE))) == replays.CONTENT_LOST
    assert why(replace(letter, key=None, value=None, headers=[])) == replays.CONTENT_LOST
    for count in (b"3", b"-1", b"x", b"9" * 40, None, b""):
        headers = [("delay-replays", count)]
        expected = None if count is None else replays.LIMIT
        assert why(replace(letter, headers=headers)) == expected, count


def test_a_stripped_dead_letter_is_not_replayed() -> None:
    settler = Settler(TOPIC, PARTITION, ROUTES, Verdicts(stripped={7}), KnownTargets())
    level = b"delay_topic_1:3:9"  # its record was parked in this topic, which the letter says, too
    original: Original = (b"k", b"v", [("a", b"1")])
    output = some(
        settler.undelivered.dead_letter(7, original, "time-missing", "no time", source=level)
    )
    assert "delay-shard" in dict(output[5])
    letter = some(replays.read_letter(0, (50, NOW_MS, output[3], output[4], output[5])))
    reason = replays.refusal(letter, 3, lambda *_: True, retimed=False)
    assert reason == replays.CONTENT_LOST


def test_no_header_of_a_record_can_pose_as_what_the_service_adds() -> None:
    posing: Headers = [
        ("delay-error", b"time-past"),
        ("delay-source", b"elsewhere:0:0"),
        ("delay-replayed", b"1,2,3"),
    ]
    letter = refused(read([*posing, ("own", b"1")]))
    assert (letter.code, letter.source) == ("time-missing", RecordPlace(TOPIC, PARTITION, 7))
    lettered = dead_letter_headers(posing, "time-missing", "", b"delay_topic_any:3:7")
    assert replays.replayed_offsets((0, 0, None, None, lettered)) == []


# --- markers and filters -------------------------------------------------------------------------


def test_a_marker_is_read_back_and_is_no_dead_letter() -> None:
    row: PolledRecord = (9, NOW_MS, None, None, replays.marker([3, 5, 2**40]))
    assert replays.replayed_offsets(row) == [3, 5, 2**40]
    assert replays.read_letter(0, row) is None


@pytest.mark.parametrize("text", [b"", b"1,", b"x", b"-1", None])
def test_foreign_replay_markers_are_ignored(text: bytes | None) -> None:
    assert replays.replayed_offsets((0, 0, None, None, [(names.DELAY_REPLAYED, text)])) == []
    assert replays.replayed_offsets((0, 0, None, None, UNREADABLE)) == []


def test_a_filter_includes_its_start_and_no_dead_letter_without_a_source() -> None:
    letter = refused(read([("own", b"1")]))
    assert LetterOptions(from_ms=NOW_MS, to_ms=NOW_MS + 1).matches(letter)
    assert not LetterOptions(to_ms=NOW_MS).matches(letter)
    assert not LetterOptions(source="None").matches(replace(letter, source=None))
    sources = (TOPIC, f"{TOPIC}:3", f"{TOPIC}:3:7", "delay_topic", f"{TOPIC}:3:70")
    matched = [LetterOptions(source=source).matches(letter) for source in sources]
    assert matched == [True, True, True, False, False]


def test_every_code_can_be_asked_for() -> None:
    assert replays.FORGED in EXPLANATIONS


def test_a_list_shows_all_of_each_letter(capsys: pytest.CaptureFixture[str]) -> None:
    letter = refused(read([*ASKED, ("delay-id", b"reminder-17")]))
    dlq.show([dlq.described(letter, {letter.place}, values=True)])
    shown = capsys.readouterr().out
    route = "delay_topic_any:3:7 to orders"
    content = "id reminder-17, key 1 bytes, value 1 bytes, replayed\n  k  v"
    for text in (letter.code, route, content, letter.detail):
        assert text in shown


# --- copies of records: how they are signed, and how forwarded ones are shown ---------------------


OWN: Headers = [("a", b"\xff"), ("b", None), ("a", b"\xff")]
META = (b"\x00id\xff", b"delay_topic_any:3:7", 2, 9_000)
PAYLOAD: Payload = ("orders", 4, b"\x00", b"\xff", OWN, 8_000, META)


def written(
    payload: Payload = PAYLOAD, secret: bytes = b"s1", at_ms: int = 5_000
) -> tuple[bytes | None, bytes | None, Headers]:
    return write_copy(
        "delay_topic_any",
        3,
        secret,
        settles=11,
        source=b"delay_topic_any:3:7",
        base=12,
        at_ms=at_ms,
        payload=payload,
    )


def read_copy(
    record: tuple[bytes | None, bytes | None, Headers],
    secrets: tuple[bytes, ...] = (b"s1",),
    topic: str = "delay_topic_any",
    partition: int = 3,
) -> Entry:
    reader = RecordReader(topic, partition, Contracts([(0, Contract())]), secrets)
    return reader.read(20, 1, *record)


def test_a_copy_is_accepted_whichever_secret_signed_it() -> None:
    assert read_copy(written(secret=b"old"), secrets=(b"new", b"old"))[1] == COPY


@pytest.mark.parametrize(
    "others",
    [
        *({"secrets": secrets} for secrets in ((), (b"other",), (b"",))),
        {"topic": "delay_topic_other"},
        {"partition": 4},
    ],
)
def test_a_copy_that_no_secret_signed_for_this_shard_is_forged(others: dict[str, Any]) -> None:
    entry = read_copy(written(), **others)
    assert entry[1] == INVALID
    assert entry[5][0] == "copy-forged"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        OWN,
        [*OWN, ("delay-copy", None), ("delay-copy-mac", None)],
        [*OWN, ("delay-copy-mac", b"x")],
        [("delay-copy", b"x")],
        [("delay-copy", b"x"), ("delay-copy", b"x"), ("delay-copy-mac", b"x")],
        [("delay-copy", b"\xff"), ("delay-copy-mac", b"\xff")],
    ],
)
def test_half_a_copy_is_no_copy(headers: Headers) -> None:
    assert read_copy((b"k", b"v", headers))[1] == INVALID


@pytest.mark.parametrize("at_ms", [0, -1, 2**53])
def test_a_copy_whose_key_is_out_of_range_is_refused_though_signed(at_ms: int) -> None:
    assert read_copy(written(at_ms=at_ms))[1] == INVALID


@pytest.mark.parametrize("name", ["delay-copy", "delay-copy-mac"])
def test_a_signed_copy_within_a_copy_is_refused(name: str) -> None:
    own: Headers = [(name, b"inner")]
    assert read_copy(written((*PAYLOAD[:4], own, *PAYLOAD[5:])))[1] == INVALID


def test_moved_added_or_removed_headers_make_a_copy_forged() -> None:
    key, value, headers = written()
    variants: list[Headers] = [
        [*headers, ("late", b"")],
        headers[1:],
        [headers[1], headers[0], *headers[2:]],
        [*headers[:-2], headers[-1], headers[-2]],
        [("delay-at", b"1"), *headers],
    ]
    assert [read_copy((key, value, variant))[1] for variant in variants] == [INVALID] * 5


def test_bytes_cannot_move_between_parts_of_a_copy() -> None:
    _, _, headers = written(("orders", 4, b"ab", b"c", OWN, 8_000, META))
    assert read_copy((b"a", b"bc", headers))[1] == INVALID
    _, _, headers = written(("orders", 4, None, b"", OWN, 8_000, META))
    assert read_copy((b"", None, headers))[1] == INVALID


# --- provenance --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "source", "more"),
    [
        (None, b"delay_topic_any:3:20", []),
        ((None, None, 1, 3), b"delay_topic_any:3:20", []),
        (META, b"delay_topic_any:3:7", [("delay-id", b"\x00id\xff"), ("delay-attempt", b"2")]),
    ],
)
def test_an_output_names_the_original_its_own_offset_and_what_is_not_usual(
    meta: Meta | None, source: bytes, more: Headers
) -> None:
    due_and_source: Headers = [("delay-due-at", b"8000"), ("delay-source", source)]
    found = Provenance("delay_topic_any", 3).headers(20, 8_000, meta)
    assert found == [*due_and_source, ("delay-settles", b"20"), *more]


def test_a_dead_letter_keeps_the_original_headers_and_adds_the_reason_last() -> None:
    original: list[Header] = [("delay-at", b"x"), ("delay-error", b"older"), ("b", None)]
    headers = dead_letter_headers(original, "time-invalid", "why", b"t:0:1")
    assert headers == [
        *original,
        ("delay-error", b"time-invalid"),
        ("delay-error-detail", b"why"),
        ("delay-source", b"t:0:1"),
    ]


def test_the_detail_of_a_dead_letter_is_short_and_printable() -> None:
    headers = dead_letter_headers(None, "too-large", "a\nb\x00\udcff" + "é" * 9_999, b"")
    detail = (headers[1][1] or b"").decode()
    assert len(detail) == 512
    assert detail.isprintable()


# --- what people are told of records that go home, or that wait for it ----------------------------


HOME_TOPIC = "delay_topic_any"
HOME_NOW_MS = 1_800_000_000_000
FAR = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, 2) == 1)
"""At home in partition 1; users write to partition 0."""
HOME_CONTRACT = Contract(id_partitions=2)
HEADERS = [("delay-after", b"60000"), ("delay-target-topic", b"orders"), ("delay-id", FAR)]
WAITS = replace(
    ROW,
    partition=0,
    next_ms=HOME_NOW_MS + 60_000,
    due_ms=HOME_NOW_MS,
    target=HOME_TOPIC,
    target_partition=1,
    id=FAR,
    source=f"{TOPIC}:0:3",
    attempt=2,
)


@pytest.mark.parametrize(
    ("passed", "state", "word"), [(3, "pending", "about to be sent"), (4, "settled", "was sent")]
)
def test_a_forwarded_record_shows_its_home(passed: int, state: str, word: str) -> None:
    reader = RecordReader(HOME_TOPIC, 0, Contracts([(0, HOME_CONTRACT)]), [])
    entry = reader.read(3, HOME_NOW_MS, None, b"x", [*HEADERS])
    assert entry[1] == HOMEBOUND
    shard = SimpleNamespace(committed=Cursor((0, 0), passed))
    lane = SimpleNamespace(
        shard=shard, reader=reader, topic=HOME_TOPIC, partition=0, place=(HOME_TOPIC, 0)
    )
    fate = looking._locate_other(cast("Any", lane), entry)
    assert fate.state == state
    assert word in fate.detail
    assert "to partition 1, the home of its id" in fate.detail
    assert (fate.record.source if fate.record else "") == (f"{TOPIC}:0:3" if passed == 4 else "")


def test_a_record_waiting_for_its_home_says_so() -> None:
    assert looking._waits(WAITS) == "forwarded to partition 1, the home of its id"
    assert looking._waits(replace(WAITS, target="orders")) == "it waits for its due time"


def test_the_command_shows_what_waits_for_its_home() -> None:
    record = asdict(WAITS) | {"id": None, "fires": []}
    assert showing._cells(record)[-1] == "try 2, forwarded to its home partition"
    assert showing._cells({**record, "target": "orders"})[-1] == "try 2"
    lines = dict(showing._lines({**record, "key": None, "value": None}))
    assert lines["forwarded to its home partition"] == f"{TOPIC}:1"
    assert "target" not in lines


def test_a_record_is_judged_before_it_is_forwarded() -> None:
    # The command does not know yet in which partition the record will lie.
    sets = ["kafka.bootstrap=127.0.0.1:1", "delivery.id_partitions=2"]
    settings = load(None, [*sets, "targets.default.allow=others"], {})
    record = Outgoing(HOME_TOPIC, None, b"x", [*HEADERS], None, None)
    assert "(target-denied)" in str(Forecast(settings, record).doubt(HOME_NOW_MS))


def test_a_job_schedules_what_goes_home() -> None:
    judge = ScheduleCheck(
        RowRules(HOME_TOPIC, (HOME_CONTRACT,), HOME_NOW_MS, {"orders": 1}, 1 << 20)
    )
    assert judge.refusal((0, HOME_NOW_MS, FAR, b"x", [*HEADERS])) is None
    missing = ScheduleCheck(RowRules(HOME_TOPIC, (HOME_CONTRACT,), HOME_NOW_MS, {}, 1 << 20))
    assert (missing.refusal((0, HOME_NOW_MS, FAR, b"x", [*HEADERS])) or ("",))[
        0
    ] == "target-unknown"
