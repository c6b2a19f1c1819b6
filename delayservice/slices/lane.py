"""Lane of one shard with a store. It executes the decisions of ``engine.shard``.

It never commits, because all lanes of a worker share one transaction (see ``loop``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from delayservice.base.errors import KafkaEdgeError, LogTruncatedError
from delayservice.contract.codec import turn_of
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, Entry
from delayservice.contract.record import RecordReader
from delayservice.engine.cancels import MayRead
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, Lost, fingerprint
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.engine.marking import CopyScan
from delayservice.engine.outcome import Output, PastDue, Routes
from delayservice.engine.pacing import Growth
from delayservice.engine.ports import Bounds, PolledBatch, Source, Targets
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.slices.any_lane import NOWHERE, PreciseLane, report_expired, report_truncated
from delayservice.slices.log_proof import LogProof
from delayservice.slices.repair import RepairingStore, ShardLog
from delayservice.slices.requeued_scan import cancellers
from delayservice.slices.store_label import StoreLabel
from delayservice.store.base import Store, StoreStats


class Prefetch:
    """Preparations for records of one shard just stored. Targets that settings deny are not
    looked up, because a client can name any number of them.
    """

    def __init__(self, settler: Settler, targets: Targets, flow: Flow | None) -> None:
        self._settler = settler
        self._targets = targets
        self._flow = flow

    def note(self, entries: Sequence[Entry]) -> None:
        """Report the turns that an earlier owner gave to paced records, and look up unknown
        targets.
        """
        flow, targets = self._flow, self._targets
        if flow is not None and flow.has_rates:
            for payload in (entry[4] for entry in entries if entry[1] == COPY):
                turn_ms = turn_of(payload[6])
                if turn_ms is not None:
                    flow.observe(payload[0], turn_ms)
        named = {entry[4][:2] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target in named
            if target not in targets.writable and self._settler.denial(target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)


# Mean size of a record that is assumed at first: the first batch must fit in memory.
_FIRST_MEAN_BYTES = 32_768.0
# Outputs in one list of ``settle_due``, to fit in the processor's cache.
_CHUNK_RECORDS = 1_000


class Lane(PreciseLane):
    store: Store

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        store: Store,
        source: Source,
        routes: Routes,
        targets: Targets,
        flow: Flow | None = None,
    ) -> None:
        super().__init__(topic, partition, topic_id, source, routes, targets, flow)
        self.store = store
        self.past_due = PastDue()
        self._prefetch = Prefetch(self._settler, targets, flow)
        # Batches not passed by H: end offset, exclusive, and first append time, epoch ms.
        self._read_runs: deque[tuple[int, int]] = deque()
        self._may_store = True
        self._mean_bytes = _FIRST_MEAN_BYTES
        self.shard = Shard(self._settler, store.open())
        self._proof = LogProof(topic, partition, self.shard)
        fingerprints = frozenset(map(fingerprint, self._secrets))
        self._label = StoreLabel(store, self.place, fingerprints, self._proof)
        self.contracts = self._label.contracts
        self._is_adopted = False
        self.reader = RecordReader(topic, partition, self.contracts, self._secrets)
        self._growth = Growth()
        self.repairing = RepairingStore(store, self.shard, self._own_log)

    # --- roles ---------------------------------------------------------------------------------

    # Reading begins with the first call. The store is emptied if its label says that its records
    # were read otherwise; else the label is written before the next read, so that it is right after
    # a crash.
    def adopt(self, contracts: Contracts) -> None:
        if self._is_adopted and contracts == self.contracts:
            return
        was_wrong = self._label.is_read_otherwise(self.shard.stored, contracts)
        self.contracts = self._settler.requeuer.contracts = contracts
        self.reader = RecordReader(self.topic, self.partition, contracts, self._secrets)
        self._is_adopted = True
        if was_wrong:
            self.reset_store()
        else:
            self._label.write(contracts)

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        return self._growth.offsets_ahead(end, now_ms)

    # It reads the whole log, whatever its end.
    def log_reaches(self, end: int) -> None: ...

    def step_down(self) -> None:
        self._fetch.position = NOWHERE
        self._read_runs.clear()
        self.follow(self.shard.committed)

    def follow(self, cursor: Cursor) -> None:
        self.shard.follow(cursor)
        self._proof.follow()
        self._read_on()

    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        proof = self._proof
        self._claimed = cursor, last_read
        newer = proof.first_newer(cursor, last_read)
        if newer is not None:
            cursor, last_read = Cursor(cursor.key, newer.offset), newer
        if self.shard.stored == 0 or last_read.offset >= bounds.end:
            last_read = LastRead(last_read.leader_epoch)  # the epoch shows what H has passed
        cursor = self._fit_to_log(cursor, bounds)
        self._skip_lost(lost, cursor.offset, bounds.start)
        proof.take_over(last_read, bounds)
        if proof.is_unproved:
            self._fetch.position = NOWHERE  # forces a seek, with which the client checks it
        marked = self.store.marked_from(cursor.offset)
        self.shard.take_over(cursor, marked, bounds.end, bounds.start)
        self._read_on()

    def clamp(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        newer = self._proof.first_newer(cursor, last_read)
        return cursor if newer is None else Cursor(cursor.key, newer.offset)

    def refit(self, bounds: Bounds, *, is_truncated: bool | None = None) -> None:
        cursor, last_read = self.standing
        position = self._fetch.position
        below = self.last_below(position)
        begun_at = position if below is NOTHING_READ else below.offset + 1
        if is_truncated is None:
            is_truncated = bounds.start <= begun_at  # else what is missing has expired
        if is_truncated:
            self._lose_end(cursor, bounds)
            last_read = LastRead(last_read.leader_epoch)
        self._fetch.position = NOWHERE
        if self.shard.owned:
            self.take_over(cursor, bounds, last_read, self._lost)
        else:
            self.follow(self._fit_to_log(cursor, bounds))

    @property
    def is_doubtful(self) -> bool:
        shard = self.shard
        is_read = shard.stored >= shard.committed.offset and not self._proof.is_unproved
        return shard.owned and not is_read

    @property
    def awaited_end(self) -> int:
        return self.shard.awaited_end

    def is_read_by(self, leader_epoch: int) -> bool:
        return self._proof.is_read_by(leader_epoch)

    def last_below(self, offset: int) -> LastRead:
        return self._proof.last_below(offset)

    # The returned H is at most the end of the log. A log that ends below H or S was truncated; if
    # it starts above S, retention deleted records.
    def _fit_to_log(self, cursor: Cursor, bounds: Bounds) -> Cursor:
        if cursor.offset > bounds.end or self.shard.stored > bounds.end:
            self._lose_end(cursor, bounds)
            cursor = Cursor(cursor.key, min(cursor.offset, bounds.end))
        if self._proof.expire(bounds.start):
            self._fetch.position = NOWHERE  # forces a seek, or the log would seem to be truncated
        if self.shard.stored < bounds.start:
            report_expired(self.place, self.shard.stored, bounds.start)
            self.store.append([], [], [], bounds.start)
            self.shard.stored = bounds.start
        return cursor

    def _lose_end(self, cursor: Cursor, bounds: Bounds) -> None:
        report_truncated(
            self.place,
            "the store is rebuilt from what the log holds now",
            end=bounds.end,
            cursor_offset=cursor.offset,
            stored=self.shard.stored,
        )
        self.reset_store()
        self._proof.forget_last()

    def reset_store(self) -> None:
        """Empty the store and set S to 0, so that it is filled from the start of the log."""
        self.store.reset()
        self.shard.stored = 0
        self._proof.start_over()
        if self._is_adopted:
            self._label.write(self.contracts, has_refused=False)

    def _read_on(self) -> None:
        # What the client has not checked yet is not read again: it may be gone.
        wanted = self.shard.stored if self._proof.is_unproved else self.shard.wanted
        if self._is_adopted and wanted != self._fetch.position:
            self._fetch.go_to(wanted, self.last_below(wanted))
        self._hold_back()

    # --- poll → store --------------------------------------------------------------------------

    def ingest(self, run: PolledBatch) -> int:
        if run.start != self._fetch.position:
            return 0  # read before a seek
        epochs_before = self._proof.epochs
        try:
            self._proof.prove(run)
        except LogTruncatedError:
            self._fetch.position = NOWHERE  # a seek is needed before the next read
            raise
        if self._proof.epochs != epochs_before:
            # Before the store holds a record of this epoch: after a crash the label tells.
            self._note_position()
        entries = self.reader.read_batch(run.rows)
        if self.reader.has_refused and not self._label.has_refused:
            # Written before the store's S passes the refused record.
            self._label.write(self.contracts, has_refused=True)
        self._prefetch.note(entries)
        shard, store = self.shard, self.store
        needed = shard.scans_needed(run.start, entries, run.stop)
        scanned = self._cancellers(needed)
        added = shard.ingest(run.start, entries, run.stop, scanned, store.latest_unmarked)
        if added.frames or added.marks or shard.stored == run.stop:
            store.append(added.frames, added.named, added.marks, shard.stored)
        if run.rows:
            self._growth.note(*run.rows[0][:2])
            self._growth.note(*run.rows[-1][:2])
        self._proof.note(run)
        if run.rows and shard.owned:
            self._read_runs.append((run.stop, run.rows[0][1]))
            self.past_due.note(run.rows, entries)
        self._fetch.position = run.stop
        self._read_on()
        return len(entries)

    def is_denied(self, target: str) -> bool:
        return self._settler.denial(target) is not None

    def _unwalked_ms(self) -> int | None:
        runs, h = self._read_runs, self.shard.staged.offset
        while runs and runs[0][0] <= h:
            runs.popleft()
        return runs[0][1] if runs else None

    # Records that are stored already are still read, so that H moves.
    def let_store(self, *, may_store: bool) -> None:
        if may_store != self._may_store:
            self._may_store = may_store
            self._hold_back()

    # Fetching pauses while H has too many records to pass, or storing is forbidden.
    def _hold_back(self) -> None:
        shard = self.shard
        stores_next = not self._proof.is_unproved and shard.wanted >= shard.stored
        self._fetch.pause(is_paused=shard.is_full or (stores_next and not self._may_store))

    # --- due → settle --------------------------------------------------------------------------

    def settle_late(self, now_ms: int, limit: int, may_read: MayRead) -> list[Output]:
        if self.is_doubtful:
            return []
        self._settler.begin(limit)
        return self.shard.advance_offset(now_ms, limit, self.repairing.pending_at, may_read)

    # Short lists, so that Kafka sends one while the next is read, and a list reuses memory that is
    # still in the processor's cache (``bench whole``).
    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterator[list[Output]]:
        shard = self.shard
        if self.is_doubtful or not shard.may_advance_key:
            return
        self._settler.begin(limit)
        upto_ms = shard.key_limit_ms(now_ms, self._unwalked_ms())
        after = shard.staged.key
        settled = 0
        bytes_left = bytes_max
        while settled < limit and bytes_left > 0:
            fitting = int(bytes_left / self._mean_bytes) + 1
            asked = min(limit - settled, fitting, _CHUNK_RECORDS)
            frames = self.repairing.read_due(after, upto_ms, asked)
            if not frames:
                return
            outputs = shard.advance_key(frames, now_ms)
            yield outputs
            if shard.is_held:
                return
            after = frames[-1][:2]
            settled += len(outputs)
            taken = sum([len(frame[3]) for frame in frames])
            bytes_left -= taken
            self._mean_bytes = max(taken / len(frames), 1.0)
            if len(frames) < asked:
                return

    def start_over(self) -> Iterator[None]:
        bounds = self._fetch.source.bounds(self.place)
        yield from self.repairing.check_is_in_log(bounds.start)
        if self.shard.owned:
            raise KafkaEdgeError(f"this node delivers {self.topic}:{self.partition} by now")
        self.reset_store()
        self._fetch.position = NOWHERE
        self.follow(self._fit_to_log(self.shard.committed, bounds))

    def _own_log(self) -> ShardLog:
        return ShardLog(
            self._fetch.source,
            self.reader,
            self.place,
            lambda scan: self._cancellers([scan])[scan.copy_offset],
        )

    def _cancellers(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        return cancellers(self._fetch.source, self.reader, self.place, scans)

    def next_due_ms(self) -> int | None:
        return self.store.next_due_ms(self.shard.staged.key)

    # --- commit → prune ------------------------------------------------------------------------

    def committed(self) -> None:
        super().committed()
        self.past_due.forget(self.shard.committed)

    def prune(self, cursor: Cursor) -> None:
        self.store.prune(cursor)

    def sync_soon(self) -> None:
        self._note_position()
        self.store.sync(wait=False)

    def stats(self) -> StoreStats:
        return self.store.stats()

    def _note_position(self) -> None:
        if self._is_adopted and self._label.known is not None:
            self._label.write(self.contracts)

    def close(self) -> None:
        self._note_position()
        self._fetch.pause(is_paused=False)  # the client would remember it for the next lane
        self.store.close()
