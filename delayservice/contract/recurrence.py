"""Recurring schedules: one record, many occurrences, one of them pending at any time.

A *payload* is the content of a pending record, and *meta* is the last item of it (``codec``).

The transaction that delivers an occurrence appends a signed requeued record for the next one.
Occurrences whose time has passed before they could be computed are skipped: after an outage a
schedule continues with the next occurrence.

A record's key must be the same on every node (design rule 2), but two nodes may have time zone data
of different years. So only the owner computes the next occurrence, and writes its instant into the
requeued record. A new cron schedule is due at once, so that the owner requeues it for its first
occurrence.
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
"""Function of ``(cron expression, IANA time zone, after_ms)`` that returns the first matching
instant after ``after_ms``; both are epoch milliseconds; None: there is no such instant.

Raises ``RecordRefusedError`` if the expression or the zone is invalid.
"""

_UTC: Final = "UTC"


class Recurrence(msgspec.Struct, array_like=True, frozen=True):
    """Occurrences of a recurring schedule.

    Attributes:
        every_ms: the period, milliseconds; 0: ``cron`` applies.
        cron: an expression of five fields, or of six with seconds first; empty: ``every_ms``
            applies.
        zone: the IANA time zone of the cron expression.
        left: the number of remaining occurrences, the pending one included; None: unlimited.
        number: number of the pending occurrence, from 1; 0: the first is not computed yet.
        start_ms: earliest occurrence of a cron schedule, epoch milliseconds; 0: not given.
        shift_ms: time by which each occurrence is moved later, within the schedule's window,
            milliseconds.
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
        """Return the number of occurrences after the pending one; None: unlimited."""
        return None if self.left is None else self.left - 1

    def headers(self) -> list[Header]:
        """Return the input headers of this recurrence, without start and window, for a dead letter
        that can be replayed.
        """
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
"""Return the bytes of a ``Recurrence``, as they are kept in a payload's meta."""

decode: Callable[[bytes], Recurrence] = msgspec.msgpack.Decoder(Recurrence).decode
"""Return the ``Recurrence`` in the bytes that ``encode`` returned."""


def recurs(meta: Meta) -> bool:
    """Return whether a record with this payload's meta is a recurring schedule."""
    return packed_recurrence(meta) is not None


def recurrence_of(meta: Meta | None) -> Recurrence | None:
    """Return the recurrence in a payload's meta; None: the record does not recur."""
    packed = packed_recurrence(meta)
    return None if packed is None else decode(packed)


def first_ms(recurrence: Recurrence, written_ms: int, cron_time: CronTime) -> int | None:
    """Return the time of a cron schedule's first occurrence, moved by ``shift_ms``, in epoch
    milliseconds; None: it never occurs.

    Args:
        recurrence: the schedule.
        written_ms: append time of its record, epoch milliseconds.
        cron_time: function that computes the instants of a cron expression.

    Raises:
        RecordRefusedError: the cron expression or the time zone is invalid.
    """
    after_ms = recurrence.start_ms - 1 if recurrence.start_ms else written_ms
    return _shifted(recurrence, after_ms, cron_time)


def following(payload: Payload, source: bytes, now_ms: int, cron_time: CronTime) -> Payload | None:
    """Return the payload of a schedule's next occurrence, after the pending one was delivered.

    Args:
        payload: the occurrence that was delivered.
        source: its ``delay-source``, with or without an occurrence's number.
        now_ms: now, epoch milliseconds; occurrences up to now are skipped.
        cron_time: function that computes the instants of a cron expression.

    Returns:
        The next occurrence; None: the record does not recur, or there is no further occurrence.

    Raises:
        RecordRefusedError: the cron expression or the time zone is invalid.
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
    """Return a schedule's payload with one occurrence less, due 1 ms after the pending one, for a
    dead letter with the rest of the schedule. A record that does not recur is returned unchanged.
    """
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
    """Return the payload of one occurrence of a recurring schedule.

    Args:
        payload: payload of any occurrence of the schedule.
        recurrence: the schedule, with the number of this occurrence and of those that are left.
        source: ``delay-source`` of the schedule, with or without an occurrence's number.
        due_ms: due time of the occurrence, epoch milliseconds; None: there is none.

    Returns:
        The payload; None: there is no occurrence, or it is after the record's expiry.
    """
    identity, _, _, expires_ms, *_ = payload[6] or (None, None, 1, None)
    if due_ms is None or due_ms >= DUE_STOP_MS or (expires_ms is not None and due_ms > expires_ms):
        return None
    named = numbered(source, recurrence.number)
    return (*payload[:5], due_ms, (identity, named, 1, expires_ms, encode(recurrence)))


def numbered(source: bytes, number: int) -> bytes:
    """Return ``delay-source`` of one occurrence: ``topic:partition:offset#number``. ``source``:
    ``delay-source`` of the schedule, with or without an occurrence's number.
    """
    return source.split(b"#", 1)[0] + b"#%d" % number
