from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog

from delayservice.base.errors import KafkaEdgeError, SlotDamagedError
from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.entry import COPY, OFFSET_MAX
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.cursor import Key
from delayservice.engine.pending import Frame
from delayservice.engine.shard import Shard
from delayservice.replicas.digest import HOUR_MS
from delayservice.slices.repair import Rereading, ShardLog, reread_slot
from delayservice.store.base import DeliveryStore

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

    def repair(self, start_ms: int, stop_ms: int, first_offset: int) -> Iterator[int]:
        """Rebuild a range of due times from the log, damaged or not, in small steps; yield the
        number of records found after each. Stored records that the log no longer holds are kept.

        The range, epoch ms, is widened to whole hours, the greatest width of a slot.
        ``first_offset`` is the first in the log that belongs to it.
        """
        start_ms, stop_ms = start_ms // HOUR_MS * HOUR_MS, -(-stop_ms // HOUR_MS) * HOUR_MS
        done = 0
        while start_ms < stop_ms:
            again = Rereading(self._log(), start_ms, stop_ms)
            for found in self._reread(again, start_ms, first_offset):
                yield done + found
            k_ms = self._shard.committed.key[0]
            frames = [frame for frame in again.frames() if frame[0] >= k_ms]
            self._rebuild(start_ms, again.stop_ms, frames)
            done, start_ms = done + len(frames), again.stop_ms
            yield done

    def check_is_in_log(self, log_start: int) -> Iterator[int]:
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
                    "starts: rebuild ranges of it, which keeps them"
                )
            yield 0

    # From the store and the log, up to S at the end.
    def _reread(self, again: Rereading, start_ms: int, first_offset: int) -> Iterator[int]:
        log, stored = self._log(), self._shard.stored
        log_start = log.source.bounds(log.place).start
        scanner, after = self._store.scanner(), (start_ms, -1)
        while after < (upto := (again.stop_ms - 1, OFFSET_MAX)):
            held, after, damage = scanner.read_on(after, upto, _SCAN_ROWS)
            again.hold(frame for frame in held if frame[1] < log_start)
            # The lowest offset of a damaged part is unknown, so the log is read from its start.
            lowest = 0 if damage is not None else min([frame[1] for frame in held], default=None)
            first_offset = first_offset if lowest is None else min(first_offset, lowest)
            yield 0
        reread = self._shard.stored
        yield from again.read(max(first_offset, log_start), reread)
        for _ in again.read(reread, self._shard.stored):  # those stored meanwhile, without a pause
            pass
        again.mark(self._store.marked_from(stored))

    def _mend(self, damage: SlotDamagedError) -> None:
        log = self._log()
        topic, partition = log.place
        _log.error("slot_damaged", topic=topic, partition=partition, why=str(damage))
        stop_ms, frames = reread_slot(log, damage, self._shard.stored)
        self._rebuild(damage.start_ms, stop_ms, frames)

    def _rebuild(self, start_ms: int, stop_ms: int, frames: list[Frame]) -> None:
        self._store.rebuild(start_ms, stop_ms, frames)
        topic, partition = self._log().place
        _log.warning("slot_rebuilt", topic=topic, partition=partition, frames=len(frames))
