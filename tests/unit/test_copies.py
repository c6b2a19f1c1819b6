"""Copies of records: how they are signed, and how forwarded ones are shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.spark.schedule.check import RowRules, ScheduleCheck
from delayservice.commands import record as showing
from delayservice.commands.sending import Forecast, Outgoing
from delayservice.config.settings import load
from delayservice.contract.codec import Meta, Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import COPY, HOMEBOUND, INVALID, Entry, Headers
from delayservice.contract.names import Header
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import Provenance, dead_letter_headers
from delayservice.contract.record import RecordReader
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import Cursor
from delayservice.inspection import looking
from tests.unit.test_admin_answers import ROW

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


def read(
    record: tuple[bytes | None, bytes | None, Headers],
    secrets: tuple[bytes, ...] = (b"s1",),
    topic: str = "delay_topic_any",
    partition: int = 3,
) -> Entry:
    reader = RecordReader(topic, partition, Contracts([(0, Contract())]), secrets)
    return reader.read(20, 1, *record)


def test_a_copy_is_accepted_whichever_secret_signed_it() -> None:
    assert read(written(secret=b"old"), secrets=(b"new", b"old"))[1] == COPY


@pytest.mark.parametrize(
    "others",
    [
        *({"secrets": secrets} for secrets in ((), (b"other",), (b"",))),
        {"topic": "delay_topic_other"},
        {"partition": 4},
    ],
)
def test_a_copy_that_no_secret_signed_for_this_shard_is_forged(others: dict[str, Any]) -> None:
    entry = read(written(), **others)
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
    assert read((b"k", b"v", headers))[1] == INVALID


@pytest.mark.parametrize("at_ms", [0, -1, 2**53])
def test_a_copy_whose_key_is_out_of_range_is_refused_though_signed(at_ms: int) -> None:
    assert read(written(at_ms=at_ms))[1] == INVALID


@pytest.mark.parametrize("name", ["delay-copy", "delay-copy-mac"])
def test_a_signed_copy_within_a_copy_is_refused(name: str) -> None:
    own: Headers = [(name, b"inner")]
    assert read(written((*PAYLOAD[:4], own, *PAYLOAD[5:])))[1] == INVALID


def test_moved_added_or_removed_headers_make_a_copy_forged() -> None:
    key, value, headers = written()
    variants: list[Headers] = [
        [*headers, ("late", b"")],
        headers[1:],
        [headers[1], headers[0], *headers[2:]],
        [*headers[:-2], headers[-1], headers[-2]],
        [("delay-at", b"1"), *headers],
    ]
    assert [read((key, value, variant))[1] for variant in variants] == [INVALID] * 5


def test_bytes_cannot_move_between_parts_of_a_copy() -> None:
    _, _, headers = written(("orders", 4, b"ab", b"c", OWN, 8_000, META))
    assert read((b"a", b"bc", headers))[1] == INVALID
    _, _, headers = written(("orders", 4, None, b"", OWN, 8_000, META))
    assert read((b"", None, headers))[1] == INVALID


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


TOPIC = "delay_topic_any"
NOW_MS = 1_800_000_000_000
FAR = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, 2) == 1)
"""At home in partition 1; users write to partition 0."""
CONTRACT = Contract(id_partitions=2)
HEADERS = [("delay-after", b"60000"), ("delay-target-topic", b"orders"), ("delay-id", FAR)]
WAITS = replace(
    ROW,
    partition=0,
    next_ms=NOW_MS + 60_000,
    due_ms=NOW_MS,
    target=TOPIC,
    target_partition=1,
    id=FAR,
    source=f"{TOPIC}:0:3",
    attempt=2,
)


@pytest.mark.parametrize(
    ("passed", "state", "word"), [(3, "pending", "about to be sent"), (4, "settled", "was sent")]
)
def test_a_forwarded_record_shows_its_home(passed: int, state: str, word: str) -> None:
    reader = RecordReader(TOPIC, 0, Contracts([(0, CONTRACT)]), [])
    entry = reader.read(3, NOW_MS, None, b"x", [*HEADERS])
    assert entry[1] == HOMEBOUND
    shard = SimpleNamespace(committed=Cursor((0, 0), passed))
    lane = SimpleNamespace(shard=shard, reader=reader, topic=TOPIC, partition=0, place=(TOPIC, 0))
    fate = looking._locate_other(cast("Any", lane), entry)
    assert fate.state == state
    assert word in fate.detail
    assert "to partition 1, the home of its id" in fate.detail
    assert (fate.record.source if fate.record else "") == (f"{TOPIC}:0:3" if passed == 4 else "")


def test_a_record_waiting_for_its_home_says_so() -> None:
    assert looking._waits(WAITS) == "forwarded to partition 1, the home of its id"
    assert looking._waits(replace(WAITS, target="orders")) == "it waits for its due time"


def test_the_command_shows_what_waits_for_its_home() -> None:
    record = asdict(WAITS) | {"id": None}
    assert showing._cells(record)[-1] == "try 2, forwarded to its home partition"
    assert showing._cells({**record, "target": "orders"})[-1] == "try 2"
    lines = dict(showing._lines({**record, "key": None, "value": None}))
    assert lines["forwarded to its home partition"] == f"{TOPIC}:1"
    assert "target" not in lines


def test_a_record_is_judged_before_it_is_forwarded() -> None:
    # The command does not know yet in which partition the record will lie.
    sets = ["kafka.bootstrap=127.0.0.1:1", "delivery.id_partitions=2"]
    settings = load(None, [*sets, "targets.default.allow=others"], {})
    record = Outgoing(TOPIC, None, b"x", [*HEADERS], None, None)
    assert "(target-denied)" in str(Forecast(settings, record).doubt(NOW_MS))


def test_a_job_schedules_what_goes_home() -> None:
    judge = ScheduleCheck(RowRules(TOPIC, (CONTRACT,), NOW_MS, {"orders": 1}, 1 << 20))
    assert judge.refusal((0, NOW_MS, FAR, b"x", [*HEADERS])) is None
    missing = ScheduleCheck(RowRules(TOPIC, (CONTRACT,), NOW_MS, {}, 1 << 20))
    assert (missing.refusal((0, NOW_MS, FAR, b"x", [*HEADERS])) or ("",))[0] == "target-unknown"
