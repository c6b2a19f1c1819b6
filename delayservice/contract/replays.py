"""Replays of dead letters: reads a dead letter, decides whether it may be replayed, and makes the
record that replays it. Pure. Dead letters are made in ``engine.undelivered``.

A replay is exact because a *marker* follows it in the same transaction and in the same partition of
the dead-letter topic: a record without key and value whose header ``delay-replayed`` lists the
replayed offsets. Retention deletes a marker after the dead letters that it lists. A *row* is a
record of the dead-letter topic as a consumer received it (``entry.PolledRecord``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from delayservice.contract import names
from delayservice.contract.codes import COPY_FORGED, HEADER_INVALID, RETRIES_EXHAUSTED
from delayservice.contract.entry import Headers, NewRecord, PolledRecord, RecordPlace, read_place
from delayservice.contract.input_headers import INPUT, OWN_INPUT, ROCKETMQ_TIMES, TARGET_TOPICS
from delayservice.contract.names import Header

REPLAYED: Final = "replayed"
NO_SOURCE: Final = "no-source"
FORGED: Final = "copy-forged"
CONTENT_LOST: Final = "content-lost"
RECURRING: Final = "recurring"
LIMIT: Final = "replays-max"

REASONS: Final = {
    REPLAYED: "replayed already",
    NO_SOURCE: "its source is no partition of a delay topic of this configuration",
    FORGED: "it claimed to be the service's own copy",
    CONTENT_LOST: "the dead letter does not hold the whole record; read it at its source",
    RECURRING: "a recurring schedule has no single due time to be replaced",
    LIMIT: "replayed as often as allowed",
}

_ADDED: Final = frozenset(
    {
        names.DELAY_ERROR,
        names.DELAY_ERROR_DETAIL,
        names.DELAY_SOURCE,
        names.DELAY_SETTLES,
        names.DELAY_SHARD,
    }
)
_REPLAY_PROVENANCE: Final = frozenset({names.DELAY_REPLAYED_FROM, names.DELAY_REPLAYS})
_COUNT: Final = re.compile(rb"\d{1,9}")
_OFFSETS: Final = re.compile(rb"\d{1,19}(,\d{1,19})*")

_REPLACED: Final = frozenset({"times", "backoffs", "retries"})
_RECURRING: Final = frozenset({names.DELAY_CRON, names.DELAY_EVERY})
_OWN_TIMES: Final = frozenset({names.DELAY_AT, names.DELAY_AFTER})
_ROCKETMQ_TIME: Final = {
    names.DELAY_AT: "TIMER_DELIVER_MS",
    names.DELAY_AFTER: "TIMER_DELAY_MS",
}
# It makes the record's key its id, and has no other effect (``input_headers``).
_KEY_IS_ID: Final[Header] = ("schedule_source_type", b"schedule")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it was read from the dead-letter topic."""

    partition: int
    offset: int
    time_ms: int
    """Append time of the dead letter, epoch milliseconds."""
    code: str
    detail: str
    source: RecordPlace | None
    """Place where the user wrote the dead-lettered record; None: unknown."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """Headers of the record, without those that the service added to the dead letter."""

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset

    @property
    def target(self) -> str | None:
        """Return the target topic in the record's headers; None: no header names one."""
        found = [_said(self.headers, name) for name in TARGET_TOPICS]
        return next((text.decode("utf-8", "replace") for text in found if text), None)

    @property
    def record_id(self) -> bytes | None:
        return _said(self.headers, names.DELAY_ID)

    # None: ``delay-replays`` can't be read.
    @property
    def replays(self) -> int | None:
        text = _said(self.headers, names.DELAY_REPLAYS)
        if text is None:
            return 0
        return int(text) if _COUNT.fullmatch(text) else None

    @property
    def value_bytes(self) -> int | None:
        return None if self.value is None else len(self.value)

    @property
    def bytes_held(self) -> int:
        return bytes_of((self.offset, self.time_ms, self.key, self.value, self.headers))


# Number of replays of a record after which it is left, unless more are asked for.
REPLAYS_MAX: Final = 3


# --- read ----------------------------------------------------------------------------------------


