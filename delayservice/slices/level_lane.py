"""Level lane: polls and settles one partition of a level topic. Kafka's log itself is its store.

An owner fetches records that are not due yet, up to a limit, then pauses the partition until the
first of them is due. A replica fetches nothing and has no lag. ``engine.level`` decides the
outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.record import RecordReader
from delayservice.engine.cancels import MayRead
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, Lost
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.engine.level import LevelRecords, LevelShard
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.ports import Bounds, PolledBatch, Source, Targets
from delayservice.slices.any_lane import AnyLane, report_truncated
from delayservice.slices.log_proof import LevelProof
from delayservice.store.base import StoreStats

# Outputs in one list of ``settle_due``.
_CHUNK_RECORDS = 1_000
_DELIVERED = "what was written in their place is delivered"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FetchAhead:
    """Limits of one partition's records that are held in memory until they are due."""

    records: int
    bytes: int


class LevelLane(AnyLane):
    """Lane of one partition of a level topic.

    ``park_topic`` returns the delay topic (same partition) for records whose target can't be
    written to; None: they are dead-lettered.
    """

    shard: LevelShard
    _proof: LevelProof

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        source: Source,
        routes: Routes,
        ahead: FetchAhead,
        park_topic: Callable[[], str | None],
        targets: Targets,
        flow: Flow | None = None,
    ) -> None:
        super().__init__(topic, partition, topic_id, source, routes, targets, flow)
        self.past_due: dict[int, int] = {}  # the delay counts from the time of writing
        self.shard = LevelShard(ahead.records, ahead.bytes)
        self.contracts = Contracts([(0, Contract())])
        self._park_topic = park_topic
        self._proof = LevelProof()
        self._is_fit = False

    precise = None

    # --- roles ---------------------------------------------------------------------------------

    # If a contract is not a level topic's, records below H may still be pending in a store, which
    # this lane lacks: ``take_over`` settles nothing, and the cursor stays.
    def adopt(self, contracts: Contracts) -> None:
        if contracts == self.contracts:
            return
        self.contracts = self._settler.requeuer.contracts = contracts
        self._is_fit = all(contract.level_ms for _, contract in contracts.entries())

    # No replica stores records, so a new contract may begin at the log's end.
    def offsets_ahead(self, _end: int, _now_ms: int) -> int:
        return 0

    # All records below the end count as stored, by Kafka.
    def log_reaches(self, end: int) -> None:
        self.shard.reaches(end)

    def follow(self, cursor: Cursor) -> None:
        self.shard.follow(cursor)
        self._fetch.let_go()

    def step_down(self) -> None:
        self.follow(self.shard.committed)

    @property
    def awaited_end(self) -> int:
        return self._proof.awaited_end if self.shard.owned else 0

    # True while the log is read again from below H, because it may have lost records.
    @property
    def is_doubtful(self) -> bool:
        return bool(self.awaited_end)

    # A replica reads nothing, so only an unknown epoch is no contradiction.
    def is_read_by(self, leader_epoch: int) -> bool:
        return leader_epoch < 0

    # An owner checks the log by reading it again from below H.
    def last_below(self, _offset: int) -> LastRead:
        return NOTHING_READ

    # There are no stored records that could contradict the cursor.
    def clamp(self, cursor: Cursor, _last_read: LastRead) -> Cursor:
        return cursor

    # If the log has newer records below H in place of lost ones, settle from the first of these.
    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        self._claimed = cursor, last_read
        self._skip_lost(lost, cursor.offset, bounds.start)
        cursor = self._fit_to_log(cursor, bounds)
        if not self._is_fit:
            _log.error(
                "level_topic_was_precise",
                topic=self.topic,
                partition=self.partition,
                hint="this level topic was a normal delay topic before, whose records may still be "
                "pending. Take it out of [levels] and give the level another topic "
                "(levels.prefix), or delete and create the topic again",
            )
            self.follow(cursor)
            return
        reader = RecordReader(self.topic, self.partition, self.contracts, self._secrets)
        records = LevelRecords(reader, self.contracts, self._settler)
        self.shard.take_over(cursor, bounds.end, records)
        self._fetch.go_to(self._proof.begin(cursor.offset, last_read, bounds))
        self._read_on()

    def refit(self, bounds: Bounds, *, is_truncated: bool | None = None) -> None:  # noqa: ARG002  # no store
        cursor, last_read = self.standing
        if self.shard.owned:
            self.take_over(cursor, bounds, last_read, self._lost)
        else:
            self.follow(cursor)

    def _fit_to_log(self, cursor: Cursor, bounds: Bounds) -> Cursor:
        if cursor.offset > bounds.end:
            report_truncated(
                self.place, _DELIVERED, cursor_offset=cursor.offset, read_from=bounds.end
            )
            return Cursor(cursor.key, bounds.end)
        return Cursor(cursor.key, max(cursor.offset, bounds.start))

    # --- poll ----------------------------------------------------------------------------------

    # Seeks back if the search for lost records needs earlier ones.
    def ingest(self, run: PolledBatch) -> int:
        if run.start != self._fetch.position or run.start == run.stop:
            return 0  # read before a seek, or the log's end at the position
        h = self._proof.offset
        further_back = self._proof.look(run)
        if further_back is not None:
            self._fetch.go_to(further_back)
            return 0
        self._fetch.position = run.stop
        if self._proof.offset < h:
            report_truncated(self.place, _DELIVERED, cursor_offset=h, read_from=self._proof.offset)
            self.shard.go_back(self._proof.offset)
        unread = self.shard.read
        rows = run.rows if run.start >= unread else [row for row in run.rows if row[0] >= unread]
        if rows:
            self._proof.note(run)
        if run.stop > unread:
            self.shard.ingest(rows, run.stop)
        self._read_on()
        return len(rows)

    def _read_on(self) -> None:
        # A paused client throws away what it has fetched. So fetching resumes only when there is
        # room for at least half of the threshold.
        if self._fetch.is_paused and self.shard.has_room:
            self._fetch.pause(is_paused=False)
        elif self.shard.is_full:
            self._fetch.pause(is_paused=True)

    # Kafka's retention deletes the records.
    def prune(self, cursor: Cursor) -> None: ...

    # Kafka's brokers keep the log on their disks.
    def sync_soon(self) -> None: ...

    def stats(self) -> StoreStats:
        return StoreStats(self.shard.pending, 0, self.shard.stored)

    # There is no store whose disk could fill up.
    def let_store(self, *, may_store: bool) -> None: ...

    # --- due → settle --------------------------------------------------------------------------

    # Records that are due when they are read come first in the log, where ``settle_due`` begins.
    def settle_late(self, _now_ms: int, _limit: int, _may_read: MayRead) -> list[Output]:
        return []

    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterator[list[Output]]:
        self._settler.requeuer.topic = self._park_topic()
        left = min(limit, int(bytes_max / self.shard.mean_bytes) + 1)
        while left > 0:
            asked = min(left, _CHUNK_RECORDS)
            outputs = self.shard.advance(now_ms, asked)
            if outputs:
                yield outputs
            if len(outputs) < asked:
                break
            left -= asked
        self._read_on()

    def next_due_ms(self) -> int | None:
        return self.shard.next_due_ms()

    def close(self) -> None:
        self._fetch.let_go()
