"""Table of the headers of other delay systems, so that their producers work unchanged.

A *rule* adds one header to a *draft*, the input headers of a record (module ``draft``). Semantics
are those of the systems' own sources:

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

from dataclasses import dataclass
from typing import Final

from delayservice.contract import names
from delayservice.contract.codes import TARGET_INVALID, RecordRefusedError
from delayservice.contract.draft import (
    CANCEL_OP,
    RULES,
    Draft,
    Rule,
    TimeParser,
    drop,
    target_key,
    target_partition,
    target_topic,
)
from delayservice.contract.levels import ROCKETMQ_LEVELS_MS
from delayservice.contract.times import DUE_STOP_MS, parse_count

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
