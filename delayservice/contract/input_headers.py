"""Input headers of a record: our own, and those of other delay systems, so that their producers
work unchanged.

A *draft* holds the collected headers. A *rule* is a function that adds one header to a draft.
``record`` checks once all headers are collected, because the operation decides which of them
matter. Duplicates and headers of other delay systems are therefore one case: headers of one meaning
must agree. Semantics of other headers are those of the systems' own sources:

RocketMQ (``MessageConst``, ``HookUtils``, ``TimerMessageStore``): its properties as headers. In
    RocketMQ a message is sent to its target topic (``REAL_TOPIC`` is set by the broker only), so
    here the target comes from ``delay-target-topic`` or the default target. Levels above 18 mean
    18, level 0 means no delay. ``TIMER_DEL_UNIQKEY`` names the ``UNIQ_KEY`` of the message to
    recall, in newer clients as ``topic+key``. Where RocketMQ gives one property precedence over
    another one, a record with two that disagree is refused here.
etf1 kafka-message-scheduler (``schedule/kafka``, ``clientlib``): epoch in seconds; the record key
    is the schedule's id, a null value cancels it (its ``DeleteSchedule`` sends no header at all,
    see ``record``), and the output's key is ``scheduler-target-key`` or null.
Karafka scheduled messages (``Proxy``, ``Dispatcher``): epoch in seconds (``epoch.to_i``); key as
    with etf1; ``schedule_source_type: cancel`` cancels. A separate partition key depends on the
    target's partition count and the producer's own partitioner, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from delayservice.contract import names
from delayservice.contract.codes import OP_INVALID, TARGET_INVALID, RecordRefusedError
from delayservice.contract.entry import Headers
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.times import (
    DUE_STOP_MS,
    parse_checked_instant_ms,
    parse_count,
    parse_duration_ms,
)

CANCEL_OP = "cancel"
FIRE_OP = "fire"
SCHEDULE_OP = "schedule"

# ``(header name, value, append time)`` to the due time; times in epoch ms.
TimeParser: TypeAlias = Callable[[str, bytes | None, int], int]


class Draft:
    """Unchecked input headers of one record: a list for each meaning, in the record's order."""

    __slots__ = (
        "counts",
        "cron",
        "every",
        "expiries",
        "ids",
        "key",
        "key_is_id",
        "keys",
        "ops",
        "partitions",
        "rocketmq",
        "spare_id",
        "targets",
        "times",
        "value",
        "windows",
        "zones",
    )

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self.key = key
        self.value = value
        self.times: list[tuple[str, bytes | None, TimeParser]] = []
        self.targets: Headers = []
        self.partitions: Headers = []
        self.keys: Headers = []
        self.expiries: Headers = []
        self.windows: Headers = []
        self.ids: Headers = []
        self.ops: list[str] = []
        self.every: Headers = []
        self.cron: Headers = []
        self.zones: Headers = []
        self.counts: Headers = []
        # The output's key then comes from a header or is null.
        self.key_is_id = False
        # ``spare_id`` is then the record's id unless another header gives one.
        self.rocketmq = False
        # Value of RocketMQ's header ``UNIQ_KEY``.
        self.spare_id: bytes | None = None

    def mentions_delivery(self) -> bool:
        where = self.targets or self.partitions or self.keys
        return bool(self.times or where or self.recurs)

    @property
    def recurs(self) -> bool:
        return bool(self.every or self.cron or self.zones or self.counts)


def due_at_ms(name: str, value: bytes | None, _timestamp_ms: int) -> int:
    return parse_checked_instant_ms(name, value)


def due_after_ms(name: str, value: bytes | None, timestamp_ms: int) -> int:
    return timestamp_ms + parse_duration_ms(name, value)


# Adds a header to the draft; raises ``RecordRefusedError`` if no operation allows its value.
Rule: TypeAlias = Callable[[Draft, str, bytes | None], None]


def into(group: str) -> Rule:
    def rule(draft: Draft, name: str, value: bytes | None) -> None:
        headers: Headers = getattr(draft, group)
        headers.append((name, value))

    return rule


def _at(draft: Draft, name: str, value: bytes | None) -> None:
    draft.times.append((name, value, due_at_ms))


def _after(draft: Draft, name: str, value: bytes | None) -> None:
    draft.times.append((name, value, due_after_ms))


target_topic = into("targets")
target_partition = into("partitions")
# An empty value is an empty key, a null value no key.
target_key = into("keys")


def _op(draft: Draft, _name: str, value: bytes | None) -> None:
    text = "" if value is None else value[:64].decode("ascii", "replace")
    if text not in (CANCEL_OP, FIRE_OP, SCHEDULE_OP):
        raise RecordRefusedError(
            OP_INVALID, f"{names.DELAY_OP} is {text!r}: schedule, cancel or fire is expected"
        )
    draft.ops.append(text)


# For headers that have no effect and are not delivered.
def drop(_draft: Draft, _name: str, _value: bytes | None) -> None: ...


# Headers that only the service writes (``names.OUTPUT``) are ignored.
RULES: dict[str, Rule] = {
    names.DELAY_AT: _at,
    names.DELAY_AFTER: _after,
    names.DELAY_TARGET_TOPIC: target_topic,
    names.DELAY_TARGET_PARTITION: target_partition,
    names.DELAY_TARGET_KEY: target_key,
    names.DELAY_ID: into("ids"),
    names.DELAY_OP: _op,
    names.DELAY_EXPIRES_AT: into("expiries"),
    names.DELAY_WINDOW_MS: into("windows"),
    names.DELAY_EVERY: into("every"),
    names.DELAY_CRON: into("cron"),
    names.DELAY_TIMEZONE: into("zones"),
    names.DELAY_TIMES: into("counts"),
    **dict.fromkeys(names.OUTPUT, drop),
}


