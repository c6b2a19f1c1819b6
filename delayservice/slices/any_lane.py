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

from delayservice.contract.contracts import Contracts
from delayservice.contract.record import RecordReader
from delayservice.engine.cancels import MayRead
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, ShardCheckpoint
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import Flow
from delayservice.engine.level import LevelShard
from delayservice.engine.losses import Lost, skipped
from delayservice.engine.outcome import Output
from delayservice.engine.past_due import PastDue
from delayservice.engine.ports import Bounds, Place, Run, Source, Targets
from delayservice.engine.routes import Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.verdicts import Verdicts
from delayservice.slices.level_proof import LevelProof
from delayservice.slices.log_proof import LogProof
from delayservice.slices.lost import report_lost
from delayservice.slices.repairing_store import RepairingStore
from delayservice.store.base import StoreStats, StoreView

NOWHERE: Final = -1
"""Value of ``Fetch.position`` while the client has to seek before it reads."""


class Fetch:
    """Read position of the Kafka consumer in one partition, and whether it is paused there.

    Attributes:
        position: source offset of the next record, or ``NOWHERE``.
        is_paused: whether fetching is paused.
        source: consumer of the delay topics.
    """

    def __init__(self, source: Source, place: Place) -> None:
        self.position = NOWHERE
        self.is_paused = False
        self.source = source
        self._place = place

    def go_to(self, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read from source offset ``offset`` on. ``last_read``: the last record below it, by which
        the client detects a truncated log; ``NOTHING_READ``: unknown.
        """
        self.source.seek(self._place, offset, last_read)
        self.position = offset

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume fetching of this partition, without a seek."""
        if is_paused != self.is_paused:
            (self.source.pause if is_paused else self.source.resume)(self._place)
            self.is_paused = is_paused

    def let_go(self) -> None:
        """Stop reading this partition, and end a pause, which the client would keep otherwise."""
        self.pause(is_paused=False)
        if self.position != NOWHERE:
            self.source.drop(self._place)
            self.position = NOWHERE


class AnyLane(ABC):
    """Lane: what a worker does for one partition of a delay topic, its shard. It never commits,
    because all lanes of a worker share one transaction.

    Args:
        topic: the delay topic.
        partition: its partition.
        topic_id: Kafka's id of the topic, which differs after the topic is deleted and created
            again.
        source: consumer of the delay topics.
        routes: topics to which outputs are written, and the cluster secrets.
        targets: states of target topics.
        flow: limits of deliveries, which all lanes of the slice share; None: no limits.

    Attributes:
        place: topic and partition.
        contracts: contracts (settings under which records were written) by which records are read.
        shard: state of the shard: which records are read, stored and settled.
        past_due: append times of records that were already due when they were written, epoch
            milliseconds, by source offset.
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
        self._lost: tuple[Lost, ...] = ()
        """Ranges of offsets that H skipped because retention deleted them, for checkpoints."""

    @property
    @abstractmethod
    def precise(self) -> PreciseLane | None:
        """Return this lane if it has a store of its own; None for the lane of a level topic."""

    @property
    def verdicts(self) -> Verdicts:
        """Return the records of this shard that brokers refused, with the reasons."""
        return self._settler.verdicts

    # --- roles ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited_end(self) -> int:
        """Return the source offset, exclusive, up to which the log must be read before H moves; 0:
        there is nothing to wait for.
        """

    @abstractmethod
    def adopt(self, contracts: Contracts) -> None:
        """Read records by ``contracts`` from now on, and no more by those before (rule 2 of the
        design).
        """

    @abstractmethod
    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how many offsets above ``end``, the end of the log, a new contract must begin, so
        that replicas know the contract before they store a record to which it applies. ``now_ms``:
        now, epoch milliseconds.
        """

    @abstractmethod
    def log_reaches(self, end: int) -> None:
        """Note that the log ends at source offset ``end``, exclusive."""

    @abstractmethod
    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica, which settles nothing, with ``cursor``, that of the newest
        checkpoint.
        """

    @abstractmethod
    def step_down(self) -> None:
        """Become a replica again, at the committed cursor; safe after an error in another call."""

    @abstractmethod
    def last_below(self, offset: int) -> LastRead:
        """Return offset and leader epoch of the last record below source offset ``offset``;
        ``NOTHING_READ``: unknown.
        """

    @abstractmethod
    def fit(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return ``cursor``, that of a checkpoint. If the log was truncated and grew again, lower
        its H to the first record that replaced a lost one. ``last_read``: last record read by the
        owner that wrote the checkpoint.
        """

    @abstractmethod
    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        """Become the owner of the shard: settle its records from ``cursor`` on.

        Args:
            cursor: cursor of the last checkpoint.
            bounds: start and end of the log, queried after former writers were fenced.
            last_read: last record that the former owner had read, from the checkpoint.
            lost: offsets that H skipped because retention had deleted them, from the checkpoint.
        """

    @abstractmethod
    def refit(self, bounds: Bounds, *, is_truncated: bool = False) -> None:
        """Go on as owner or replica, at the committed cursor, with a log whose start and end are
        now ``bounds``. ``is_truncated``: whether the log has lost records that were read.
        """

    def _skip_lost(self, lost: tuple[Lost, ...], h: int, stored: int, log_start: int) -> None:
        """Note the deleted offsets that H skips at a take-over, for checkpoints; log them if
        ``lost``, those of the last checkpoint, lack them. ``h``: H; ``stored``: source offset,
        exclusive, up to which this node has read all records from H on; ``log_start``: first offset
        of the log.
        """
        self._lost = skipped(lost, h, stored, log_start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])

    # --- poll → store, due → settle --------------------------------------------------------------

    @abstractmethod
    def ingest(self, run: Run) -> int:
        """Keep polled records with consecutive offsets, in the store or in memory; return their
        number. Ignore them and return 0 if they were read before the last seek.

        Raises:
            LogTruncatedError: they show that the log has lost its end; call ``refit``.
            KafkaEdgeError: the log had to be searched, and can't be read.
        """

    @abstractmethod
    def let_store(self, *, may_store: bool) -> None:
        """Allow or forbid storing of new records, by resuming or pausing the fetch."""

    @abstractmethod
    def _read_on(self) -> None:
        """Seek to the source offset to be read next, unless the client is there; pause or resume
        the fetch.
        """

    @abstractmethod
    def settle_late(self, now_ms: int, limit: int, may_read: MayRead) -> list[Output]:
        """Move H over records that were read, and settle those that need no wait: control records,
        invalid records, and records that were due before they were read. Return their outputs,
        about ``limit`` at most. ``now_ms``: now, epoch ms. ``may_read``: returns whether there is
        time to read one more pending record that is fired.
        """

    @abstractmethod
    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterable[list[Output]]:
        """Settle records that are due at ``now_ms``, epoch ms, and yield their outputs in lists, in
        all about ``limit`` outputs and ``bytes_max`` payload bytes at most. The caller sends each
        list before it takes the next.
        """

    @abstractmethod
    def next_due_ms(self) -> int | None:
        """Return when the next record is due, or an earlier time in the same slot, epoch
        milliseconds; None: there is no record to wait for.
        """

    # --- commit --------------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint, with the cursor reached but not committed
        yet.
        """
        return ShardCheckpoint(
            self.topic_id,
            self.shard.staged,
            self.contracts,
            self._proof.checkpoint_last,
            self._lost,
        )

    def committed(self) -> None:
        """Make the cursor that the last commit carried the committed one, and go on reading the
        log.
        """
        self.shard.commit()
        self.verdicts.committed()
        self._read_on()

    @abstractmethod
    def prune(self, cursor: Cursor) -> None:
        """Delete the stored records that the committed ``cursor`` has settled."""

    @abstractmethod
    def sync_soon(self) -> None:
        """Start to make durable on disk all that the store holds, without waiting for the end."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return the number of stored records, their bytes on disk, and the horizon (durable source
        offset); cheap enough for a call every second.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store, which makes its records durable. The caller also stops the reading of
        the log, by ``Source.drop``.
        """


class PreciseLane(AnyLane):
    """Lane with a store of its own, which can be searched, compared and repaired.

    Attributes:
        store: its store, for reading.
        reader: decoder of the records of its delay topic.
        repairing: reader of its store that rebuilds damaged parts from the log.
    """

    shard: Shard
    store: StoreView
    past_due: PastDue
    reader: RecordReader
    repairing: RepairingStore
    _proof: LogProof

    @property
    def precise(self) -> PreciseLane:
        """Return this lane, because it keeps its records in a store of its own."""
        return self

    @abstractmethod
    def is_denied(self, target: str) -> bool:
        """Return whether settings deny the target topic ``target`` to records written now."""

    @abstractmethod
    def start_over(self) -> Iterator[int]:
        """Empty a replica's store, so that it is filled from the log again. First check in small
        steps that the log holds every pending record; yield 0 after each step.

        Raises:
            KafkaEdgeError: the log lacks a record, or this node owns the slice by now; the store is
                unchanged.
        """
