"""A model of Kafka as the service sees it: one partition per topic, transactions, fencing.

Modelled: offsets taken by aborted records and by markers, the last stable offset, producer epochs,
a commit whose answer is lost and which is decided later, markers written after the decision, and
the start of the log moving on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from delayservice.core.entry import Headers, Row

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass(slots=True)
class Written:
    """One offset of a partition. A marker has no transaction of its own, key or value."""

    topic: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    transaction: Transaction | None
    is_marker: bool = False
    sender_ms: int = 0
    """What the sending node's clock said when it decided to send."""

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
    """``in_doubt``: its producer asked for a commit and never heard the answer."""

    number: int
    foreign: bool
    state: str = OPEN
    in_doubt: bool = False
    first_offsets: dict[str, int] = field(default_factory=dict)
    unmarked: list[str] = field(default_factory=list)
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
    """All topics, and the transaction coordinator."""

    def __init__(self, decided: Callable[[Transaction], None]) -> None:
        """``decided`` is told of every transaction of the service that is committed."""
        self._partitions: dict[str, Partition] = {}
        self._decided = decided
        self._transactions = 0
        self.epoch = 0
        self.current: Transaction | None = None
        self.marking: list[Transaction] = []
        """Decided transactions that still lack a marker somewhere."""

    def partition(self, topic: str) -> Partition:
        """A topic's one partition; made when it is first asked for."""
        return self._partitions.setdefault(topic, Partition())

    # --- write ---------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        timestamp_ms: int,
        record: tuple[bytes | None, bytes | None, Headers],
        transaction: Transaction | None = None,
        sender_ms: int = 0,
    ) -> Written:
        """Write one record at the end, in a transaction or not."""
        partition = self.partition(topic)
        key, value, headers = record
        written = Written(
            topic, partition.end, timestamp_ms, key, value, list(headers), transaction
        )
        written.sender_ms = sender_ms
        partition.written.append(written)
        if transaction is not None:
            transaction.records.append(written)
            if topic not in transaction.first_offsets:
                transaction.first_offsets[topic] = written.offset
                partition.pinning[transaction.number] = written.offset
        return written

    def begin(self, *, foreign: bool) -> Transaction:
        """A new transaction, of the slice's current producer or of a user."""
        self._transactions += 1
        transaction = Transaction(self._transactions, foreign)
        if not foreign:
            self.complete_markers()
            self.current = transaction
        return transaction

    def decide(self, transaction: Transaction, *, commit: bool, lazy_markers: bool = False) -> None:
        """End it. Its markers follow at once, or later."""
        transaction.state = COMMITTED if commit else ABORTED
        transaction.unmarked = list(transaction.first_offsets)
        if transaction is self.current:
            self.current = None
        if commit and not transaction.foreign:
            self._decided(transaction)
        self.marking.append(transaction)
        if not lazy_markers:
            self.complete_markers()

    def mark_one(self) -> None:
        """Write one marker that is due."""
        transaction = self.marking[0]
        self._mark(transaction, transaction.unmarked[-1]) if transaction.unmarked else None
        if not transaction.unmarked:
            self.marking.pop(0)

    def complete_markers(self) -> None:
        """Write all markers that are due: a producer can't begin anew before that."""
        while self.marking:
            self.mark_one()

    def _mark(self, transaction: Transaction, topic: str) -> None:
        transaction.unmarked.remove(topic)
        partition = self.partition(topic)
        del partition.pinning[transaction.number]
        partition.written.append(
            Written(topic, partition.end, 0, None, None, [], None, is_marker=True)
        )

    def fence(self, *, doubt_commits: bool) -> int:
        """``init_transactions``: end what the old producer left open, return the new epoch.

        ``doubt_commits``: whether a commit without an answer had arrived before.
        """
        self.epoch += 1
        if self.current is not None:
            self.decide(self.current, commit=self.current.in_doubt and doubt_commits)
        self.complete_markers()
        return self.epoch

    # --- read ----------------------------------------------------------------------------------

    def read(self, topic: str, start: int, stop: int, limit: int) -> tuple[list[Row], int]:
        """Committed records of ``[start, stop)``, at most ``limit``, and the offset to go on at."""
        rows: list[Row] = []
        for written in self.partition(topic).written[start:stop]:
            if len(rows) == limit:
                return rows, rows[-1][0] + 1
            if written.is_committed:
                rows.append(written.row())
        return rows, max(stop, start)

    def committed(self, topic: str) -> list[Written]:
        """Every committed record of a topic, retention or not: for the oracle."""
        return [written for written in self.partition(topic).written if written.is_committed]
