"""The interface of lanes of both kinds to the slice loop: precise (``lane``), level (``level``)."""

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
from delayservice.store.base import Store, StoreStats


class ShardFacts(Protocol):
    """Progress of a shard."""

    @property
    def owned(self) -> bool:
        """Return whether this node settles it."""

    @property
    def is_walked(self) -> bool:
        """Return whether H has passed all that was read."""

    @property
    def stored(self) -> int:
        """S: source offsets below it need not be read from the log to be kept."""

    @property
    def committed(self) -> Cursor:
        """Return the cursor as last committed."""

    @property
    def is_staged(self) -> bool:
        """Return whether a commit would move the cursor."""

    @property
    def is_filling(self) -> bool:
        """Return whether a commit is wanted soon, although it may carry nothing but the cursor."""


class Keeping(Protocol):
    """Place of a lane's pending records; see ``store.base.Store``."""

    def stats(self) -> StoreStats:
        """Cheap enough to be asked every second."""

    def prune(self, cursor: Cursor) -> None:
        """Forget what the committed ``cursor`` makes useless."""


class AnyLane(Protocol):
    """One delay topic's partition on one node. It never commits: all lanes of a slice share one
    transaction.
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
        """Return the id of the topic, which tells it from another one of the same name."""

    @property
    def contracts(self) -> Contracts:
        """Return the contracts that its records are read by."""

    @property
    def shard(self) -> ShardFacts:
        """Return how far it is."""

    @property
    def store(self) -> Keeping:
        """Return the store of its records."""

    @property
    def past_due(self) -> Mapping[int, int]:
        """Return when records that were due at once were written, by offset, epoch milliseconds."""

    @property
    def verdicts(self) -> Verdicts:
        """Return the broker's answers about single records."""

    @property
    def awaited_end(self) -> int:
        """Return up to where the log has to be read first; 0: nothing is awaited."""

    @property
    def precise(self) -> PreciseLane | None:
        """Return this lane if a store keeps its records; None: a level topic's."""

    # --- roles ---------------------------------------------------------------------------------

    def adopt(self, contracts: Contracts) -> None:
        """Read records by these parameters from now on (rule 2)."""

    def offsets_ahead(self, end: int, now_ms: int) -> int:
        """Return how far above the end of the log a new contract has to begin, so that no replica
        has stored a record by the contract before when it hears of the new one.
        """

    def log_reaches(self, end: int) -> None:
        """Note that the log goes on up to ``end``."""

    def follow(self, cursor: Cursor) -> None:
        """Be a replica, and keep up with the checkpoint."""

    def step_down(self) -> None:
        """Settle no more, wherever that was interrupted."""

    def last_below(self, offset: int) -> LastRead:
        """Return the last record below ``offset`` if it was read, else ``NOTHING_READ``."""

    def fit(self, cursor: Cursor, last_read: LastRead) -> Cursor:
        """Return a checkpoint's cursor as far as it holds for the log that was read here."""

    def take_over(
        self,
        cursor: Cursor,
        bounds: Bounds,
        last_read: LastRead = NOTHING_READ,
        lost: tuple[Lost, ...] = (),
    ) -> None:
        """Own the shard from ``cursor`` on; ``bounds`` were read after fencing; ``last_read`` and
        ``lost``: as the checkpoint says.
        """

    def refit(self, bounds: Bounds, *, is_truncated: bool = False) -> None:
        """Go on with what the log holds. ``is_truncated``: it lost what was read."""

    # --- poll → store, due → settle --------------------------------------------------------------

    def ingest(self, run: Run) -> int:
        """Take one run of the log; returns its number of records."""

    def let_store(self, *, may_store: bool) -> None:
        """Store more, or not: whether the disk has room."""

    def settle_late(self, now_ms: int, limit: int, may_read: MayRead = at_will) -> list[Output]:
        """Settle what was due before it was read; ``may_read``: see ``Shard``."""

    def settle_due(self, now_ms: int, limit: int, bytes_max: int) -> Iterable[list[Output]]:
        """Settle what is due, in chunks, at most about ``limit`` outputs and ``bytes_max`` bytes.
        Each chunk is to be sent, or the transaction aborted and no other asked for.
        """

    def next_due_ms(self) -> int | None:
        """Return when to look again, if nothing else happens before."""

    # --- commit --------------------------------------------------------------------------------

    def checkpoint(self) -> ShardCheckpoint:
        """Return the state of this shard that a commit would write now."""

    def committed(self) -> None:
        """Note that the staged cursor is committed."""

    def aborted(self) -> None:
        """Note that the transaction was aborted for certain."""

    def sync_soon(self) -> None:
        """Make durable what there is, some time soon."""

    def close(self) -> None:
        """Make durable what there is, and let go."""


class PreciseLane(AnyLane, Protocol):
    """A lane that keeps its records in a store, which can be searched, compared and repaired."""

    @property
    def store(self) -> Store:
        """Return the store of its records."""

    @property
    def reader(self) -> RecordReader:
        """Reads its records from the log."""

    @property
    def mended(self) -> MendedStore:
        """Return the store as it is read: damage is mended from the log."""

    def is_denied(self, target: str) -> bool:
        """Return whether settings deny a target to records that are written now."""

    def start_over(self) -> Iterator[int]:
        """Read a replica's whole store again from the log; see ``Lane``."""
