"""A model of Kafka as the service sees it: partitions, transactions of named writers, fencing.

Modelled: offsets taken by aborted records and by markers, the last stable offset, a writer that is
fenced for ever, one that the coordinator gives up, a commit whose answer is lost and which is
decided later, markers written after the decision, and the start of the log moving on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from delayservice.core.entry import Headers, Row
from delayservice.lanes.ports import Place

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
CHECKPOINTS, CLAIMS = "delay_checkpoint", "delay_claims"
CHECKPOINT_PARTITIONS = 2
CLAIMS_PLACE: Place = (CLAIMS, 0)


def checkpoint_place(slice_no: int) -> Place:
    """Return where a slice's checkpoints lie; slices share partitions."""
    return (CHECKPOINTS, slice_no % CHECKPOINT_PARTITIONS)


@dataclass(slots=True)
class Written:
    """One offset of a partition. A marker has no transaction of its own, key or value.

    Attributes:
        serial: what was written later anywhere has a higher one.
        sender_ms: what the sending node's clock said when it decided to send.
        skew_ms: how far that was ahead of the world's clock.
    """

    place: Place
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: Transaction | None
    serial: int
    is_marker: bool = False
    sender_ms: int = 0
    skew_ms: int = 0

    @property
    def topic(self) -> str:
        """Its topic."""
        return self.place[0]

    @property
    def is_committed(self) -> bool:
        """Whether a read_committed reader may ever see it."""
        alone = self.transaction is None
        return not self.is_marker and (
            alone or (self.transaction is not None and self.transaction.state == COMMITTED)
        )

    def row(self) -> Row:
        """As a consumer hands it over."""
        return (self.offset, self.timestamp_ms, self.key, self.value, list(self.headers))


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of a writer; of a user when ``writer`` is empty. ``in_doubt``: its producer
    asked for a commit and has not heard the answer.
    """

    number: int
    writer: str
    state: str = OPEN
    in_doubt: bool = False
    first_offsets: dict[Place, int] = field(default_factory=dict)
    unmarked: list[Place] = field(default_factory=list)
    records: list[Written] = field(default_factory=list)


def topic_id(topic: str) -> str:
    """The id of a topic; none is ever recreated here."""
    return f"id of {topic}"


class Partition:
    """One partition of one topic."""

    def __init__(self) -> None:
        self.start = 0
        self.written: list[Written] = []
        self.pinning: dict[int, int] = {}
        """Number of a transaction without its marker here, to its first offset."""

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.written)

    @property
    def last_stable(self) -> int:
        """The last stable offset: what read_committed readers may read up to."""
        return min(self.pinning.values(), default=self.end)


class SimLog:
    """All topics, and the transaction coordinator.

    Attributes:
        open: the open transaction of each writer of the service that has one.
        fenced: writers that will never write again.
        marking: decided transactions that still lack a marker somewhere.
    """

    def __init__(self, decided: Callable[[Transaction], None]) -> None:
        """``decided`` is told of every transaction of the service that is committed."""
        self._partitions: dict[Place, Partition] = {}
        self._decided = decided
        self._transactions = 0
        self._serial = 0
        self._writers = 0
        self.open: dict[str, Transaction] = {}
        self.fenced: set[str] = set()
        self.marking: list[Transaction] = []

    def partition(self, place: Place) -> Partition:
        """A partition; made when it is first asked for."""
        return self._partitions.setdefault(place, Partition())

    def new_writer(self, node: str) -> str:
        """A name that was never used."""
        self._writers += 1
        return f"{node}{self._writers}"

    # --- write ---------------------------------------------------------------------------------

    def append(
        self,
        place: Place,
        timestamp_ms: int,
        record: tuple[bytes | None, bytes | None, Headers],
        transaction: Transaction | None = None,
        sent: tuple[int, int] = (0, 0),
    ) -> Written:
        """Write one record at the end, in a transaction or not. ``sent``: what the sender's clock
        said, and how far it was ahead.
        """
        partition = self.partition(place)
        key, value, headers = record
        written = Written(
            place,
            partition.end,
            timestamp_ms,
            key,
            value,
            list(headers),
            transaction,
            self._next_serial(),
        )
        written.sender_ms, written.skew_ms = sent
        partition.written.append(written)
        if transaction is not None:
            transaction.records.append(written)
            if place not in transaction.first_offsets:
                transaction.first_offsets[place] = written.offset
                partition.pinning[transaction.number] = written.offset
        return written

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def begin(self, writer: str = "") -> Transaction:
        """A new transaction of a writer, or of a user. A producer can't begin anew before the
        markers of its last transaction are written.
        """
        self._transactions += 1
        transaction = Transaction(self._transactions, writer)
        if writer:
            self.complete_markers(writer)
            self.open[writer] = transaction
        return transaction

    def decide(self, transaction: Transaction, *, commit: bool, lazy_markers: bool = False) -> None:
        """End it. Its markers follow at once, or later."""
        transaction.state = COMMITTED if commit else ABORTED
        transaction.in_doubt = False
        transaction.unmarked = list(transaction.first_offsets)
        if self.open.get(transaction.writer) is transaction:
            del self.open[transaction.writer]
        if commit and transaction.writer:
            self._decided(transaction)
        self.marking.append(transaction)
        if not lazy_markers:
            self._complete(transaction)

    def mark_one(self) -> None:
        """Write one marker that is due."""
        transaction = self.marking[0]
        if transaction.unmarked:
            self._mark(transaction, transaction.unmarked[-1])
        if not transaction.unmarked:
            self.marking.remove(transaction)

    def complete_markers(self, writer: str | None = None) -> None:
        """Write all markers that are due, of one writer or of everybody."""
        for transaction in list(self.marking):
            if writer is None or transaction.writer == writer:
                self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        while transaction.unmarked:
            self._mark(transaction, transaction.unmarked[-1])
        self.marking.remove(transaction)

    def _mark(self, transaction: Transaction, place: Place) -> None:
        transaction.unmarked.remove(place)
        partition = self.partition(place)
        del partition.pinning[transaction.number]
        partition.written.append(
            Written(
                place, partition.end, 0, None, None, [], None, self._next_serial(), is_marker=True
            )
        )

    def fence(self, writer: str, *, doubt_commits: bool) -> None:
        """``init_transactions`` with a writer's name by somebody else: end what it left open, and
        wait for its markers. ``doubt_commits``: a commit without an answer had arrived before.
        """
        self.fenced.add(writer)
        transaction = self.open.get(writer)
        if transaction is not None:
            self.decide(transaction, commit=transaction.in_doubt and doubt_commits)
        self.complete_markers(writer)

    def give_up(self, writer: str) -> None:
        """The coordinator aborts a transaction that takes too long; its writer is fenced."""
        self.fence(writer, doubt_commits=False)

    # --- read ----------------------------------------------------------------------------------

    def read(self, place: Place, start: int, stop: int, limit: int) -> tuple[list[Row], int]:
        """Committed records of ``[start, stop)``, at most ``limit``, and the offset to go on at."""
        rows: list[Row] = []
        for written in self.partition(place).written[start:stop]:
            if len(rows) == limit:
                return rows, rows[-1][0] + 1
            if written.is_committed:
                rows.append(written.row())
        return rows, max(stop, start)

    def blocker(self, place: Place) -> Written | None:
        """What keeps a partition from being read on: the first record without a verdict, or with
        one whose marker is missing; None: nothing does.
        """
        partition = self.partition(place)
        stable = partition.last_stable
        return partition.written[stable] if stable < partition.end else None
