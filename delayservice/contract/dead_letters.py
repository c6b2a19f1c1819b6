"""Dead letters for operators: reading, filtering, and rewriting them for a replay. Pure.

A replay is exact because a *marker* follows it in the same transaction and in the same partition of
the dead-letter topic: a record without key and value whose header ``delay-replayed`` lists the
replayed offsets. Retention deletes a marker after the dead letters that it lists. A *row* is a
record of the dead-letter topic as a consumer received it (``entry.Row``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from delayservice.contract import names
from delayservice.contract.codes import COPY_FORGED, HEADER_INVALID
from delayservice.contract.entry import Headers, Row
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
"""Explanation of each reason for which a dead letter is not replayed, by reason."""

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
_TARGET_TOPICS: Final = (
    names.DELAY_TARGET_TOPIC,
    "scheduler-target-topic",
    "schedule_target_topic",
)

_PLACE: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})(?:#\d{1,19})?")
_COUNT: Final = re.compile(rb"\d{1,9}")
_OFFSETS: Final = re.compile(rb"\d{1,19}(,\d{1,19})*")

_RECURRING: Final = frozenset({names.DELAY_CRON, names.DELAY_EVERY})
_OWN_TIMES: Final = frozenset({names.DELAY_AT, names.DELAY_AFTER})
_ROCKETMQ_TIMES: Final = frozenset(
    {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DELAY"}
)
_KEYED_TIMES: Final = frozenset({"scheduler-epoch", "schedule_target_epoch"})
ALL_TIMES: Final = _OWN_TIMES | _ROCKETMQ_TIMES | _KEYED_TIMES
"""Names of all headers that give a due time or a delay, those of other delay systems included."""
_ROCKETMQ_TIME: Final = {
    names.DELAY_AT: "TIMER_DELIVER_MS",
    names.DELAY_AFTER: "TIMER_DELAY_MS",
}
_KEY_IS_ID: Final[Header] = ("schedule_source_type", b"schedule")
"""Karafka header by which the record's key is its id; it has no other effect (``aliases``)."""


class DeadLetterSource(NamedTuple):
    """Topic, partition and offset at which a user wrote a record, as ``delay-source`` names it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return the source in the form of ``delay-source``: ``topic:partition:offset``."""
        return f"{self.topic}:{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class _Facts:
    """Fields that ``DeadLetter`` and ``Heading`` share."""

    partition: int
    """Partition of the dead-letter topic."""
    offset: int
    """Offset in that partition."""
    time_ms: int
    """Append time of the dead letter, epoch milliseconds."""
    code: str
    """Value of ``delay-error``, one of ``codes.EXPLANATIONS``."""
    detail: str
    """Value of ``delay-error-detail``: why the record was dead-lettered, for people."""
    source: DeadLetterSource | None
    """Place where the user wrote the dead-lettered record; None: unknown."""
    key: bytes | None
    """Key of the dead-lettered record."""

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(partition, offset)`` of the dead letter in the dead-letter topic."""
        return self.partition, self.offset


@dataclass(frozen=True, slots=True)
class DeadLetter(_Facts):
    """A dead letter as it was read from the dead-letter topic."""

    value: bytes | None
    """Value of the dead-lettered record."""
    headers: Headers
    """Headers of the record, without those that the service added to the dead letter."""

    @property
    def target(self) -> str | None:
        """Return the target topic in the record's headers; None: no header names one."""
        found = [_said(self.headers, name) for name in _TARGET_TOPICS]
        return next((text.decode("utf-8", "replace") for text in found if text), None)

    @property
    def record_id(self) -> bytes | None:
        """Return the record's ``delay-id``; None: it has no such header."""
        return _said(self.headers, names.DELAY_ID)

    @property
    def replays(self) -> int | None:
        """Return the number of earlier replays of the record; None if ``delay-replays`` can't be
        read.
        """
        text = _said(self.headers, names.DELAY_REPLAYS)
        if text is None:
            return 0
        return int(text) if _COUNT.fullmatch(text) else None

    @property
    def bytes_held(self) -> int:
        """Return the size of the record's key, value and headers, bytes."""
        own = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + own


@dataclass(frozen=True, slots=True)
class Heading(_Facts):
    """Summary of a dead letter, without value and headers, for lists."""

    target: str | None
    """Target topic in the record's headers; None: no header names one."""
    value_bytes: int | None
    """Size of the value, bytes; None: it is null."""

    @classmethod
    def of(cls, letter: DeadLetter) -> Heading:
        """Return the summary of a dead letter."""
        shared = {field.name: getattr(letter, field.name) for field in fields(_Facts)}
        value_bytes = None if letter.value is None else len(letter.value)
        return cls(**shared, target=letter.target, value_bytes=value_bytes)


