"""Offsets that retention deleted before they were read, and the records that they put in doubt.
Pure.

A *gap* belongs to one store: offsets that it never read. If an owner has processed a cancel, a
replacement or a fire among them, it may have settled any record with an id at a lower offset. A
*lost range* belongs to the shard, and is in its checkpoint: offsets that no owner has processed,
because H skipped them. Records in a gap that are also in a lost range had no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Beyond it, gaps are merged, and the oldest lost ranges are dropped.
RANGES_MAX: Final = 16


class Gap(NamedTuple):
    """Offsets ``[first, stop)`` that retention deleted before they were read. If ``below``
    equals ``stop``, the store lacks them. Else only a search for cancellers lacks them, of the
    requeued records at ``[stop, below)``.
    """

    first: int
    stop: int
    below: int

    @property
    def is_of_store(self) -> bool:
        return self.below == self.stop

    def concerns(self, offset: int, *, is_copy: bool) -> bool:
        """Return whether an unread record in the gap may have settled the record at ``offset``."""
        if self.is_of_store:
            return offset < self.stop
        return is_copy and self.stop <= offset < self.below


class Lost(NamedTuple):
    """Offsets ``[first, stop)`` that a new owner skipped, because retention had deleted them.
    Its store had read those below ``unread``; no owner has read the others.
    """

    first: int
    unread: int
    stop: int


def with_gap(gaps: Sequence[Gap], gap: Gap) -> tuple[Gap, ...]:
    """Return ``gaps`` with ``gap``, in order; beyond ``RANGES_MAX`` the first two are merged."""
    all_gaps = sorted({*gaps, gap})
    while len(all_gaps) > RANGES_MAX:
        one, two = all_gaps[:2]
        stop = max(*one, *two)
        all_gaps[:2] = [Gap(one.first, stop, stop)]
    return tuple(all_gaps)


def stored_without_gap(gaps: Iterable[Gap], start: int, stored: int) -> int:
    """Return the offset up to which a store, with these gaps, has read all from ``start`` on."""
    lacking = [max(gap.first, start) for gap in gaps if gap.stop > start and gap.is_of_store]
    return min([stored, *lacking])


def skipped(ranges: tuple[Lost, ...], h: int, stored: int, log_start: int) -> tuple[Lost, ...]:
    """Return the lost ranges with ``[h, log_start)`` added, which a new owner skips. An earlier
    one that reaches beyond ``h`` is cut there. ``stored``: its store has read all from ``h`` up
    to it.
    """
    if h >= log_start:
        return ranges
    before = [Lost(a, min(b, h), min(c, h)) for a, b, c in ranges if a < h]
    return (*before, Lost(h, min(max(h, stored), log_start), log_start))[-RANGES_MAX:]


def doubtful(gaps: Iterable[Gap], ranges: Sequence[Lost]) -> tuple[Gap, ...]:
    """Return the gaps that no lost range covers: records in them may have settled stored ones."""
    return tuple(gap for gap in gaps if not _was_skipped(gap, ranges))


def _was_skipped(gap: Gap, ranges: Iterable[Lost]) -> bool:
    at = gap.first
    for _, unread, stop in sorted(ranges):
        if unread <= at < stop:
            at = stop
    return at >= gap.stop
