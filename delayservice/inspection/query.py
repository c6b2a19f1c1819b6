"""Queries of people about pending records, their answers, and the merging of answers from many
shards.

Each shard answers a search with one page of records. The records of all shards have one order, that
of ``Position``. So the pages of all shards can be merged into one, and the next page begins behind
its last position.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from math import fsum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, computed_field
from pydantic.dataclasses import dataclass

from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.cron import cron_time, is_skipped, local_time
from delayservice.contract.entry import OFFSET_MAX, PolledRecord
from delayservice.contract.names import Header
from delayservice.contract.recurrence import Recurrence, upcoming_ms
from delayservice.contract.recurrence import decode as decode_recurrence
from delayservice.engine.cursor import CountRange, Key

# ``(key_ms, delay topic, partition, offset)``: the order of pending records across shards.
Position: TypeAlias = tuple[int, str, int, int]

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_FIRES: Final = 5
# Times from now within which pending records are counted for metrics and the page.
HORIZONS_MS: Final = (
    *(5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000),
    *(HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, 24 * HOUR_MS),
)


class Search(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for one page of pending records by due time. For a parked record, the end of its pause
    counts as its due time.
    """

    from_ms: int
    to_ms: int
    # Patterns of ids and of target topics' names, with ``*`` and ``?``; None: any, or none.
    id: str | None = None
    target: str | None = None
    topic: str | None = None
    recurring: bool = False
    slices: frozenset[int] | None = None
    limit: int
    # Largest number of records that one shard reads from its store for the page.
    scan_max: int
    # Position behind which the page begins; None: at the beginning.
    after: Position | None = None
    # Whether to include records that will be rolled before they are due. The key time of such a
    # record is that of its rolling, so all records with key times before ``to_ms`` are read.
    beyond_window: bool = False