def read_letter(partition: int, row: PolledRecord) -> DeadLetter | None:
    """Return the dead letter in a row; None: a marker, or not written by the service."""
    offset, time_ms, key, value, headers = row
    said = dict(headers or ())  # the last of a name counts, and it is the service's
    code = said.get(names.DELAY_ERROR)
    if code is None:
        return None
    return DeadLetter(
        partition=partition,
        offset=offset,
        time_ms=time_ms,
        code=code.decode("utf-8", "replace"),
        detail=(said.get(names.DELAY_ERROR_DETAIL) or b"").decode("utf-8", "replace"),
        source=read_place((said.get(names.DELAY_SOURCE) or b"").decode("latin-1")),
        key=key,
        value=value,
        headers=[header for header in headers or () if header[0] not in _ADDED],
    )


def bytes_of(row: PolledRecord) -> int:
    """Return the size of a row's key, value and headers, bytes."""
    _, _, key, value, headers = row
    own = sum(len(name) + len(text or b"") for name, text in headers or ())
    return len(key or b"") + len(value or b"") + own


def replayed_offsets(row: PolledRecord) -> list[int]:
    """Return the replayed offsets that a marker lists; empty: the row is no marker. A dead letter
    is never one, even if its record has a header ``delay-replayed``.
    """
    said = dict(row[4] or ())
    text = said.get(names.DELAY_REPLAYED)
    if text is None or names.DELAY_ERROR in said or not _OFFSETS.fullmatch(text):
        return []
    return [int(offset) for offset in text.split(b",")]


# --- replay --------------------------------------------------------------------------------------


def refusal(
    letter: DeadLetter,
    replays_max: int,
    is_delay_partition: Callable[[str, int], bool],
    *,
    retimed: bool,
) -> str | None:
    """Return why a dead letter can't be replayed, a key of ``REASONS``; None: it can.

    ``retimed``: the record is to get another due time. ``REPLAYED`` is never returned: the caller
    checks whether the letter was replayed before.
    """
    if letter.source is None or not is_delay_partition(
        letter.source.topic, letter.source.partition
    ):
        return NO_SOURCE
    if letter.code == COPY_FORGED:
        return FORGED
    nothing_left = letter.key is None and letter.value is None and not letter.headers
    if nothing_left or letter.code == HEADER_INVALID:
        return CONTENT_LOST
    if retimed and any(name in _RECURRING for name, _ in letter.headers):
        return RECURRING
    if letter.replays is None or letter.replays >= replays_max:
        return LIMIT
    return None


def rewritten(
    letter: DeadLetter,
    source: RecordPlace,
    time: Header | None = None,
    *,
    is_level: bool = False,
) -> NewRecord:
    """Return the record of a dead letter, to be written again to the partition of ``source``.

    ``time``: ``delay-at`` or ``delay-after`` that replaces its own; ignored on a level topic, where
    both are removed. ``refusal`` must have returned None.
    """
    first = _said(letter.headers, names.DELAY_REPLAYED_FROM) or str(source).encode()
    headers = [header for header in letter.headers if header[0] not in _REPLAY_PROVENANCE]
    if letter.code == RETRIES_EXHAUSTED:  # else it would be dead-lettered again: begin anew
        headers = [header for header in headers if header[0] != names.DELAY_RETRIES]
    if is_level:
        headers = [header for header in headers if header[0] not in _OWN_TIMES]
    elif time is not None:
        headers = _retimed(headers, time)
    headers += [
        (names.DELAY_REPLAYED_FROM, first),
        (names.DELAY_REPLAYS, b"%d" % ((letter.replays or 0) + 1)),
    ]
    return NewRecord(source.topic, source.partition, letter.key, letter.value, headers)


def marker(offsets: Iterable[int]) -> Headers:
    """Return the headers of a marker that lists these offsets of its own partition."""
    return [(names.DELAY_REPLAYED, b",".join(b"%d" % offset for offset in offsets))]


# A time header of another system also decides which id the record has, so it is replaced by one of
# that system that keeps the id and does not contradict ``time``.
def _retimed(headers: Headers, time: Header) -> Headers:
    kept: Headers = []
    for name, value in headers:
        if name in ROCKETMQ_TIMES:
            kept.append((_ROCKETMQ_TIME[time[0]], time[1]))
        elif name not in INPUT or INPUT[name].group not in _REPLACED:
            kept.append((name, value))
        elif name not in OWN_INPUT:
            kept.append(_KEY_IS_ID)
    return [*kept, time]


def _said(headers: Headers, name: str) -> bytes | None:
    return dict(headers).get(name)
