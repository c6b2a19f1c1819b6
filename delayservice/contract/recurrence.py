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

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

from delayservice.contract import names
from delayservice.contract.codec import Meta, Payload, packed_recurrence
from delayservice.contract.names import Header
from delayservice.contract.times import DUE_STOP_MS

# (cron expression, IANA time zone, after_ms) to the first later instant, epoch ms; None: there is
# none. Raises ``RecordRefusedError`` if the expression or the zone is invalid.
CronTime: TypeAlias = Callable[[str, str, int], int | None]

_UTC: Final = "UTC"


class Recurrence(msgspec.Struct, array_like=True, frozen=True):
    """Occurrences of a recurring schedule.

    ``every_ms`` 0: ``cron`` applies, five fields, or six with seconds first, in the IANA zone
    ``zone``. ``left`` counts the pending occurrence too; None: unlimited. ``number`` of the pending
    one is from 1; 0: the first is not computed yet. ``start_ms``, epoch ms, bounds a cron schedule;
    0: it is not given. ``shift_ms`` moves each occurrence later, within the schedule's window.
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
        return None if self.left is None else self.left - 1

    def headers(self) -> list[Header]:
        """Return the input headers for it, without start and window, for a dead letter."""
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

decode: Callable[[bytes], Recurrence] = msgspec.msgpack.Decoder(Recurrence).decode


def recurs(meta: Meta) -> bool:
    return packed_recurrence(meta) is not None


def recurrence_of(meta: Meta | None) -> Recurrence | None:
    packed = packed_recurrence(meta)
    return None if packed is None else decode(packed)


def first_ms(recurrence: Recurrence, written_ms: int, cron_time: CronTime) -> int | None:
    """Return a cron schedule's first occurrence plus ``shift_ms``, epoch ms; None: there is none.
    Raise ``RecordRefusedError`` if the expression or the zone is invalid.
    """
    after_ms = recurrence.start_ms - 1 if recurrence.start_ms else written_ms
    return _shifted(recurrence, after_ms, cron_time)


def following(payload: Payload, source: bytes, now_ms: int, cron_time: CronTime) -> Payload | None:
    """Return the payload of the occurrence after the delivered one and after ``now_ms`` (epoch ms);
    None: there is none. Raise ``RecordRefusedError`` if expression or zone is invalid.
    """
    recurrence = recurrence_of(payload[6])
    if recurrence is None or recurrence.left == 1:
        return None
    due_ms = _next_ms(recurrence, payload[5], now_ms, cron_time)
    after = msgspec.structs.replace(
        recurrence, number=recurrence.number + 1, left=recurrence.left_after
    )
    return at_occurrence(payload, after, source, due_ms)


def upcoming_ms(
    recurrence: Recurrence, due_ms: int, expires_ms: int | None, cron_time: CronTime
) -> Iterator[int]:
    """Yield the due times, epoch ms, of the occurrences from the pending one on, which is due at
    ``due_ms``. Raise ``RecordRefusedError`` if expression or zone is invalid.
    """
    left = recurrence.left
    found_ms = due_ms if recurrence.number else first_ms(recurrence, due_ms, cron_time)
    stop_ms = DUE_STOP_MS if expires_ms is None else expires_ms + 1
    while found_ms is not None and found_ms < stop_ms and left != 0:
        yield found_ms
        left = None if left is None else left - 1
        found_ms = _next_ms(recurrence, found_ms, found_ms, cron_time)


def left_after(payload: Payload) -> Payload:
    """Return a schedule's payload with one occurrence less, due 1 ms later, for the dead letter of
    the rest. Another payload is returned unchanged.
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
    """Return the payload of the schedule's occurrence at ``due_ms``, epoch ms; None: ``due_ms`` is
    None, or after the expiry.
    """
    identity, _, _, expires_ms, *_ = payload[6] or (None, None, 1, None)
    if due_ms is None or due_ms >= DUE_STOP_MS or (expires_ms is not None and due_ms > expires_ms):
        return None
    named = numbered(source, recurrence.number)
    return (*payload[:5], due_ms, (identity, named, 1, expires_ms, encode(recurrence)))


def numbered(source: bytes, number: int) -> bytes:
    """Return ``delay-source`` of an occurrence: ``topic:partition:offset#number``."""
    return source.split(b"#", 1)[0] + b"#%d" % number
