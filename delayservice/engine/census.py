"""Counts of a shard's pending records, by target and by due time.

They are updated as records are stored, and made anew by each scan of the disk. Counts are by the
minute of the key, those of parked records by its second. A minute is dropped as a whole when K (the
key of the shard's cursor) has passed it. Three facts don't follow from the key alone:

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
from delayservice.engine.pending import NO_MARK, Frame, Lump

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_BY_DAY_HOURS: Final = 48
ENTRIES_MAX: Final = 50_000
"""Largest number of counts of a shard, a few megabytes. Beyond it, records of further targets count
for ``OTHERS``, and records due beyond the roll window count at their roll time."""
OTHERS: Final = "(other)"
"""Name under which all targets without a count of their own are counted; no topic can have it."""

_Due: TypeAlias = tuple[int, int]
"""``(start, width)`` of the hour or day in which records are due: epoch milliseconds,
milliseconds."""
_Group: TypeAlias = tuple[str, bool]
"""``(target, has_id)``: the target of the counted records, and whether they have an id."""
_FarGroup: TypeAlias = tuple[str, bool, _Due]
"""``(target, has_id, due)`` of counted records whose key is a roll time: ``due`` is the hour or day
in which they are due."""
Name = TypeVar("Name", str, tuple[str, str])
"""Type of a target topic, or of a pair of delay topic and target topic."""
_Counts: TypeAlias = dict[_Group, int]
_Kept = TypeVar("_Kept")


class Waiting(NamedTuple):
    """Number of pending records of one target, and how many of them are parked."""

    pending: int
    parked: int


class TopicCounts(msgspec.Struct):
    """Numbers of pending records of a delay topic, for metrics.

    Attributes:
        pending: number of all pending records.
        within: numbers of records that are past due or due within 5 s, 10 s … 24 h (one for each
            time in ``inspection.query.HORIZONS_MS``); empty for level topics: not known.
        targets: numbers by target; some targets may be combined under ``OTHERS``.
    """

    pending: int
    within: list[int]
    targets: dict[str, Waiting]

    def add(self, other: TopicCounts) -> None:
        """Add the numbers of the same delay topic in another slice."""
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
        """Count the stored records ``frames``; those with a mark are counted as cancelled
        instead.
        """
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
        """Count a record that is cancelled, parked, due beyond the roll window, or has an id."""
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

    def _count(self, counts: dict[Any, int], group: Any, count: int = 1) -> str:  # noqa: ANN401  # near or far
        """Add ``count`` to ``group`` in ``counts``; return the target under which it is counted:
        its own, or ``OTHERS`` if there are ``ENTRIES_MAX`` counts.
        """
        if group not in counts:
            if self._entries >= ENTRIES_MAX:
                group = (OTHERS, *group[1:])
            self._entries += group not in counts
        counts[group] = counts.get(group, 0) + count
        target: str = group[0]
        return target

    def cancel(self, key_ms: int) -> None:
        """Subtract a record that a cancel, replacement or fire settles. ``key_ms``: its key, epoch
        milliseconds.
        """
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
        """Drop the counts of all minutes before that of ``key_ms``, epoch milliseconds, the key up
        to which the shard is settled.
        """
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

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return ``(start_ms, stop_ms, count)`` of records with keys in ``[start_ms, stop_ms)``,
        epoch ms, whole minutes: of parked records by second; of those due beyond the roll window by
        the hour or day of their due time, which may end after ``stop_ms``; of others by minute.
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

    def _due_lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return ``(start_ms, stop_ms, count)`` by due time, of records whose roll time is in
        ``[start_ms, stop_ms)``, epoch ms.
        """
        dues: Counter[_Due] = Counter()
        for minute, counts in self._far.items():
            if start_ms <= minute * MINUTE_MS < stop_ms:
                for (_, _, due), count in counts.items():
                    dues[due] += count
        return [(max(due, start_ms), due + width, count) for (due, width), count in dues.items()]

    def far_corrections(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return corrections ``(start_ms, stop_ms, count)`` that turn counts by key into counts by
        due time, for records with keys in ``[start_ms, stop_ms)``, epoch ms, whole minutes. The
        minute in which the shard is being settled has no correction, because some of its records
        were rolled already.
        """
        start_ms = max(start_ms, (self._k_ms // MINUTE_MS + 1) * MINUTE_MS)
        found = [
            (minute * MINUTE_MS, (minute + 1) * MINUTE_MS, -sum(counts.values()))
            for minute, counts in self._far.items()
            if counts and start_ms <= minute * MINUTE_MS < stop_ms
        ]
        return found + self._due_lumps(start_ms, stop_ms)

    def cancelled(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return ``(start_ms, stop_ms, -count)`` of cancelled records for each second of
        ``[start_ms, stop_ms)``, epoch ms, by which counts of stored records are too high.
        """
        return [
            (second * SECOND_MS, (second + 1) * SECOND_MS, -count)
            for second, count in self._cancelled.items()
            if start_ms <= second * SECOND_MS < stop_ms
        ]

    def is_plain(self, key_ms: int) -> bool:
        """Return whether counts by key need no correction at ``key_ms``, epoch ms: no record of its
        minute is due beyond the roll window, and none of its second is cancelled.
        """
        return not self._far.get(key_ms // MINUTE_MS) and not self._cancelled[key_ms // SECOND_MS]

    def in_minute(self, minute_ms: int) -> int:
        """Return the number of records with keys in the minute that begins at ``minute_ms``, epoch
        ms. Settled records of it are counted, records due beyond the roll window are not.
        """
        near = self._in_minutes.get(minute_ms // MINUTE_MS, 0)
        first = minute_ms // SECOND_MS
        parked = (self._parked.get(second, {}) for second in range(first, first + 60))
        return near + sum(sum(counts.values()) for counts in parked)

    def by_target(self, next_ms: int, left: int) -> dict[str, Waiting]:
        """Return the numbers of pending records by target, in total and parked.

        Args:
            next_ms: key of the first pending record, epoch milliseconds.
            left: number of pending records with keys in the minute of ``next_ms``, shared among its
                targets.
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


def _due(key_ms: int, due_ms: int) -> _Due:
    """Return start (epoch ms) and width (ms) of the hour in which a record is due, or of the day if
    it is due over 48 h after its key ``key_ms``. Both arguments are epoch ms.
    """
    width_ms = _DAY_MS if due_ms - key_ms > _BY_DAY_HOURS * _HOUR_MS else _HOUR_MS
    return due_ms // width_ms * width_ms, width_ms


def _most_named(*among: dict[Any, int]) -> tuple[dict[Any, int], Any] | None:
    """Return the largest group of records with an id, and the counts of ``among`` that hold it, as
    ``(counts, group)``; None: there is no such group.
    """
    named = [(n, counts, group) for counts in among for group, n in counts.items() if group[1]]
    return max(named, key=lambda one: one[0])[1:] if named else None


def _take_below(counts: dict[int, _Kept], first: int) -> list[_Kept]:
    """Remove the counts of minutes or seconds below ``first`` from ``counts``; return their
    values.
    """
    return [counts.pop(gone) for gone in [known for known in counts if known < first]]


def largest(waiting: Mapping[Name, Waiting], limit: int) -> dict[Name, Waiting]:
    """Return up to ``limit`` targets with their numbers: half of them have the most parked records,
    the rest the most pending ones, so that many failing targets don't hide the healthy ones.
    """
    by_parked = sorted(waiting.items(), key=lambda item: -item[1].parked)
    found = {target: one for target, one in by_parked[: limit // 2] if one.parked}
    left = [item for item in waiting.items() if item[0] not in found]
    left.sort(key=lambda item: -item[1].pending)
    return found | dict(left[: limit - len(found)])


def with_others(waiting: Mapping[str, Waiting], named: Container[str]) -> dict[str, Waiting]:
    """Return the numbers of the targets in ``named``, and the sum of all other targets as
    ``OTHERS``.
    """
    found: dict[str, Waiting] = {}
    for target, one in waiting.items():
        name = target if target in named else OTHERS
        before = found.get(name, _NONE)
        found[name] = Waiting(before.pending + one.pending, before.parked + one.parked)
    return found
