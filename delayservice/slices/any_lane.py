"""Base of precise lanes (``lane``) and level lanes (``level``), as the worker's loop sees them.

See ``docs/glossary.md`` for H, S, K, cursor and mark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from delayservice.contract.contracts import Contracts
from delayservice.contract.record import RecordReader
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
from delayservice.engine.walk import MayRead, at_will
from delayservice.slices.level_proof import LevelProof
from delayservice.slices.log_proof import LogProof
from delayservice.slices.lost import report_lost
from delayservice.slices.mended import MendedStore
from delayservice.store.base import StoreStats, StoreView

NOWHERE: Final = -1
"""Value of ``Fetch.position`` when a seek is needed before the next read."""


class Fetch:
    """Position and pause of the Kafka consumer at one log.

    Attributes:
        position: the offset of the next record, or ``NOWHERE``.
        is_paused: whether fetching is paused.
        source: the slice's logs.
    """

    def __init__(self, source: Source, place: Place) -> None:
        self.position = NOWHERE
        self.is_paused = False
        self.source = source
        self._place = place

    def go_to(self, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read from ``offset`` on. ``last_read``: the last record below it, if it was read."""
        self.source.seek(self._place, offset, last_read)
        self.position = offset

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume fetching."""
        if is_paused != self.is_paused:
            (self.source.pause if is_paused else self.source.resume)(self._place)
            self.is_paused = is_paused

    def let_go(self) -> None:
        """Stop reading this log. A pause is ended first, because the client would remember it."""
        self.pause(is_paused=False)
        if self.position != NOWHERE:
            self.source.drop(self._place)
            self.position = NOWHERE


class AnyLane(ABC):
    """Lane: one partition of a delay topic on one node. It never commits, because all lanes of a
    worker share one transaction.

    Args:
        topic: the delay topic.
        partition: its partition.
        topic_id: the topic's id, which a deleted topic of the same name does not share.
        source: the logs of the slice.
        routes: topics of outputs, and the secrets.
        flow: the limits of the slice; None: no limits.
        targets: states of target topics; None: all can be written to.

    Attributes:
        place: topic and partition.
        contracts: the contracts (settings in force when records were written) by which its records
            are read.
        shard: which records are read, stored and settled.
        past_due: append times of records that were already due when they were written, by offset,
            epoch milliseconds.
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
        flow: Flow | None,
        targets: Targets | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.topic_id = topic_id
        self._secrets = routes.secrets
        self._settler = Settler(topic, partition, routes, Verdicts(), flow, targets)
        self._fetch = Fetch(source, self.place)
        self._lost: tuple[Lost, ...] = ()
        """Ranges of offsets that H skipped because the log had lost them, for checkpoints."""

    @property
    @abstractmethod
    def precise(self) -> PreciseLane | None:
        """Return this lane if a store keeps its records; None for the lane of a level topic."""

    @property
    def verdicts(self) -> Verdicts:
        """Return the records that brokers refused, with the reasons."""
        return self._settler.verdicts

    # --- roles ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def awaited_end(self) -> int:
        """Return the offset up to which the log must be read before H moves; 0: no such offset."""

    @abstractmethod
    def adopt(self, contracts: Contracts) -> None:
        """Read records by these contracts from now on (rule 2)."""

    @abstractmethod
    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how many offsets above the end of the log, ``end``, a new contract must start, so
        that replicas know it before they store a record that it applies to. ``now_ms``: epoch ms.
        """

    @abstractmethod
    def log_reaches(self, end: int) -> None:
        """Note that the log ends at offset ``end``."""

    @abstractmethod
    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica, whose cursor is that of the newest checkpoint."""

    @abstractmethod
    def step_down(self) -> None:
        """Become a replica again; safe after an error in any other call."""

    @abstractmethod
    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset`` if it was read, else ``NOTHING_READ``."""

    @abstractmethod
    def fit(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return a checkpoint's cursor. H is lowered to the first record that replaced records
        which the log has lost. ``last_read``: last record read by the writer of the checkpoint.
        """

    @abstractmethod
    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        """Own the shard from ``cursor`` on. ``bounds``: of the log, read after fencing;
        ``last_read``, ``lost``: from the checkpoint.
        """

    @abstractmethod
    def refit(self, bounds: Bounds, *, is_truncated: bool = False) -> None:
        """Continue with what the log holds now. ``is_truncated``: it lost records already read."""

    def _skip_lost(self, lost: tuple[Lost, ...], h: int, stored: int, log_start: int) -> None:
        """Record, and report if new, the lost offsets that H skips at a take-over."""
        self._lost = skipped(lost, h, stored, log_start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])

    # --- poll → store, due → settle --------------------------------------------------------------

    @abstractmethod
    def ingest(self, run: Run) -> int:
        """Take one run of the log, and return its number of records."""

    @abstractmethod
    def let_store(self, *, may_store: bool) -> None:
        """Allow or forbid storing of new records."""

    @abstractmethod
    def _read_on(self) -> None:
        """Fetch from the offset that the shard needs next, or pause fetching."""

    @abstractmethod
    def settle_late(self, now_ms: int, limit: int, may_read: MayRead = at_will) -> list[Output]:
        """Settle records that were due before they were read, and return at most about ``limit``
        outputs. ``now_ms``: epoch ms. ``may_read``: whether there is time to read another record.
        """

    @abstractmethod
    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterable[list[Output]]:
        """Settle records due at ``now_ms`` (epoch ms), and yield chunks of at most about ``limit``
        outputs and ``bytes_max`` bytes in all. The caller sends each chunk, or aborts the
        transaction and takes no other.
        """

    @abstractmethod
    def next_due_ms(self) -> int | None:
        """Return when the next record is due, epoch milliseconds; None: no record is pending."""

    # --- commit --------------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint that is committed now."""
        return ShardCheckpoint(
            self.topic_id, self.shard.staged, self.contracts, self._proof.committed_last, self._lost
        )

    def committed(self) -> None:
        """Note that the staged cursor is committed."""
        self.shard.commit()
        self.verdicts.committed()
        self._read_on()

    def aborted(self) -> None:
        """Return to the committed cursor: the transaction was certainly aborted."""
        self.shard.abort()
        self.verdicts.aborted()
        self._read_on()

    @abstractmethod
    def prune(self, cursor: Cursor) -> None:
        """Delete the stored records that the committed ``cursor`` has settled."""

    @abstractmethod
    def sync_soon(self) -> None:
        """Ask the store to make all it holds durable, without waiting."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return figures of the stored records; cheap enough for a call every second."""

    @abstractmethod
    def close(self) -> None:
        """Make all that is stored durable, and close the lane."""


class PreciseLane(AnyLane):
    """Lane whose records are kept in a store, which can be searched, compared and repaired.

    Attributes:
        store: the store of its records, to look at.
        reader: decoder of its log's records.
        mended: reader of its store that rebuilds damaged parts from the log.
    """

    shard: Shard
    store: StoreView
    past_due: PastDue
    reader: RecordReader
    mended: MendedStore
    _proof: LogProof

    @property
    def precise(self) -> PreciseLane:
        """Return this lane: its records are kept in a store."""
        return self

    @abstractmethod
    def is_denied(self, target: str) -> bool:
        """Return whether settings deny records written now the target topic ``target``."""

    @abstractmethod
    def start_over(self) -> Iterator[int]:
        """Rebuild a replica's whole store from the log, in steps; see ``lane.Lane``."""
