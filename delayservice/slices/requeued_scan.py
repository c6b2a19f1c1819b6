"""Search of the log for cancellers of requeued records (rule 13 of the design). A control record
may have been written after a record was first written, and before it was requeued.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import Key
from delayservice.engine.losses import Gap
from delayservice.engine.marking import CopyScan, is_user_record
from delayservice.engine.pending import NO_MARK, Frame
from delayservice.engine.shard import Shard
from delayservice.slices.repair import ShardLog

_Scan: TypeAlias = Callable[[Key, int], Iterator[Frame]]


class Cancellers:
    """Search, in the log or the store, for the canceller of a requeued record: the first valid
    record of a client with its id. A ``CopyScan`` names the record (``copy_offset``) and the first
    offset at which its canceller may lie (``base``).

    Args:
        shard: progress of the shard.
        log: returns the shard's log with its present decoder.
        scan: yields stored records above a key, up to a due time in epoch ms.
        note_gap: notes offsets that retention deleted, and that may have held cancellers.
    """

    def __init__(
        self,
        shard: Shard,
        log: Callable[[], ShardLog],
        scan: _Scan,
        note_gap: Callable[[Gap], None],
    ) -> None:
        self._shard = shard
        self._log = log
        self._scan = scan
        self._note_gap = note_gap
        self._log_start = 0
        self._known: dict[int, int] = {}
        """Source offset of the canceller, by source offset of each record marked at take-over."""

    def take_over(self, marked: Iterable[tuple[int, Key]]) -> None:
        """Note the marks that the store has at a take-over. ``marked``: mark and key of each
        record.
        """
        self._known = {key[1]: mark for mark, key in marked}

    def find(self, scans: Sequence[CopyScan]) -> tuple[dict[int, int], list[CopyScan]]:
        """Search for the cancellers of requeued records, one for each of ``scans``. Return the
        offset of the canceller, or ``NO_MARK``, by source offset of the record; and those of
        ``scans`` for which only the log was searched, because it has lost nothing of their offsets,
        or the store gives no answer.
        """
        if not scans:
            return {}, []
        found = self._scan_back(scans)
        stored = self._stored(scans)
        return found | stored, [scan for scan in scans if scan.copy_offset not in stored]

    def find_one(self, scan: CopyScan) -> int:
        """Return the offset of the canceller of one requeued record, whose stored form is damaged:
        from the marks at the take-over, else from the log; ``NO_MARK``: there is none.
        """
        found, offset = self._scan_back([scan])[scan.copy_offset], scan.copy_offset
        if offset in self._known:
            return self._known[offset]
        self.note_cut([scan], {offset})
        return found

    def _scan_back(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        """Search the log, and return by source offset of each requeued record the offset of its
        canceller in ``[base, copy_offset)``, or ``NO_MARK``. The log is read once for all of them,
        because after a crash there may be thousands.
        """
        found = {scan.copy_offset: NO_MARK for scan in scans}
        by_id: dict[bytes, list[CopyScan]] = {}
        for scan in scans:
            by_id.setdefault(scan.record_id, []).append(scan)
        log = self._log()
        self._log_start = log.source.bounds(log.place).start
        start = max(min(scan.base for scan in scans), self._log_start)
        for run in log.source.scan(log.place, start, max(found)):
            for entry in log.reader.read_batch(run.rows):
                offset, record_id = entry[0], entry[3]
                if record_id is None or not is_user_record(entry):
                    continue
                for scan in by_id.get(record_id, ()):
                    copy_offset = scan.copy_offset
                    if found[copy_offset] == NO_MARK and scan.base <= offset < copy_offset:
                        found[copy_offset] = offset
        return found

    def _stored(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        """Return, by source offset, the mark of a requeued record in the store, for records of
        which the log has lost part of ``[base, copy_offset)``. If one above K was stored and is
        gone, it was pruned because H has passed its canceller: ``base`` is returned as its mark.
        """
        known = {}
        for key_ms, offset, _, base in scans:
            if base >= self._log_start or offset >= self._shard.stored:
                continue
            frames = self._scan((key_ms, offset - 1), key_ms)
            mark = next((frame[2] for frame in frames if frame[1] == offset), None)
            if mark is not None:
                known[offset] = mark
            elif (key_ms, offset) > self._shard.committed.key:
                known[offset] = base
        return known

    def note_cut(self, scans: Sequence[CopyScan], kept: Collection[int]) -> None:
        """Note as never read the offsets that the log has lost and that may hold cancellers of
        requeued records. ``scans``: searches for these records; ``kept``: source offsets of those
        that are pending; an owner also counts those that H has yet to pass.
        """
        start = self._log_start
        walked_from = self._shard.committed.offset if self._shard.owned else OFFSET_MAX
        cut = [
            scan
            for scan in scans
            if scan.base < start and (scan.copy_offset in kept or scan.copy_offset >= walked_from)
        ]
        if cut:
            first, last = min(scan.base for scan in cut), max(scan.copy_offset for scan in cut)
            self._note_gap(Gap(first, start, last + 1))
