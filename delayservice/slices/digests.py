"""Digests of one slice's copies: updates them, checks them against the disk, publishes them.

Copies on several nodes can only be compared at the same cursor. So all nodes publish at the same
checkpoints, which are called cuts. Each node finds them in the checkpoint topic: the first one of
every interval, by the broker's timestamps, and the newest one once it is ``PAUSE_MS`` old.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from delayservice.base.clock import Clock
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint_of
from delayservice.engine.ports import Checkpoints, ReadBack
from delayservice.replicas.digest import compared_from_ms
from delayservice.replicas.digest_rows import (
    CopyId,
    CutRow,
    DigestRow,
    cut_row,
    hash_text,
    hour_row,
)
from delayservice.slices.lane import Lane
from delayservice.store.base import Store
from delayservice.store.digesting import DigestingStore

# Age at which the newest checkpoint becomes a cut.
PAUSE_MS: Final = 10_000

Done = Callable[[], None]

_log = structlog.get_logger(__name__)


# Digests of one shard's store, and the full reads of it from disk (scans).
@dataclass(slots=True)
class _Copy:
    place: CopyId
    store: DigestingStore
    # Monotonic; minus infinity: a scan has to begin.
    scanned_s: float = float("-inf")
    # A row did not reach the topic; set by the producer's thread.
    rows_lost: bool = False
    # To call when a digest is published after the next scan has ended.
    asked: list[Done] = field(default_factory=list)
    # To call when a digest is published after the scan under way has ended.
    reading_for: list[Done] = field(default_factory=list)
    # To call when the next digest is published, because their scan has ended.
    awaited: list[Done] = field(default_factory=list)


class SliceDigests:
    """Digests of those shards of one slice that have a store. Only the loop's thread uses it.

    ``write`` writes a row in the background; another thread calls its second argument if that
    fails. ``scanning`` is a lock that all slices of a worker share, so that one copy at a time is
    read from disk.
    """

    def __init__(
        self,
        slice_no: int,
        node_id: str,
        *,
        checkpoints: Checkpoints,
        clock: Clock,
        write: Callable[[DigestRow, Done], None],
        scanning: threading.Lock,
        scan_interval_ms: int,
    ) -> None:
        self._slice_no = slice_no
        self._node_id = node_id
        self._checkpoints = checkpoints
        self._clock = clock
        self._write_row = write
        self._scanning = scanning
        self._scan_interval_s = scan_interval_ms / 1000
        self._copies: dict[str, _Copy] = {}
        self._reading: _Copy | None = None
        self._last_cut: tuple[ReadBack, Checkpoint] | None = None

    def keep(self, topic: str, topic_id: str, store: Store) -> Store:
        """Return ``store`` in a wrapper that keeps its digest, published until the store is
        closed.
        """

        def close() -> None:
            self._stop_reading(copy)
            if self._copies.get(topic) is copy:
                del self._copies[topic]

        kept = DigestingStore(store, close)
        copy = _Copy(self._place(topic, topic_id), kept)
        self._copies[topic] = copy
        return kept

    def _place(self, topic: str, topic_id: str) -> CopyId:
        return CopyId(self._node_id, topic, topic_id, self._slice_no, uuid.uuid4().hex[:12])

    # --- one turn ------------------------------------------------------------------------------

    def turn(self, lanes: Mapping[str, Lane], *, is_owner: bool) -> None:
        """Publish digests at new cuts, and do one step of a scan. Call this before the stores
        are pruned: a digest at an older checkpoint counts records that H has passed since.
        """
        for topic, lane in lanes.items():
            if topic in self._copies:  # an owner stores by its own K, not yet read back
                self._copies[topic].store.digest.pass_key(lane.shard.committed.key)
        for cut in self._cuts():
            self._last_cut = cut
            for copy in self._copies.values():
                self._publish(copy, *cut, is_owner=is_owner)
        for copy in self._copies.values():
            if copy.store.cursor is not None:
                copy.store.digest.follow(copy.store.cursor)
        self._scan(is_owner=is_owner)

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    # Number of key ranges that the last scans could not read.
    @property
    def damaged(self) -> int:
        return sum(len(copy.store.damaged) for copy in self._copies.values())

    def _cuts(self) -> list[tuple[ReadBack, Checkpoint]]:
        found = list(self._checkpoints.take_cuts(self._slice_no))
        newest = self._checkpoints.read_back(self._slice_no)
        last = self._last_cut[0].offset if self._last_cut is not None else -1
        if (
            newest is not None
            and newest.offset > max([last, *(cut.offset for cut in found)])
            and self._clock.wall_ms() - newest.broker_ms >= PAUSE_MS
        ):
            found.append(newest)
        decoded = ((cut, self._decoded(cut)) for cut in found)
        return [(cut, checkpoint) for cut, checkpoint in decoded if checkpoint is not None]

    def _decoded(self, cut: ReadBack) -> Checkpoint | None:
        try:
            return decode_checkpoint_of(self._slice_no, cut.data)
        except KafkaEdgeError:
            return None

    # --- publish -------------------------------------------------------------------------------

    def _publish(
        self, copy: _Copy, read_back: ReadBack, checkpoint: Checkpoint, *, is_owner: bool
    ) -> None:
        shard = checkpoint.shards.get(copy.place.topic)
        if shard is None or shard.topic_id != copy.place.topic_id:
            return
        if copy.rows_lost:
            self._begin_life(copy)
        digest = copy.store.digest
        digest.follow(shard.cursor)
        sums, (hours, count, hashed) = digest.sums, (0, 0, 0)
        from_ms = max(compared_from_ms(shard.cursor.key[0]), digest.from_ms)
        is_exact = sums is not None and digest.is_exact_at(shard.cursor.offset)
        if sums is not None and is_exact:
            for hour in sums.take_changed(from_ms):
                self._write(copy, hour_row(copy.place, read_back.offset, hour))
            hours, count, hashed = sums.totals(from_ms)
        row = CutRow(
            **copy.place._asdict(),
            cut=read_back.offset,
            cut_ms=read_back.broker_ms,
            k=shard.cursor.key,
            h=shard.cursor.offset,
            stored=digest.stored,
            from_ms=from_ms,
            hours=hours,
            count=count,
            hash=hash_text(hashed),
            pending=copy.store.pending,
            behind=not is_exact,
            role="owner" if is_owner else "replica",
            damaged=tuple(copy.store.damaged),
        )
        self._write(copy, cut_row(row))
        if is_exact:
            for done in copy.awaited:
                done()
            copy.awaited = []

    def _begin_life(self, copy: _Copy) -> None:
        copy.rows_lost = False
        copy.place = self._place(copy.place.topic, copy.place.topic_id)
        if copy.store.digest.sums is not None:
            copy.store.digest.sums.all_changed()

    def _write(self, copy: _Copy, row: DigestRow) -> None:
        def lost() -> None:
            copy.rows_lost = True

        self._write_row(row, lost)

    # --- scan ----------------------------------------------------------------------------------

    def ask_scan(self, topic: str, done: Done) -> None:
        """Request a scan of a shard that has a store; call ``done`` when the first digest after
        it is published.
        """
        self._copies[topic].asked.append(done)

    def _scan(self, *, is_owner: bool) -> None:
        if self._reading is None:
            self._begin_reading()
        copy = self._reading
        if copy is None:
            return
        if not copy.store.is_scanning:  # it was reset meanwhile, and is read again
            self._stop_reading(copy)
            copy.asked += copy.reading_for
            copy.scanned_s = float("-inf")
        elif copy.store.scan_on():
            self._end_reading(copy, is_owner=is_owner)

    def _begin_reading(self) -> None:
        now_s = self._clock.monotonic_s()
        for copy in self._copies.values():
            is_time = now_s - copy.scanned_s >= self._scan_interval_s
            is_wanted = is_time or copy.asked or copy.store.wants_scan
            if is_wanted and copy.store.may_scan and self._scanning.acquire(blocking=False):
                self._reading = copy
                copy.scanned_s = now_s
                copy.reading_for, copy.asked = copy.asked, []
                copy.store.begin_scan()
                return

    def _end_reading(self, copy: _Copy, *, is_owner: bool) -> None:
        self._stop_reading(copy)
        copy.awaited += copy.reading_for
        copy.reading_for = []
        differs = copy.store.digest.finish()
        _report(copy, differs=differs)
        if self._last_cut is None:
            return
        shard = self._last_cut[1].shards.get(copy.place.topic)
        if shard is not None and copy.store.digest.is_exact_at(shard.cursor.offset):
            self._publish(copy, *self._last_cut, is_owner=is_owner)  # unchanged since that cut

    def _stop_reading(self, copy: _Copy) -> None:
        if self._reading is copy:
            self._reading = None
            self._scanning.release()


def _report(copy: _Copy, *, differs: bool) -> None:
    place = copy.place
    if differs:
        _log.error(
            "copy_differs_from_what_was_stored",
            topic=place.topic,
            partition=place.partition,
            hint="compare this copy with the others: delayservice spark reconcile",
        )
    for damage in copy.store.damaged:
        _log.error(
            "copy_damaged",
            topic=place.topic,
            partition=place.partition,
            why=damage.why,
            hint="the damaged part is read again from Kafka when it is due, or by a repair",
        )
