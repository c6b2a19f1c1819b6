"""One shard with its log and its store: the precise lane. Poll → store, and due → settle.

The lane carries out what the shard decides. It never commits: all lanes of a worker share one
transaction (see ``worker_loop``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import structlog

from delayservice.base.errors import KafkaEdgeError, LogTruncatedError, SlotDamagedError
from delayservice.contract.codec import Payload, decode_payload, turn_of
from delayservice.contract.contracts import Contract, ContractError, Contracts
from delayservice.contract.entry import COPY, OFFSET_MAX, Entry
from delayservice.contract.record import RecordReader
from delayservice.contract.times import DUE_STOP_MS
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, ShardCheckpoint, fingerprint
from delayservice.engine.cursor import Cursor, Key
from delayservice.engine.flow import Flow
from delayservice.engine.growth import Growth
from delayservice.engine.label import Label
from delayservice.engine.losses import Gap, Lost, doubtful, skipped, stored_without_gap, with_gap
from delayservice.engine.outcome import Output
from delayservice.engine.past_due import PastDue
from delayservice.engine.pending import NO_MARK, Frame
from delayservice.engine.ports import Bounds, Run, Source, Targets
from delayservice.engine.routes import Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import CopyScan, MayRead, Shard, at_will
from delayservice.engine.storing import is_user_record
from delayservice.engine.verdicts import Verdicts
from delayservice.replicas.digest import HOUR_MS
from delayservice.slices.log_proof import LogProof
from delayservice.slices.lost import report_lost
from delayservice.slices.repair import Log, Rereading, reread_slot
from delayservice.store.base import Store

_FIRST_MEAN_BYTES = 32_768.0
"""Payload size assumed before any was read: a first batch of large records must fit in memory."""

_CHUNK_RECORDS = 1_000
"""Outputs that are made and handed over at once: as many as the processor's cache holds."""

_log = structlog.get_logger(__name__)


