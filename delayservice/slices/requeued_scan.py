from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from delayservice.contract.entry import OFFSET_MAX
from delayservice.engine.cursor import NO_MARK, Frame, Key
from delayservice.engine.losses import Gap
from delayservice.engine.marking import CopyScan, is_user_record
from delayservice.engine.shard import Shard
from delayservice.slices.repair import ShardLog

_Scan: TypeAlias = Callable[[Key, int], Iterator[Frame]]


class Cancellers:
    """Search, in the log or the store, for the first valid user record with a requeued record's
    id (rule 13). It may have been written before the record was requeued.
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
        # Offset of the canceller, by the offset of each record marked at take-over.
        self._known: dict[int, int] = {}

    def take_over(self, marked: Iterable[tuple[int, Key]]) -> None:
        self._known = {key[1]: mark for mark, key in marked}

    def find(self, scans: Sequence[CopyScan]) -> tuple[dict[int, int], list[CopyScan]]:
        """Return the canceller, or ``NO_MARK``, by each requeued record's offset; and the scans
        for which only the log was searched, because it lacks nothing, or the store gives no
        answer.
        """
        if not scans:
            return {}, []
        found = self._scan_back(scans)
        stored = self._stored(scans)
        return found | stored, [scan for scan in scans if scan.copy_offset not in stored]

    def find_one(self, scan: CopyScan) -> int:
        """Return the canceller of one requeued record whose stored form is damaged, from the
        marks at the take-over, else from the log.
        """
        found, offset = self._scan_back([scan])[scan.copy_offset], scan.copy_offset
        if offset in self._known:
            return self._known[offset]
        self.note_cut([scan], {offset})
        return found

    # The log is read once for all of them, because after a crash there may be thousands.
    def _scan_back(self, scans: Sequence[CopyScan]) -> dict[int, int]:
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

    # For records of which the log has lost part of ``[base, copy_offset)``. One above K that was
    # stored and is gone was pruned because H has passed its canceller: ``base`` is its mark.
    def _stored(self, scans: Sequence[CopyScan]) -> dict[int, int]:
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
        """Note as never read what the log has lost of ``scans`` for pending records; on an owner
        also for those that H has yet to pass.
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
