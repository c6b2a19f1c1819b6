"""Computes what a store must add for source records, equally on owners and replicas.

Source: design rules 3 and 13. A record with a key above the committed K is kept. A user record with
an id **marks** the latest unmarked earlier record of that id with its own offset; an ``ABSENT`` one
only notes it, as a **sighting**. No record is deleted here. The *base* of a requeued record is the
first offset at which a record of its id cancels it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakSet

from delayservice.contract.codec import encode_payload
from delayservice.contract.entry import ABSENT, COPY, INVALID, Entry
from delayservice.engine.census import group_of
from delayservice.engine.cursor import NO_MARK, Additions, Key, Named
from delayservice.engine.requeuer import was_tried

# Store.latest_unmarked: the key of the id's latest record before the offset that nothing has
# cancelled, replaced or fired; else None.
LatestUnmarked: TypeAlias = Callable[[bytes, int], Key | None]

# By a requeued record's offset: that of its id's first user record in ``[base, offset)``, which
# settles it, or ``NO_MARK``.
Scans: TypeAlias = Mapping[int, int]


class CopyScan(NamedTuple):
    """Search to be made in the log, for the first user record of an id in ``[base,
    copy_offset)``: it settles the requeued record at ``copy_offset`` with key time ``key_ms``.
    """

    key_ms: int
    copy_offset: int
    record_id: bytes
    base: int


_NEVER_SETTLE: Final = frozenset({COPY, INVALID, ABSENT})


def is_user_record(entry: Entry) -> bool:
    """Return whether a decoded record is a user's valid one, which may settle earlier ones of
    its id.
    """
    return entry[1] not in _NEVER_SETTLE


def bearing_ids(entries: Iterable[Entry]) -> list[tuple[bytes, Entry]]:
    return [(entry[3], entry) for entry in entries if entry[3] is not None]


def content_bytes(entries: Iterable[Entry]) -> int:
    total = 0
    for entry in entries:
        key, value, headers = entry[4][2:5] if entry[1] <= COPY else entry[4]
        total += len(key or b"") + len(value or b"")
        if headers:
            total += sum([len(name) + len(text or b"") for name, text in headers])
    return total


def additions(
    entries: Sequence[Entry], committed_key: Key, latest_unmarked: LatestUnmarked, scans: Scans
) -> Additions:
    """Return the records to keep, ids to index and marks to set for ``entries``, in offset
    order. Records at or below ``committed_key`` are late and not stored. ``latest_unmarked``
    knows all stored before; ``scans`` has a result for every requeued record with an id.
    """
    k_ms, k_offset = committed_key
    # Compared part by part: a tuple for each record would take a fifth of this (bench whole).
    added = Additions(
        [
            (key_ms, offset, NO_MARK, encode_payload(payload))
            for offset, kind, key_ms, _, payload, _ in entries
            if kind <= COPY and (key_ms > k_ms or (key_ms == k_ms and offset > k_offset))
        ]
    )
    names = _Names(added, latest_unmarked)
    for record_id, (offset, kind, key_ms, _, payload, _) in bearing_ids(entries):
        named = None
        if kind <= COPY and (key_ms, offset) > committed_key:
            group = group_of(key_ms, payload[0], payload[5], is_parked=was_tried(payload))
            named = record_id, key_ms, offset, group
        if kind == ABSENT:
            names.absent(record_id, offset)
        elif kind != COPY:
            names.user(record_id, offset, named)
        elif named is not None:
            names.copy(named, scans[offset])
    return added


# The id index of a store, overlaid by the ``Additions`` that are being computed.
class _Names:
    def __init__(self, added: Additions, latest_unmarked: LatestUnmarked) -> None:
        self._added = added
        self._latest_unmarked = latest_unmarked
        self._overlay: dict[bytes, Key | None] = {}

    def user(self, record_id: bytes, offset: int, named: Named | None) -> None:
        """Mark the id's latest unmarked record with ``offset``; ``named``, if the record at that
        offset is pending, takes its place.
        """
        victim = self._latest(record_id, offset)
        if victim is not None:
            self._added.marks.append((record_id, *victim, offset))
        if named is not None:
            self._added.named.append(named)
        self._overlay[record_id] = None if named is None else named[1:3]

    def absent(self, record_id: bytes, offset: int) -> None:
        """Note which record of its id the one at ``offset`` found pending."""
        found = self._latest(record_id, offset)
        if found is not None:
            self._added.sightings.append((offset, *found))

    def _latest(self, record_id: bytes, offset: int) -> Key | None:
        if record_id in self._overlay:
            return self._overlay[record_id]
        return self._latest_unmarked(record_id, offset)

    def copy(self, named: Named, x: int) -> None:
        """Add a requeued record's id; ``x`` marks it, or it is the latest unmarked one if ``x`` is
        ``NO_MARK``. It marks no other record.
        """
        record_id, key_ms, offset, _ = named
        self._added.named.append(named)
        if x != NO_MARK:
            self._added.marks.append((record_id, key_ms, offset, x))
        else:
            self._overlay[record_id] = (key_ms, offset)


# Records of one worker; 365 bytes each, with ids of 36 bytes.
_NAMES_MAX: Final = 100_000
_NAMES_MIN: Final = 100


class NameShares:
    """Makes the ``RecentNames`` of all shards of a worker, which share its memory."""

    def __init__(self) -> None:
        self._made: WeakSet[RecentNames] = WeakSet()

    def make(self) -> RecentNames:
        made = RecentNames(lambda: max(_NAMES_MAX // len(self._made), _NAMES_MIN))
        self._made.add(made)
        return made


class RecentNames:
    """Offsets of recent user records by id, which save most searches of the log.

    Bounded: above twice ``limit`` records, the oldest are dropped down to ``limit``, and the range
    ``[start, stop)`` of known offsets shrinks. A gap in the reading starts a new range.
    """

    def __init__(self, limit: Callable[[], int] = lambda: _NAMES_MAX) -> None:
        self._limit = limit
        self._offsets: dict[bytes, list[int]] = {}
        self._order: list[tuple[int, bytes]] = []
        self.start = 0
        self.stop = 0

    def observe(self, start: int, named: Iterable[tuple[bytes, Entry]], stop: int) -> None:
        """Add the user records among ``named``, the decoded ones with ids at ``[start, stop)``."""
        if start != self.stop:
            self._forget_all(start)
        for record_id, entry in named:
            if is_user_record(entry):
                offset = entry[0]
                self._offsets.setdefault(record_id, []).append(offset)
                self._order.append((offset, record_id))
        self.stop = stop
        limit = self._limit()
        if len(self._order) > 2 * limit:
            self._forget_oldest(limit)

    def first(self, record_id: bytes, base: int, stop: int) -> int | None:
        """Return the offset of the id's first user record in ``[base, stop)``, or ``NO_MARK``;
        None: not all are known, so search the log.
        """
        if base < self.start or stop > self.stop:
            return None
        held = self._offsets.get(record_id, [])
        at = bisect_left(held, base)
        return held[at] if at < len(held) and held[at] < stop else NO_MARK

    def forget_below(self, offset: int) -> None:
        """Forget all if records below ``offset`` are known: known are those from then on."""
        if self.start < offset:
            self._forget_all(offset)

    def _forget_all(self, start: int) -> None:
        self._offsets.clear()
        self._order.clear()
        self.start = self.stop = start

    def _forget_oldest(self, limit: int) -> None:
        dropped = self._order[:-limit]  # oldest first, so each is the first of its id
        del self._order[:-limit]
        for _, record_id in dropped:
            held = self._offsets[record_id]
            del held[0]
            if not held:
                del self._offsets[record_id]
        self.start = self._order[0][0]
