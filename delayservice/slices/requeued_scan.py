from __future__ import annotations

from collections.abc import Sequence

from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import NO_MARK
from delayservice.engine.marking import CopyScan, is_user_record
from delayservice.engine.ports import Place, Source


def cancellers(
    source: Source, reader: RecordReader, place: Place, scans: Sequence[CopyScan]
) -> dict[int, int]:
    """Search the log for the first valid user record with a requeued record's id (rule 13), which
    may have been written before the record was requeued. Return its offset, or ``NO_MARK`` if the
    log has none, by the requeued record's offset.

    The log is read once for all of them, because after a crash there may be thousands.
    """
    found = {scan.copy_offset: NO_MARK for scan in scans}
    if not scans:
        return found
    by_id: dict[bytes, list[CopyScan]] = {}
    for scan in scans:
        by_id.setdefault(scan.record_id, []).append(scan)
    start = max(min(scan.base for scan in scans), source.bounds(place).start)
    for run in source.scan(place, start, max(found)):
        for offset, _, _, record_id, _, _ in filter(is_user_record, reader.read_batch(run.rows)):
            for scan in by_id.get(record_id, ()) if record_id is not None else ():
                copy_offset = scan.copy_offset
                if found[copy_offset] == NO_MARK and scan.base <= offset < copy_offset:
                    found[copy_offset] = offset
    return found
