"""Read a damaged or missing slot again from the log (rule 4): never skipped, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from delayservice.core.codec import encode_payload
from delayservice.core.entry import COPY, SCHEDULE, Entry
from delayservice.core.pending import NO_MARK, Frame
from delayservice.core.record import RecordReader
from delayservice.core.shard import CopyScan
from delayservice.core.storing import is_user_record
from delayservice.errors import SlotDamagedError
from delayservice.lanes.ports import Place, Source


def reread_slot(
    source: Source,
    reader: RecordReader,
    place: Place,
    damage: SlotDamagedError,
    stored: int,
    scan_back: Callable[[CopyScan], int],
) -> list[Frame]:
    """The frames whose keys fall in the damaged slot, marks included, in offset order.

    A mark may lie anywhere up to ``stored``, so the log is read beyond the slot's own range for as
    long as one of its records bears an id that nothing has marked.
    """
    stop = min(damage.stop_offset, stored)
    slot = _Slot(damage.start_ms, damage.stop_ms, scan_back)
    # What retention has deleted is settled, or was rolled forward.
    first = max(damage.first_offset, source.bounds(place).start)
    for run in source.scan(place, first, stored):
        if run.start >= stop and not slot.unmarked:
            break
        for entry in reader.read_batch(run.rows):
            slot.mark_by(entry)
            if entry[0] < stop:
                slot.keep(entry)
    return slot.frames()


class Rereading:
    """Reads a range of keys again from the log a little at a time, while all else goes on.

    Args:
        source: the log.
        reader: of its records.
        place: the delay topic and its partition.
        start_ms: first key of the range.
        stop_ms: its end.
        first_offset: where to begin; the log must hold it.
        scan_back: finds the canceller of a copy.
    """

    def __init__(
        self,
        source: Source,
        reader: RecordReader,
        place: Place,
        start_ms: int,
        stop_ms: int,
        first_offset: int,
        scan_back: Callable[[CopyScan], int],
    ) -> None:
        self._source = source
        self._reader = reader
        self._place = place
        self._slot = _Slot(start_ms, stop_ms, scan_back)
        self._at = first_offset

    def read_to(self, stop: int) -> Iterator[None]:
        """Read on up to ``stop``, a run of the log at a time.

        Raises:
            KafkaEdgeError: retention has passed where it begins; what is stored is as it was.
        """
        if self._at >= stop:
            return
        for run in self._source.scan(self._place, self._at, stop):
            for entry in self._reader.read_batch(run.rows):
                self._slot.mark_by(entry)
                self._slot.keep(entry)
            yield
        self._at = stop

    def frames(self) -> list[Frame]:
        """What was read of the range, marks included."""
        return self._slot.frames()


class _Slot:
    """Collects the slot's records and the marks that later records set on them."""

    def __init__(self, start_ms: int, stop_ms: int, scan_back: Callable[[CopyScan], int]) -> None:
        self._start_ms = start_ms
        self._stop_ms = stop_ms
        self._scan_back = scan_back
        self._kept: dict[int, tuple[int, bytes]] = {}
        self._marks: dict[int, int] = {}
        self.unmarked: dict[bytes, list[int]] = {}
        """Per id: offsets of kept records that no user record has marked yet."""

    def mark_by(self, entry: Entry) -> None:
        if entry[3] is not None and is_user_record(entry):
            for marked in self.unmarked.pop(entry[3], ()):
                self._marks[marked] = entry[0]

    def keep(self, entry: Entry) -> None:
        offset, kind, key_ms, record_id, payload, base = entry
        if kind not in (SCHEDULE, COPY) or not self._start_ms <= key_ms < self._stop_ms:
            return
        self._kept[offset] = (key_ms, encode_payload(payload))
        if record_id is None:
            return
        x = NO_MARK
        if kind == COPY and isinstance(base, int):
            x = self._scan_back(CopyScan(offset, record_id, base))
        if x == NO_MARK:
            self.unmarked.setdefault(record_id, []).append(offset)
        else:
            self._marks[offset] = x

    def frames(self) -> list[Frame]:
        return [
            (key_ms, offset, self._marks.get(offset, NO_MARK), data)
            for offset, (key_ms, data) in self._kept.items()
        ]
