"""Input headers of a record, collected before they are checked, and the rules of our own headers.

A *draft* holds the collected headers. A *rule* is a function that adds one header to a draft.
``user_record`` checks once all headers are collected, because the operation decides which of them
matter. Duplicates and headers of other delay systems are therefore one case: headers of one meaning
must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from delayservice.contract import names
from delayservice.contract.codes import OP_INVALID, RecordRefusedError
from delayservice.contract.entry import Headers
from delayservice.contract.times import parse_checked_instant_ms, parse_duration_ms

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
