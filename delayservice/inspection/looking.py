"""Answers of a lane to queries of people about its pending records.

A query delays the delivery of the slice, so its work is limited. It does not rebuild damaged parts
of a store, which delivery does: a search counts them, and a look for one record in them fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from delayservice.contract.codec import Payload, decode_payload, packed_recurrence
from delayservice.contract.entry import (
    COPY,
    HOMEBOUND,
    INVALID,
    OFFSET_MAX,
    SCHEDULE,
    Entry,
    scheduled,
)
from delayservice.contract.home import Sent
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.census import MINUTE_MS
from delayservice.engine.cursor import NO_MARK, CountRange, Frame, Key
from delayservice.inspection.query import (
    BacklogCounts,
    Find,
    Locate,
    Page,
    Pending,
    RecordStatus,
    Search,
    key_after,
    total_of,
)
from delayservice.slices.lane import Lane

_CHUNK_ROWS: Final = 500
_NEAR_ROWS: Final = 200
_OVERDUE_ROWS: Final = 2_000
_FIRST_ROWS: Final = 20
_SETTLED: Final = "settled; what became of it is not in what the topics still hold"
_SENT: Final = "it was sent, or waits to be sent,"
_END: Final[Key] = (DUE_STOP_MS, OFFSET_MAX)


class LaneSearch:
    """Search for one page of a lane's pending records, in key order and small steps. ``read`` must
    not run while the worker's loop uses the lane; ``sift`` and ``page`` may.
    """

    def __init__(self, lane: Lane, asked: Search) -> None:
        self.lane = lane
        self._asked = asked
        start_ms = 0 if asked.beyond_window else asked.from_ms
        self._after = key_after(asked.after, lane.topic, lane.partition, start_ms)
        self._upto: Key = (asked.to_ms - 1, OFFSET_MAX)
        self._scanner = lane.store.scanner()
        self._frames: list[Frame] = []
        self._rows: list[Pending] = []
        self._scanned = self._damaged = 0
        is_asked = asked.slices is None or lane.partition in asked.slices
        self._is_full = not is_asked or asked.topic not in (None, lane.topic)
        self._is_whole = self._is_full or self._after >= self._upto

    @property
    def is_over(self) -> bool:
        return self._is_full or self._is_whole

    def read(self) -> None:
        left = self._asked.scan_max - self._scanned
        self._frames, self._after, damage = self._scanner.read_on(
            self._after, self._upto, min(_CHUNK_ROWS, left)
        )
        self._damaged += damage is not None
        self._is_whole = self._after >= self._upto

    def sift(self) -> None:
        """Add to the page the records of the last ``read`` that match the query."""
        for frame in self._frames:
            self._scanned += 1
            found = _wanted(self.lane, frame, self._asked)
            if found is not None:
                self._rows.append(found)
            if len(self._rows) >= self._asked.limit:
                self._after, self._is_whole, self._is_full = frame[:2], False, True
                break
        self._is_full = self._is_full or self._scanned >= self._asked.scan_max
        self._frames = []

    def page(self) -> Page:
        key_ms, offset = self._after
        upto = None if self._is_whole else (key_ms, self.lane.topic, self.lane.partition, offset)
        return Page(rows=self._rows, upto=upto, scanned=self._scanned, damaged=self._damaged)


def _wanted(lane: Lane, frame: Frame, asked: Search) -> Pending | None:
    key_ms, offset, mark, packed = frame
    if lane.shard.committed.has_settled((key_ms, offset), mark):
        return None
    payload = decode_payload(packed)
    target, due_ms = payload[0], payload[5]
    if not asked.from_ms <= max(due_ms, key_ms) < asked.to_ms:
        return None
    if asked.target is not None and not _is_like(target, asked.target):
        return None
    if asked.recurring and packed_recurrence(payload[6]) is None:
        return None
    if asked.id is not None:
        record_id = payload[6][0] if payload[6] is not None else None
        if record_id is None or not _is_like(record_id.decode(errors="replace"), asked.id):
            return None
    return pending_of(lane.place, (key_ms, offset), mark, payload, whole=False)


def _is_like(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def find(lane: Lane, asked: Find) -> Pending | None:
    key = lane.store.latest_unmarked(asked.record_id, lane.shard.stored)
    return None if key is None else _at(lane, key)


def _at(lane: Lane, key: Key) -> Pending | None:
    # Damage is raised: whether the record is pending is not known then.
    found = lane.store.scanner().read((key[0], key[1] - 1), key[0], 1)
    if not found or found[0][:2] != key or lane.shard.committed.has_settled(key, found[0][2]):
        return None
    _, _, mark, packed = found[0]
    return pending_of(lane.place, key, mark, decode_payload(packed), whole=True)


def _frames(lane: Lane, after: Key, upto: Key, at_once: int) -> Iterator[Frame]:
    # Settled ones are included, damaged parts are not.
    scanner = lane.store.scanner()
    while after < upto:
        frames, after, _ = scanner.read_on(after, upto, at_once)
        yield from frames


def pending_of(
    place: tuple[str, int], key: Key, mark: int, payload: Payload, *, whole: bool
) -> Pending:
    topic, number = place
    target, target_partition, record_key, value, headers, due_ms, meta = payload
    record_id, source, attempt, expires_ms = meta[:4] if meta is not None else (None, None, 1, None)
    return Pending(
        topic=topic,
        partition=number,
        offset=key[1],
        next_ms=key[0],
        due_ms=due_ms,
        target=target,
        target_partition=target_partition if target_partition >= 0 else None,
        id=record_id,
        key=record_key,
        value=value if whole else None,
        value_bytes=None if value is None else len(value),
        headers=headers if whole else [],
        source=source.decode() if source else f"{topic}:{number}:{key[1]}",
        attempt=attempt,
        expires_ms=expires_ms,
        recurs=(recurrence := packed_recurrence(meta)) is not None,
        recurrence=recurrence if whole else None,
        marked_by=mark if mark != NO_MARK else None,
    )


def locate(lane: Lane, asked: Locate) -> RecordStatus:
    entry = lane.reader.read(*asked.row)
    if entry[1] not in (SCHEDULE, COPY):
        return _locate_other(lane, entry)
    offset, _, key_ms, _, payload, _ = entry
    committed = lane.shard.committed
    is_passed = offset < committed.offset
    row = pending_of(lane.place, (key_ms, offset), NO_MARK, payload, whole=True)
    if lane.window is not None and not is_passed:
        return RecordStatus(state="pending", detail="it waits in its level topic", record=row)
    if lane.window is None and not committed.has_settled((key_ms, offset), NO_MARK):
        if offset >= lane.shard.stored:  # even below H, of a copy that lags behind the owner
            return RecordStatus(state="unread", detail="this node has not read so far yet")
        stored = _at(lane, (key_ms, offset))
        if stored is not None:
            return RecordStatus(state="pending", detail=_waits(stored), record=stored)
    if is_passed:
        return RecordStatus(state="settled", detail=_SETTLED, record=row)
    return RecordStatus(state="late", detail="it is due, and about to be settled", record=row)


def _locate_other(lane: Lane, entry: Entry) -> RecordStatus:
    # What is not stored: a cancel, a fire, an invalid record, one to be sent to the home of its id,
    # or one that is scheduled only if none of its id is pending.
    is_passed = entry[0] < lane.shard.committed.offset
    if entry[1] == INVALID:
        code, detail = entry[5][:2]
        return RecordStatus(state="settled" if is_passed else "invalid", detail=f"{code}: {detail}")
    if entry[1] == HOMEBOUND:
        kind, written_ms, partition = entry[5]
        home = f"to partition {partition}, the home of its id"
        if not is_passed:
            return RecordStatus(state="pending", detail=f"it is about to be sent {home}")
        source = b"%s:%d:%d" % (lane.topic.encode(), lane.partition, entry[0])
        sent = Sent(kind, source, written_ms, entry[4])
        row = _asked_for(lane, lane.reader.read_arrived(entry[0], written_ms, sent))
        return RecordStatus(state="settled", detail=f"{_SENT} {home}", record=row)
    row = _asked_for(lane, entry)
    if is_passed:
        return RecordStatus(state="settled", detail=_SETTLED, record=row)
    return RecordStatus(state="control", detail="it is about to take effect", record=row)


def _asked_for(lane: Lane, entry: Entry) -> Pending | None:
    payload = scheduled(entry)
    if payload is None:
        return None
    key = (entry[2] or payload[5], entry[0])
    return pending_of(lane.place, key, NO_MARK, payload, whole=True)


def _waits(row: Pending) -> str:
    if row.marked_by is not None:
        return f"it is about to be settled by what is at offset {row.marked_by}"
    if row.target == row.topic:
        return f"forwarded to partition {row.target_partition}, the home of its id"
    if row.next_ms < row.due_ms:
        return "it waits to be rolled: its due time is beyond the roll window"
    return "it waits for its due time"


def ahead(lanes: Mapping[str, Lane], now_ms: int) -> BacklogCounts:
    """Return counts of the pending records of all lanes by due time."""
    backlog = BacklogCounts(now_ms=now_ms)
    for lane in lanes.values():
        if lane.window is None:
            ranges = ranges_of(lane, now_ms)
            backlog.total += lane.stats().pending if ranges is None else total_of(ranges)
            backlog.ranges += ranges or []
        elif lane.next_due_ms() is not None:
            backlog.levels += lane.stats().pending
    backlog.total += backlog.levels
    return backlog


def ranges_of(lane: Lane, now_ms: int) -> list[CountRange] | None:
    """Return counts of a lane's pending records by due time, epoch milliseconds; None: they are
    not counted yet after a start.

    The census counts by the minute. Records up to the end of the next minute are read and counted
    one by one if they are few; otherwise those that are due already, up to ``_OVERDUE_ROWS``.
    """
    census, first_ms = lane.store.census, lane.next_due_ms()
    if census is None:
        return None
    if first_ms is None:
        return []
    counted = census.ranges(now_ms, census.pending(lane.store.stats().pending))
    read_ms, near = _near(lane, now_ms)
    ranges = [(due_ms, due_ms + 1, 1) for _, due_ms in near]
    for start_ms, stop_ms, count in counted:
        if start_ms >= read_ms or stop_ms - start_ms > MINUTE_MS:
            ranges.append((start_ms, stop_ms, count))
        elif stop_ms > read_ms:  # what is not read is due in the rest of that minute
            left = count - sum(start_ms <= key_ms < stop_ms for key_ms, _ in near)
            ranges.append((read_ms, stop_ms, max(left, 0)))
    return [(max(start, first_ms), stop, count) for start, stop, count in ranges if stop > first_ms]


def _near(lane: Lane, now_ms: int) -> tuple[int, list[tuple[int, int]]]:
    """Return (key time, due time) of the lane's first pending records, and before them the key
    time, epoch ms, below which they are all that there are.
    """
    k, near_ms = lane.shard.committed.key, (now_ms // MINUTE_MS + 2) * MINUTE_MS
    frames: list[Frame] = []
    for frame in _frames(lane, k, (near_ms - 1, OFFSET_MAX), _NEAR_ROWS):
        frames.append(frame)
        if len(frames) >= (_NEAR_ROWS if frame[0] > now_ms else _OVERDUE_ROWS):
            near_ms = frame[0]
            break
    return near_ms, [
        (key_ms, due_ms)
        for key_ms, due_ms in _dues(lane, frames)
        # In later minutes, what is due beyond the roll window is among the others.
        if key_ms < near_ms and (due_ms == key_ms or key_ms // MINUTE_MS == k[0] // MINUTE_MS)
    ]


# (key time, due time) of the pending ones among ``frames``, epoch milliseconds.
def _dues(lane: Lane, frames: Iterable[Frame]) -> Iterator[tuple[int, int]]:
    for key_ms, offset, mark, packed in frames:
        if mark == NO_MARK and not lane.shard.committed.has_settled((key_ms, offset), mark):
            yield key_ms, max(key_ms, decode_payload(packed)[5])


def next_due_ms(lane: Lane, ranges: Sequence[CountRange]) -> int | None:
    """Return the due time of a lane's first pending record, epoch ms; None: no record is pending.
    The time is exact if the record is among the first few in the store, and may be too early
    otherwise.
    """
    census, first_ms = lane.store.census, lane.next_due_ms()
    if not ranges or first_ms is None:
        return None
    if census is not None and census.is_plain(first_ms):
        return first_ms  # each scanner of a wheel loads a window of its own: the loop waits
    rows = list(islice(_frames(lane, (first_ms, -1), _END, _FIRST_ROWS), _FIRST_ROWS))
    dues = [due_ms for _, due_ms in _dues(lane, rows)]
    if dues and len(rows) < _FIRST_ROWS:
        return min(dues)
    return min([*dues, *(start_ms for start_ms, _, _ in ranges)])
