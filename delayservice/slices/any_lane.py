"""Base classes of lanes, as the worker's loop uses them: ``Lane`` (module ``lane``) has a store,
``LevelLane`` (module ``level_lane``) has none.

``docs/glossary.md`` defines H, S, K, cursor and mark. A lane *owns* its shard from ``take_over`` to
``follow`` or ``step_down``, and settles its records; else it is a *replica*. What it settles takes
effect with the next commit of the worker, whose success the caller reports by ``committed``.
Without it, the caller steps down, and takes the shard over again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import structlog

from delayservice.contract.contracts import Contracts
from delayservice.contract.record import RecordReader
from delayservice.engine.cancels import MayRead
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, Lost, ShardCheckpoint, skipped
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.engine.level import LevelShard
from delayservice.engine.outcome import Output, PastDue, Routes
from delayservice.engine.ports import Bounds, Place, PolledBatch, Source, Targets
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.log_proof import LevelProof, LogProof
from delayservice.slices.repair import RepairingStore
from delayservice.store.base import StoreStats, StoreView

# Position of a client that has to seek before it reads.
NOWHERE: Final = -1


class Fetch:
    """Read position of the Kafka consumer in one partition: a source offset, or ``NOWHERE``."""

    def __init__(self, source: Source, place: Place) -> None:
        self.position = NOWHERE
        self.is_paused = False
        self.source = source
        self._place = place

    def go_to(self, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read from ``offset`` on. The last record below it reveals a truncated log."""
        self.source.seek(self._place, offset, last_read)
        self.position = offset

    def pause(self, *, is_paused: bool) -> None:
        if is_paused != self.is_paused:
            (self.source.pause if is_paused else self.source.resume)(self._place)
            self.is_paused = is_paused

    def let_go(self) -> None:
        """Stop reading, and end a pause, which the client would keep otherwise."""
        self.pause(is_paused=False)
        if self.position != NOWHERE:
            self.source.drop(self._place)
            self.position = NOWHERE


class AnyLane(ABC):
    """What a worker does for one partition of a delay topic, its shard. It never commits, because
    all lanes of a worker share one transaction.

    ``topic_id``: Kafka's id, which differs after the topic is deleted and created again. ``flow``:
    limits shared by all lanes of the slice; None: none. ``past_due``: append times, epoch ms, by
    source offset, of records due before them.
    """

    contracts: Contracts
    shard: Shard | LevelShard
    past_due: Mapping[int, int]
    _proof: LogProof | LevelProof

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        source: Source,
        routes: Routes,
        targets: Targets,
        flow: Flow | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.topic_id = topic_id
        self._secrets = routes.secrets
        self._settler = Settler(topic, partition, routes, Verdicts(), targets, flow)
        self._fetch = Fetch(source, self.place)
        # Offsets that H skipped because retention deleted them, for checkpoints.
        self._lost: tuple[Lost, ...] = ()
        # Cursor and last record of the checkpoint that this owner took over from.
        self._claimed = Cursor(), NOTHING_READ

    @property
    @abstractmethod
    def precise(self) -> PreciseLane | None:
        """Return this lane if it has a store of its own; None for a level topic."""

    @property
    def verdicts(self) -> Verdicts:
        return self._settler.verdicts

    # --- roles ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited_end(self) -> int:
        """Return the offset up to which the log must be read before H moves; 0: none."""

    @property
    @abstractmethod
    def is_doubtful(self) -> bool:
        """Return whether the log may have lost records below H: nothing is settled, and
        checkpoints repeat the one before.
        """

    # The committed cursor, and the last record that its owner had read.
    @property
    def standing(self) -> tuple[Cursor, LastRead]:
        if self.is_doubtful:
            return self._claimed
        return self.shard.committed, self._proof.checkpoint_last

    @abstractmethod
    def is_read_by(self, leader_epoch: int) -> bool:
        """Return whether the newest record was read of a leader with this epoch or a later one."""

    @abstractmethod
    def adopt(self, contracts: Contracts) -> None:
        """Read records by ``contracts`` from now on (rule 2 of the design)."""

    @abstractmethod
    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how many offsets above ``end`` a new contract must begin, so that replicas know
        it before they store a record to which it applies.
        """

    @abstractmethod
    def log_reaches(self, end: int) -> None:
        """Note that the log ends at source offset ``end``, exclusive."""

    @abstractmethod
    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica at the newest checkpoint's cursor."""

    @abstractmethod
    def step_down(self) -> None:
        """Become a replica again at the committed cursor; safe after an error in another call."""

    @abstractmethod
    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset``; ``NOTHING_READ``: unknown."""

    @abstractmethod
    def clamp(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return a checkpoint's cursor. If the log was truncated and grew again since
        ``last_read``, its H is lowered to the first record that replaced a lost one.
        """

    @abstractmethod
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

    @abstractmethod
    def refit(self, bounds: Bounds, *, is_truncated: bool | None = None) -> None:
        """Go on at the committed cursor with a log of ``bounds``. ``is_truncated`` None: the
        client has lost its position, which retention may have deleted.
        """

    # Log the offsets that H skips now if ``lost``, from the last checkpoint, lacks them.
    def _skip_lost(self, lost: tuple[Lost, ...], h: int, log_start: int) -> None:
        self._lost = skipped(lost, h, log_start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])

    # --- poll → store, due → settle --------------------------------------------------------------

    @abstractmethod
    def ingest(self, run: PolledBatch) -> int:
        """Keep polled records; return their number, 0 if they were read before the last seek.
        Raise ``LogTruncatedError``: the log has lost its end; call ``refit``. Raise
        ``KafkaEdgeError``: the log had to be searched, and can't be read.
        """

    @abstractmethod
    def let_store(self, *, may_store: bool) -> None:
        """Allow or forbid storing of new records, by resuming or pausing the fetch."""

    # Seek to the offset to be read next, unless the client is there already.
    @abstractmethod
    def _read_on(self) -> None: ...

    @abstractmethod
    def settle_late(self, now_ms: int, limit: int, may_read: MayRead) -> list[Output]:
        """Move H over records that were read; return about ``limit`` outputs of those that need
        no wait. ``may_read``: there is time to read one more pending record that is fired.
        """

    @abstractmethod
    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterable[list[Output]]:
        """Settle records due at ``now_ms``, epoch ms; yield lists of about ``limit`` outputs and
        ``bytes_max`` payload bytes in all. The caller sends each before it takes the next.
        """

    @abstractmethod
    def next_due_ms(self) -> int | None:
        """Return when the next record is due, or an earlier time in its slot, epoch ms."""

    # --- commit --------------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint, with the cursor reached, not committed yet."""
        cursor, last_read = self.shard.staged, self._proof.checkpoint_last
        if self.is_doubtful:
            cursor, last_read = self._claimed
        return ShardCheckpoint(self.topic_id, cursor, self.contracts, last_read, self._lost)

    def committed(self) -> None:
        """Make the cursor that the last commit carried the committed one, and read on."""
        self.shard.commit()
        self.verdicts.committed()
        self._read_on()

    @abstractmethod
    def prune(self, cursor: Cursor) -> None:
        """Delete the stored records that the committed ``cursor`` has settled."""

    @abstractmethod
    def sync_soon(self) -> None:
        """Start to make all stored records durable on disk, without waiting."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return numbers of the store; cheap enough for a call every second."""

    @abstractmethod
    def close(self) -> None:
        """Close the store, which makes its records durable. The caller stops the reading by
        ``Source.drop``.
        """


