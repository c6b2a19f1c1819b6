"""One table from the headers of a record to its meaning, by which all who read or write them are
tested: the service's reader, the client, the batch scheduler and the Spark reader. Spark's column
expressions read the same records in ``tests/spark/test_readers.py``. Headers of other systems are
as in their sources: RocketMQ's ``Message.setDelayTimeSec`` and its companions and
``RecallMessageProcessor``, etf1's ``clientlib`` (``Schedule``, ``DeleteSchedule``), Karafka's
``ScheduledMessages::Proxy``, RabbitMQ's ``rabbit_exchange_type_delayed_message``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

import pytest

from connectors.kafka.client import NO_KEY, DelayProducer, InvalidRequestError
from connectors.spark.common.decode import ShardReader, rows_of
from connectors.spark.schedule.check import RowRules, ScheduleCheck
from delayservice.contract import names
from delayservice.contract.codes import EXPLANATIONS, OP_INVALID
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import (
    ABSENT,
    CANCEL,
    FIRE,
    INVALID,
    SCHEDULE,
    Entry,
    Headers,
    scheduled,
)
from delayservice.contract.input_headers import INPUT
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import Recurrence, recurrence_of
from tests.unit.spark_world import batch_of_records

TOPIC, OFFSET, T = "delay_topic_any", 7, 1_700_000_000_000
TARGET = ("delay-target-topic", b"orders")
SOON = ("delay-after", b"5000")
CRON = ("delay-cron", b"0 9 * * MON-FRI")
EVERY = ("delay-every", b"5000")
IF_ABSENT = ("delay-if", b"absent")
ONE_AND_FIVE = ("delay-backoff", b"1s,5s")

# Facts that an entry must have, or the code of the dead letter.
Meaning: TypeAlias = dict[str, object] | str


def at(due_ms: int) -> Meaning:
    return {"due_ms": due_ms}


def after(delay_ms: int) -> Meaning:
    return at(T + delay_ms)


def after_and(delay_ms: int, **facts: object) -> Meaning:
    return {"due_ms": T + delay_ms, **facts}


def recurs(*values: Any, **more: Any) -> Meaning:
    return {"recurrence": Recurrence(*values, **more)}


def each(meaning: Meaning, *values: bytes | None) -> dict[bytes | None, Meaning]:
    return dict.fromkeys(values, meaning)


CANCELS: Final[Meaning] = {"kind": CANCEL, "id": b"i"}
AN_ID = ("delay-id", b"i")
NO_NUMBER: Final = each(
    "time-invalid", None, b"", b"-1", b"PT5S", b"2023-11-14T22:13:25Z", b"\xd9\xa3"
)
SECONDS: Final = each("time-invalid", b"100000000", b"1893456000", b"99999999999")
LONG: Final = b"9" * 4_000

TABLE: Final[dict[str, dict[bytes | None, Meaning]]] = {
    "delay-at": {
        b"1700000005000": after(5_000),
        b"0000000000000000000001700000005000": after(5_000),
        b"2023-11-14T22:13:25Z": after(5_000),
        b"2023-11-14t22:13:25z": after(5_000),
        b"2023-11-14 22:13:25Z": after(5_000),
        b"2023-11-15T00:13:25+02:00": after(5_000),
        b"2023-11-14T22:13:25-00:00": after(5_000),
        b"2023-11-14T22:13:25+00": after(5_000),
        b"2023-11-14T22:14Z": after(40_000),
        b"2023-11-14T22:13:25.5Z": after(5_500),
        b"2023-11-14T22:13:25.001000Z": after(5_001),
        b"2023-11-14T22:13:25.0000000001Z": after(5_001),
        b"99999999": at(99_999_999),
        b"100000000000": at(100_000_000_000),
        b"1973-01-01T00:00:00Z": at(94_694_400_000),
        **each(at(1), b"0", b"1969-01-01T00:00:00Z", b"0001-01-01T00:00:00+14:00"),
        **each("delay-too-long", b"9999-12-31T23:59:59Z", LONG),
        **SECONDS,
        **each("time-invalid", None, b"", b" 1700000005000", b"-1", b"+5", b"1e3", b"1_000"),
        **each("time-invalid", b"1.5", b"\xd9\xa3", b"\xff", b"tomorrow", b"2023-11-14"),
        **each("time-invalid", b"2023-11-14T22:13:25", b"2023-02-30T00:00:00Z"),
        **each("time-invalid", b"2023-11-14T24:00:00Z", b"2023-11-14T23:59:60Z"),
        **each("time-invalid", b"2023-11-14T22Z", b"2023-11-14T22:13.5Z"),
        **each("time-invalid", b"2023-11-14T22:13:25+0100", b"2023-11-14T22:13:25+25:00"),
        **each("time-invalid", b"2023-11-14T22:13:25Z\n"),
    },
    "delay-after": {
        b"0": after(0),
        b"1": after(1),
        **each(after(30_000), b"30000", b"30s", b"PT30S"),
        **each(after(5_400_000), b"1h30m", b"PT1H30M"),
        **each(after(1_500), b"1.5s", b"PT1.5S"),
        **each(after(250), b"250ms", b"PT0.25S"),
        b"PT0,0001S": after(1),
        b"P1DT2H3M4.005S": after(93_784_005),
        **each(after(604_800_000), b"P1W", b"1w", b"7d"),
        b"PT36H": after(129_600_000),
        **each("delay-too-long", LONG, b"P" + LONG + b"D"),
        **each("time-invalid", None, b"", b"-1", b"-PT1S", b"P", b"PT", b"P1DT", b"PT5", b"5S"),
        **each("time-invalid", b"pt5s", b"PT1H1H", b"PT1.5H", b"P1Y", b"P1M", b"P1Y2M3DT4S"),
        **each("time-invalid", b"PT1S ", b"PT\xff", b"soon", b"1 hour"),
    },
    "delay-expires-at": {
        b"1970-01-01T00:00:01Z": {"expires_ms": 1_000},
        b"1700000009000": {"expires_ms": T + 9_000},
        **SECONDS,
        **each("time-invalid", b"PT5S", b"", None),
    },
    "delay-window-ms": {b"0": after(5_000), **NO_NUMBER},
    "delay-target-topic": {
        b"orders2": {"target": "orders2"},
        **each("target-denied", b"delay_topic_any", b"delay_other", b"__consumer_offsets"),
        **each("target-invalid", None, b"", b".", b"..", b"a b", b"orders/x", b"../orders"),
        **each("target-invalid", b"a" * 250, b"\xff", b"o\n"),
    },
    "delay-target-partition": {
        b"0": {"partition": 0},
        b"2": {"partition": 2},
        b"2147483647": {"partition": 2**31 - 1},
        **each("target-invalid", None, b"", b"-1", b"2147483648", b"x", b"1 "),
    },
    "delay-target-key": {
        **{key: {"key": key} for key in (b"", b"k", b"\x00\xff", None)},
        b"k" * 4_097: "header-too-large",
    },
    "delay-id": {
        **{one: {"id": one, "own": []} for one in (b"a", b"\x00\xff", b"i" * 512)},
        **each("op-invalid", None, b""),
        b"i" * 513: "header-too-large",
    },
    "delay-op": {
        b"schedule": after(5_000),
        **each("op-invalid", b"cancel", b"fire"),  # without an id
        **each("op-invalid", None, b"", b"Cancel", b"delete", b"\xff", b"x" * 100),
    },
    "delay-every": {
        **each(recurs(5_000), b"5000", b"5s", b"PT5S"),
        **each("cron-invalid", b"999", b"0"),
        **each("time-invalid", b"never", b"", None),
        b"P10000W": "delay-too-long",
    },
    "delay-cron": {
        b"0 9 * * MON-FRI": recurs(0, "0 9 * * MON-FRI", number=0),
        b"@hourly": recurs(0, "0 * * * *", number=0),
        **each(recurs(0, "0 0 * * *", number=0), b"@daily", b"@midnight"),
        b"@weekly": recurs(0, "0 0 * * 0", number=0),
        b"@monthly": recurs(0, "0 0 1 * *", number=0),
        **each(recurs(0, "0 0 1 1 *", number=0), b"@yearly", b"@annually"),
        **each("cron-invalid", None, b"", b"* * * * *" * 99, b"../../etc", b"@reboot", b"@Daily"),
    },
    "delay-timezone": {
        b"Europe/Berlin": recurs(0, "0 9 * * MON-FRI", "Europe/Berlin", number=0),
        **each("zone-invalid", None, b"", b"../../etc/passwd", b"x" * 65, b"no zone"),
    },
    "delay-times": {
        b"3": recurs(5_000, left=3),
        **each("cron-invalid", b"0", b"%d" % 2**40),
        **each("time-invalid", None, b"", b"-1", b"True"),
    },
    "delay-backoff": {
        b"5s": after_and(5_000, own=[TARGET, ("delay-backoff", b"5s"), ("delay-retries", b"1")]),
        **each(after(5_000), b"5000,1h", b"PT5S, 10s"),
        **each("time-invalid", None, b"", b"-1", b"5s,", b"5s;10s", b"5s,never"),
        b"P10000W": "delay-too-long",
    },
    "delay-retries": {
        b"1": after_and(5_000, own=[TARGET, ONE_AND_FIVE, ("delay-retries", b"2")]),
        **each(after(1_000), None, b"", b"0", b"-1", b"x", b"\xd9\xa3"),
        **each("retries-exhausted", b"2", LONG),
    },
    "delay-if": {
        b"absent": after_and(5_000, kind=ABSENT, id=b"i", own=[]),
        **each("op-invalid", None, b"", b"present", b"Absent", b"\xff", b"x" * 100),
    },
    "TIMER_DELAY_SEC": {b"5": after(5_000), **NO_NUMBER},
    "TIMER_DELAY_MS": {b"5": after(5), **NO_NUMBER},
    "TIMER_DELIVER_MS": {b"1700000000005": after(5), b"1893456000": at(1_893_456_000), **NO_NUMBER},
    "DELAY": {
        b"0": after(0),
        **{b"%d" % n: after(ms) for n, ms in enumerate(ROCKETMQ_LEVELS_MS, 1)},
        b"19": after(7_200_000),
        **NO_NUMBER,
    },
    "TIMER_DEL_UNIQKEY": {**each(CANCELS, b"i", b"orders+i"), **each("op-invalid", None, b"")},
    "UNIQ_KEY": {b"7F": {"id": None, "own": [("UNIQ_KEY", b"7F")]}},  # without RocketMQ's times
    "scheduler-epoch": {
        b"1700000005": after_and(5_000, id=b"key", key=None),
        LONG: "delay-too-long",
        **NO_NUMBER,
    },
    "scheduler-target-topic": {b"orders": {"id": b"key", "key": None}, b"videos": "target-invalid"},
    "scheduler-target-key": {b"k": {"id": b"key", "key": b"k"}, None: {"key": None}},
    "schedule_target_epoch": {b"1700000005": {"id": b"key", "key": None}, **NO_NUMBER},
    "schedule_target_topic": {b"orders": {"target": "orders"}, b"a b": "target-invalid"},
    "schedule_target_key": {b"k": {"key": b"k"}},
    "schedule_target_partition": {b"2": {"partition": 2}, b"x": "target-invalid"},
    "schedule_target_partition_key": {b"x": "target-invalid"},
    "schedule_source_type": {
        b"schedule": {"id": b"key", "key": None},
        **each({"kind": CANCEL, "id": b"key"}, b"cancel", b"tombstone"),
    },
    "schedule_schema_version": {b"1.0.0": {"id": None, "own": []}},
    "x-delay": {
        **{b"%d" % ms: after(ms) for ms in (0, 5, 2**32)},
        **each(after(0), b"-1", b"-5000"),
        **each("time-invalid", None, b"", b"-", b"--1", b"5.0", b"PT5S", b"\xd9\xa3"),
    },
    **{name: {b"x" * 5_000: {"own": []}} for name in sorted(names.OUTPUT)},
    "delay-by": {b"alice": {"own": []}},
    **{name: {b"{}": "copy-forged"} for name in sorted(names.COPY_NAMES | names.HOME_NAMES)},
    "delay-foo": {b"1": {"own": [("delay-foo", b"1")]}},
}
"""By header and its value: what a record with it means that has a target and is due in 5 s, unless
the header itself says where or when."""

# Headers besides the one of the table; by default ``[TARGET, SOON]``.
BESIDE: Final[dict[str, Headers]] = {
    **{name: [TARGET] for name, header in INPUT.items() if header.group == "times"},
    **{name: [TARGET] for name in ("delay-every", "delay-cron", "TIMER_DEL_UNIQKEY")},
    "delay-target-topic": [SOON],
    "delay-timezone": [TARGET, CRON],
    "delay-times": [TARGET, EVERY],
    "delay-backoff": [TARGET],
    "delay-retries": [TARGET, ONE_AND_FIVE],
    "delay-if": [TARGET, SOON, AN_ID],
}

LEVEL: Final = {"level_ms": 5_000}
SHORT: Final = {"max_delay_ms": 1_000}
STRICT: Final = {"past_due": "dead-letter"}
PAST = ("delay-at", b"%d" % (T - 1))
ETF1: Final[Headers] = [
    ("scheduler-epoch", b"1700000005"),
    ("scheduler-target-topic", b"orders"),
    ("scheduler-target-key", b"k"),
    ("own", b"1"),
]
KARAFKA: Final[Headers] = [
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"1700000005"),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"orders"),
    ("schedule_target_partition", b"2"),
    ("schedule_target_key", b"k"),
]


class Row(NamedTuple):
    headers: Headers
    meaning: Meaning
    contract: dict[str, Any] = {}  # noqa: RUF012  # never changed
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    timestamp_ms: int = T


COMBINATIONS: Final = [
    Row(
        [("a", b"1"), TARGET, ("b", None), SOON, ("a", b"1"), ("c", b"\xff")],
        {
            "key_ms": T + 5_000,
            "due_ms": T + 5_000,
            "partition": -1,
            "key": b"key",
            "id": None,
            "own": [("a", b"1"), ("b", None), ("a", b"1"), ("c", b"\xff")],
        },
    ),
    # Times
    Row([TARGET], "time-missing"),
    Row([TARGET, SOON, ("delay-at", b"x")], "time-invalid"),
    Row([TARGET, ("delay-at", b"2023-11-14T22:13:25Z"), SOON, SOON], after(5_000)),
    Row([TARGET, ("delay-at", b"1700000005001"), SOON], "time-ambiguous"),
    Row([TARGET, SOON, ("delay-after", b"5001")], "time-ambiguous"),
    Row([TARGET, SOON, ("delay-retries", b"1")], after_and(5_000, own=[])),
    Row([TARGET, ONE_AND_FIVE, ONE_AND_FIVE], after(1_000)),
    Row([TARGET, ONE_AND_FIVE, ("delay-backoff", b"1s")], "time-ambiguous"),
    Row([TARGET, ONE_AND_FIVE, ("delay-after", b"1s")], "time-ambiguous"),
    Row([TARGET, ONE_AND_FIVE, EVERY], "time-ambiguous"),
    Row([TARGET, ONE_AND_FIVE], "time-ambiguous", LEVEL),
    Row(
        [ONE_AND_FIVE],
        after_and(
            1_000, own=[("delay-target-topic", b"elsewhere"), ONE_AND_FIVE, ("delay-retries", b"1")]
        ),
        {"default_target": "elsewhere"},
    ),
    Row([AN_ID, ("delay-op", b"cancel"), ONE_AND_FIVE], CANCELS),
    Row([TARGET, SOON, ("DELAY", b"2"), ("TIMER_DELAY_SEC", b"5")], after(5_000)),
    Row([TARGET, ("DELAY", b"2"), ("TIMER_DELAY_SEC", b"6")], "time-ambiguous"),
    *[
        Row([TARGET, ("delay-after", b"0")], "time-invalid", timestamp_ms=ms)
        for ms in (-1, -(2**63), 2**52, 2**63 - 1)
    ],
    Row([TARGET, ("delay-after", b"7200000")], {"key_ms": T + 7_200_000, "due_ms": T + 7_200_000}),
    Row([TARGET, ("delay-after", b"7200001")], {"key_ms": T + 7_200_000, "due_ms": T + 7_200_001}),
    Row([TARGET, ("delay-after", b"1000")], after(1_000), SHORT),
    *[
        row
        for header in [("delay-after", b"1001"), ("delay-after", LONG), ("TIMER_DELAY_SEC", b"2")]
        for row in [
            Row([TARGET, header], "delay-too-long", SHORT),
            Row([TARGET, header], after(1_000), {**SHORT, "clamp": True}),
        ]
    ],
    Row(
        [TARGET, ("delay-after", b"9" * 100)],
        at(2**53 - 1),
        {"max_delay_ms": 2**52, "clamp": True},
        timestamp_ms=2**52 - 1,
    ),
    Row([TARGET, PAST], after(-1)),
    Row([TARGET, PAST], "time-past", STRICT),
    Row([TARGET, ("delay-at", b"%d" % T)], after(0), STRICT),
    Row([TARGET, SOON, ("delay-expires-at", b"1"), ("delay-expires-at", b"2")], "time-ambiguous"),
    Row([TARGET, SOON, ("delay-window-ms", b"1"), ("delay-window-ms", b"2")], "time-ambiguous"),
    # Targets
    Row([SOON], "target-missing"),
    Row([SOON], {"target": "elsewhere"}, {"default_target": "elsewhere"}),
    Row([("TIMER_DELAY_SEC", b"5"), ("REAL_TOPIC", b"orders")], "target-missing"),
    Row([TARGET, TARGET, SOON], {"target": "orders"}),
    Row([TARGET, ("delay-target-topic", b"orders2"), SOON], "target-invalid"),
    # Ids and operations
    Row([("delay-op", b"cancel"), AN_ID, ("delay-by", b"alice")], CANCELS),
    Row([("delay-op", b"cancel"), AN_ID, ("a", b"1")], CANCELS),
    Row([("delay-op", b"cancel"), ("delay-op", b"cancel"), AN_ID, AN_ID], CANCELS),
    Row([("delay-op", b"cancel"), AN_ID, ("delay-at", b"x"), ("delay-cron", b"")], CANCELS),
    Row([("delay-op", b"fire"), AN_ID, SOON], {"kind": FIRE, "id": b"i"}),
    Row([("delay-op", b"cancel"), ("delay-op", b"fire"), AN_ID], "op-invalid"),
    Row([("delay-op", b"cancel"), AN_ID, ("delay-id", b"2")], "op-invalid"),
    Row([AN_ID], CANCELS, value=None),
    Row([AN_ID], "time-missing", value=b""),
    Row([AN_ID, TARGET, SOON], after_and(5_000, value=None), value=None),
    Row([], {"kind": CANCEL, "id": b"key"}, value=None),
    Row([("own", b"1")], {"kind": CANCEL, "id": b"key"}, value=None),
    Row([], "time-missing", key=None, value=None),
    Row([], "time-missing", key=b"", value=None),
    Row([], "header-too-large", key=b"k" * 513, value=None),
    Row([TARGET, SOON, IF_ABSENT], "op-invalid"),
    Row([TARGET, AN_ID, IF_ABSENT], "time-missing"),
    Row([("delay-op", b"cancel"), AN_ID, IF_ABSENT], "op-invalid"),
    Row([AN_ID, IF_ABSENT], "op-invalid", value=None),
    Row([TARGET, EVERY, AN_ID, IF_ABSENT], {"kind": ABSENT, "source": b"delay_topic_any:3:7#1"}),
    Row([*ETF1, IF_ABSENT], after_and(5_000, kind=ABSENT, id=b"key")),
    # Other systems
    Row(
        [TARGET, ("TIMER_DELAY_SEC", b"5"), ("UNIQ_KEY", b"7F")],
        {"id": b"7F", "own": [("UNIQ_KEY", b"7F")]},
    ),
    Row(
        [TARGET, ("KEYS", b"17"), ("UNIQ_KEY", b"7F"), ("WAIT", b"true"), ("DELAY", b"2")],
        after_and(5_000, own=[("KEYS", b"17"), ("UNIQ_KEY", b"7F"), ("WAIT", b"true")]),
    ),
    Row(
        [
            *[("TAGS", b"_RECALL_TAG"), ("TIMER_DEL_UNIQKEY", b"orders+i"), ("UNIQ_KEY", b"i")],
            *[("TIMER_DEL_MS", b"1700000005000"), ("TIMER_DELIVER_MS", b"1700000005000")],
        ],
        CANCELS,
        value=b"0",
    ),
    Row(ETF1, after_and(5_000, key=b"k", id=b"key", own=[("own", b"1")])),
    Row(ETF1, {"kind": CANCEL, "id": b"key"}, value=None),
    Row(ETF1[:2], {"key": None}),
    Row(ETF1, "header-too-large", key=b"k" * 513),
    Row([TARGET, SOON], after(5_000), key=b"k" * 513),
    Row(KARAFKA, after_and(5_000, partition=2, key=b"k", id=b"key", own=[])),
    Row(KARAFKA, after(5_000), value=None),
    Row([("schedule_source_type", b"cancel")], {"kind": CANCEL, "id": b"key"}, value=None),
    # Recurring schedules
    Row([TARGET, EVERY, AN_ID], {"key_ms": T + 5_000, "source": b"delay_topic_any:3:7#1"}),
    Row([TARGET, EVERY, ("delay-at", b"1700000000099")], after(99)),
    Row([TARGET, CRON], {"key_ms": T, "due_ms": T, "source": None}),
    Row(
        [TARGET, CRON, ("delay-at", b"1700000001000"), ("delay-expires-at", b"1700000009000")],
        {
            "due_ms": T,
            "expires_ms": T + 9_000,
            "recurrence": Recurrence(0, "0 9 * * MON-FRI", number=0, start_ms=T + 1_000),
        },
    ),
    *[
        Row([TARGET, *headers], "cron-invalid")
        for headers in (
            [EVERY, CRON],
            [EVERY, ("delay-timezone", b"UTC")],
            [EVERY, ("delay-every", b"6000")],
            [SOON, ("delay-timezone", b"UTC")],
            [SOON, ("delay-times", b"3")],
        )
    ],
    Row([TARGET, EVERY, ("delay-at", b"1")], "time-past", STRICT),
    Row([TARGET, CRON, ("delay-at", b"9000-01-01T00:00:00Z")], "delay-too-long"),
    # Level topics
    Row([TARGET, ("own", b"1")], after_and(5_000, id=None, own=[("own", b"1")]), LEVEL),
    Row([TARGET, ("DELAY", b"3")], after_and(5_000, own=[]), LEVEL),
    Row([TARGET], {"kind": SCHEDULE, "value": None}, LEVEL, value=None),
    Row([TARGET, ("delay-expires-at", b"99")], {"expires_ms": 99}, LEVEL),
    *[
        Row([TARGET, *headers], "op-invalid", LEVEL)
        for headers in (
            [AN_ID],
            [("delay-op", b"cancel"), AN_ID],
            [("delay-op", b"fire")],
            [("scheduler-epoch", b"5")],
            [EVERY],
            [IF_ABSENT],
        )
    ],
    Row([("delay-op", b"cancel"), AN_ID], "op-invalid", LEVEL),
    Row([TARGET, SOON], "time-ambiguous", LEVEL),
    Row([TARGET, PAST], "time-ambiguous", LEVEL),
    Row([TARGET], "time-invalid", LEVEL, timestamp_ms=-1),
    Row([("delay-target-topic", b"delay_other")], "target-denied", LEVEL),
]

ROWS: Final = [
    *COMBINATIONS,
    *[
        Row([*BESIDE.get(name, [TARGET, SOON]), (name, value)], meaning)
        for name, values in TABLE.items()
        for value, meaning in values.items()
    ],
]


def facts_of(entry: Entry) -> Meaning:
    _, kind, key_ms, identity, _, refusal = entry
    if kind == INVALID:
        assert refusal[0] in EXPLANATIONS
        assert refusal[1]
        return str(refusal[0])
    body = scheduled(entry)
    if body is None:
        return {"kind": kind, "id": identity}
    target, partition, key, value, own, due_ms, meta = body
    assert identity == (meta[0] if meta else None)
    return {
        "kind": kind,
        "key_ms": key_ms,
        "id": identity,
        "target": target,
        "partition": partition,
        "key": key,
        "value": value,
        "own": own,
        "due_ms": due_ms,
        "expires_ms": meta and meta[3],
        "source": meta and meta[1],
        "recurrence": recurrence_of(meta),
    }


def means(row: Row, entry: Entry) -> bool:
    found = facts_of(entry)
    if isinstance(row.meaning, str) or isinstance(found, str):
        return found == row.meaning
    return found == {**found, **row.meaning}


def contracts_of(row: Row) -> Contracts:
    return Contracts([(0, Contract(**row.contract))])


def polled(row: Row) -> tuple[int, int, bytes | None, bytes | None, Headers]:
    return (OFFSET, row.timestamp_ms, row.key, row.value, list(row.headers))


def test_every_header_that_is_read_is_in_the_table() -> None:
    assert set(INPUT) <= set(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{dict(row.headers)!r:.90}")
def test_the_service_reads_what_the_table_says(row: Row) -> None:
    reader = RecordReader(TOPIC, 3, contracts_of(row), [b"secret"])
    first = reader.read(*polled(row))
    assert means(row, first), facts_of(first)
    reader.read(0, T, None, b"", [TARGET, SOON])  # the short way is for targets seen before
    assert reader.read(*polled(row)) == first


def test_the_spark_reader_reads_what_the_table_says() -> None:
    wrong = []
    for row in ROWS:
        rows = batch_of_records((TOPIC, 3), [polled(row)])
        entry = ShardReader(TOPIC, 3, contracts_of(row), [b"secret"]).read(rows_of(rows))[0][0]
        if not means(row, entry):
            wrong.append((row, facts_of(entry)))
    assert wrong == []


def test_the_batch_scheduler_refuses_what_the_table_refuses() -> None:
    wrong = []
    for row in ROWS:
        partitions = dict.fromkeys(("orders", "orders2", "elsewhere"), 2**31)
        contracts = (Contract(**row.contract),)
        rules = RowRules(TOPIC, contracts, row.timestamp_ms, partitions, 100_000)
        refusal = ScheduleCheck(rules).refusal(polled(row))
        control = isinstance(row.meaning, dict) and row.meaning.get("kind") in (CANCEL, FIRE)
        expected = OP_INVALID if control else row.meaning if isinstance(row.meaning, str) else None
        if (refusal and refusal[0]) != expected:
            wrong.append((row, refusal))
    assert wrong == []


@pytest.mark.parametrize(
    ("cron", "zone", "code"),
    [
        (b"99 9 * * *", b"UTC", "cron-invalid"),
        (b"0 9 30 2 *", b"UTC", "cron-invalid"),
        (b"0 9 * * *", b"Mars/X", "zone-invalid"),
        (b"0 9 * * *", b"Europe/Berlin", None),
    ],
)
def test_the_batch_scheduler_refuses_what_would_never_come(
    cron: bytes, zone: bytes, code: str | None
) -> None:
    rules = RowRules(TOPIC, (Contract(),), T, {"orders": 1}, 100_000)
    headers: Headers = [TARGET, ("delay-cron", cron), ("delay-timezone", zone)]
    refusal = ScheduleCheck(rules).refusal((OFFSET, T, None, b"", headers))
    assert (refusal and refusal[0]) == code


ARGUMENTS: Final = {
    "delay-at": "at",
    "delay-after": "delay",
    "delay-expires-at": "expires_at",
    "delay-window-ms": "window",
    "delay-every": "every",
    "delay-cron": "cron",
    "delay-timezone": "timezone",
    "delay-times": "times",
    "delay-target-topic": "topic",
    "delay-target-partition": "partition",
    "delay-target-key": "target_key",
    "delay-id": "id",
    "delay-if": "if_absent",
}
# The client takes a window in any unit, and writes times as numbers, of which the service takes
# those before 1974 for seconds. It does not know the topic's longest delay and header.
OTHERWISE_IN_CLIENT: Final = {
    ("delay-target-key", b"k" * 4_097),
    ("delay-window-ms", b"PT5S"),
    ("delay-at", b"1973-01-01T00:00:00Z"),
    ("delay-at", b"1969-01-01T00:00:00Z"),
    ("delay-at", b"0001-01-01T00:00:00+14:00"),
}


class Written:
    """Producer that keeps what it is to write."""

    def produce(self, _topic: str, *record: object, headers: Headers, **_: object) -> None:
        self.record = (OFFSET, T, *record[1::-1], headers)

    def list_topics(self, **_: float) -> SimpleNamespace:
        found = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={TOPIC: found})

    def __len__(self) -> int:
        return 0


def asked(row: Row) -> dict[str, Any] | None:
    # None: no call of the client asks for it.
    said = dict(row.headers)
    if row.contract or len(said) < len(row.headers) or not said.keys() <= ARGUMENTS.keys():
        return None
    if OTHERWISE_IN_CLIENT & said.items() or row.meaning == "delay-too-long":
        return None
    if row.timestamp_ms != T or any(value == b"" for value in said.values()):
        return None
    if said.get("delay-if", b"absent") != b"absent":
        return None
    if any(value is None for name, value in said.items() if name != "delay-target-key"):
        return None
    found: dict[str, Any] = {ARGUMENTS[name]: value for name, value in said.items()}
    for argument, value in found.items():
        if argument not in ("id", "target_key"):
            found[argument] = value.decode("utf-8", "replace")
    if "target_key" in found and found["target_key"] is None:
        found["target_key"] = NO_KEY
    return found if "topic" in found else None


def test_the_client_writes_what_the_table_says_or_refuses_it() -> None:
    wrong, calls = [], 0
    for row in ROWS:
        call = asked(row)
        if call is None:
            continue
        calls += 1
        producer = Written()
        client = DelayProducer(producer, TOPIC)  # type: ignore[arg-type]
        try:
            client.send(value=row.value, key=row.key, **call)
        except InvalidRequestError:
            is_right = isinstance(row.meaning, str)
        else:
            reader = RecordReader(TOPIC, 3, contracts_of(row), [])
            entry = reader.read(*producer.record)  # type: ignore[arg-type]
            is_right = not isinstance(row.meaning, str) and means(row, entry)
        if not is_right:
            wrong.append(row)
    assert wrong == []
    assert calls > 100


def test_the_detail_says_what_was_expected() -> None:
    said = {
        ("delay-after", b"P1Y"): "years and months have no fixed length",
        ("delay-after", b"soon"): "milliseconds, 30s, 1h30m or an ISO 8601 duration (PT30S)",
        (
            "delay-at",
            b"1893456000",
        ): "looks like seconds: epoch milliseconds are expected (1893456000000)",
        ("delay-cron", b"@reboot"): "write five fields, or @hourly, @daily",
        ("Delay-After", b"1"): "; Delay-After is not read, delay-after would be",
        ("delay_at", b"1"): "; delay_at is not read, delay-at would be",
    }
    reader = RecordReader(TOPIC, 3, Contracts([(0, Contract())]), [])
    for header, text in said.items():
        assert text in reader.read(OFFSET, T, None, b"", [TARGET, header])[5][1]
    others: Headers = [TARGET, ("delayafter", b"5000"), ("X-Delay-After", b"1")]
    assert ";" not in reader.read(OFFSET, T, None, b"", others)[5][1]
    level = RecordReader("delay_topic_1", 0, Contracts([(0, Contract(level_ms=5_000))]), [])
    refusal = level.read(OFFSET, T, None, b"", [TARGET, SOON])[5][1]
    assert "delay-after given, but all records of the level topic delay_topic_1" in refusal
