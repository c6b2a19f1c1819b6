"""Input headers of a record: our own, and those of other delay systems, so that their producers
work unchanged.

``INPUT`` is the table of all of them. A *draft* holds a record's headers by their meaning; they are
checked by ``record`` once all are collected, because the operation decides which of them matter.
Duplicates and headers of other delay systems are therefore one case: headers of one meaning must
agree, and a record may mix them with the service's own. Semantics of other headers are those of the
systems' own sources:

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
RabbitMQ's delayed-message plugin (``rabbit_exchange_type_delayed_message``): ``x-delay`` in
    milliseconds. It does not delay what is negative or above ``2**32 - 1``; here the latter waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

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


class InputHeader(NamedTuple):
    """Meaning of a header: the group in which a draft has it, and of a time, how it is read."""

    group: str = "dropped"
    parse: TimeParser | None = None


def _at(name: str, value: bytes | None, _timestamp_ms: int) -> int:
    return parse_checked_instant_ms(name, value)


def _after(name: str, value: bytes | None, timestamp_ms: int) -> int:
    return timestamp_ms + parse_duration_ms(name, value)


def _at_count(unit_ms: int) -> TimeParser:
    return lambda name, value, _: min(parse_count(name, value) * unit_ms, DUE_STOP_MS)


def _after_count(unit_ms: int) -> TimeParser:
    at_ms = _at_count(unit_ms)
    return lambda name, value, timestamp_ms: timestamp_ms + at_ms(name, value, 0)


def _after_level(name: str, value: bytes | None, timestamp_ms: int) -> int:
    level = min(parse_count(name, value), len(ROCKETMQ_LEVELS_MS))
    return timestamp_ms + (0, *ROCKETMQ_LEVELS_MS)[level]


def _after_unless_negative(name: str, value: bytes | None, timestamp_ms: int) -> int:
    # RabbitMQ's plugin negates the delay of what it has delivered, so that it is not delayed again.
    is_negative = value is not None and value.startswith(b"-")
    delay_ms = _after_count(1)(name, value[1:] if value and is_negative else value, 0)
    return timestamp_ms + (0 if is_negative else delay_ms)


# Header of RocketMQ's message id: read as the id, and delivered unlike its other headers.
ROCKETMQ_UNIQ_KEY: Final = "UNIQ_KEY"

INPUT: Final[Mapping[str, InputHeader]] = {
    names.DELAY_AT: InputHeader("times", _at),
    names.DELAY_AFTER: InputHeader("times", _after),
    names.DELAY_TARGET_TOPIC: InputHeader("targets"),
    names.DELAY_TARGET_PARTITION: InputHeader("partitions"),
    names.DELAY_TARGET_KEY: InputHeader("keys"),  # an empty value is an empty key, null no key
    names.DELAY_ID: InputHeader("ids"),
    names.DELAY_OP: InputHeader("ops"),
    names.DELAY_EXPIRES_AT: InputHeader("expiries"),
    names.DELAY_WINDOW_MS: InputHeader("windows"),
    names.DELAY_EVERY: InputHeader("every"),
    names.DELAY_CRON: InputHeader("cron"),
    names.DELAY_TIMEZONE: InputHeader("zones"),
    names.DELAY_TIMES: InputHeader("counts"),
    names.DELAY_BACKOFF: InputHeader("backoffs"),
    names.DELAY_RETRIES: InputHeader("retries"),
    names.DELAY_IF: InputHeader("conditions"),
    **dict.fromkeys(names.OUTPUT, InputHeader()),
    names.DELAY_BY: InputHeader(),
    "TIMER_DELAY_SEC": InputHeader("times", _after_count(1_000)),
    "TIMER_DELAY_MS": InputHeader("times", _after_count(1)),
    "TIMER_DELIVER_MS": InputHeader("times", _at_count(1)),
    "DELAY": InputHeader("times", _after_level),
    "TIMER_DEL_UNIQKEY": InputHeader("recalls"),
    ROCKETMQ_UNIQ_KEY: InputHeader("spare_ids"),
    "x-delay": InputHeader("times", _after_unless_negative),
    "scheduler-epoch": InputHeader("times", _at_count(1_000)),
    "scheduler-target-topic": InputHeader("targets"),
    "scheduler-target-key": InputHeader("keys"),
    "schedule_target_epoch": InputHeader("times", _at_count(1_000)),
    "schedule_target_topic": InputHeader("targets"),
    "schedule_target_key": InputHeader("keys"),
    "schedule_target_partition": InputHeader("partitions"),
    "schedule_target_partition_key": InputHeader("refused"),
    "schedule_source_type": InputHeader("source_types"),
    "schedule_schema_version": InputHeader(),
}
"""All headers of records of users that are read or dropped, by name."""

OWN_INPUT: Final = frozenset(
    name
    for name, header in INPUT.items()
    if name.startswith("delay-") and header.group != "dropped"
)
"""The service's own headers of users' records."""

TARGET_TOPICS: Final = [name for name, header in INPUT.items() if header.group == "targets"]
"""Names of the headers that name the target topic, the service's own first."""