ROCKETMQ: Final = "RocketMQ"
ETF1: Final = "etf1"
KARAFKA: Final = "Karafka"

# Header of RocketMQ's message id: read as the id, and delivered unlike its other headers.
ROCKETMQ_UNIQ_KEY: Final = "UNIQ_KEY"


@dataclass(frozen=True, slots=True)
class Alias:
    """Header of another delay system: its meaning, and the rule that adds it to a draft."""

    header: str
    system: str
    meaning: str
    rule: Rule


def _seconds(name: str, value: bytes | None) -> int:
    return min(parse_count(name, value) * 1_000, DUE_STOP_MS)


def _due_after_seconds(name: str, value: bytes | None, timestamp_ms: int) -> int:
    return timestamp_ms + _seconds(name, value)


def _due_after_ms(name: str, value: bytes | None, timestamp_ms: int) -> int:
    return timestamp_ms + parse_count(name, value)


def _due_at_ms(name: str, value: bytes | None, _timestamp_ms: int) -> int:
    return parse_count(name, value)


def _due_at_seconds(name: str, value: bytes | None, _timestamp_ms: int) -> int:
    return _seconds(name, value)


def _due_by_level(name: str, value: bytes | None, timestamp_ms: int) -> int:
    level = parse_count(name, value)
    if level == 0:
        return timestamp_ms
    return timestamp_ms + ROCKETMQ_LEVELS_MS[min(level, len(ROCKETMQ_LEVELS_MS)) - 1]


# The value of ``UNIQ_KEY`` is the record's id if no other header gives one.
def _rocketmq_time(parse: TimeParser) -> Rule:
    def rule(draft: Draft, name: str, value: bytes | None) -> None:
        draft.rocketmq = True
        draft.times.append((name, value, parse))

    return rule


def _rocketmq_recall(draft: Draft, name: str, value: bytes | None) -> None:
    draft.rocketmq = True
    draft.ids.append((name, (value or b"").partition(b"+")[2] or value))
    draft.ops.append(CANCEL_OP)


def _rocketmq_uniq_key(draft: Draft, _name: str, value: bytes | None) -> None:
    draft.spare_id = draft.spare_id or value


# The record's key is its id, and a record with a null value is a cancel.
def _etf1(rule: Rule) -> Rule:
    def keyed(draft: Draft, name: str, value: bytes | None) -> None:
        if draft.value is None and not draft.key_is_id:
            draft.ops.append(CANCEL_OP)
        draft.key_is_id = True
        rule(draft, name, value)

    return keyed


def _epoch(draft: Draft, name: str, value: bytes | None) -> None:
    draft.key_is_id = True
    draft.times.append((name, value, _due_at_seconds))


def _karafka_source_type(draft: Draft, _name: str, value: bytes | None) -> None:
    draft.key_is_id = True
    if value in (b"cancel", b"tombstone"):
        draft.ops.append(CANCEL_OP)


def _karafka_partition_key(_draft: Draft, name: str, _value: bytes | None) -> None:
    raise RecordRefusedError(
        TARGET_INVALID, f"{name} is not served: send schedule_target_partition or target_key"
    )


ALIASES: Final = (
    Alias("TIMER_DELAY_SEC", ROCKETMQ, "delay in seconds", _rocketmq_time(_due_after_seconds)),
    Alias("TIMER_DELAY_MS", ROCKETMQ, "delay in milliseconds", _rocketmq_time(_due_after_ms)),
    Alias("TIMER_DELIVER_MS", ROCKETMQ, "due, epoch milliseconds", _rocketmq_time(_due_at_ms)),
    Alias("DELAY", ROCKETMQ, "delay level 1 to 18", _rocketmq_time(_due_by_level)),
    Alias("TIMER_DEL_UNIQKEY", ROCKETMQ, "cancel the record of this id", _rocketmq_recall),
    Alias(ROCKETMQ_UNIQ_KEY, ROCKETMQ, "the id; delivered too", _rocketmq_uniq_key),
    Alias("scheduler-epoch", ETF1, "due, epoch seconds", _etf1(_epoch)),
    Alias("scheduler-target-topic", ETF1, "target topic", _etf1(target_topic)),
    Alias("scheduler-target-key", ETF1, "output key", _etf1(target_key)),
    Alias("schedule_target_epoch", KARAFKA, "due, epoch seconds", _epoch),
    Alias("schedule_target_topic", KARAFKA, "target topic", target_topic),
    Alias("schedule_target_key", KARAFKA, "output key", target_key),
    Alias("schedule_target_partition", KARAFKA, "target partition", target_partition),
    Alias("schedule_target_partition_key", KARAFKA, "refused", _karafka_partition_key),
    Alias("schedule_source_type", KARAFKA, "cancel, or schedule", _karafka_source_type),
    Alias("schedule_schema_version", KARAFKA, "not used", drop),
)
"""All headers of other delay systems that are read. A record may mix them with the service's own
headers, but headers of one meaning must agree."""

KNOWN: Final = names.COPY_NAMES.union(RULES, (alias.header for alias in ALIASES))
"""Names of all headers that the service reads or drops."""

STRIPPED: Final = KNOWN - {ROCKETMQ_UNIQ_KEY}
"""Names of headers that are removed from a user's record before delivery."""

RESERVED: Final = STRIPPED | names.HOME_NAMES
"""Names of headers that a producer may not set as headers of its own: they would be removed, or the
record be taken for a forgery."""
