"""Lane of one shard: reads its log, and executes the decisions of ``engine.shard``.

``docs/glossary.md`` defines H, S, K, cursor and mark. A lane *owns* its shard from ``take_over`` to
``follow`` or ``step_down``, and settles its records; else it is a *replica*. It never commits,
because all lanes of a worker share one transaction (see ``loop``): what it settles takes
effect with the next commit, whose success the caller reports by ``committed``. Without it, the
caller steps down, and takes the shard over again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from delayservice.base.errors import KafkaEdgeError, LogTruncatedError, SlotDamagedError
from delayservice.contract.codec import Payload, decode_payload, turn_of
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, Entry
from delayservice.contract.record import RecordReader
from delayservice.engine.checkpoint import (
    NOTHING_READ,
    LastRead,
    Lost,
    ShardCheckpoint,
    fingerprint,
    skipped,
)
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.estimates import Growth
from delayservice.engine.flow import Flow
from delayservice.engine.level import LevelRecords
from delayservice.engine.marking import RecentNames, Scans
from delayservice.engine.outcome import Output, PastDue, Routes
from delayservice.engine.ports import Background, Bounds, PolledBatch, Source, Targets
from delayservice.engine.settle import HasTime, Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.fetch import (
    NOWHERE,
    Fetch,
    report_expired,
    report_lost,
    report_not_level,
    report_truncated,
)
from delayservice.slices.log_proof import LogProof
from delayservice.slices.log_reading import (
    CancellersFound,
    CancellersWanted,
    LogAnswer,
    LogWanted,
    RecordFound,
    RecordWanted,
    ShardLog,
    SlotFound,
    SlotWanted,
    check_is_in_log,
)
from delayservice.slices.log_window import LogWindow
from delayservice.slices.store_label import StoreLabel
from delayservice.store.base import Store, StoreStats

# Mean size of a record that is assumed at first: the first batch must fit in memory.
_FIRST_MEAN_BYTES = 32_768.0
# Outputs in one list of ``settle_due``, to fit in the processor's cache.
_CHUNK_RECORDS = 1_000


# A batch that waits for what cancelled its requeued records.
@dataclass(slots=True)
class _Decoded:
    run: PolledBatch
    entries: list[Entry]
    cancellers: Scans = field(default_factory=dict)


_REBUILT = "the store is rebuilt from what the log holds now"
_DELIVERED = "what was written in their place is delivered"

_log = structlog.get_logger(__name__)


class Lane:
    """What a worker does for one partition of a delay topic, its shard.

    ``topic_id``: Kafka's id, which differs after the topic is deleted and created again. ``flow``:
    limits shared by all lanes of the slice; None: none. ``window``: the store of a level topic;
    None: the shard has a store of its own, which can be searched, compared and repaired.
    ``past_due``: append times, epoch ms, by source offset, of records due before them.
    ``log_wanted``: what a helper thread is to read of the log, before this lane goes on.
    ``tenure`` counts take-overs by this node.
    """

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
        names: RecentNames | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.topic_id = topic_id
        self.store = store
        self.window = window = store if isinstance(store, LogWindow) else None
        self._secrets = routes.secrets
        self.settler = Settler(topic, partition, routes, Verdicts(), targets, flow)
        self.tenure = 0
        self._fetch = Fetch(source, self.place)
        # Offsets that H skipped because retention deleted them, for checkpoints.
        self._lost: tuple[Lost, ...] = ()
        # Cursor and last record of the checkpoint that this owner took over from.
        self._claimed = Cursor(), NOTHING_READ
        self.past_due = PastDue()
        self._targets = targets
        self._flow = flow
        # Batches not passed by H: end offset, exclusive, and first append time, epoch ms.
        self._read_runs: deque[tuple[int, int]] = deque()
        self._may_store = True
        self._mean_bytes = _FIRST_MEAN_BYTES
        is_level = window is not None
        self.shard = Shard(self.settler, store.open(), is_level=is_level, names=names)
        self.proof = LogProof(topic, partition, self.shard)
        fingerprints = frozenset(map(fingerprint, self._secrets))
        self._label = StoreLabel(store, self.place, fingerprints, self.proof)
        self.contracts = self._label.contracts
        self._is_adopted = False
        self.reader = RecordReader(topic, partition, self.contracts, self._secrets)
        self._level = LevelRecords(self.reader, self.contracts, self.settler)
        self._growth = Growth()
        self._scanner = store.scanner(for_repair=True)
        self.log_wanted: LogWanted | None = None
        self._decoded: _Decoded | None = None
        # What the control at H hits, as far as it was read from the log again.
        self._fired: dict[Key, Payload] = {}

    @property
    def verdicts(self) -> Verdicts:
        return self.settler.verdicts

    # --- roles ---------------------------------------------------------------------------------

    def adopt(self, contracts: Contracts) -> None:
        """Read records by ``contracts`` from now on (rule 2 of the design); reading begins with
        the first call. The store is emptied if its label says that its records were read
        otherwise; else the label is written before the next read, so that it is right after a
        crash.
        """
        if self._is_adopted and contracts == self.contracts:
            return
        stored = self.shard.stored if self.window is None else 0
        was_wrong = self._label.is_read_otherwise(stored, contracts)
        self.contracts = self.settler.requeuer.contracts = contracts
        if self._decoded is not None:  # by other contracts
            self._fetch.position = NOWHERE
        self.reader = RecordReader(self.topic, self.partition, contracts, self._secrets)
        self._is_adopted = True
        if was_wrong:
            self.reset_store()
        else:
            self._label.write(contracts)

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how many offsets above ``end`` a new contract must begin, so that replicas know
        it before they store a record to which it applies.
        """
        return self._growth.offsets_ahead(end, now_ms) if self.window is None else 0

    def step_down(self) -> None:
        """Become a replica again at the committed cursor; safe after an error in another call."""
        if self.window is None:
            self._fetch.position = NOWHERE
        self.log_wanted = None
        self._fired.clear()
        self._read_runs.clear()
        self.follow(self.shard.committed)

    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica at the newest checkpoint's cursor."""
        self.shard.follow(cursor)
        self.proof.follow()
        self._read_on()

    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        """Become the owner, and settle from the checkpoint's ``cursor`` on.

        ``bounds`` were queried after former writers were fenced. ``last_read`` and ``lost``
        (offsets that H skipped because retention had deleted them) are from the checkpoint.
        """
        proof = self.proof
        self.tenure += 1
        self._claimed = cursor, last_read
        if self.window is not None:
            self._take_window_over(self.window, cursor, bounds, last_read, lost)
            return
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
        sighted = self.store.sighted_from(cursor.offset)
        lost_below = self._lost[-1].stop if self._lost else 0
        self.shard.take_over(cursor, marked, bounds.end, bounds.start, sighted, lost_below)
        self._read_on()

    def _take_window_over(
        self,
        window: LogWindow,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead,
        lost: tuple[Lost, ...],
    ) -> None:
        self._skip_lost(lost, cursor.offset, bounds.start)
        if cursor.offset > bounds.end:
            facts = {"cursor_offset": cursor.offset, "read_from": bounds.end}
            report_truncated(self.place, _DELIVERED, **facts)
        h = min(max(cursor.offset, bounds.start), bounds.end)
        # Below H, records may be pending in a store that a normal delay topic had.
        if not all(contract.level_ms for _, contract in self.contracts.entries()):
            report_not_level(self.place)
            self.follow(Cursor(cursor.key, h))
            return
        window.clear()
        self._level = LevelRecords(self.reader, self.contracts, self.settler)
        self.shard.take_over(Cursor(cursor.key, h), (), bounds.end)
        self._fetch.go_to(window.proof.begin(h, last_read, bounds))
        self._read_on()

    # Log the offsets that H skips now if ``lost``, from the last checkpoint, lacks them.
    def _skip_lost(self, lost: tuple[Lost, ...], h: int, log_start: int) -> None:
        self._lost = skipped(lost, h, log_start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])

    def clamp(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return a checkpoint's cursor. If the log was truncated and grew again since
        ``last_read``, its H is lowered to the first record that replaced a lost one.
        """
        newer = self.proof.first_newer(cursor, last_read)
        return cursor if newer is None else Cursor(cursor.key, newer.offset)

    def refit(self, bounds: Bounds, *, is_truncated: bool | None = None) -> None:
        """Go on as a replica with a log of ``bounds``. ``is_truncated`` None: the client has lost
        its position, which retention may have deleted.
        """
        if self.window is not None:  # a replica reads nothing
            return
        cursor = self.shard.committed
        position = self._fetch.position
        below = self.proof.last_below(position)
        begun_at = position if below is NOTHING_READ else below.offset + 1
        if is_truncated is None:
            is_truncated = bounds.start <= begun_at  # else what is missing has expired
        if is_truncated:
            self._lose_end(cursor, bounds)
        self._fetch.position = NOWHERE
        self.follow(self._fit_to_log(cursor, bounds))

    def read_anew(self) -> None:
        """Seek to the offset to be read next, because the client may have lost its position."""
        self._fetch.position = NOWHERE
        self._read_on()

    # The committed cursor, and the last record that its owner had read.
    @property
    def standing(self) -> tuple[Cursor, LastRead]:
        return self._claimed if self.is_doubtful else (self.shard.committed, self._last_read)

    # For checkpoints.
    @property
    def _last_read(self) -> LastRead:
        return (self.proof if self.window is None else self.window.proof).checkpoint_last

    @property
    def is_doubtful(self) -> bool:
        """Return whether the log may have lost records below H: nothing is settled, and
        checkpoints repeat the one before.
        """
        if self.window is not None:
            return bool(self.awaited_end)
        shard = self.shard
        is_read = shard.stored >= shard.committed.offset and not self.proof.is_unproved
        return shard.owned and not is_read

    @property
    def awaited_end(self) -> int:
        """Return the offset up to which the log must be read before H moves; 0: none."""
        if self.window is None:
            return self.shard.awaited_end
        return self.window.proof.awaited_end if self.shard.owned else 0

    # The returned H is at most the end of the log. A log that ends below H or S was truncated; if
    # it starts above S, retention deleted records.
    def _fit_to_log(self, cursor: Cursor, bounds: Bounds) -> Cursor:
        if cursor.offset > bounds.end or self.shard.stored > bounds.end:
            self._lose_end(cursor, bounds)
            cursor = Cursor(cursor.key, min(cursor.offset, bounds.end))
        if self.proof.expire(bounds.start):
            self._fetch.position = NOWHERE  # forces a seek, or the log would seem to be truncated
        if self.shard.stored < bounds.start:
            report_expired(self.place, self.shard.stored, bounds.start)
            self.store.append([], [], [], bounds.start)
            self.shard.stored = bounds.start
        return cursor

    def _lose_end(self, cursor: Cursor, bounds: Bounds) -> None:
        report_truncated(
            self.place,
            _REBUILT,
            end=bounds.end,
            cursor_offset=cursor.offset,
            stored=self.shard.stored,
        )
        self.reset_store()
        self.proof.forget_last()

    def reset_store(self) -> None:
        """Empty the store and set S to 0, so that it is filled from the start of the log."""
        self.store.reset()
        self.log_wanted = None
        self.shard.stored = 0
        self.proof.start_over()
        if self._is_adopted:
            self._label.write(self.contracts, has_refused=False)

    # Seek to the offset to be read next, unless the client is there already.
    def _read_on(self) -> None:
        if self.window is not None:
            self._fetch_ahead(self.window)
            return
        # What the client has not checked yet is not read again: it may be gone.
        wanted = self.shard.stored if self.proof.is_unproved else self.shard.wanted
        if self._is_adopted and wanted != self._fetch.position:
            self._decoded = None
            if isinstance(self.log_wanted, CancellersWanted):
                self.log_wanted = None
            self._fetch.go_to(wanted, self.proof.last_below(wanted))
        self._hold_back()

    # A paused client throws away what it has fetched. So fetching resumes only when there is room
    # for at least half of the window.
    def _fetch_ahead(self, window: LogWindow) -> None:
        if not self.shard.owned:
            window.clear()
            self._fetch.let_go()
        elif window.is_full:
            self._fetch.pause(is_paused=True)
        elif window.is_half_empty:
            self._fetch.pause(is_paused=False)

    # --- poll → store --------------------------------------------------------------------------

    def ingest(self, run: PolledBatch) -> int:
        """Keep polled records; return their number, 0 if they were read before the last seek, or
        before what is wanted of the log. Raise ``LogTruncatedError``: the log has lost its end;
        call ``refit``.
        """
        if run.start != self._fetch.position or self._is_halted:
            return 0  # read before a seek, or read again
        if self.window is not None:
            return self._ingest_window(self.window, run)
        decoded, self._decoded = self._decoded, None
        is_resumed = decoded is not None and decoded.run is run
        if decoded is None or not is_resumed:
            decoded = _Decoded(run, self._decode(run))
            needed = self.shard.scans_needed(run.start, decoded.entries, run.stop)
            if needed:
                self._decoded, self.log_wanted = decoded, CancellersWanted(needed)
                self._hold_back()
                return 0
        self._keep(run, decoded.entries, decoded.cancellers)
        self._fetch.position = NOWHERE if is_resumed else run.stop
        self._read_on()
        return len(decoded.entries)

    def _decode(self, run: PolledBatch) -> list[Entry]:
        epochs_before = self.proof.epochs
        try:
            self.proof.prove(run)
        except LogTruncatedError:
            self._fetch.position = NOWHERE  # a seek is needed before the next read
            raise
        if self.proof.epochs != epochs_before:
            # Before the store holds a record of this epoch: after a crash the label tells.
            self._note_position()
        entries = self.reader.read_batch(run.rows)
        if self.reader.has_refused and not self._label.has_refused:
            # Written before the store's S passes the refused record.
            self._label.write(self.contracts, has_refused=True)
        self._prepare(run, entries)
        return entries

    # Notes the turns that an earlier owner gave to paced records, and looks up unknown targets. Not
    # those that settings deny, because a client can name any number of them.
    def _prepare(self, run: PolledBatch, entries: Sequence[Entry]) -> None:
        flow, targets = self._flow, self._targets
        if flow is not None and flow.has_rates:
            for payload in (entry[4] for entry in entries if entry[1] == COPY):
                turn_ms = turn_of(payload[6])
                if turn_ms is not None:
                    flow.observe(payload[0], turn_ms, run.rows[0][1])
        named = {entry[4][:2] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target in named
            if target not in targets.writable and self.settler.denial(target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)

    def _keep(self, run: PolledBatch, entries: list[Entry], scanned: Scans) -> None:
        shard, store = self.shard, self.store
        added = shard.ingest(run.start, entries, run.stop, scanned, store.latest_unmarked)
        if added.frames or added.marks or added.sightings or shard.stored == run.stop:
            store.append(added.frames, added.named, added.marks, shard.stored, added.sightings)
        if run.rows:
            self._growth.note(*run.rows[0][:2])
            self._growth.note(*run.rows[-1][:2])
        self.proof.note(run)
        if run.rows and shard.owned:
            self._read_runs.append((run.stop, run.rows[0][1]))
            self.past_due.note(run.rows, entries)

    # Seek back if the search for lost records needs earlier ones.
    def _ingest_window(self, window: LogWindow, run: PolledBatch) -> int:
        shard, proof = self.shard, window.proof
        h = proof.offset
        if run.start == run.stop:
            return 0  # the log's end at the position
        further_back = proof.look(run)
        if further_back is not None:
            self._fetch.go_to(further_back)
            return 0
        self._fetch.position = run.stop
        if proof.offset < h:
            report_truncated(self.place, _DELIVERED, cursor_offset=h, read_from=proof.offset)
            shard.go_back(proof.offset)
            window.clear()
        rows = run.rows
        if run.start < shard.read:
            rows = [row for row in rows if row[0] >= shard.read]
        if rows:
            proof.note(run)
        window.fetched(rows)
        shard.read = max(shard.read, run.stop)
        shard.reaches(shard.read)
        self._read_on()
        return len(rows)

    def _unwalked_ms(self) -> int | None:
        runs, h = self._read_runs, self.shard.staged.offset
        while runs and runs[0][0] <= h:
            runs.popleft()
        return runs[0][1] if runs else None

    # Records that are stored already are still read, so that H moves.
    def let_store(self, *, may_store: bool) -> None:
        """Allow or forbid storing of new records, by resuming or pausing the fetch."""
        if self.window is None and may_store != self._may_store:
            self._may_store = may_store
            self._hold_back()

    # Fetching pauses while H has too many records to pass, or storing is forbidden.
    def _hold_back(self) -> None:
        shard = self.shard
        stores_next = not self.proof.is_unproved and shard.wanted >= shard.stored
        is_waiting = self._is_halted or (stores_next and not self._may_store)
        self._fetch.pause(is_paused=shard.is_full or is_waiting)

    # --- due → settle --------------------------------------------------------------------------

    def settle_late(self, now_ms: int, limit: int, has_time: HasTime) -> list[Output]:
        """Move H over records that were read; return about ``limit`` outputs of those that need
        no wait, as far as they take time only while ``has_time``.
        """
        if self.is_doubtful or self.window is not None:
            return []
        self.settler.begin(has_time)
        stood_at = self.shard.staged.offset
        outputs = self.shard.advance_offset(now_ms, limit, self._pending_at, has_time)
        if self.shard.staged.offset > stood_at:
            self._fired.clear()
        return outputs

    # Short lists, so that Kafka sends one while the next is read, and a list reuses memory that is
    # still in the processor's cache (``bench whole``).
    def settle_due(
        self, now_ms: int, limit: int, bytes_max: int, has_time: HasTime = lambda: True
    ) -> Iterator[list[Output]]:
        """Settle records due at ``now_ms``, epoch ms; yield lists of about ``limit`` outputs and
        ``bytes_max`` payload bytes in all. The caller sends each before it takes the next.
        """
        shard = self.shard
        if self.window is not None:
            yield from self._settle_window(self.window, now_ms, limit, bytes_max)
            return
        if self.is_doubtful or not shard.may_advance_key:
            return
        self.settler.begin(has_time)
        upto_ms = shard.key_limit_ms(now_ms, self._unwalked_ms())
        after = shard.staged.key
        settled = 0
        bytes_left = bytes_max
        while settled < limit and bytes_left > 0:
            fitting = int(bytes_left / self._mean_bytes) + 1
            asked = min(limit - settled, fitting, _CHUNK_RECORDS)
            try:
                frames = self.store.read_due(after, upto_ms, asked)
            except SlotDamagedError as damage:
                self._want_slot(damage)
                return
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

    def _settle_window(
        self, window: LogWindow, now_ms: int, limit: int, bytes_max: int
    ) -> Iterator[list[Output]]:
        self.settler.requeuer.topic = window.park_topic()
        left = min(limit, int(bytes_max / window.mean_bytes) + 1) if self.shard.owned else 0
        while left > 0:
            asked = min(left, _CHUNK_RECORDS)
            outputs = self._level.settle(window.head(asked), now_ms)
            window.stage(len(outputs))
            following = window.head(1)
            reached = following[0][0] if following else self.shard.read
            self.shard.advance_in_order(outputs, reached)
            if outputs:
                yield outputs
            if len(outputs) < asked:
                break
            left -= asked
        self._read_on()

    def start_over(self, reading: Background) -> Iterator[None]:
        """Empty a replica's store, to be filled from the log again. First check in small steps,
        each a yield, that the log holds every pending record; else, or if this node owns the
        slice by now, raise ``KafkaEdgeError`` with the store unchanged.
        """
        before = self.shard.committed  # a later one may be above the end that is told
        asked = reading.submit(partial(self._fetch.source.bounds, self.place))
        while not asked.done():
            yield
        bounds = asked.result()
        yield from check_is_in_log(self.store, self.shard.committed, bounds.start)
        if self.shard.owned:
            raise KafkaEdgeError(f"this node delivers {self.topic}:{self.partition} by now")
        self.reset_store()
        self._fetch.position = NOWHERE
        cursor = self._fit_to_log(before, bounds)
        self.follow(self.shard.committed if cursor == before else cursor)

    # Reads a pending record that is fired; None: once the log was read.
    def _pending_at(self, key: Key) -> Payload | None:
        if key in self._fired:
            return self._fired[key]
        if self.log_wanted is not None:
            return None
        try:
            for frame in self._scanner.frames((key[0], key[1] - 1), key[0]):
                if frame[1] == key[1]:
                    return decode_payload(frame[3])
            self.log_wanted = RecordWanted(key)
        except SlotDamagedError as damage:
            self._want_slot(damage)
        return None

    # --- the log again -------------------------------------------------------------------------

    @property
    def log(self) -> ShardLog:
        return ShardLog(self._fetch.source, self.place, self.contracts, self._secrets)

    def _want_slot(self, damage: SlotDamagedError) -> None:
        if self.log_wanted is None:
            _log.error("slot_damaged", topic=self.topic, partition=self.partition, why=str(damage))
            self.log_wanted = SlotWanted(damage, self.shard.stored)
            self._hold_back()  # S stays until the slot is rebuilt

    # S stays until the log was read. The client throws away what it has fetched, so reading goes on
    # with a seek.
    @property
    def _is_halted(self) -> bool:
        return self.log_wanted is not None and not isinstance(self.log_wanted, RecordWanted)

    def log_answered(self, found: LogAnswer) -> PolledBatch | None:
        """Go on with what was wanted of the log; return the batch to be ingested now."""
        self.log_wanted = None
        match found:
            case CancellersFound(by_copy):
                if self._decoded is not None:
                    self._decoded.cancellers = by_copy
                    return self._decoded.run
            case SlotFound(start_ms, stop_ms, frames):
                self.store.rebuild(start_ms, stop_ms, frames)
                _log.warning(
                    "slot_rebuilt", topic=self.topic, partition=self.partition, frames=len(frames)
                )
                self.read_anew()
            case RecordFound(key, payload):
                self._fired[key] = payload
        return None

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, or an earlier time in its slot, epoch ms."""
        if self.window is not None:
            following = self.window.head(1)
            return self._level.due_ms(following[0]) if following else None
        return self.store.next_due_ms(self.shard.staged.key)

    # --- commit → prune ------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint, with the cursor reached, not committed yet."""
        cursor, last_read = self.shard.staged, self._last_read
        if self.is_doubtful:
            cursor, last_read = self._claimed
        return ShardCheckpoint(self.topic_id, cursor, self.contracts, last_read, self._lost)

    def committed(self) -> None:
        """Make the cursor that the last commit carried the committed one, and read on."""
        self.shard.commit()
        if self.window is not None:
            self.window.commit()
        self.verdicts.committed()
        self._read_on()
        self.past_due.forget(self.shard.committed)

    def sync_soon(self) -> None:
        """Start to make all stored records durable on disk, without waiting."""
        self._note_position()
        self.store.sync(wait=False)

    def stats(self) -> StoreStats:
        """Return numbers of the store; cheap enough for a call every second."""
        if self.window is not None:
            stored = self.shard.stored
            return StoreStats(stored - self.shard.committed.offset, 0, stored)
        return self.store.stats()

    def _note_position(self) -> None:
        if self._is_adopted and self._label.known is not None:
            self._label.write(self.contracts)

    def close(self) -> None:
        """Close the store, which makes its records durable. The caller stops the reading by
        ``Source.drop``.
        """
        self._note_position()
        self.store.close()
