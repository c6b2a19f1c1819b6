"""Recurring schedules: one record, many occurrences, one of them pending at any time.

The transaction that delivers an occurrence appends a signed copy of the record for the next one. An
occurrence whose time has passed before it could be computed is left out: after an outage a schedule
goes on, it does not catch up.

A record's key must be the same on every node (design rule 2), and a calendar is not: two nodes may
have time zones of different years. So only the owner asks the calendar and writes the instant into
the copy, and a cron schedule's own record is due at once, for its first copy to be appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from delayservice.contract import names
from delayservice.contract.codec import Meta, Payload, packed_recurrence
from delayservice.contract.names import Header
from delayservice.contract.times import DUE_STOP_MS

CronTime: TypeAlias = Callable[[str, str, int], int | None]
"""``(cron, zone, after_ms)`` to the first instant after ``after_ms`` that matches, or None: never.

Raises ``RecordRefusedError``: the expression or the zone means nothing.
"""

_UTC: Final = "UTC"


class Recurrence(msgspec.Struct, array_like=True, frozen=True):
    """The occurrences that a record asks for.

    Attributes:
        every_ms: the period; 0: by ``cron``.
        cron: an expression of five fields, or of six with seconds first; empty: by period.
        zone: of the cron expression.
        left: occurrences yet to come, the pending one included; None: without end.
        number: of the pending occurrence, from 1; 0: the first has not been computed yet.
        start_ms: of a cron schedule: no occurrence is before this.
        shift_ms: how much later than the schedule says every occurrence is, within its window.
    """

    every_ms: int
    cron: str = ""
    zone: str = _UTC
    left: int | None = None
    number: int = 1
    start_ms: int = 0
    shift_ms: int = 0

    @property
    def left_after(self) -> int | None:
        """Occurrences yet to come after the pending one; None: without end."""
        return None if self.left is None else self.left - 1

    def headers(self) -> list[Header]:
        """Return the input headers of this recurrence, for a dead letter that can be sent again."""
        said: list[Header] = []
        if self.every_ms:
            said.append((names.DELAY_EVERY, b"%d" % self.every_ms))
        else:
            said.append((names.DELAY_CRON, self.cron.encode()))
            said.append((names.DELAY_TIMEZONE, self.zone.encode()))
        if self.left is not None:
            said.append((names.DELAY_TIMES, b"%d" % self.left))
        return said


encode = msgspec.msgpack.Encoder().encode
"""To bytes, the fifth element of a payload's meta."""

decode: Callable[[bytes], Recurrence] = msgspec.msgpack.Decoder(Recurrence).decode
"""A recurrence as ``encode`` returns it."""


def recurs(meta: Meta) -> bool:
    """Return whether a payload's meta speaks of more than one occurrence."""
    return packed_recurrence(meta) is not None


def recurrence_of(meta: Meta | None) -> Recurrence | None:
    """Return the occurrences in a payload's meta; None for a record with only one."""
    packed = packed_recurrence(meta)
    return None if packed is None else decode(packed)


def first_ms(recurrence: Recurrence, written_ms: int, cron_time: CronTime) -> int | None:
    """Return when a cron schedule has its first occurrence; None: never.

    Raises:
        RecordRefusedError: as ``CronTime``.
    """
    after_ms = recurrence.start_ms - 1 if recurrence.start_ms else written_ms
    return _shifted(recurrence, after_ms, cron_time)


def following(payload: Payload, source: bytes, now_ms: int, cron_time: CronTime) -> Payload | None:
    """Return the record at its next occurrence, after the pending one was delivered.

    Args:
        payload: the occurrence that was delivered.
        source: its ``delay-source``.
        now_ms: what is not after this is left out.
        cron_time: the calendar.

    Returns:
        None: it does not recur, or that was the last occurrence.

    Raises:
        RecordRefusedError: as ``CronTime``.
    """
    recurrence = recurrence_of(payload[6])
    if recurrence is None or recurrence.left == 1:
        return None
    due_ms = _next_ms(recurrence, payload[5], now_ms, cron_time)
    after = msgspec.structs.replace(
        recurrence, number=recurrence.number + 1, left=recurrence.left_after
    )
    return at_occurrence(payload, after, source, due_ms)


def left_after(payload: Payload) -> Payload:
    """Return the schedule without its pending occurrence, to begin again after it."""
    meta, recurrence = payload[6], recurrence_of(payload[6])
    if meta is None or recurrence is None:
        return payload
    rest = encode(msgspec.structs.replace(recurrence, left=recurrence.left_after))
    return (*payload[:5], payload[5] + 1, (*meta[:4], rest))


def _next_ms(recurrence: Recurrence, due_ms: int, now_ms: int, cron_time: CronTime) -> int | None:
    if recurrence.every_ms:
        missed = max(now_ms - due_ms, 0) // recurrence.every_ms
        return due_ms + (missed + 1) * recurrence.every_ms
    return _shifted(recurrence, max(due_ms, now_ms) - recurrence.shift_ms, cron_time)


def _shifted(recurrence: Recurrence, after_ms: int, cron_time: CronTime) -> int | None:
    found_ms = cron_time(recurrence.cron, recurrence.zone, after_ms)
    return None if found_ms is None else found_ms + recurrence.shift_ms


def at_occurrence(
    payload: Payload, recurrence: Recurrence, source: bytes, due_ms: int | None
) -> Payload | None:
    """Return the record at one of its occurrences.

    Args:
        payload: the record.
        recurrence: what is to be said of this occurrence and those after it.
        source: ``delay-source`` of the record, with or without an occurrence.
        due_ms: when it is due; None: never.

    Returns:
        None: it would be beyond its end.
    """
    identity, _, _, expires_ms, *_ = payload[6] or (None, None, 1, None)
    if due_ms is None or due_ms >= DUE_STOP_MS or (expires_ms is not None and due_ms > expires_ms):
        return None
    named = numbered(source, recurrence.number)
    return (*payload[:5], due_ms, (identity, named, 1, expires_ms, encode(recurrence)))


def numbered(source: bytes, number: int) -> bytes:
    """``delay-source`` of one occurrence: ``topic:partition:offset#number``."""
    return source.split(b"#", 1)[0] + b"#%d" % number
