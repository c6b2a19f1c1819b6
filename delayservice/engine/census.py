"""Counts of a shard's waiting records, by target and by due time.

Kept up from what is stored, and made anew by each scan of the disk. Counts are by the minute of the
key, those of parked records by its second, and a minute is forgotten as a whole when K has passed
it. Three things can't be told from the key alone:

- The key of a record that is due beyond the roll window is its roll time. It counts by the hour or
  the day in which it is due.
- A cancel names the key and the id of its victim, not the target. The victim is taken from the
  target that has the most records with an id in its minute, so the sum is always right, and the
  targets are wrong for as long as that minute at most.
- Settled records of the minute that K is in are still counted; ``by_target`` takes what is left.
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
"""Counts that a shard keeps: a few megabytes. Beyond, records of more targets count for ``OTHERS``,
and far ones at their roll time."""
OTHERS: Final = "(other)"
"""Stands for all targets without a count of their own; no topic can have this name."""

_Due: TypeAlias = tuple[int, int]
"""Start and width of the hour or day of a due time, milliseconds."""
_Group: TypeAlias = tuple[str, bool]
"""Target, and whether the records bear an id."""
_FarGroup: TypeAlias = tuple[str, bool, _Due]
"""A group of records whose key does not say when they are due."""
Name = TypeVar("Name", str, tuple[str, str])
"""A target, or a delay topic and a target."""
_Counts: TypeAlias = dict[_Group, int]
_Kept = TypeVar("_Kept")


class Waiting(NamedTuple):
    """Records that wait for one target: all of them, and those of them that are parked."""

    pending: int
    parked: int


class TopicCounts(msgspec.Struct):
    """Records that wait in a delay topic, as metrics have them.

    Attributes:
        pending: all of them.
        within: those that are due already or within each of ``question.HORIZONS_MS``; empty: it is
            not known of level topics.
        targets: by target, of some by name.
    """

    pending: int
    within: list[int]
    targets: dict[str, Waiting]

    def add(self, other: TopicCounts) -> None:
        """Count those of another slice in."""
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
    """The counts of one shard."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Counts] = {}
        self._far: dict[int, dict[_FarGroup, int]] = {}
        self._parked: dict[int, _Counts] = {}
        self._cancelled: Counter[int] = Counter()
        # Sums of the above: a window of 14 days has 20,000 minutes, too many to add up each second.
        self._in_minutes: dict[int, int] = {}
        self._targets: Counter[str] = Counter()
        self._entries = 0
        self._k_ms = 0

    # --- what is stored ------------------------------------------------------------------------

    def add(self, frames: Iterable[Frame]) -> None:
        """Count records in; those with a mark count as cancelled."""
        plain: dict[tuple[int, str], int] = {}
        for frame in frames:
            try:
                head = decode_head(frame[3])
            except msgspec.DecodeError:  # delivery complains of it
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
        """Count a record that is cancelled, parked or far, or bears an id."""
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
        """Count into a group; return the target that it is counted for."""
        if group not in counts:
            if self._entries >= ENTRIES_MAX:
                group = (OTHERS, *group[1:])
            self._entries += group not in counts
        counts[group] = counts.get(group, 0) + count
        target: str = group[0]
        return target

    def cancel(self, key_ms: int) -> None:
        """Take out a record that a cancel, schedule or fire hit; only its key is known."""
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
        """Forget the minutes that K, which is at ``key_ms``, has passed."""
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
        self._targets = +self._targets  # without those of which none is left
        self._entries -= sum(map(len, _take_below(self._parked, second)))
        _take_below(self._in_minutes, minute)
        _take_below(self._cancelled, second)

    # --- what is asked -------------------------------------------------------------------------

    def lumps(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Count the records with keys in ``[start_ms, stop_ms)``, both whole minutes: by the second
        those that are parked, by the minute all others, by the hour or day what is due beyond the
        roll window.
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
        """Return counts, by due time, of records whose roll time is in ``[start_ms, stop_ms)``."""
        dues: Counter[_Due] = Counter()
        for minute, counts in self._far.items():
            if start_ms <= minute * MINUTE_MS < stop_ms:
                for (_, _, due), count in counts.items():
                    dues[due] += count
        return [(max(due, start_ms), due + width, count) for (due, width), count in dues.items()]

    def far_corrections(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return what to add to counts of keys in ``[start_ms, stop_ms)``, whole minutes, to get
        counts by due time. In the minute of K there is nothing to add: some of it was rolled.
        """
        start_ms = max(start_ms, (self._k_ms // MINUTE_MS + 1) * MINUTE_MS)
        found = [
            (minute * MINUTE_MS, (minute + 1) * MINUTE_MS, -sum(counts.values()))
            for minute, counts in self._far.items()
            if counts and start_ms <= minute * MINUTE_MS < stop_ms
        ]
        return found + self._due_lumps(start_ms, stop_ms)

    def cancelled(self, start_ms: int, stop_ms: int) -> list[Lump]:
        """Return what to add to counts of keys in ``[start_ms, stop_ms)``, whole seconds, in which
        cancelled records count: less these.
        """
        return [
            (second * SECOND_MS, (second + 1) * SECOND_MS, -count)
            for second, count in self._cancelled.items()
            if start_ms <= second * SECOND_MS < stop_ms
        ]

    def is_plain(self, key_ms: int) -> bool:
        """Return whether records with this key are due at it, and none was cancelled."""
        return not self._far.get(key_ms // MINUTE_MS) and not self._cancelled[key_ms // SECOND_MS]

    def in_minute(self, minute_ms: int) -> int:
        """Return how many records with keys in a minute were counted, settled ones included, those
        that are due beyond the roll window not.
        """
        near = self._in_minutes.get(minute_ms // MINUTE_MS, 0)
        first = minute_ms // SECOND_MS
        parked = (self._parked.get(second, {}) for second in range(first, first + 60))
        return near + sum(sum(counts.values()) for counts in parked)

    def by_target(self, next_ms: int, left: int) -> dict[str, Waiting]:
        """Return the number of pending records by target.

        Args:
            next_ms: the first key that waits, epoch milliseconds.
            left: how many with keys in its minute do; those of each target have their share.
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
    """Return the hour or the day of a due time that the key does not say."""
    width_ms = _DAY_MS if due_ms - key_ms > _BY_DAY_HOURS * _HOUR_MS else _HOUR_MS
    return due_ms // width_ms * width_ms, width_ms


def _most_named(*among: dict[Any, int]) -> tuple[dict[Any, int], Any] | None:
    """Return the counts that have the largest group of records with an id, and that group."""
    named = [(n, counts, group) for counts in among for group, n in counts.items() if group[1]]
    return max(named, key=lambda one: one[0])[1:] if named else None


def _take_below(counts: dict[int, _Kept], first: int) -> list[_Kept]:
    """Take out what lies before ``first``."""
    return [counts.pop(gone) for gone in [known for known in counts if known < first]]


def largest(waiting: Mapping[Name, Waiting], limit: int) -> dict[Name, Waiting]:
    """Return half of ``limit`` targets with the most parked records, and others with the most
    pending ones: a flood of bad targets does not hide the good ones.
    """
    by_parked = sorted(waiting.items(), key=lambda item: -item[1].parked)
    found = {target: one for target, one in by_parked[: limit // 2] if one.parked}
    left = [item for item in waiting.items() if item[0] not in found]
    left.sort(key=lambda item: -item[1].pending)
    return found | dict(left[: limit - len(found)])


def with_others(waiting: Mapping[str, Waiting], named: Container[str]) -> dict[str, Waiting]:
    """Return what waits for the targets in ``named``, and for all others together."""
    found: dict[str, Waiting] = {}
    for target, one in waiting.items():
        name = target if target in named else OTHERS
        before = found.get(name, _NONE)
        found[name] = Waiting(before.pending + one.pending, before.parked + one.parked)
    return found
