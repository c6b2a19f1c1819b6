"""A model of Kafka as the service sees it: topics, partitions, transactions, producer epochs.

Modelled: offsets taken by aborted records and by markers, the last stable offset, transactional ids
whose epoch a new producer raises, that the coordinator gives up or forgets, a commit whose answer
is lost and which is decided later, markers written after the decision, compaction, the start of a
log moving on, a log that is truncated, a topic that is made anew, and topics that are missing,
forbidden, without a leader or with too few copies in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from delayservice.contract.entry import Headers, PolledRecord
from delayservice.engine.ports import Place

Epoch: TypeAlias = tuple[int, int]

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
CHECKPOINTS, CLAIMS = "delay_checkpoint", "delay_claims"
OWN_TOPICS = ("delay_dead_letter", "delay_outcomes")
CHECKPOINT_PARTITIONS = 2
CLAIMS_PLACE: Place = (CLAIMS, 0)
COMPACTED = (CLAIMS_PLACE, *((CHECKPOINTS, n) for n in range(CHECKPOINT_PARTITIONS)))


def checkpoint_place(slice_no: int) -> Place:
    """Return where a slice's checkpoints lie; slices share partitions."""
    return (CHECKPOINTS, slice_no % CHECKPOINT_PARTITIONS)


@dataclass(slots=True)
class Written:
    """One offset of a partition. A marker has no transaction of its own, key or value.

    Attributes:
        first_offset: of a marker's transaction, in this partition.
        serial: what was written later anywhere has a higher one.
        sender_ms: what the sending node's clock said when it decided to send.
        skew_ms: how far that was ahead of the world's clock.
        is_gone: compaction has removed it.
        is_lost: the log has lost it, with everything after it.
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
    leader_epoch: int = 0
    is_lost: bool = False
    first_offset: int = -1
    sender_ms: int = 0
    skew_ms: int = 0
    is_gone: bool = False

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

    def row(self) -> PolledRecord:
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


class Partition:
    """One partition of one topic."""

    def __init__(self) -> None:
        self.start = 0
        self.leader_epoch = 0
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


@dataclass(slots=True)
class Topic:
    """What the cluster says of a topic, and does with what is sent there.

    Attributes:
        partitions: how many it has; 0: there is no such topic.
        life: of its name; another one is another topic.
        is_forbidden: the service may not write to it.
        leaderless: partitions without a leader.
        lacking: partitions with too few copies in sync.
        bytes_max: of a batch.
        is_strict: it takes no timestamp that the service writes.
    """

    name: str
    partitions: int
    life: int = 0
    is_forbidden: bool = False
    leaderless: set[int] = field(default_factory=set)
    lacking: set[int] = field(default_factory=set)
    bytes_max: int = 1_000_000
    is_strict: bool = False

    @property
    def topic_id(self) -> str:
        """The id of this topic, not of its name."""
        return f"{self.name} {self.life}"

    @property
    def is_fit(self) -> bool:
        """Whether everything can be written to it."""
        is_bad = self.is_forbidden or self.is_strict or self.leaderless or self.lacking
        return bool(self.partitions and not is_bad)


class SimLog:
    """All topics, and the transaction coordinator.

    Attributes:
        topics: by name.
        epochs: producer id and epoch of the transactional ids that the coordinator knows.
        open: the open transaction of each writer of the service that has one.
        fenced: writers whose id a later producer took.
        marking: decided transactions that still lack a marker somewhere.
        repeated: writers whose client has sent the end of a transaction twice, each with whether it
            is a commit; one copy is on its way, and ends whatever is open when it comes
            (KAFKA-17754).
    """

    def __init__(self, decided: Callable[[Transaction], None]) -> None:
        """``decided`` is told of every transaction of the service that is committed."""
        self.topics: dict[str, Topic] = {}
        self._partitions: dict[Place, Partition] = {}
        self._decided = decided
        self._transactions = 0
        self._serial = 0
        self._writers = 0
        self.epochs: dict[str, Epoch] = {}
        self._unused: set[str] = set()
        self._producers = 0
        self.open: dict[str, Transaction] = {}
        self.fenced: set[str] = set()
        self.marking: list[Transaction] = []
        self.repeated: dict[str, bool] = {}

    def make_topic(self, name: str, partitions: int) -> Topic:
        """Make a topic."""
        topic = self.topics[name] = Topic(name, partitions)
        return topic

    def partition(self, place: Place) -> Partition:
        """A partition; made when it is first asked for."""
        return self._partitions.setdefault(place, Partition())

    def new_writer(self, prefix: str) -> str:
        """A transactional id that was never used."""
        self._writers += 1
        name = f"{prefix}{self._writers}"
        self._unused.add(name)
        return name

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
        written.leader_epoch = partition.leader_epoch
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
        """A new transaction of a writer, or of a user."""
        self._transactions += 1
        transaction = Transaction(self._transactions, writer)
        if writer:
            self.open[writer] = transaction
        return transaction

    def is_marking(self, writer: str) -> bool:
        """Whether markers of a writer's last transaction are to be written yet: until then, it can
        begin no other.
        """
        return any(transaction.writer == writer for transaction in self.marking)

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
        """Write one marker that is due, if any is."""
        if not self.marking:
            return
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
        if partition.pinning.pop(transaction.number, None) is None:
            return  # its records were truncated, or their topic was made anew
        marker = Written(
            place, partition.end, 0, None, None, [], None, self._next_serial(), is_marker=True
        )
        marker.leader_epoch = partition.leader_epoch
        marker.first_offset = transaction.first_offsets[place]
        partition.written.append(marker)

    # --- transactional ids ---------------------------------------------------------------------

    def init_producer(self, writer: str, *, doubt_commits: bool) -> Epoch:
        """``InitProducerId``: end what a writer's id left open, wait for its markers, and return
        the new epoch. ``doubt_commits``: a commit without an answer had arrived before.
        """
        before = self.epochs.get(writer)
        self.repeated.pop(writer, None)
        if writer in self._unused:
            self._unused.remove(writer)
        else:
            self.fenced.add(writer)
        self._producers += 1
        now = (self._producers, 0) if before is None else (before[0], before[1] + 1)
        self.epochs[writer] = now
        transaction = self.open.get(writer)
        if transaction is not None:
            self.decide(transaction, commit=transaction.in_doubt and doubt_commits)
        self.complete_markers(writer)
        return now

    def give_up(self, writer: str) -> None:
        """The coordinator aborts a transaction that takes too long; its writer is fenced."""
        self.init_producer(writer, doubt_commits=False)

    def give_up_open(self) -> None:
        """All transactions that are open now take too long."""
        for writer in list(self.open):
            self.give_up(writer)

    def forget(self, writer: str) -> None:
        """The coordinator forgets an id that has not been used for long."""
        self.epochs.pop(writer, None)

    # --- trouble -------------------------------------------------------------------------------

    def compact(self, place: Place, stop: int) -> None:
        """Of each key, keep what came last below ``stop``. A claim's tombstone goes as well, when
        what it deletes went before; one of a checkpoint is there for longer than a schedule lasts.
        """
        rows = [w for w in self.partition(place).written[:stop] if w.is_committed and not w.is_gone]
        last = {written.key: written for written in rows}
        alone = {key for key in last if sum(1 for w in rows if w.key == key) == 1}
        for written in rows:
            is_last = last[written.key] is written
            is_over = written.value is None and written.key in alone and place == CLAIMS_PLACE
            written.is_gone = not is_last or is_over

    def elect(self, place: Place) -> None:
        """Another leader takes a partition."""
        self.partition(place).leader_epoch += 1

    def cuts(self, place: Place) -> list[int]:
        """Where a log may be truncated: a marker goes with what it marks, or stays."""
        partition = self.partition(place)
        marked = [(w.first_offset, w.offset) for w in partition.written if w.is_marker]
        return [
            stop
            for stop in range(partition.start, partition.end)
            if not any(first < stop <= marker for first, marker in marked)
        ]

    def truncate(self, place: Place, stop: int) -> None:
        """A leader is elected that lacks what was written from ``stop`` on."""
        partition = self.partition(place)
        self._lose(place, partition.written[stop:], stop)
        del partition.written[stop:]
        self.elect(place)

    def recreate(self, name: str) -> None:
        """A topic is deleted, and another is made that has its name."""
        topic = self.topics[name]
        topic.life += 1
        for number in range(topic.partitions):
            place = (name, number)
            self._lose(place, self.partition(place).written, 0)
            self._partitions[place] = Partition()

    def _lose(self, place: Place, lost: list[Written], stop: int) -> None:
        pinning = self.partition(place).pinning
        for written in lost:
            written.is_lost = True
            transaction = written.transaction
            if transaction is not None and transaction.first_offsets.get(place, -1) >= stop:
                del transaction.first_offsets[place]
                pinning.pop(transaction.number, None)

    # --- read ----------------------------------------------------------------------------------

    def end_of_epoch(self, place: Place, leader_epoch: int) -> int:
        """``OffsetForLeaderEpoch``: where the first later epoch begins, or the log ends."""
        partition = self.partition(place)
        later = (w.offset for w in partition.written if w.leader_epoch > leader_epoch)
        return next(later, partition.end)

    def visible(self, place: Place, start: int, *, committed: bool) -> Iterator[Written]:
        """What a reader sees from ``start`` on, read committed or not."""
        partition = self.partition(place)
        stop = partition.last_stable if committed else partition.end
        for written in partition.written[start:stop]:
            is_record = not written.is_gone and not written.is_marker
            if is_record and (written.is_committed or not committed):
                yield written