class Rewritten(NamedTuple):
    """Record that replays a dead letter; ``topic`` and ``partition`` of a delay topic are where it
    is to be written.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Filter:
    """Selection of dead letters by ``delay-error`` codes, append time and source. An empty or None
    field does not restrict it; ``partition`` and ``offset`` count only with ``topic``.
    """

    codes: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """End of the range of append times, epoch ms, exclusive; ``since_ms`` is its inclusive start.
    """
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    """Offset at which the user wrote the dead-lettered record, in ``partition`` of the delay topic
    ``topic``."""

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        return (
            (not self.codes or letter.code in self.codes)
            and (self.since_ms is None or letter.time_ms >= self.since_ms)
            and (self.until_ms is None or letter.time_ms < self.until_ms)
            and self._is_from(letter.source)
        )

    def _is_from(self, source: DeadLetterSource | None) -> bool:
        if self.topic is None:
            return True
        asked = (self.topic, self.partition, self.offset)
        return source is not None and all(
            wanted is None or wanted == found for wanted, found in zip(asked, source, strict=True)
        )


# --- read ----------------------------------------------------------------------------------------


def read_letter(partition: int, row: Row) -> DeadLetter | None:
    """Return the dead letter in a row; None: the row is a marker, or was not written by the
    service. ``partition``: the row's partition of the dead-letter topic.
    """
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
        source=read_source(said.get(names.DELAY_SOURCE)),
        key=key,
        value=value,
        headers=[header for header in headers or () if header[0] not in _ADDED],
    )


def bytes_of(row: Row) -> int:
    """Return the size of a row's key, value and headers, bytes."""
    _, _, key, value, headers = row
    own = sum(len(name) + len(text or b"") for name, text in headers or ())
    return len(key or b"") + len(value or b"") + own


def read_source(text: bytes | None) -> DeadLetterSource | None:
    """Return the place in a ``delay-source``: ``topic:partition:offset``, with or without the
    number of an occurrence, ``#n``. None: the text has neither form.
    """
    found = _PLACE.fullmatch(text or b"")
    if found is None:
        return None
    return DeadLetterSource(found[1].decode("ascii"), int(found[2]), int(found[3]))


def replayed_offsets(row: Row) -> list[int]:
    """Return the offsets of replayed dead letters that a marker lists; an empty list if the row is
    no marker.

    A dead letter is never a marker, even if its record has a header ``delay-replayed``.
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

    Args:
        letter: the dead letter. Whether it was replayed before is checked by the caller, so
            ``REPLAYED`` is never returned.
        replays_max: largest number of replays of one record.
        is_delay_partition: function that returns whether a topic is a delay topic with this
            partition.
        retimed: whether the record is to get another due time.
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
    source: DeadLetterSource,
    time: Header | None = None,
    *,
    is_level: bool = False,
) -> Rewritten:
    """Return the record of a dead letter, to be written again to the partition of its source. The
    headers ``delay-replayed-from`` and ``delay-replays`` are added.

    Args:
        letter: a dead letter for which ``refusal`` returned None.
        source: the source of the dead letter.
        time: ``delay-at`` or ``delay-after`` with which the record gets a new due time; None: it
            keeps its own.
        is_level: whether its delay topic is a level topic; then ``delay-at`` and ``delay-after``
            are removed, and ``time`` is ignored.
    """
    first = _said(letter.headers, names.DELAY_REPLAYED_FROM) or str(source).encode()
    headers = [header for header in letter.headers if header[0] not in _REPLAY_PROVENANCE]
    if is_level:
        headers = [header for header in headers if header[0] not in _OWN_TIMES]
    elif time is not None:
        headers = _retimed(headers, time)
    headers += [
        (names.DELAY_REPLAYED_FROM, first),
        (names.DELAY_REPLAYS, b"%d" % ((letter.replays or 0) + 1)),
    ]
    return Rewritten(source.topic, source.partition, letter.key, letter.value, headers)


def marker(offsets: Iterable[int]) -> Headers:
    """Return the headers of a marker. ``offsets``: offsets of the replayed dead letters, in the
    partition to which the marker is written.
    """
    return [(names.DELAY_REPLAYED, b",".join(b"%d" % offset for offset in offsets))]


def _retimed(headers: Headers, time: Header) -> Headers:
    """Return the headers with ``time``, ``delay-at`` or ``delay-after``, in place of all time
    headers. A time header of another system also decides which id the record has, so it is replaced
    by a header of that system that keeps the id and does not contradict ``time``.
    """
    kept: Headers = []
    for name, value in headers:
        if name in _ROCKETMQ_TIMES:
            kept.append((_ROCKETMQ_TIME[time[0]], time[1]))
        elif name in _KEYED_TIMES:
            kept.append(_KEY_IS_ID)
        elif name not in _OWN_TIMES:
            kept.append((name, value))
    return [*kept, time]


def _said(headers: Headers, name: str) -> bytes | None:
    """Return the value of the last header named ``name``; None: it is null, or there is no such
    header.
    """
    return dict(headers).get(name)
