"""Reading of records from the log again, to rebuild a damaged part of the store (rule 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from delayservice.base.errors import SlotDamagedError
from delayservice.contract.codec import encode_payload
from delayservice.contract.entry import COPY, SCHEDULE, Entry
from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import Key
from delayservice.engine.marking import CopyScan, is_user_record
from delayservice.engine.pending import NO_MARK, Frame
from delayservice.engine.ports import Place, Run, Source

# While the log is read; one due time may need more.
_BYTES_MAX: Final = 32 << 20
# Memory that a stored record takes beside its payload.
_FRAME_BYTES: Final = 300


class ShardLog(NamedTuple):
    """Log of a shard, from which records are read again. ``scan_back`` returns the offset of a
    requeued record's canceller, or ``NO_MARK``.
    """

    source: Source
    reader: RecordReader
    place: Place
    scan_back: Callable[[CopyScan], int]


def reread_slot(log: ShardLog, damage: SlotDamagedError, stored: int) -> tuple[int, list[Frame]]:
    """Read a damaged slot from the log; return the end of the due times read, epoch ms, exclusive,
    and the records below it: a first part if memory is too small.

    A canceller may lie anywhere below S. So the log is read beyond the slot's offsets while one of
    its records has an id and no mark.
    """
    stop = min(damage.stop_offset, stored)
    slot = Rereading(log, damage.start_ms, damage.stop_ms)
    # What retention has deleted is settled, or was rolled forward.
    first = max(damage.first_offset, log.source.bounds(log.place).start)
    for run in log.source.scan(log.place, first, stored):
        if run.start >= stop and not slot.has_unmarked:
            break
        slot.take(run, stop)
    return slot.stop_ms, slot.frames()


class Rereading:
    """Reader of a range of due times, epoch ms, in small steps between which the loop goes on.
    It collects records and marks. If memory is too small, ``stop_ms`` is lowered, and the caller
    continues there with another reader.
    """

    def __init__(self, log: ShardLog, start_ms: int, stop_ms: int) -> None:
        self._log = log
        self._start_ms = start_ms
        self.stop_ms = stop_ms
        self._kept: dict[int, tuple[int, bytes]] = {}
        self._bytes, self._bytes_max = 0, _BYTES_MAX
        self._marks: dict[int, int] = {}
        # By id, source offsets of collected records without a mark.
        self._unmarked: dict[bytes, list[int]] = {}

    @property
    def has_unmarked(self) -> bool:
        return bool(self._unmarked)

    def hold(self, frames: Iterable[Frame]) -> None:
        """Collect records from the store that the log no longer holds, with their marks."""
        for frame in frames:
            self._hold(frame)

    def mark(self, marked: Iterable[tuple[int, Key]]) -> None:
        """Set the marks that the store was given since ``hold``."""
        self._marks |= {offset: x for x, (_, offset) in marked if offset in self._kept}

    def read(self, start: int, stop: int) -> Iterator[int]:
        """Read ``[start, stop)``; yield the number of records after each batch. Raise
        ``KafkaEdgeError`` if the log no longer holds ``start``.
        """
        for run in self._log.source.scan(self._log.place, start, stop) if start < stop else ():
            self.take(run, stop)
            yield len(self._kept)

    def take(self, run: Run, stop: int) -> None:
        """Collect a batch's records below ``stop``, and the marks that it sets."""
        for entry in self._log.reader.read_batch(run.rows):
            if entry[3] is not None and is_user_record(entry):
                for marked in self._unmarked.pop(entry[3], ()):
                    self._marks[marked] = entry[0]
            if entry[0] < stop:
                self._keep(entry)

    def frames(self) -> list[Frame]:
        return [
            (key_ms, offset, self._marks.get(offset, NO_MARK), data)
            for offset, (key_ms, data) in self._kept.items()
        ]

    def _keep(self, entry: Entry) -> None:
        offset, kind, key_ms, record_id, payload, base = entry
        if kind not in (SCHEDULE, COPY) or not self._start_ms <= key_ms < self.stop_ms:
            return
        x = NO_MARK
        if record_id is not None:
            if kind == COPY and isinstance(base, int):
                x = self._log.scan_back(CopyScan(key_ms, offset, record_id, base))
            if x == NO_MARK:
                self._unmarked.setdefault(record_id, []).append(offset)
        self._hold((key_ms, offset, x, encode_payload(payload)))

    def _hold(self, frame: Frame) -> None:
        key_ms, offset, x, data = frame
        if key_ms >= self.stop_ms:
            return
        self._kept[offset] = (key_ms, data)
        if x != NO_MARK:
            self._marks[offset] = x
        self._bytes += len(data) + _FRAME_BYTES
        if self._bytes > self._bytes_max:
            self._narrow()

    # Drops the later half of the due times; records of one due time are kept.
    def _narrow(self) -> None:
        keys = sorted({key_ms for key_ms, _ in self._kept.values()})
        self.stop_ms = keys[(len(keys) + 1) // 2] if len(keys) > 1 else keys[0] + 1
        self._kept = {o: kept for o, kept in self._kept.items() if kept[0] < self.stop_ms}
        self._marks = {o: mark for o, mark in self._marks.items() if o in self._kept}
        unmarked = {i: [o for o in found if o in self._kept] for i, found in self._unmarked.items()}
        self._unmarked = {record_id: found for record_id, found in unmarked.items() if found}
        self._bytes = sum([len(data) + _FRAME_BYTES for _, data in self._kept.values()])
        self._bytes_max = max(_BYTES_MAX, 2 * self._bytes)  # one due time may need more
