"""Counts of a shard's pending records, by target and by due time.

They are updated as records are stored, and made anew by each scan of the disk. Counts are by the
minute of the key, those of parked records by its second. A minute is dropped as a whole when K has
passed it. Three facts don't follow from the key alone:

- The key of a record that is due beyond the roll window is its roll time. It counts by the hour or
  the day in which it is due.
- A cancel names key and id of the record that it cancels, not the target. One record of the target
  with the most records with an id in that minute is subtracted: the sum is always right, and the
  counts of targets are right again when K has passed that minute.
- Settled records of the minute of K are still counted; ``by_target`` reduces the counts of that
  minute in proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from delayservice.contract.codec import Head, decode_head
from delayservice.engine.cursor import NO_MARK, CountRange, Frame

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_BY_DAY_HOURS: Final = 48
# Largest number of counts of a shard, a few megabytes. Beyond it, further targets count for
# ``OTHERS``, and records due beyond the roll window at their roll time.
ENTRIES_MAX: Final = 50_000
# No topic can have this name.
OTHERS: Final = "(other)"

# (start, width) in epoch ms and ms, of the hour or day in which records are due.
_Due: TypeAlias = tuple[int, int]
_Group: TypeAlias = tuple[str, bool]
# Records whose key is a roll time, with the hour or day in which they are due.
_FarGroup: TypeAlias = tuple[str, bool, _Due]
# A target topic, or a pair of delay topic and target topic.
Name = TypeVar("Name", str, tuple[str, str])
_Counts: TypeAlias = dict[_Group, int]
_Kept = TypeVar("_Kept")


class Waiting(NamedTuple):
    """Number of pending records of one target, and how many of them are parked."""

    pending: int
    parked: int


class TopicCounts(msgspec.Struct):
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


class Census:
    """Counts of one shard's pending records by target and by the minute of their key."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Counts] = {}
        self._far: dict[int, dict[_FarGroup, int]] = {}
        self._parked: dict[int, _Counts] = {}
        self._cancelled: Counter[int] = Counter()
        # Cached sums: a window of 14 days has 20,000 minutes, too many to add up each second.
        self._in_minutes: dict[int, int] = {}
        self._targets: Counter[str] = Counter()
        self._entries = 0
        self._k_ms = 0

    # --- what is stored ------------------------------------------------------------------------

    def add(self, frames: Iterable[Frame]) -> None:
        """Count stored records; those with a mark are counted as cancelled instead."""
        plain: dict[tuple[int, str], int] = {}
        for frame in frames:
            try:
                head = decode_head(frame[3])
            except msgspec.DecodeError:  # delivery reports it
                head = Head(OTHERS, -1, _RAW, _RAW, _RAW, frame[0], None)
            if head.meta is not None or head.due_ms > frame[0] or frame[2] != NO_MARK:
                self._add_other(frame, head)
                continue
            group = frame[0] // MINUTE_MS, head.target  # nearly all: every record passes here
            plain[group] = plain.get(group, 0) + 1
        for (minute, target), count in plain.items():
            self._add_near(minute, (target, False), count)

    def _add_near(self, minute: int, group: _Group, count: int = 1) -> None:
        target = self._count(self._minutes.setdefault(minute, {}), group, count)
        self._in_minutes[minute] = self._in_minutes.get(minute, 0) + count
        self._targets[target] += count

    def _add_other(self, frame: Frame, head: Head) -> None:
        key_ms, group = frame[0], (head.target, head.record_id is not None)
        if frame[2] != NO_MARK:
            self._cancelled[key_ms // SECOND_MS] += 1
        elif head.was_tried:
            self._count(self._parked.setdefault(key_ms // SECOND_MS, {}), group)
        elif head.due_ms <= key_ms:
            self._add_near(key_ms // MINUTE_MS, group)
        else:
            self._add_far(key_ms // MINUTE_MS, (*group, _due(key_ms, head.due_ms)))

    def _add_far(self, minute: int, group: _FarGroup) -> None:
        known = self._far.get(minute, {})
        if group not in known and self._entries >= ENTRIES_MAX:
            self._add_near(minute, group[:2])
            return
        self._far[minute] = known
        self._count(known, group)
        self._targets[group[0]] += 1

    # Returns the target under which it is counted: ``OTHERS`` if there are ``ENTRIES_MAX`` counts.
    def _count(self, counts: dict[Any, int], group: Any, count: int = 1) -> str:  # noqa: ANN401  # near or far
        if group not in counts:
            if self._entries >= ENTRIES_MAX:
                group = (OTHERS, *group[1:])
            self._entries += group not in counts
        counts[group] = counts.get(group, 0) + count
        target: str = group[0]
        return target

    def cancel(self, key_ms: int) -> None:
        """Subtract a record with this key that a cancel, replacement or fire settles."""
        if key_ms <= self._k_ms:
            return
        self._cancelled[key_ms // SECOND_MS] += 1
        minute = key_ms // MINUTE_MS
        near, parked = self._minutes.get(minute, {}), self._parked.get(key_ms // SECOND_MS, {})
        found = _most_named(near, self._far.get(minute, {})) or _most_named(parked)
        if found is None:
            return
        counts, group = found
        counts[group] -= 1
        if not counts[group]:
            del counts[group]
            self._entries -= 1
        if counts is near:
            self._in_minutes[minute] -= 1
        if counts is not parked:
            self._targets[group[0]] -= 1

    def pass_key(self, key_ms: int) -> None:
        """Drop the counts of all minutes before that of K, epoch milliseconds."""
        minute, before = key_ms // MINUTE_MS, self._k_ms // MINUTE_MS
        self._k_ms = max(self._k_ms, key_ms)
        if minute <= before:
            return
        second = minute * MINUTE_MS // SECOND_MS
        gone: list[dict[Any, int]] = [
            *_take_below(self._minutes, minute),
            *_take_below(self._far, minute),
        ]
        for counts in gone:
            self._entries -= len(counts)
            for group, count in counts.items():
                self._targets[group[0]] -= count
        self._targets = +self._targets  # drops targets with a count of 0
        self._entries -= sum(map(len, _take_below(self._parked, second)))
        _take_below(self._in_minutes, minute)
        _take_below(self._cancelled, second)

    # --- what is asked -------------------------------------------------------------------------

    def lumps(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        """Return lumps of records with keys in ``[start_ms, stop_ms)``, epoch ms, whole minutes:
        by minute, parked records by second, those due beyond the roll window by the hour or day
        of their due time, which may end after ``stop_ms``.
        """
        found = [
            (second * SECOND_MS, (second + 1) * SECOND_MS, sum(counts.values()))
            for second, counts in self._parked.items()
            if start_ms <= second * SECOND_MS < stop_ms
        ]
        found += [
            (minute * MINUTE_MS, (minute + 1) * MINUTE_MS, count)
            for minute, count in self._in_minutes.items()
            if count and start_ms <= minute * MINUTE_MS < stop_ms
        ]
        return found + self._due_lumps(start_ms, stop_ms)

    def _due_lumps(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        dues: Counter[_Due] = Counter()
        for minute, counts in self._far.items():
            if start_ms <= minute * MINUTE_MS < stop_ms:
                for (_, _, due), count in counts.items():
                    dues[due] += count
        return [(max(due, start_ms), due + width, count) for (due, width), count in dues.items()]

    def far_corrections(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        """Return lumps that turn counts by key in ``[start_ms, stop_ms)``, whole minutes, into
        counts by due time. The minute being settled has none: some of its records were rolled
        already.
        """
        start_ms = max(start_ms, (self._k_ms // MINUTE_MS + 1) * MINUTE_MS)
        found = [
            (minute * MINUTE_MS, (minute + 1) * MINUTE_MS, -sum(counts.values()))
            for minute, counts in self._far.items()
            if counts and start_ms <= minute * MINUTE_MS < stop_ms
        ]
        return found + self._due_lumps(start_ms, stop_ms)

    def cancelled(self, start_ms: int, stop_ms: int) -> list[CountRange]:
        """Return negative lumps, by second, of cancelled records in counts of stored ones."""
        return [
            (second * SECOND_MS, (second + 1) * SECOND_MS, -count)
            for second, count in self._cancelled.items()
            if start_ms <= second * SECOND_MS < stop_ms
        ]

    def is_plain(self, key_ms: int) -> bool:
        """Return whether counts by key need no correction at ``key_ms``, epoch ms."""
        return not self._far.get(key_ms // MINUTE_MS) and not self._cancelled[key_ms // SECOND_MS]

    def in_minute(self, minute_ms: int) -> int:
        """Return the number of records with keys in a minute, settled ones included, without
        those due beyond the roll window.
        """
        near = self._in_minutes.get(minute_ms // MINUTE_MS, 0)
        first = minute_ms // SECOND_MS
        parked = (self._parked.get(second, {}) for second in range(first, first + 60))
        return near + sum(sum(counts.values()) for counts in parked)

    def by_target(self, next_ms: int, left: int) -> dict[str, Waiting]:
        """Return the pending records by target. ``left`` of them, in the minute of ``next_ms``,
        the first pending key, are shared among its targets.
        """
        next_minute, next_second = next_ms // MINUTE_MS, next_ms // SECOND_MS
        share = min(left / max(self.in_minute(next_minute * MINUTE_MS), 1), 1.0)
        pending = self._targets.copy()
        for all_counts in (self._minutes, self._far):
            for minute in [known for known in all_counts if known < next_minute]:
                for group, count in all_counts[minute].items():
                    pending[group[0]] -= count
        first: Counter[str] = Counter()
        for (target, _), count in self._minutes.get(next_minute, {}).items():
            first[target] += count
        for target, count in first.items():
            pending[target] += round(count * share) - count
        parked: Counter[str] = Counter()
        for second, counts in self._parked.items():
            if second >= next_second:
                for (target, _), count in counts.items():
                    parked[target] += count
        targets = pending.keys() | parked.keys()
        found = {t: Waiting(pending[t] + parked[t], parked[t]) for t in targets}
        return {target: waiting for target, waiting in found.items() if waiting.pending}


# Start and width of the hour, or of the day if the record is due over 48 h after its key.
def _due(key_ms: int, due_ms: int) -> _Due:
    width_ms = _DAY_MS if due_ms - key_ms > _BY_DAY_HOURS * _HOUR_MS else _HOUR_MS
    return due_ms // width_ms * width_ms, width_ms


def _most_named(*among: dict[Any, int]) -> tuple[dict[Any, int], Any] | None:
    named = [(n, counts, group) for counts in among for group, n in counts.items() if group[1]]
    return max(named, key=lambda one: one[0])[1:] if named else None


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