class PreciseLane(AnyLane):
    """Lane with a store of its own, which can be searched, compared and repaired. ``repairing``
    reads it and rebuilds damaged parts from the log.
    """

    shard: Shard
    store: StoreView
    past_due: PastDue
    reader: RecordReader
    repairing: RepairingStore
    _proof: LogProof

    @property
    def precise(self) -> PreciseLane:
        return self

    @abstractmethod
    def is_denied(self, target: str) -> bool:
        """Return whether settings deny ``target`` to records written now."""

    @abstractmethod
    def start_over(self) -> Iterator[None]:
        """Empty a replica's store, to be filled from the log again. First check in small steps,
        each a yield, that the log holds every pending record; else, or if this node owns the
        slice by now, raise ``KafkaEdgeError`` with the store unchanged.
        """


_HINT: Final = (
    "retention deleted these offsets before they were settled: no node served the slice for longer "
    "than the topic keeps its records. What was stored of them is delivered, even if a record "
    "among them was to cancel or replace it; the others are lost. Raise retention.ms, or "
    "outage.allowance_ms with it"
)

_log = structlog.get_logger(__name__)


def report_lost(place: Place, lost: Lost) -> None:
    _log.error(
        "offsets_lost",
        topic=place[0],
        partition=place[1],
        first_offset=lost.first,
        stop_offset=lost.stop,
        hint=_HINT,
    )


def report_truncated(place: Place, consequence: str, **facts: int) -> None:
    _log.error(
        "log_truncated",
        topic=place[0],
        partition=place[1],
        **facts,
        hint="the log has lost records that were read before (unclean leader election, or "
        f"deleted records); {consequence}",
    )


# If the node or its store is new, this is no loss: pending records were rolled to later offsets.
def report_expired(place: Place, first: int, stop: int) -> None:
    _log.warning(
        "log_starts_later",
        topic=place[0],
        partition=place[1],
        first_offset=first,
        start=stop,
        hint="retention deleted these offsets before they were stored here; records that were "
        "still pending among them are lost to this copy, and so are cancels: what these have "
        "settled may come again from this copy. Compare with a replica",
    )
