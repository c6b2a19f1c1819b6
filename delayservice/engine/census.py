"""Counts of a shard's pending records, by target and by due time.

They are updated as records are stored, and made anew by each scan of the disk. A mark subtracts the
group of its record, which the id index keeps. Groups are counted by the minute of the key, parked
records by its second, and each is dropped as a whole when K has passed it. What is left of the
minute of K follows from the number of stored records, and is shared among its groups in proportion.

The key of a record that is due beyond the roll window is its roll time. It counts in the hour in
which it is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from delayservice.contract.codec import Head, decode_head
from delayservice.engine.cursor import NO_MARK, CountRange, Frame, Group

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_FAR_MS: Final = 48 * HOUR_MS
# Largest number of groups counted in all minutes of a shard together, a few megabytes. Beyond it,
# further groups count for ``OTHERS``, and records due beyond the roll window at their roll time.
ENTRIES_MAX: Final = 50_000
# No topic can have this name.
OTHERS: Final = "(other)"

# A target topic, or a pair of delay topic and target topic.
Name = TypeVar("Name", str, tuple[str, str])
_Kept = TypeVar("_Kept")


class Waiting(NamedTuple):
    """Number of pending records of one target, and how many of them are parked."""

    pending: int
    parked: int


@dataclass(slots=True)
class TopicCounts:
    """Numbers of pending records of a delay topic, for metrics. ``within`` has one for each of
    ``inspection.query.HORIZONS_MS``; empty for level topics: not known.
    """

    pending: int
    within: list[int]
    targets: dict[str, Waiting]

    def add(self, other: TopicCounts) -> None:
        self.pending += other.pending
        if self.within and other.within:
            self.within = [a + b for a, b in zip(self.within, other.within, strict=True)]
        else:
            self.within = self.within or other.within
        for target, (pending, parked) in other.targets.items():
            mine = self.targets.get(target, _NONE)
            self.targets[target] = Waiting(mine.pending + pending, mine.parked + parked)


_NONE: Final = Waiting(0, 0)
_RAW: Final = msgspec.Raw()


def group_of(key_ms: int, target: str, due_ms: int, *, is_parked: bool) -> Group:
    """Return the group in which a pending record is counted; times are epoch milliseconds."""
    return target, due_ms // HOUR_MS * HOUR_MS if due_ms > key_ms else 0, is_parked


class Census:
    """Counts of one shard's pending records by group, and by the minute of their key."""

    def __init__(self) -> None:
        self._minutes: dict[int, dict[Group, int]] = {}
        # Parked records by second of the key: each attempt stores another record of the minute.
        self._parked: dict[int, dict[Group, int]] = {}
        # Marked records, by second of the key.
        self._marked: Counter[int] = Counter()
        # Cached sums: a window of 14 days has 20,000 minutes, too many to add up each second.
        self._near: dict[int, int] = {}
        self._far: Counter[int] = Counter()
        self._totals: Counter[tuple[str, bool]] = Counter()
        self._entries = 0
        self._k_ms = 0

    # --- what is stored ------------------------------------------------------------------------

    def add(self, frames: Iterable[Frame]) -> None:
        """Count stored records; those with a mark are not pending."""
        plain: dict[tuple[int, str], int] = {}
        for frame in frames:
            try:
                head = decode_head(frame[3])
            except msgspec.DecodeError:  # delivery reports it
                head = Head(OTHERS, -1, _RAW, _RAW, _RAW, frame[0], None)
            if frame[2] != NO_MARK:
                self._marked[frame[0] // SECOND_MS] += 1
            elif head.due_ms > frame[0] or (head.meta is not None and head.was_tried):
                group = group_of(frame[0], head.target, head.due_ms, is_parked=head.was_tried)
                self._add(frame[0], group, 1)
            else:
                at = frame[0] // MINUTE_MS, head.target  # nearly all: every record passes here
                plain[at] = plain.get(at, 0) + 1
        for (minute, target), count in plain.items():
            self._add(minute * MINUTE_MS, (target, 0, False), count)

    def _counts(self, key_ms: int, group: Group) -> dict[Group, int]:
        if group[2]:
            return self._parked.setdefault(key_ms // SECOND_MS, {})
        return self._minutes.setdefault(key_ms // MINUTE_MS, {})

    def _add(self, key_ms: int, group: Group, count: int) -> None:
        counts = self._counts(key_ms, group)
        if group not in counts:
            if self._entries >= ENTRIES_MAX:
                group = (OTHERS, 0, group[2])
            self._entries += group not in counts
        counts[group] = counts.get(group, 0) + count
        target, due_ms, is_parked = group
        self._totals[target, is_parked] += count
        if due_ms:
            self._far[due_ms] += count
        else:
            minute = key_ms // MINUTE_MS
            self._near[minute] = self._near.get(minute, 0) + count

    def cancel(self, key_ms: int, group: Group) -> None:
        """Subtract a record with this key that a cancel, replacement or fire settles."""
        if key_ms <= self._k_ms:
            return
        self._marked[key_ms // SECOND_MS] += 1
        counts = self._counts(key_ms, group)
        if group not in counts:
            group = (OTHERS, 0, group[2])
        if counts.get(group):  # a record that a scan could not read was not counted
            self._add(key_ms, group, -1)

    def pass_key(self, key_ms: int) -> None:
        """Drop the counts of all that lies before the minute of K, epoch milliseconds, and of
        parked records before its second.
        """
        before_ms, self._k_ms = self._k_ms, max(self._k_ms, key_ms)
        minute, second = key_ms // MINUTE_MS, key_ms // SECOND_MS
        if second <= before_ms // SECOND_MS:
            return
        gone = _take_below(self._parked, second)
        if minute > before_ms // MINUTE_MS:
            gone += _take_below(self._minutes, minute)
            _take_below(self._near, minute)
            _take_below(self._marked, minute * MINUTE_MS // SECOND_MS)
        for counts in gone:
            self._entries -= len(counts)
            for (target, due_ms, is_parked), count in counts.items():
                self._totals[target, is_parked] -= count
                self._far[due_ms] -= count
        if gone:
            self._totals, self._far = +self._totals, +self._far  # drops counts of 0

    # --- what is asked -------------------------------------------------------------------------

    @property
    def _first(self) -> dict[Group, int]:
        minute, second = self._k_ms // MINUTE_MS, self._k_ms // SECOND_MS
        return self._minutes.get(minute, {}) | self._parked.get(second, {})

    def pending(self, stored: int) -> int:
        """Return the number of pending records. ``stored``: number of stored records with keys
        above K, marked ones included.
        """
        second = self._k_ms // SECOND_MS
        marked = sum([count for at, count in self._marked.items() if at > second])
        total, first = self._totals.total(), sum(self._first.values())
        return min(max(stored - marked, total - first), total)

    def ranges(self, now_ms: int, pending: int) -> list[CountRange]:
        """Return how many of the ``pending`` records are due when, in any order: by minute, by hour
        from two days after ``now_ms`` (epoch ms) on, and beyond the roll window.
        """
        here, far_minute = self._k_ms // MINUTE_MS, (now_ms + _FAR_MS) // MINUTE_MS
        found = Counter[tuple[int, int]]()
        for minute, count in self._near.items():
            if minute > far_minute:
                found[minute * MINUTE_MS // HOUR_MS * HOUR_MS, HOUR_MS] += count
            elif minute > here:
                found[minute * MINUTE_MS, MINUTE_MS] += count
        for due_ms, count in self._far.items():
            found[due_ms, HOUR_MS] += count
        for (_, due_ms, _), count in self._first.items():  # some of them are rolled by now
            found[due_ms, HOUR_MS] -= count * bool(due_ms)
        ranges = [(start, start + width, count) for (start, width), count in found.items() if count]
        left = pending - found.total()
        return ranges if left <= 0 else [*ranges, (self._k_ms, (here + 1) * MINUTE_MS, left)]

    def is_plain(self, key_ms: int) -> bool:
        """Return whether all stored records with keys near ``key_ms``, epoch ms, are due then."""
        groups = self._minutes.get(key_ms // MINUTE_MS, {})
        return not self._marked[key_ms // SECOND_MS] and not any(group[1] for group in groups)

    def by_target(self, pending: int) -> dict[str, Waiting]:
        """Return the ``pending`` records by target."""
        first = sum(self._first.values())
        left = pending - self._totals.total() + first
        share = min(max(left / max(first, 1), 0.0), 1.0)
        counts = self._totals.copy()
        for (target, _, is_parked), count in self._first.items():
            counts[target, is_parked] += round(count * share) - count
        return {
            target: Waiting(counts[target, False] + counts[target, True], counts[target, True])
            for target in {target for (target, _), count in counts.items() if count > 0}
        }


def _take_below(counts: dict[int, _Kept], first: int) -> list[_Kept]:
    return [counts.pop(gone) for gone in [known for known in counts if known < first]]


def largest(waiting: Mapping[Name, Waiting], limit: int) -> dict[Name, Waiting]:
    """Return up to ``limit`` targets: half have the most parked records, the rest the most
    pending ones, so that many failing targets don't hide the healthy ones.
    """
    by_parked = sorted(waiting.items(), key=lambda item: -item[1].parked)
    found = {target: one for target, one in by_parked[: limit // 2] if one.parked}
    left = [item for item in waiting.items() if item[0] not in found]
    left.sort(key=lambda item: -item[1].pending)
    return found | dict(left[: limit - len(found)])


def with_others(waiting: Mapping[str, Waiting], named: Container[str]) -> dict[str, Waiting]:
    """Return the targets in ``named``, and the sum of all others as ``OTHERS``."""
    found: dict[str, Waiting] = {}
    for target, one in waiting.items():
        name = target if target in named else OTHERS
        before = found.get(name, _NONE)
        found[name] = Waiting(before.pending + one.pending, before.parked + one.parked)
    return found
