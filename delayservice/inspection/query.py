"""Queries about pending records, and how the answers of many shards become one.

Shards answer a page at a time. Records of all of them have one order, that of their positions, so
a page can be merged from theirs and asked on for from where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from typing import Final, Literal, TypeAlias

import msgspec

from delayservice.contract.entry import OFFSET_MAX, Row
from delayservice.contract.names import Header
from delayservice.engine.cursor import Key
from delayservice.engine.pending import Lump

Position: TypeAlias = tuple[int, str, int, int]
"""``(key_ms, delay topic, partition, offset)``: the order of pending records across shards."""

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
HORIZONS_MS: Final = (
    *(5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000),
    *(HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, 24 * HOUR_MS),
)
"""Times ahead up to which waiting records are counted."""


class Search(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pending records by due time; one that is parked counts by the time until which it is.

    Attributes:
        from_ms: first due time, epoch milliseconds.
        to_ms: end of the range.
        target: only records for this target topic; a pattern, as the settings have them.
        topic: only records of this delay topic.
        limit: records at most.
        scan_max: records that one shard looks at for one page.
        after: begin behind this position; None: at the beginning.
        beyond_window: also records that will be rolled before they are due. Their keys are their
            roll times, so everything up to ``to_ms`` has to be looked at.
    """

    from_ms: int
    to_ms: int
    target: str | None = None
    topic: str | None = None
    limit: int
    scan_max: int
    after: Position | None = None
    beyond_window: bool = False


class Find(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The pending record of an id, in whichever shard it is."""

    record_id: bytes


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks for the fate of a source record.

    Attributes:
        topic: the delay topic.
        partition: its partition.
        row: the record, as read from the log.
    """

    topic: str
    partition: int
    row: Row


class Ahead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks how many records are due when, from ``now_ms`` on."""

    now_ms: int


class Standings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks for the nodes, and for the slices that each owns."""


class HeldTopics(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks for the pauses that a worker has read: keys of the pauses topic."""


Question: TypeAlias = Search | Find | Locate | Ahead | Standings | HeldTopics


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A pending record.

    Attributes:
        topic: its delay topic.
        partition: its partition.
        offset: its offset.
        key_ms: when it is looked at next: its due time, or before that its roll time.
        due_ms: its due time, epoch milliseconds.
        target: target topic.
        target_partition: partition there; -1: by key.
        record_id: its ``delay-id``.
        key: output key.
        value: output value; left out of lists.
        value_bytes: its size; None: the value is null.
        headers: own headers; left out of lists.
        source: ``topic:partition:offset`` of the user's original record.
        attempt: 1 for the first.
        expires_ms: after this it is expired.
        recurs: whether it is an occurrence of a recurring schedule.
        marked_by: offset of what cancels or replaces it as soon as it is read; -1: nothing.
    """

    topic: str
    partition: int
    offset: int
    key_ms: int
    due_ms: int
    target: str
    target_partition: int
    record_id: bytes | None
    key: bytes | None
    value: bytes | None
    value_bytes: int | None
    headers: list[Header]
    source: str
    attempt: int
    expires_ms: int | None
    recurs: bool
    marked_by: int

    @property
    def position(self) -> Position:
        """Return its position among all."""
        return self.key_ms, self.topic, self.partition, self.offset


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Pending records in order.

    Attributes:
        rows: the records.
        upto: nothing else lies up to here; None: nothing else at all.
        scanned: records that were looked at.
        damaged: stretches that can't be read now; delivery mends them when they are due.
    """

    rows: list[Pending]
    upto: Position | None
    scanned: int
    damaged: int = 0


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a source record.

    Attributes:
        state: ``pending``; ``late``: due, and about to be settled; ``unread``: the node has not
            read so far; ``settled``; ``control``: a cancel or a fire, not settled yet; ``invalid``:
            about to be dead-lettered.
        detail: a sentence for people.
        pending: the record, while it is pending or late.
    """

    state: Literal["pending", "late", "unread", "settled", "control", "invalid"]
    detail: str
    pending: Pending | None = None


class BacklogCounts(msgspec.Struct, kw_only=True):
    """Counts of records by due time.

    Attributes:
        total: pending records, those of level topics included.
        levels: those of them in level topics, which are not in the lumps.
        lumps: in no particular order; they may overlap.
    """

    total: int = 0
    levels: int = 0
    lumps: list[Lump] = []

    def add(self, other: BacklogCounts) -> None:
        """Count another node's or shard's records in."""
        self.total += other.total
        self.levels += other.levels
        self.lumps = [*self.lumps, *other.lumps]


def merged(pages: Sequence[Page], limit: int) -> Page:
    """Merge the pages of several shards, or workers, into one.

    Only what lies up to where every one of them has looked may be shown: another shard may have
    something in between.
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
    """Return the key behind which a shard begins, so that its page begins behind ``after``."""
    first: Key = (start_ms, -1)
    if after is None:
        return first
    key_ms, after_topic, after_partition, offset = after
    shard, last = (topic, partition), (after_topic, after_partition)
    if shard == last:
        return max(first, (key_ms, offset))
    return max(first, (key_ms, OFFSET_MAX if shard < last else -1))


def together(lumps: Iterable[Lump], now_ms: int) -> list[Lump]:
    """Put records into fewer lumps: of seconds, then minutes, then hours."""
    counts: dict[tuple[int, int], int] = {}
    for start_ms, stop_ms, count in lumps:
        ahead_ms = start_ms - now_ms
        width = HOUR_MS if ahead_ms > 48 * HOUR_MS else MINUTE_MS
        if stop_ms - start_ms <= SECOND_MS and ahead_ms < 10 * MINUTE_MS:
            width = SECOND_MS
        start = start_ms // width * width
        lump = start, max(start + width, stop_ms)
        counts[lump] = counts.get(lump, 0) + count
    return [(start, stop, count) for (start, stop), count in counts.items() if count]


def count_within(lumps: Iterable[Lump], start_ms: int, stop_ms: int) -> int:
    """Estimate the records in ``[start_ms, stop_ms)``; those of a lump lie evenly in it."""
    parts = []  # summed exactly: the order of lumps must not decide how a half is rounded
    for start, stop, count in lumps:
        shared = min(stop, stop_ms) - max(start, start_ms)
        if shared > 0:
            parts.append(count * shared / (stop - start))
    return max(round(fsum(parts)), 0)