class Lane:
    """One delay topic's partition on one node."""

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        store: Store,
        source: Source,
        routes: Routes,
        flow: Flow | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.topic_id = topic_id
        self.store = store
        self.verdicts = Verdicts()
        self.past_due = PastDue()
        self._source = source
        self._secrets = routes.secrets
        self._fingerprints = frozenset(map(fingerprint, self._secrets))
        self._flow = flow
        self._settler = Settler(topic, partition, routes, self.verdicts, flow, targets)
        self._targets = targets
        self._read_runs: deque[tuple[int, int]] = deque()
        """Of runs that H may not have passed yet: where each stops, and when its first record was
        appended, epoch milliseconds."""
        self._paused = False
        self._may_store = True
        self._mean_bytes = _FIRST_MEAN_BYTES
        self.shard = Shard(self._settler, store.open())
        self._label = _label_of(store.label)
        """How the store was filled; None: nothing says it."""
        self.contracts = self._label.contracts if self._label else Contracts([(0, Contract())])
        self._lost: tuple[Lost, ...] = ()
        """Offsets that H skipped, as the checkpoints of this owner say."""
        self._log_start = 0
        """Where the log began when it was last asked."""
        self._cancellers: dict[int, int] = {}
        """Cancellers of records that were stored before the take-over, by offset of the record."""
        self._is_adopted = False
        self.reader = RecordReader(topic, partition, self.contracts, self._secrets)
        self._position = -1
        self._growth = Growth()
        self._proof = LogProof(topic, partition, self.shard)
        if self._label is not None:
            self._proof.restore(self._label.last, self._label.read_to)

    # --- roles ---------------------------------------------------------------------------------

    def adopt(self, contracts: Contracts) -> None:
        """Read records by these parameters from now on (rule 2); nothing is read before the first.

        A replica may have stored records by the old parameters before it heard that they end, in
        this life or in one before: those keys are wrong, so the store starts over. So it does when
        nothing says by what its records were read, and when it refused a copy that may be signed
        with a secret which is known only now.

        The store's label is right at every moment: it is set before anything is read by it, and
        what is here by then reads the same by both. So the pair of horizon and label that a crash
        leaves is right too.
        """
        if self._is_adopted and contracts == self.contracts:
            return
        was_wrong = self._is_read_otherwise(contracts)
        self.contracts = self._settler.contracts = contracts
        self.reader = RecordReader(self.topic, self.partition, contracts, self._secrets)
        self._is_adopted = True
        if was_wrong:
            self.reset_store()
        else:
            self._set_label(has_refused=self._has_refused, gaps=self._gaps)

    def _is_read_otherwise(self, contracts: Contracts) -> bool:
        """Return whether the store may hold what these contracts, and the secrets of this life,
        read in another way.
        """
        stored, label = self.shard.stored, self._label
        if stored == 0:
            return False
        why = "stored by unknown parameters"
        if label is not None:
            why = label.doubt(stored, contracts, self._fingerprints)
        if not why:
            return False
        _log.warning(
            "contract_changed",
            topic=self.topic,
            partition=self.partition,
            stored=stored,
            why=why,
            hint="the store is rebuilt from the log",
        )
        return True

    @property
    def _has_refused(self) -> bool:
        """Return whether the store lacks a copy because the secret that signed it is missing."""
        return self._label is not None and self._label.has_refused

    @property
    def _gaps(self) -> tuple[Gap, ...]:
        return () if self._label is None else self._label.gaps

    def _set_label(self, *, has_refused: bool, gaps: tuple[Gap, ...] = ()) -> None:
        known = self._proof.position
        self._label = Label(self.contracts, self._fingerprints, has_refused, gaps, *known)
        self.store.set_label(self._label.encode())

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return as many offsets as came within some seconds; see ``AnyLane``."""
        return self._growth.offsets_ahead(end, now_ms)

    def step_down(self) -> None:
        """Settle no more. Whatever was interrupted, a run may be lost that was read and not stored,
        so it is read again.
        """
        self._position = -1
        self._read_runs.clear()
        self.follow(self.shard.committed)

    def follow(self, cursor: Cursor) -> None:
        """Store only, and keep up with the checkpoint."""
        self.shard.follow(cursor)
        self._proof.follow()
        self._go_to_wanted()
        self._hold_back()

    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        """Own the shard from ``cursor`` on (rule 7); see ``AnyLane``."""
        proof = self._proof
        newer = proof.first_newer(cursor, last_read)
        if newer is not None and proof.is_whole:
            cursor, last_read = Cursor(cursor.key, newer.offset), newer
        elif newer is not None:
            self._lose_end(cursor, bounds)
        if self.shard.stored == 0 or last_read.offset >= bounds.end:
            last_read = LastRead(last_read.leader_epoch)  # which tells what H had passed
        cursor = self._fit_to_log(cursor, bounds)
        read_to = stored_without_gap(self._gaps, cursor.offset, self.shard.stored)
        self._lost = skipped(lost, cursor.offset, read_to, bounds.start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])
        proof.take_over(last_read, bounds)
        marked = self.store.marked_from(cursor.offset)
        self.shard.take_over(cursor, marked, bounds.end, bounds.start)
        self.shard.walk.doubts = doubtful(self._gaps, self._lost)
        self._cancellers = {key[1]: mark for mark, key in marked}
        self._go_to_wanted()
        self._hold_back()

    def fit(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return the cursor of a checkpoint as far as it holds for the log that was read here."""
        newer = self._proof.first_newer(cursor, last_read)
        return cursor if newer is None else Cursor(cursor.key, newer.offset)

    def refit(self, bounds: Bounds, *, is_truncated: bool = False) -> None:
        """Go on with what the log holds, in the same role; see ``AnyLane``."""
        cursor, last_read = self.shard.committed, self._proof.committed_last
        if is_truncated or bounds.start <= self._begun_at:  # else what is missing has expired
            self._lose_end(cursor, bounds)
            last_read = LastRead(last_read.leader_epoch)
        self._position = -1
        if self.shard.owned:
            self.take_over(cursor, bounds, last_read, self._lost)
        else:
            self.follow(self._fit_to_log(cursor, bounds))

    @property
    def _begun_at(self) -> int:
        """Return where the client reads, or began to."""
        last_read = self.last_below(self._position)
        return self._position if last_read is NOTHING_READ else last_read.offset + 1

    @property
    def awaited_end(self) -> int:
        """Up to where the log has to be read; see ``AnyLane``."""
        is_doubtful = self.shard.owned and self._proof.is_doubtful
        return max(self.shard.awaited_end, self.shard.stored if is_doubtful else 0)

    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset``, where it was read; see ``AnyLane``."""
        return self._proof.last_below(offset)

    def _fit_to_log(self, cursor: Cursor, bounds: Bounds) -> Cursor:
        """A log that no longer reaches H was truncated; one that starts above what was stored has
        expired. What is gone is gone and is reported; what is there is served.
        """
        if cursor.offset > bounds.end or self.shard.stored > bounds.end:
            self._lose_end(cursor, bounds)
            cursor = Cursor(cursor.key, min(cursor.offset, bounds.end))
        if self._proof.expire(bounds.start):
            self._position = -1  # begun anew, or the log would seem to be truncated
        if self.shard.stored < bounds.start:
            self._report_lost(self.shard.stored, bounds.start)
            self._go_on_at(bounds.start)
        return cursor

    def _lose_end(self, cursor: Cursor, bounds: Bounds) -> None:
        """Start over with a log that has lost its end; where, shows when it is read."""
        _log.error(
            "log_truncated",
            topic=self.topic,
            partition=self.partition,
            end=bounds.end,
            cursor_offset=cursor.offset,
            stored=self.shard.stored,
            hint="the log has lost records that were read of it (unclean election, or records "
            "deleted); the store is rebuilt from what the log holds now",
        )
        self.reset_store()
        self._proof.forget_last()

    def _report_lost(self, first: int, stop: int) -> None:
        """Offsets that retention deleted before this store had them. On a first start, or after the
        store was wiped, what was pending among them was rolled forward if the retention rule held.
        """
        _log.warning(
            "log_starts_later",
            topic=self.topic,
            partition=self.partition,
            first_offset=first,
            start=stop,
            hint="retention deleted these offsets before they were stored here; records that were "
            "still pending among them are lost to this copy: compare with a replica",
        )

    def _go_on_at(self, start: int) -> None:
        """Go on at ``start`` with a store that never saw the offsets below it."""
        self._note_gap(Gap(self.shard.stored, start, start))
        self.store.append([], [], [], start)
        self.shard.stored = start

    def _note_gap(self, gap: Gap) -> None:
        self._set_label(has_refused=self._has_refused, gaps=with_gap(self._gaps, gap))
        if self.shard.owned:
            self.shard.walk.doubts = doubtful(self._gaps, self._lost)

    def reset_store(self) -> None:
        """Start the store over from the beginning of the log."""
        self.store.reset()
        self.shard.stored = 0
        self._proof.start_over()
        if self._is_adopted:
            self._set_label(has_refused=False)

    def _go_to_wanted(self) -> None:
        wanted = self._proof.doubted_from(self.shard.wanted)
        if self._is_adopted and wanted != self._position:
            self._source.seek(self.place, wanted, self.last_below(wanted))
            self._position = wanted

    # --- poll → store --------------------------------------------------------------------------

    def ingest(self, run: Run) -> int:
        """Store one run of the log; returns its number of records."""
        if run.start != self._position:
            return 0  # read before a seek
        epoch_before = self._proof.position[0].leader_epoch
        try:
            self._proof.prove(run)
        except LogTruncatedError:
            self._position = -1  # whatever comes next is read after a seek
            raise
        entries = self.reader.read_batch(run.rows)
        if self.reader.has_refused and not self._has_refused:
            self._set_label(
                has_refused=True, gaps=self._gaps
            )  # before the store goes past the copy
        if self._flow is not None and self._flow.has_rates:
            self._observe_turns(self._flow, entries)
        if self._targets is not None:
            self._expect(self._targets, entries)
        shard, store = self.shard, self.store
        needed = shard.scans_needed(run.start, entries, run.stop)
        scanned = self._scan_back(needed)
        known = self._stored_cancellers(needed)
        scanned |= known
        added = shard.ingest(run.start, entries, run.stop, scanned, store.latest_unmarked)
        if needed:
            undecided = [scan for scan in needed if scan.copy_offset not in known]
            self._note_cut_scans(undecided, {frame[1] for frame in added.frames})
        if added.frames or added.marks or shard.stored == run.stop:
            store.append(added.frames, added.named, added.marks, shard.stored)
        if run.rows:
            self._growth.note(*run.rows[0][:2])
            self._growth.note(*run.rows[-1][:2])
        self._note_epoch(epoch_before)
        if run.rows and shard.owned:
            self._read_runs.append((run.stop, run.rows[0][1]))
            self.past_due.note(run.rows, entries)
        self._position = run.stop
        self._go_to_wanted()
        self._hold_back()
        return len(entries)

    def _note_epoch(self, epoch_before: int) -> None:
        """Name a new leader epoch in the label, or after a crash what was stored of it would seem
        to stand in place of what the log has lost.
        """
        if self._proof.position[0].leader_epoch > epoch_before >= 0:
            self._note_position()

    def _expect(self, targets: Targets, entries: Sequence[Entry]) -> None:
        """Have unknown targets looked up by the time their records are due; not those that settings
        deny, for anybody can name any number of them.
        """
        named = {entry[4][:2]: entry[0] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target, offset in named.items()
            if target not in targets.fit and self._settler.denial(offset, target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)

    def is_denied(self, target: str) -> bool:
        """Return whether settings deny a target to records that are written now."""
        return self._settler.denial(self.shard.stored, target) is not None

    def _unwalked_ms(self) -> int | None:
        """Return when the first record was appended that H has not passed; None: it has passed all
        that was read.
        """
        runs, h = self._read_runs, self.shard.staged.offset
        while runs and runs[0][0] <= h:
            runs.popleft()
        return runs[0][1] if runs else None

    def _observe_turns(self, flow: Flow, entries: Sequence[Entry]) -> None:
        """Note the turns that an earlier owner gave away: they hold for the next one, which reads
        its copies.
        """
        for entry in entries:
            if entry[1] == COPY:
                target, turn_ms = entry[4][0], turn_of(entry[4][6])
                if turn_ms is not None:
                    flow.observe(target, turn_ms)

    def _scan_back(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        """Return, by copy, the offset of the first user record of its id in ``[base, copy)``, or
        ``NO_MARK`` (rule 13). One pass for all, because after a crash thousands may be asked for at
        once.
        """
        found = {scan.copy_offset: NO_MARK for scan in scans}
        if not scans:
            return found
        by_id: dict[bytes, list[CopyScan]] = {}
        for scan in scans:
            by_id.setdefault(scan.record_id, []).append(scan)
        start = self._retained(min(scan.base for scan in scans))
        for run in self._source.scan(self.place, start, max(found)):
            for entry in self.reader.read_batch(run.rows):
                offset, record_id = entry[0], entry[3]
                if record_id is None or not is_user_record(entry):
                    continue
                for scan in by_id.get(record_id, ()):
                    copy_offset = scan.copy_offset
                    if found[copy_offset] == NO_MARK and scan.base <= offset < copy_offset:
                        found[copy_offset] = offset
        return found

    def _stored_cancellers(self, scans: Sequence[CopyScan]) -> dict[int, int]:
        """Return, by copy, what the store knows where the log no longer holds all that may cancel
        it: its mark. A copy that was stored and is not there any more, although K has not passed
        it, was pruned, so H has passed its canceller; ``base`` stands for that.
        """
        known = {}
        for key_ms, offset, _, base in scans:
            if base >= self._log_start or offset >= self.shard.stored:
                continue
            frames = self._scan((key_ms, offset - 1), key_ms)
            mark = next((frame[2] for frame in frames if frame[1] == offset), None)
            if mark is not None:
                known[offset] = mark
            elif (key_ms, offset) > self.shard.committed.key:
                known[offset] = base
        return known

    def _scan_one_back(self, scan: CopyScan) -> int:
        """Return the canceller of a copy of which the store's own frame is damaged."""
        found, offset = self._scan_back([scan])[scan.copy_offset], scan.copy_offset
        if offset in self._cancellers:
            return self._cancellers[offset]
        self._note_cut_scans([scan], {offset})
        return found

    def _note_cut_scans(self, scans: Sequence[CopyScan], kept: Collection[int]) -> None:
        """Note copies of which it is not known whether they were cancelled, for the log no longer
        holds all records since they were made. ``kept``: those that are pending; to an owner, those
        that it walks over count as well.
        """
        shard, start = self.shard, self._log_start
        walked_from = shard.committed.offset if shard.owned else OFFSET_MAX
        cut = [
            scan
            for scan in scans
            if scan.base < start and (scan.copy_offset in kept or scan.copy_offset >= walked_from)
        ]
        if cut:
            first, last = min(scan.base for scan in cut), max(scan.copy_offset for scan in cut)
            self._note_gap(Gap(first, start, last + 1))

    def _retained(self, offset: int) -> int:
        """Return where to read from instead, if retention has deleted ``offset``."""
        self._log_start = self._source.bounds(self.place).start
        return max(offset, self._log_start)

    def let_store(self, *, may_store: bool) -> None:
        """Return whether to go on storing. What is stored already is read again all the same: only
        then H may move over it.
        """
        if may_store != self._may_store:
            self._may_store = may_store
            self._hold_back()

    def _hold_back(self) -> None:
        """Fetch no more while the walk's queue is full, or the disk is; what does not fit is in
        Kafka, safely.
        """
        full = self.shard.is_full or (
            not self._may_store
            and not self._proof.is_doubtful
            and self.shard.wanted >= self.shard.stored
        )
        if full != self._paused:
            (self._source.pause if full else self._source.resume)(self.place)
            self._paused = full

    # --- due → settle --------------------------------------------------------------------------

    def settle_late(self, now_ms: int, limit: int, may_read: MayRead = at_will) -> list[Output]:
        """Walk H."""
        if self._proof.is_doubtful:
            return []
        read = self.shard.read
        outputs = self.shard.advance_offset(now_ms, limit, self._pending_at, may_read)
        if self.shard.read < read:  # H reads again what it had passed before an abort
            self._go_to_wanted()
            self._hold_back()
        return outputs

    def _pending_at(self, key: Key) -> Payload:
        """Return what is pending at a key, near or far: in the store, or, for a copy whose time
        passed before it came back, in the log only.
        """
        key_ms, offset = key
        for frame in self._scan((key_ms, offset - 1), key_ms):
            if frame[1] == offset:
                return decode_payload(frame[3])
        for run in self._source.scan(self.place, offset, offset + 1):
            for entry in self.reader.read_batch(run.rows):
                if entry[0] == offset and entry[1] <= COPY:
                    payload: Payload = entry[4]
                    return payload
        raise KafkaEdgeError(
            f"{self.topic}:{self.partition} offset {offset} is pending, and can't be read any more"
        )

    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterator[list[Output]]:
        """Walk K over what the store holds, at most about ``limit`` outputs and ``bytes_max``
        payload bytes; in chunks, so that Kafka sends one while the next is read, and so that what a
        chunk took in memory is in the cache when the next takes it (``bench whole``).

        Each chunk is to be sent, or the transaction aborted and no other asked for.
        """
        shard = self.shard
        if self._proof.is_doubtful or not shard.may_advance_key:
            return
        upto_ms = shard.key_limit_ms(now_ms, self._unwalked_ms())
        after = shard.staged.key
        settled = 0
        bytes_left = bytes_max
        while settled < limit and bytes_left > 0:
            fitting = int(bytes_left / self._mean_bytes) + 1
            asked = min(limit - settled, fitting, _CHUNK_RECORDS)
            frames = self._read_due(after, upto_ms, asked)
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

    def _read_due(self, after: Key, now_ms: int, limit: int) -> list[Frame]:
        while True:
            try:
                return self.store.read_due(after, now_ms, limit)
            except SlotDamagedError as damage:
                self._mend(damage)

    def _scan(self, after: Key, upto_ms: int) -> Iterator[Frame]:
        """``Store.scan`` of all there is: what is damaged is mended on the way."""
        while True:
            try:
                for frame in self.store.scan(after, upto_ms):
                    yield frame
                    after = frame[:2]
            except SlotDamagedError as damage:
                self._mend(damage)
            else:
                return

    def repair(self, start_ms: int, stop_ms: int, first_offset: int) -> Iterator[int]:
        """Read the records of a range of keys again from the log, whatever is stored of them; in
        many small steps, for they may lie anywhere in it.

        What the log no longer has is kept as it is stored: this may be the last copy of it.

        Args:
            start_ms: the first key, epoch milliseconds; the range is widened to whole hours, which
                no slot is wider than.
            stop_ms: the end of the range.
            first_offset: where the log has the first record that is to be there.

        Yields:
            After each step, how many records are in the range as far as is known; at last, all.
        """
        start_ms, stop_ms = start_ms // HOUR_MS * HOUR_MS, -(-stop_ms // HOUR_MS) * HOUR_MS
        done = 0
        while start_ms < stop_ms:
            again = Rereading(self._own_log(), start_ms, stop_ms)
            for found in self._reread(again, start_ms, first_offset):
                yield done + found
            k_ms = self.shard.committed.key[0]
            frames = [frame for frame in again.frames() if frame[0] >= k_ms]
            self._rebuild(start_ms, again.stop_ms, frames)
            done, start_ms = done + len(frames), again.stop_ms
            yield done

    def start_over(self) -> Iterator[int]:
        """Have a replica's whole store read again from the log, once every record of it was seen to
        be there; yields while it looks.

        Raises:
            KafkaEdgeError: the store holds records that the log no longer has, and may hold the
                last copy of them; or the node has become the owner meanwhile.
        """
        bounds = self._source.bounds(self.place)
        k, h = self.shard.committed
        scanner, after, end = self.store.scanner(), k, (DUE_STOP_MS, OFFSET_MAX)
        while after < end:
            held, after, _ = scanner.read_on(after, end, _CHUNK_RECORDS)
            if any(o < bounds.start and not 0 <= mark < h for _, o, mark, _ in held):
                raise KafkaEdgeError(
                    f"the copy holds pending records below offset {bounds.start}, where the log "
                    "starts: rebuild ranges of it, which keeps them"
                )
            yield 0
        if self.shard.owned:
            raise KafkaEdgeError(f"this node delivers {self.topic}:{self.partition} by now")
        self.reset_store()
        self._position = -1
        self.follow(self._fit_to_log(self.shard.committed, bounds))

    def _reread(self, again: Rereading, start_ms: int, first_offset: int) -> Iterator[int]:
        """Read what is in a range of keys, up to what is stored when it ends."""
        log_start, stored = self._source.bounds(self.place).start, self.shard.stored
        scanner, after = self.store.scanner(), (start_ms, -1)
        while after < (upto := (again.stop_ms - 1, OFFSET_MAX)):
            held, after, damage = scanner.read_on(after, upto, _CHUNK_RECORDS)
            again.hold(frame for frame in held if frame[1] < log_start)
            # Of what could not be read it is not known where it begins.
            lowest = 0 if damage is not None else min([frame[1] for frame in held], default=None)
            first_offset = first_offset if lowest is None else min(first_offset, lowest)
            yield 0
        reread = self.shard.stored
        yield from again.read(max(first_offset, log_start), reread)
        for _ in again.read(reread, self.shard.stored):  # what came meanwhile, at once
            pass
        again.mark(self.store.marked_from(stored))

    def _mend(self, damage: SlotDamagedError) -> None:
        _log.error("slot_damaged", topic=self.topic, partition=self.partition, why=str(damage))
        stop_ms, frames = reread_slot(self._own_log(), damage, self.shard.stored)
        self._rebuild(damage.start_ms, stop_ms, frames)

    def _own_log(self) -> Log:
        return Log(self._source, self.reader, self.place, self._scan_one_back)

    def _rebuild(self, start_ms: int, stop_ms: int, frames: list[Frame]) -> None:
        self.store.rebuild(start_ms, stop_ms, frames)
        _log.warning("slot_rebuilt", topic=self.topic, partition=self.partition, frames=len(frames))

    def next_due_ms(self) -> int | None:
        """Return when to look again, if nothing else happens before."""
        return self.store.next_due_ms(self.shard.staged.key)

    # --- commit → prune ------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the state of this shard that a commit would write now."""
        return ShardCheckpoint(
            self.topic_id, self.shard.staged, self.contracts, self._proof.committed_last, self._lost
        )

    def committed(self) -> None:
        """The staged cursor is committed."""
        self.shard.commit()
        self.verdicts.committed()
        self.past_due.forget(self.shard.committed)
        self._go_to_wanted()
        self._hold_back()

    def aborted(self) -> None:
        """The transaction was aborted for certain."""
        self.shard.abort()
        self.verdicts.aborted()
        self._go_to_wanted()
        self._hold_back()

    def sync_soon(self) -> None:
        """Make durable what there is, and what tells the log that it was read from."""
        self._note_position()
        self.store.sync_soon()

    def _note_position(self) -> None:
        if self._is_adopted and self._label is not None:
            self._set_label(has_refused=self._has_refused, gaps=self._gaps)

    def close(self) -> None:
        """Make durable what there is, and let go."""
        self._note_position()
        if self._paused:  # the client would remember it for the topic's next lane
            self._source.resume(self.place)
        self.store.close()


def _label_of(label: bytes) -> Label | None:
    """Read a store's label; None if it says nothing, or nothing that this version can follow:
    another may, so the store is left as it is until there is something to compare it with.
    """
    try:
        return Label.decode(label)
    except ContractError:
        return None
