"""Reads on a helper thread what a lane wants of its log again: a broker that does not answer must
not keep other shards waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from delayservice.base.errors import KafkaEdgeError, SlotDamagedError
from delayservice.contract.codec import Payload, encode_payload
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, OFFSET_MAX, SCHEDULE, Entry
from delayservice.contract.record import RecordReader
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import NO_MARK, Cursor, Frame, Key
from delayservice.engine.marking import CopyScan, bearing_ids, is_user_record
from delayservice.engine.ports import Place, PolledBatch, Source
from delayservice.store.base import DeliveryStore

# Memory for records while the log is read; one due time may need more.
_BYTES_MAX: Final = 32 << 20
# Memory that a stored record takes beside its payload.
_FRAME_BYTES: Final = 300


class CancellersWanted(NamedTuple):
    """The first valid user record with each requeued record's id (rule 13), which may have been
    written before the record was requeued. Many at once: after a crash there may be thousands.
    """

    scans: Sequence[CopyScan]


class SlotWanted(NamedTuple):
    """The records of a damaged slot, of a log that was stored up to ``stored``, S (rule 6)."""

    damage: SlotDamagedError
    stored: int


class RecordWanted(NamedTuple):
    """A pending record that is fired, and is not in the store."""

    key: Key


LogWanted: TypeAlias = CancellersWanted | SlotWanted | RecordWanted


class CancellersFound(NamedTuple):
    """Offsets of cancellers, or ``NO_MARK``, by the requeued record's offset."""

    by_copy: dict[int, int]


class SlotFound(NamedTuple):
    """The records of due times in ``[start_ms, stop_ms)``, epoch ms: a first part of the slot if
    memory was too small.
    """

    start_ms: int
    stop_ms: int
    frames: list[Frame]


class RecordFound(NamedTuple):
    key: Key
    payload: Payload


LogAnswer: TypeAlias = CancellersFound | SlotFound | RecordFound


@dataclass(frozen=True, slots=True)
class ShardLog:
    """Log of a shard, as a helper thread reads it."""

    source: Source
    place: Place
    contracts: Contracts
    secrets: Sequence[bytes]

    def reader(self) -> RecordReader:
        return RecordReader(*self.place, self.contracts, self.secrets)

    def read(self, wanted: LogWanted) -> LogAnswer:
        """Return what is wanted; raise ``KafkaEdgeError`` if the log can't be read, or lacks it."""
        match wanted:
            case CancellersWanted(scans):
                return CancellersFound(self._cancellers(scans))
            case SlotWanted(damage, stored):
                return self._slot(damage, stored)
            case RecordWanted(key):
                return RecordFound(key, self._record(key[1]))

    def canceller_of(self, scan: CopyScan) -> int:
        return self._cancellers([scan])[scan.copy_offset]

    # The log is read once for all of them.
    def _cancellers(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        reader, found = self.reader(), {scan.copy_offset: NO_MARK for scan in scans}
        by_id: dict[bytes, list[CopyScan]] = {}
        for scan in scans:
            by_id.setdefault(scan.record_id, []).append(scan)
        start = max(min(scan.base for scan in scans), self.source.bounds(self.place).start)
        for run in self.source.scan(self.place, start, max(found)):
            for record_id, entry in bearing_ids(reader.read_batch(run.rows)):
                for scan in by_id.get(record_id, ()) if is_user_record(entry) else ():
                    offset, copy_offset = entry[0], scan.copy_offset
                    if found[copy_offset] == NO_MARK and scan.base <= offset < copy_offset:
                        found[copy_offset] = offset
        return found

    # A canceller may lie anywhere below S. So the log is read beyond the slot's offsets while one
    # of its records has an id and no mark.
    def _slot(self, damage: SlotDamagedError, stored: int) -> SlotFound:
        stop = min(damage.stop_offset, stored)
        slot = _SlotRecords(self, damage.start_ms, damage.stop_ms)
        # What retention has deleted is settled, or was rolled forward.
        first = max(damage.first_offset, self.source.bounds(self.place).start)
        for run in self.source.scan(self.place, first, stored):
            if run.start >= stop and not slot.has_unmarked:
                break
            slot.take(run, stop)
        return SlotFound(damage.start_ms, slot.stop_ms, slot.frames())

    def _record(self, offset: int) -> Payload:
        reader = self.reader()
        for run in self.source.scan(self.place, offset, offset + 1):
            for entry in reader.read_batch(run.rows):
                if entry[0] == offset and entry[1] <= COPY:
                    payload: Payload = entry[4]
                    return payload
        topic, partition = self.place
        raise KafkaEdgeError(
            f"{topic}:{partition} offset {offset} is pending, and can't be read any more"
        )


class _SlotRecords:
    """Records and marks of a range of due times, epoch ms, as they are collected from the log. If
    memory is too small, ``stop_ms`` is lowered: the rest is read when its turn comes.
    """

    def __init__(self, log: ShardLog, start_ms: int, stop_ms: int) -> None:
        self._log = log
        self._reader = log.reader()
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

    def take(self, run: PolledBatch, stop: int) -> None:
        """Collect a batch's records below ``stop``, and the marks that it sets."""
        for entry in self._reader.read_batch(run.rows):
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
                x = self._log.canceller_of(CopyScan(key_ms, offset, record_id, base))
            if x == NO_MARK:
                self._unmarked.setdefault(record_id, []).append(offset)
            else:
                self._marks[offset] = x
        data = encode_payload(payload)
        self._kept[offset] = (key_ms, data)
        self._bytes += len(data) + _FRAME_BYTES
        if self._bytes > self._bytes_max:
            self._narrow()

    # The records of the later half of the due times are dropped; those of one due time are kept.
    def _narrow(self) -> None:
        keys = sorted({key_ms for key_ms, _ in self._kept.values()})
        self.stop_ms = keys[(len(keys) + 1) // 2] if len(keys) > 1 else keys[0] + 1
        self._kept = {o: kept for o, kept in self._kept.items() if kept[0] < self.stop_ms}
        self._marks = {o: mark for o, mark in self._marks.items() if o in self._kept}
        unmarked = {i: [o for o in found if o in self._kept] for i, found in self._unmarked.items()}
        self._unmarked = {record_id: found for record_id, found in unmarked.items() if found}
        self._bytes = sum([len(data) + _FRAME_BYTES for _, data in self._kept.values()])
        self._bytes_max = max(_BYTES_MAX, 2 * self._bytes)  # one due time may need more


_SCAN_ROWS: Final = 1_000


def check_is_in_log(store: DeliveryStore, committed: Cursor, log_start: int) -> Iterator[None]:
    """Check, in small steps, that the log holds every pending record of a store; raise
    ``KafkaEdgeError`` if it does not: the store may hold the last copy of a record.
    """
    after, h = committed
    scanner, end = store.scanner(), (DUE_STOP_MS, OFFSET_MAX)
    while after < end:
        held, after, _ = scanner.read_on(after, end, _SCAN_ROWS)
        if any(o < log_start and not 0 <= mark < h for _, o, mark, _ in held):
            raise KafkaEdgeError(
                f"the copy holds pending records below offset {log_start}, where the log "
                "starts: it can be rebuilt when they are settled"
            )
        yield