class Find(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the pending record with this ``delay-id``, in any shard."""

    record_id: bytes


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the ``RecordStatus`` of one record; ``row`` is the record as read from the log."""

    topic: str
    partition: int
    row: PolledRecord


class Ahead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for counts of pending records by due time."""

    now_ms: int


class Standings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the nodes of the cluster, and the slices that each node owns."""


class HeldTopics(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the pauses of delivery that a worker knows, as record keys of the pauses topic."""


Question: TypeAlias = Search | Find | Locate | Ahead | Standings | HeldTopics


class Content(BaseModel):
    """Bytes: as text where they are UTF-8, else in base64."""

    encoding: Literal["utf-8", "base64"]
    data: str

    @classmethod
    def of(cls, content: bytes | None) -> Content | None:
        if content is None:
            return None
        try:
            return cls(encoding="utf-8", data=content.decode())
        except UnicodeDecodeError:
            return cls(encoding="base64", data=base64.b64encode(content).decode())


class Fire(BaseModel):
    """A coming occurrence of a recurring schedule."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    due_ms: int
    local: str
    """RFC 3339 in the schedule's time zone."""
    note: str
    """What a change of the clocks does to it; empty: nothing."""


def _fires(rule: Recurrence, due_ms: int, expires_ms: int | None) -> Iterator[Fire]:
    offset = None
    for fire_ms in islice(upcoming_ms(rule, due_ms, expires_ms, cron_time), _FIRES):
        local = local_time(rule.zone, fire_ms)
        note = ""
        if rule.cron and is_skipped(rule.cron, rule.zone, fire_ms - rule.shift_ms):
            note = "moved: clocks skip its time"
        elif offset not in (None, local.utcoffset()):
            note = "clocks have changed since the one before"
        offset = local.utcoffset()
        yield Fire(due_ms=fire_ms, local=local.isoformat(" ", "milliseconds"), note=note)


class NamedContent(BaseModel):
    """A header of a record."""

    name: str
    value: Content | None

    @classmethod
    def all_of(cls, headers: Sequence[Header]) -> list[NamedContent]:
        return [cls(name=name, value=Content.of(value)) for name, value in headers]


# Bytes and headers that become ``Content`` in JSON.
ShownBytes = Annotated[bytes | None, PlainSerializer(Content.of, return_type=Content | None)]
ShownHeaders = Annotated[
    list[Header], PlainSerializer(NamedContent.all_of, return_type=list[NamedContent])
]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(use_attribute_docstrings=True))
class Pending:
    """A pending record."""

    # A dataclass, for msgspec packs it in the answers of workers.
    topic: str
    """Its delay topic."""
    partition: int
    offset: int
    id: ShownBytes
    """Its `delay-id`."""
    due_ms: int
    """Due time."""
    next_ms: int
    """Next processing: due time, roll or retry. Its key time."""
    target: str
    """Target topic."""
    target_partition: int | None
    """null: chosen by the key."""
    key: ShownBytes
    """Output key."""
    value_bytes: int | None
    """Size of the value; null: it is null."""
    source: str
    """`topic:partition:offset` of the producer's own record."""
    attempt: int
    """Number of the delivery attempt, from 1."""
    expires_ms: int | None
    """Time from which it is not delivered."""
    recurs: bool
    """An occurrence of a recurring schedule."""
    marked_by: int | None
    """Offset of the record that is about to cancel or replace it; null: none."""
    value: ShownBytes = None
    """Absent in lists."""
    headers: Annotated[ShownHeaders, Field(default_factory=list)]
    """Its own headers, as they will be delivered. Absent in lists."""
    recurrence: Annotated[bytes | None, Field(exclude=True)] = None
    """Its encoded ``Recurrence``; None in lists."""

    # Computed in the process that shows it: a search of the calendar would delay deliveries.
    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def fires(self) -> list[Fire]:
        """Its next occurrences, five at most. Empty in lists."""
        found: list[Fire] = []
        if self.recurrence is not None:
            rule = decode_recurrence(self.recurrence)
            # A zone that this node does not know, or the end of the calendar.
            with suppress(RecordRefusedError, OverflowError):
                found.extend(_fires(rule, self.due_ms, self.expires_ms))
        return found

    @property
    def position(self) -> Position:
        return self.next_ms, self.topic, self.partition, self.offset


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Page of pending records, in the order of their positions."""

    rows: list[Pending]
    # Position up to which ``rows`` has all records that match; None: no further record matches.
    upto: Position | None
    scanned: int
    # Number of key ranges that can't be read now; delivery rebuilds them when they are due.
    damaged: int = 0


class RecordStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of one record of a delay topic; ``detail`` explains it in one sentence for people, and
    ``record`` is what was scheduled, pending or settled; None: it is no schedule.

    ``state`` is ``pending``; ``late``: due, and about to be settled; ``unread``: not read by the
    node yet; ``settled``; ``control``: a cancel or a fire that is not settled yet; ``invalid``:
    about to be dead-lettered; or ``elsewhere``: the node keeps no copy of its shard.
    """

    state: Literal["pending", "late", "unread", "settled", "control", "invalid", "elsewhere"]
    detail: str
    record: Pending | None = None


class BacklogCounts(msgspec.Struct, kw_only=True):
    """Counts of pending records by due time. ``total`` includes the ``levels``, records of level
    topics, and those of shards that are not counted yet after a start; both are not in ``ranges``.
    These are in no order and may overlap. What is due before ``now_ms``, epoch ms, is exact.
    """

    now_ms: int = 0
    total: int = 0
    levels: int = 0
    ranges: list[CountRange] = []

    def add(self, other: BacklogCounts) -> None:
        self.total += other.total
        self.levels += other.levels
        self.ranges = [*self.ranges, *other.ranges]


def merged(pages: Sequence[Page], limit: int) -> Page:
    """Return one page of at most ``limit`` records, merged from the pages of several shards or
    workers.

    The merged page ends at the lowest ``upto`` of all pages, because behind it a shard may have
    more records.
    """
    bounds = [page.upto for page in pages if page.upto is not None]
    bound = min(bounds, default=None)
    rows = sorted((row for page in pages for row in page.rows), key=lambda row: row.position)
    if bound is not None:
        rows = [row for row in rows if row.position <= bound]
    if len(rows) > limit:
        rows = rows[:limit]
        bound = rows[-1].position
    return Page(
        rows=rows,
        upto=bound,
        scanned=sum(page.scanned for page in pages),
        damaged=sum(page.damaged for page in pages),
    )


def key_after(after: Position | None, topic: str, partition: int, start_ms: int) -> Key:
    """Return the key above which a shard reads, so that its page begins behind the position
    ``after``; None: at ``start_ms``, epoch milliseconds.
    """
    first: Key = (start_ms, -1)
    if after is None:
        return first
    key_ms, after_topic, after_partition, offset = after
    shard, last = (topic, partition), (after_topic, after_partition)
    if shard == last:
        return max(first, (key_ms, offset))
    return max(first, (key_ms, OFFSET_MAX if shard < last else -1))


def total_of(ranges: Iterable[CountRange]) -> int:
    return sum([count for _, _, count in ranges])


def counts_before(ranges: Iterable[CountRange], stops_ms: Sequence[int]) -> list[int]:
    """Return for each of ``stops_ms``, ascending times in epoch milliseconds, the estimated number
    of records due before it, if the records of each range are spread evenly.
    """
    counts = [0] * (len(stops_ms) + 1)  # each adds to all that follow
    parts: list[list[float]] = [[] for _ in stops_ms]
    for start_ms, stop_ms, count in ranges:
        whole = bisect_left(stops_ms, stop_ms)
        counts[whole] += count
        for at in range(bisect_right(stops_ms, start_ms), whole):
            parts[at].append(count * (stops_ms[at] - start_ms) / (stop_ms - start_ms))
    # Summed exactly: the order of ranges must not decide how a half is rounded.
    return [
        round(fsum((total, *part))) for total, part in zip(accumulate(counts), parts, strict=False)
    ]
