"""Reading of records from the log again, to rebuild a damaged part of the store (rule 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import structlog

from delayservice.base.errors import KafkaEdgeError, SlotDamagedError
from delayservice.contract.codec import Payload, decode_payload, encode_payload
from delayservice.contract.entry import COPY, OFFSET_MAX, SCHEDULE, Entry
from delayservice.contract.record import RecordReader
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import NO_MARK, Frame, Key
from delayservice.engine.marking import CopyScan, is_user_record
from delayservice.engine.ports import Place, PolledBatch, Source
from delayservice.engine.shard import Shard
from delayservice.store.base import DeliveryStore

# Memory for records while the log is read; one due time may need more.
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
    slot = _SlotRecords(log, damage.start_ms, damage.stop_ms)
    # What retention has deleted is settled, or was rolled forward.
    first = max(damage.first_offset, log.source.bounds(log.place).start)
    for run in log.source.scan(log.place, first, stored):
        if run.start >= stop and not slot.has_unmarked:
            break
        slot.take(run, stop)
    return slot.stop_ms, slot.frames()


class _SlotRecords:
    """Records and marks of a range of due times, epoch ms, as they are collected from the log. If
    memory is too small, ``stop_ms`` is lowered: the rest is read when its turn comes.
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

    def take(self, run: PolledBatch, stop: int) -> None:
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

_log = structlog.get_logger(__name__)


class RepairingStore:
    """Reader of one shard's store. When it finds a damaged slot, it rebuilds the slot from the
    log and reads again.
    """

    def __init__(self, store: DeliveryStore, shard: Shard, log: Callable[[], ShardLog]) -> None:
        self._store = store
        self._scanner = store.scanner(for_repair=True)
        self._shard = shard
        self._log = log

    def read_due(self, after: Key, now_ms: int, limit: int) -> list[Frame]:
        """Return stored records due at ``now_ms``, in key order; see ``Store.read_due``."""
        while True:
            try:
                return self._store.read_due(after, now_ms, limit)
            except SlotDamagedError as damage:
                self._mend(damage)

    def scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """Yield all stored records above ``after`` up to ``upto_ms``, inclusive, in key order."""
        while True:
            try:
                for frame in self._scanner.frames(after, upto_ms):
                    yield frame
                    after = frame[:2]
            except SlotDamagedError as damage:
                self._mend(damage)
            else:
                return

    def pending_at(self, key: Key) -> Payload:
        """Return a pending record's payload, from the store, else from the log; raise
        ``KafkaEdgeError`` if neither holds it.
        """
        key_ms, offset = key
        for frame in self.scan((key_ms, offset - 1), key_ms):
            if frame[1] == offset:
                return decode_payload(frame[3])
        log = self._log()
        for run in log.source.scan(log.place, offset, offset + 1):
            for entry in log.reader.read_batch(run.rows):
                if entry[0] == offset and entry[1] <= COPY:
                    payload: Payload = entry[4]
                    return payload
        topic, partition = log.place
        raise KafkaEdgeError(
            f"{topic}:{partition} offset {offset} is pending, and can't be read any more"
        )

    def check_is_in_log(self, log_start: int) -> Iterator[None]:
        """Check, in small steps, that the log holds every pending record; raise
        ``KafkaEdgeError`` if it does not: the store may hold the last copy of a record.
        """
        k, h = self._shard.committed
        scanner, after, end = self._store.scanner(), k, (DUE_STOP_MS, OFFSET_MAX)
        while after < end:
            held, after, _ = scanner.read_on(after, end, _SCAN_ROWS)
            if any(o < log_start and not 0 <= mark < h for _, o, mark, _ in held):
                raise KafkaEdgeError(
                    f"the copy holds pending records below offset {log_start}, where the log "
                    "starts: it can be rebuilt when they are settled"
                )
            yield

    def _mend(self, damage: SlotDamagedError) -> None:
        log = self._log()
        topic, partition = log.place
        _log.error("slot_damaged", topic=topic, partition=partition, why=str(damage))
        stop_ms, frames = reread_slot(log, damage, self._shard.stored)
        self._store.rebuild(damage.start_ms, stop_ms, frames)
        _log.warning("slot_rebuilt", topic=topic, partition=partition, frames=len(frames))
