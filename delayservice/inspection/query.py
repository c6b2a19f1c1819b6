"""Queries about pending records, and the merging of answers from many shards.

Each shard answers with one page. Records of all shards have one order, that of their positions. So
their pages can be merged into one, and the next page begins behind its end.
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
"""Times from now up to which waiting records are counted, in milliseconds."""


class Search(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for pending records by due time; a parked record counts by the end of its pause.

    Attributes:
        from_ms: first due time, epoch milliseconds.
        to_ms: exclusive end of the range, epoch milliseconds.
        target: pattern of target topics, as in settings; None: records for all targets.
        topic: delay topic; None: records of all delay topics.
        limit: largest number of records of a page.
        scan_max: largest number of records that one shard reads for one page.
        after: position behind which the page begins; None: at the beginning.
        beyond_window: whether to include records that will be rolled before they are due. Their
            keys are their roll times, so all records with keys below ``to_ms`` are read.
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
    """Query for the pending record of a ``delay-id``, in any shard."""

    record_id: bytes


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the state of a source record.

    Attributes:
        topic: the delay topic.
        partition: its partition.
        row: the record, as read from the log.
    """

    topic: str
    partition: int
    row: Row


class Ahead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for counts of records by due time, from ``now_ms`` on, epoch milliseconds."""

    now_ms: int


class Standings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the nodes of the cluster, and for the slices that each owns."""


class HeldTopics(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Query for the pauses that a worker has read, as keys of the pauses topic."""


Question: TypeAlias = Search | Find | Locate | Ahead | Standings | HeldTopics


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A pending record, as people read it.

    Attributes:
        topic: its delay topic.
        partition: its partition of the delay topic.
        offset: its offset there.
        key_ms: its key, epoch milliseconds: its due time, roll time, or end of a pause if parked.
        due_ms: its due time, epoch milliseconds.
        target: target topic.
        target_partition: partition of the target topic; -1: chosen by the key.
        record_id: its ``delay-id``; None: it has no id.
        key: output key.
        value: output value; None in lists.
        value_bytes: size of the value; None: the value is null.
        headers: output headers of its own; empty in lists.
        source: ``topic:partition:offset`` of the user's original record.
        attempt: number of the delivery attempt, from 1.
        expires_ms: time after which it expires, epoch milliseconds; None: never.
        recurs: whether it is an occurrence of a recurring schedule.
        marked_by: offset of its canceller, which takes effect when H reaches it; -1: no canceller.
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
        """Return its position in the order of all pending records."""
        return self.key_ms, self.topic, self.partition, self.offset


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of pending records, in order.

    Attributes:
        rows: the records.
        upto: position up to which ``rows`` are complete; None: they are complete to the end.
        scanned: number of records that were read.
        damaged: number of key ranges that can't be read now; delivery rebuilds them when due.
    """

    rows: list[Pending]
    upto: Position | None
    scanned: int
    damaged: int = 0


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """State of a source record.

    Attributes:
        state: ``pending``; ``late``: due, and about to be settled; ``unread``: not yet read by the
            node; ``settled``; ``control``: a cancel or a fire, not settled yet; ``invalid``: about
            to be dead-lettered.
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
        levels: pending records of level topics, which are not in ``lumps``.
        lumps: counts by ranges of due times, in no particular order; ranges may overlap.
    """

    total: int = 0
    levels: int = 0
    lumps: list[Lump] = []

    def add(self, other: BacklogCounts) -> None:
        """Add the counts of another node or shard."""
        self.total += other.total
        self.levels += other.levels
        self.lumps = [*self.lumps, *other.lumps]


def merged(pages: Sequence[Page], limit: int) -> Page:
    """Merge the pages of several shards, or workers, into one.

    The merged page ends at the lowest ``upto``, because beyond it a shard may have further records.
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
    """Return the key above which a shard reads, so that its page begins behind ``after``."""
    first: Key = (start_ms, -1)
    if after is None:
        return first
    key_ms, after_topic, after_partition, offset = after
    shard, last = (topic, partition), (after_topic, after_partition)
    if shard == last:
        return max(first, (key_ms, offset))
    return max(first, (key_ms, OFFSET_MAX if shard < last else -1))


def together(lumps: Iterable[Lump], now_ms: int) -> list[Lump]:
    """Merge lumps: by seconds for the next minutes, then by minutes, and far ahead by hours."""
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
    """Return the estimated records in ``[start_ms, stop_ms)``, if each lump is evenly spread."""
    parts = []  # summed exactly: the order of lumps must not decide how a half is rounded
    for start, stop, count in lumps:
        shared = min(stop, stop_ms) - max(start, start_ms)
        if shared > 0:
            parts.append(count * shared / (stop - start))
    return max(round(fsum(parts)), 0)
