"""Interface of precise lanes (``lane``) and level lanes (``level``) to the worker's loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from delayservice.contract.contracts import Contracts
from delayservice.contract.record import RecordReader
from delayservice.engine.checkpoint import NOTHING_READ, LastRead, ShardCheckpoint
from delayservice.engine.cursor import Cursor
from delayservice.engine.losses import Lost
from delayservice.engine.outcome import Output
from delayservice.engine.ports import Bounds, Place, Run
from delayservice.engine.shard import MayRead, at_will
from delayservice.engine.verdicts import Verdicts
from delayservice.slices.mended import MendedStore
from delayservice.store.base import StoreStats, StoreView


class ShardFacts(Protocol):
    """Progress of a shard."""

    @property
    def owned(self) -> bool:
        """Return whether this node settles the shard."""

    @property
    def is_walked(self) -> bool:
        """Return whether H has passed all records that were read."""

    @property
    def stored(self) -> int:
        """Return S, the next source offset to be stored."""

    @property
    def committed(self) -> Cursor:
        """Return the last committed cursor."""

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move the cursor."""

    @property
    def is_filling(self) -> bool:
        """Return whether storing will soon have to wait for a commit of the cursor."""


class AnyLane(Protocol):
    """Lane: one partition of a delay topic on one node. It never commits, because all lanes of a
    worker share one transaction.
    """

    @property
    def topic(self) -> str:
        """Return the delay topic."""

    @property
    def partition(self) -> int:
        """Return the partition."""

    @property
    def place(self) -> Place:
        """Return topic and partition."""

    @property
    def topic_id(self) -> str:
        """Return the topic's id, which differs from that of a deleted topic of the same name."""

    @property
    def contracts(self) -> Contracts:
        """Return the contracts by which its records are read."""

    @property
    def shard(self) -> ShardFacts:
        """Return the progress of the shard."""

    @property
    def past_due(self) -> Mapping[int, int]:
        """Return append times of records that were already due, by offset, epoch milliseconds."""

    @property
    def verdicts(self) -> Verdicts:
        """Return the records that brokers refused, with the reasons."""

    @property
    def awaited_end(self) -> int:
        """Return the offset up to which the log has to be read first; 0: there is no such need."""

    @property
    def precise(self) -> PreciseLane | None:
        """Return this lane if a store keeps its records; None for the lane of a level topic."""

    # --- roles ---------------------------------------------------------------------------------

    def adopt(self, contracts: Contracts) -> None:
        """Read records by these contracts from now on (rule 2)."""

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return the distance, in offsets, from the end of the log to the start of a new contract.
        Replicas read the new contract before they store a record that it applies to.
        """

    def log_reaches(self, end: int) -> None:
        """Note that the log ends at ``end``."""

    def follow(self, cursor: Cursor) -> None:
        """Become or stay a replica, whose cursor is that of the newest checkpoint."""

    def step_down(self) -> None:
        """Become a replica again; safe after an error in any other call."""

    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset`` if it was read, else ``NOTHING_READ``."""

    def fit(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return a checkpoint's cursor, with H lowered to what replaced lost records of the log."""

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

    def refit(self, bounds: Bounds, *, is_truncated: bool = False) -> None:
        """Continue with what the log holds now. ``is_truncated``: it lost records already read."""

    # --- poll → store, due → settle --------------------------------------------------------------

    def ingest(self, run: Run) -> int:
        """Take one run of the log, and return its number of records."""

    def let_store(self, *, may_store: bool) -> None:
        """Allow or forbid storing of new records."""

    def settle_late(self, now_ms: int, limit: int, may_read: MayRead = at_will) -> list[Output]:
        """Settle records that were due before they were read, and return at most about ``limit``
        outputs. ``may_read``: whether there is time to read another record.
        """

    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterable[list[Output]]:
        """Settle due records, and yield chunks of at most about ``limit`` outputs and ``bytes_max``
        bytes in all. The caller sends each chunk, or aborts the transaction and takes no other.
        """

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, epoch milliseconds; None: no record is pending."""

    # --- commit --------------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint that is committed now."""

    def committed(self) -> None:
        """Note that the staged cursor is committed."""

    def aborted(self) -> None:
        """Return to the committed cursor: the transaction was certainly aborted."""

    def prune(self, cursor: Cursor) -> None:
        """Delete the stored records that the committed ``cursor`` has settled."""

    def sync_soon(self) -> None:
        """Ask the store to make all it holds durable, without waiting."""

    def stats(self) -> StoreStats:
        """Return figures of the stored records; cheap enough for a call every second."""

    def close(self) -> None:
        """Make all that is stored durable, and close the lane."""


class PreciseLane(AnyLane, Protocol):
    """Lane whose records are kept in a store, which can be searched, compared and repaired."""

    @property
    def store(self) -> StoreView:
        """Return the store of its records, to look at."""

    @property
    def reader(self) -> RecordReader:
        """Return the decoder of its log's records."""

    @property
    def mended(self) -> MendedStore:
        """Return the store's reader, which rebuilds damaged parts from the log."""

    def is_denied(self, target: str) -> bool:
        """Return whether settings deny records written now the target topic ``target``."""

    def start_over(self) -> Iterator[int]:
        """Rebuild a replica's whole store from the log, in steps; see ``Lane.start_over``."""