_RECURRING: Final[tuple[str, ...]] = ("every", "cron", "zones", "counts")
_DELIVERY: Final[tuple[str, ...]] = ("times", "backoffs", "targets", "partitions", "keys")
# With one of them, ``UNIQ_KEY`` is the record's id unless another header gives one.
ROCKETMQ_TIMES: Final = frozenset(
    {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"}
)
_ETF1: Final = frozenset({"scheduler-epoch", "scheduler-target-topic", "scheduler-target-key"})
# With one of them, the record's key is its id, and the output's key comes from a header or is null.
_KEY_IS_ID: Final = _ETF1 | {"schedule_target_epoch", "schedule_source_type"}


class Draft:
    """Unchecked input headers of one record, by meaning, in the record's order."""

    def __init__(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.key = key
        self.value = value
        self.said = {name for name, _ in headers}
        self._groups: dict[str, Headers] = {}
        for header in headers:
            self._groups.setdefault(INPUT[header[0]].group, []).append(header)
        for name, _ in self["refused"]:
            raise RecordRefusedError(
                TARGET_INVALID,
                f"{name} is not served: send schedule_target_partition or target_key",
            )

    def __getitem__(self, group: str) -> Headers:
        return self._groups.get(group, [])

    @property
    def ids(self) -> Headers:
        # RocketMQ recalls by the id, in newer clients by ``topic+id``.
        recalls = self["recalls"]
        return self["ids"] + [
            (name, (id_ or b"").partition(b"+")[2] or id_) for name, id_ in recalls
        ]

    @property
    def key_is_id(self) -> bool:
        return not self.said.isdisjoint(_KEY_IS_ID)

    @property
    def recurs(self) -> bool:
        return any(self[group] for group in _RECURRING)

    @property
    def is_if_absent(self) -> bool:
        for name, text in self["conditions"]:
            if text != b"absent":
                raise RecordRefusedError(
                    OP_INVALID, f"{name} is {_shown(text)!r}: absent is expected"
                )
        return bool(self["conditions"])

    @property
    def mentions_delivery(self) -> bool:
        return any(self[group] for group in _DELIVERY) or self.recurs

    def spare_id(self) -> bytes | None:
        """Return the id if no header of its own gives one; None: it has none."""
        if self.key_is_id:
            return self.key or None
        if not self["recalls"] and self.said.isdisjoint(ROCKETMQ_TIMES):
            return None
        return next((text for _, text in self["spare_ids"] if text), None)

    def operations(self) -> set[str]:
        """Return the operations that headers name; empty: they name none."""
        found = {_operation(text) for _, text in self["ops"]}
        is_cancel = any(text in (b"cancel", b"tombstone") for _, text in self["source_types"])
        is_null = self.value is None and not self.said.isdisjoint(_ETF1)
        return found | {CANCEL_OP} if self["recalls"] or is_cancel or is_null else found


def _shown(value: bytes | None) -> str:
    return "" if value is None else value[:64].decode("ascii", "replace")


def _operation(value: bytes | None) -> str:
    text = _shown(value)
    if text not in (CANCEL_OP, FIRE_OP, SCHEDULE_OP):
        raise RecordRefusedError(
            OP_INVALID, f"{names.DELAY_OP} is {text!r}: schedule, cancel or fire is expected"
        )
    return text


KNOWN: Final = names.COPY_NAMES.union(INPUT)
"""Names of all headers that the service reads or drops."""

STRIPPED: Final = KNOWN - {ROCKETMQ_UNIQ_KEY}
"""Names of headers that are removed from a user's record before delivery."""

RESERVED: Final = STRIPPED | names.HOME_NAMES
"""Names of headers that a producer may not set as headers of its own: they would be removed, or the
record be taken for a forgery."""


def own_headers(headers: Headers) -> Headers:
    """Return the headers of a user's record that are delivered, in order."""
    return [header for header in headers if header[0] not in STRIPPED]
