"""A store in memory that keeps, across a crash, what rule 4 allows a durable store to keep.

Everything below the horizon of the last ``sync`` is there after a crash. What lies above it
(frames, marks, names, each on its own) may be there or not, and stays invisible until it is
appended again.
What was pruned may be back. A slot may be lost and is then reported, not skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from delayservice.base.errors import SlotDamagedError
from delayservice.engine.cursor import NO_MARK, Cursor, Frame, Group, Key, Mark, Named, Sighting
from delayservice.store.base import Scanner, Store, StoreStats
from tests.simulation.history import ViolationError

SLOT_MS = 100


class SimStore(Store):
    """Frames by offset. Visible is what lies below the stop offset, marks included."""

    def __init__(self, rng: Random, point: Callable[[str], None], *, tidy: bool) -> None:
        """``point`` is called where a crash may come.

        ``tidy``: what was above the horizon after a crash is gone unless it is appended again; else
        it may come to light when offsets above it are appended, as it lies in the same files.
        """
        self._rng = rng
        self._tidy = tidy
        self._point = point
        self._frames: dict[int, tuple[int, bytes]] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._named: dict[bytes, dict[int, int]] = {}
        self._groups: dict[int, Group] = {}
        self._sightings: list[tuple[int, Key]] = []
        self._pruned: dict[int, tuple[int, bytes]] = {}
        self._lost_slots: list[tuple[int, int]] = []
        self._stop_offset = 0
        self._durable_offset = 0
        self._label = self._durable_label = b""

    # --- life ----------------------------------------------------------------------------------

    def open(self) -> int:
        return self._stop_offset

    @property
    def label(self) -> bytes:
        return self._label

    def set_label(self, label: bytes) -> None:
        """A crash may come before and after."""
        self._point("before label")
        self._label = label
        self._point("after label")

    def crash(self) -> None:
        """The process died: only what is durable is left for certain."""
        horizon = self._stop_offset = self._durable_offset
        self._label = self._durable_label
        rng = self._rng
        for offset in [o for o in self._frames if o >= horizon and rng.random() < 0.5]:
            del self._frames[offset]
        for offset in [o for o, m in self._marks.items() if m[0] >= horizon and rng.random() < 0.5]:
            del self._marks[offset]
        self._sightings = [s for s in self._sightings if s[0] < horizon or rng.random() < 0.5]
        for names in self._named.values():
            for offset in [o for o in names if o >= horizon and rng.random() < 0.5]:
                del names[offset]
        for offset, frame in self._pruned.items():
            if rng.random() < 0.5:
                self._frames.setdefault(offset, frame)

    def wipe(self) -> None:
        """The disk was replaced, or the manifest is gone."""
        self._frames.clear()
        self._marks.clear()
        self._named.clear()
        self._sightings.clear()
        self._pruned.clear()
        self._lost_slots.clear()
        self._stop_offset = self._durable_offset = 0
        self._label = self._durable_label = b""

    def lose_slot(self) -> None:
        """A slot's file is gone, and the store will notice when it reads there."""
        if not self._frames:
            return
        key_ms = self._rng.choice([frame[0] for frame in self._frames.values()])
        start_ms = key_ms - key_ms % SLOT_MS
        self._lost_slots.append((start_ms, start_ms + SLOT_MS))
        for offset in [o for o, f in self._frames.items() if self._in_slot(f[0], start_ms)]:
            del self._frames[offset]

    @staticmethod
    def _in_slot(key_ms: int, start_ms: int) -> bool:
        return start_ms <= key_ms < start_ms + SLOT_MS

    # --- write ---------------------------------------------------------------------------------

    def append(
        self,
        frames: Sequence[Frame],
        named: Sequence[Named],
        marks: Sequence[Mark],
        stop_offset: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        """A crash may come before and after."""
        self._point("before append")
        if self._tidy:
            self._drop_invisible()
        appended = {frame[1] for frame in frames}
        twice = [o for o in self._frames.keys() & appended if o < self._stop_offset]
        if twice:
            raise ViolationError(f"offsets {twice} are below S and appended a second time")
        self._drop_unconfirmed(appended, stop_offset)
        for key_ms, offset, mark, payload in frames:
            self._frames[offset] = (key_ms, payload)
            self._pruned.pop(offset, None)
            if mark != NO_MARK:
                self._marks[offset] = (mark, key_ms)
        for record_id, key_ms, offset, group in named:
            self._named.setdefault(record_id, {})[offset] = key_ms
            self._groups[offset] = group
        for _, key_ms, offset, mark in marks:
            self._marks[offset] = (mark, key_ms)
        self._sightings += [(by, (key_ms, offset)) for by, key_ms, offset in sightings]
        self._stop_offset = stop_offset
        if self._rng.random() < 0.3:
            self.sync()
        self._point("after append")

    def _drop_unconfirmed(self, again: set[int], stop_offset: int) -> None:
        """What an earlier life had of offsets that come by now becomes visible only if it is
        appended again, marks too: it may have been read by contracts that had ended, and settled
        since, or the log may have lost it.
        """
        marks = self._marks
        self._marks = {
            o: m for o, m in marks.items() if not self._stop_offset <= m[0] < stop_offset
        }
        self._sightings = [
            s for s in self._sightings if not self._stop_offset <= s[0] < stop_offset
        ]
        come = set(range(self._stop_offset, stop_offset)) - again
        for offset in self._frames.keys() & come:
            del self._frames[offset]
        for names in self._named.values():
            for offset in names.keys() & come:
                del names[offset]

    def _drop_invisible(self) -> None:
        stop = self._stop_offset
        self._frames = {o: f for o, f in self._frames.items() if o < stop}
        self._marks = {o: m for o, m in self._marks.items() if m[0] < stop}
        self._sightings = [one for one in self._sightings if one[0] < stop]
        for record_id, names in self._named.items():
            self._named[record_id] = {o: key_ms for o, key_ms in names.items() if o < stop}

    def rebuild(self, start_ms: int, stop_ms: int, frames: Sequence[Frame]) -> None:
        self._lost_slots = [s for s in self._lost_slots if s != (start_ms, stop_ms)]
        for key_ms, offset, mark, payload in frames:
            self._frames[offset] = (key_ms, payload)
            if mark != NO_MARK:
                self._marks[offset] = (mark, key_ms)

    def prune(self, cursor: Cursor) -> None:
        """Forget some, none or all of what is useless."""
        self._point("before prune")
        share = self._rng.choice((0.0, 0.5, 1.0, 1.0))
        for offset, (key_ms, _) in list(self._frames.items()):
            mark = self._mark_of(offset)
            useless = key_ms < cursor.key[0] or cursor.has_settled((key_ms, offset), mark)
            if useless and offset < self._stop_offset and self._rng.random() < share:
                self._pruned[offset] = self._frames.pop(offset)
        self._point("after prune")

    def sync(self, *, wait: bool = True) -> int:
        del wait
        self._durable_offset = self._stop_offset
        self._durable_label = self._label
        self._pruned.clear()
        return self._durable_offset

    def reset(self) -> None:
        self.wipe()

    def close(self) -> None:
        self.sync()

    # --- read ----------------------------------------------------------------------------------

    def _mark_of(self, offset: int) -> int:
        mark, _ = self._marks.get(offset, (NO_MARK, 0))
        return mark if mark < self._stop_offset else NO_MARK

    def _visible(self) -> list[Frame]:
        return sorted(
            (key_ms, offset, self._mark_of(offset), payload)
            for offset, (key_ms, payload) in self._frames.items()
            if offset < self._stop_offset
        )

    def read_due(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        self._point("read due")
        return self._read(after, upto_ms, limit)

    def _read(self, after: Key, upto_ms: int, limit: int) -> list[Frame]:
        self._check_slots(after, upto_ms)
        frames = [f for f in self._visible() if f[:2] > after and f[0] <= upto_ms]
        return frames[:limit]

    def _check_slots(self, after: Key, upto_ms: int) -> None:
        for start_ms, stop_ms in self._lost_slots:
            if start_ms <= upto_ms and stop_ms > after[0]:
                raise SlotDamagedError(
                    "lost",
                    start_ms=start_ms,
                    stop_ms=stop_ms,
                    first_offset=0,
                    stop_offset=self._stop_offset,
                )

    def next_due_ms(self, after: Key) -> int | None:
        starts = [start_ms for start_ms, stop_ms in self._lost_slots if stop_ms > after[0]]
        return min(starts + [f[0] for f in self._visible() if f[:2] > after], default=None)

    def latest_unmarked(self, record_id: bytes, below: int) -> Key | None:
        """What is behind a marked record is never found again."""
        names = self._named.get(record_id, {})
        for offset in sorted(names, reverse=True):
            mark = self._mark_of(offset)
            if offset >= min(below, self._stop_offset) or NO_MARK < mark < offset:
                continue  # invisible, or a copy that was marked before it came
            return (names[offset], offset) if mark == NO_MARK else None
        return None

    def group_of(self, record_id: bytes) -> Group | None:
        key = self.latest_unmarked(record_id, self._stop_offset)
        return None if key is None else self._groups[key[1]]

    def marked_from(self, mark: int) -> list[tuple[int, Key]]:
        kept = set(self._frames) | {
            o
            for o, (_, key_ms) in self._marks.items()
            if any(start <= key_ms < stop for start, stop in self._lost_slots)
        }
        return sorted(
            (found, (key_ms, offset))
            for offset, (found, key_ms) in self._marks.items()
            if mark <= found < self._stop_offset and offset < self._stop_offset and offset in kept
        )

    def sighted_from(self, seen_by: int) -> list[tuple[int, Key]]:
        return [one for one in self._sightings if seen_by <= one[0] < self._stop_offset]

    def scanner(self, *, for_repair: bool = False) -> Scanner:  # noqa: ARG002
        return Scanner(self._read)

    def stats(self) -> StoreStats:
        return StoreStats(len(self._frames), 0, self._durable_offset)
