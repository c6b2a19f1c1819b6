"""Interfaces of a worker's loop to Kafka, ZooKeeper and metrics, and the roles of a node. Those to
Kafka are implemented in ``connectors.kafka``; ``tests/simulation`` runs that code on simulated
clients and a model log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from delayservice.contract.entry import Headers, PolledRecord
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.claims import Claimed
from delayservice.engine.outcome import Output, OutputCounters, Target


class Role(Enum):
    """Role of a node for a slice, as ``ha.ownership`` computes it."""

    # The node stores the records of the slice, and does not deliver them.
    REPLICA = "replica"
    # A replica that is about to own the slice; it opens its transactional producer ahead.
    HEIR = "heir"
    # The node is still the owner, but ZooKeeper can't be reached: it begins no new transaction.
    PAUSED = "paused"
    # The node delivers the records of the slice. A former owner is fenced by Kafka.
    OWNER = "owner"

    @property
    def keeps_owning(self) -> bool:
        return self in {Role.OWNER, Role.PAUSED}


Answer = TypeVar("Answer")

Place: TypeAlias = tuple[str, int]
"""Delay topic and partition, which together name a shard."""


class PolledBatch(NamedTuple):
    """Records of a partition, read without a gap from ``start`` up to ``stop``, exclusive.
    ``rows`` may be fewer: transaction markers and aborted records take offsets too. A leader of
    ``leader_epoch`` appended all; -1: not known.
    """

    place: Place
    start: int
    rows: list[PolledRecord]
    stop: int
    leader_epoch: int = -1


class PartitionError(NamedTuple):
    """Partition that can't be read. ``has_moved``: its log no longer holds the offset to be read
    next; ``is_truncated``: because it has lost its end; ``damaged_at``: offset of an altered
    batch, at which reading stands still and is tried again.
    """

    place: Place
    why: str
    has_moved: bool
    is_truncated: bool = False
    damaged_at: int | None = None


class Bounds(NamedTuple):
    """Bounds ``[start, end)`` of a log: first retained offset, and high watermark.
    ``leader_epoch`` of the present leader; -1: not known.
    """

    start: int
    end: int
    leader_epoch: int = -1


# The broker did not set the record's timestamp.
NO_TIME: Final = -1


class ReadBack(NamedTuple):
    """Checkpoint as read back: append time in epoch ms or ``NO_TIME``, this machine's boot clock
    in ms when it arrived, offset in its partition.
    """

    data: bytes
    broker_ms: int
    boot_ms: int
    offset: int


class Source(Protocol):
    """Consumer of a worker's partitions of delay topics; it returns committed records only."""

    def seek(self, place: Place, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read a partition from ``offset`` on. If the log holds another record in place of
        ``last_read``, ``take_errors`` returns a ``PartitionError``.
        """

    def drop(self, place: Place) -> None:
        """Stop reading a partition, and end a pause of it."""

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[PolledBatch]:
        """Return about ``limit`` fetched records at most; wait up to ``timeout_s`` for the
        first, then up to ``gather_s`` for more. Each ``PolledBatch`` starts where its partition's
        previous one stopped.
        """

    def wake(self) -> None:
        """End the present or next wait of ``poll`` early. Thread-safe."""

    def take_errors(self) -> Sequence[PartitionError]:
        """Return an error for each partition that could not be read since the last call."""

    def pause(self, place: Place) -> None:
        """Stop fetching a partition until ``resume``; records fetched already are kept."""

    def resume(self, place: Place) -> None:
        """Fetch a paused partition again."""

    def bounds(self, place: Place) -> Bounds:
        """Return a log's bounds now, open transactions included."""

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that has this name now; None when the topic is missing."""

    def scan(self, place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        """Yield the records at ``[start, stop)``, without effect on the position of ``poll``; each
        step waits 0.2 s at most, and yields a batch without records if none came. Raise
        ``KafkaEdgeError`` if the log no longer holds them, or Kafka does not answer.
        """


class Control(NamedTuple):
    """Record about a slice, committed with the outputs: its checkpoint if ``writer`` is empty,
    else a claim or release of that writer; ``value`` None: a tombstone, which deletes it.
    """

    slice_no: int
    value: bytes | None
    writer: str = ""


class Sink(Protocol):
    """Producer of a worker's outputs, checkpoints and claims: one transactional producer at a time,
    the *writer*. It ends with its first abort, and with the first failure of the connection to its
    coordinator; then a new one is opened, and takes all slices over. ``open`` and ``commit`` run on
    a helper thread, during which no other method is called.
    """

    def open(self) -> str:
        """Give the writer (transactional producer) up, and create one under a transactional id
        that was never used; return that id. Raise ``KafkaEdgeError`` if Kafka does not answer.
        """

    def check(self) -> None:
        """Raise ``WriterEndedError`` if the writer must not begin another transaction."""

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """Write outputs; visible with the next commit, under ``at_least_once`` those that are
        ``DELIVERED`` at once. Raise ``OwnershipLostError``: the writer is fenced or has ended.
        """

    def commit(self, controls: Sequence[Control]) -> float | None:
        """Commit all outputs sent since the last commit, with ``controls``; return when the broker
        had acknowledged the last record, monotonic seconds, or None.

        Raises ``WriterEndedError`` (aborted, no output is visible), ``OwnershipLostError`` (fenced,
        or the result is unknown), ``KafkaEdgeError`` (the writer can't be used any more).
        """

    def abort(self) -> None:
        """Abort, and end the writer. Not after a commit with an unknown result."""

    def discard(self) -> None:
        """Give the writer up without commit or abort. Nothing can be sent until ``open``."""


class WritableTargets(Protocol):
    """Known facts about target topics; no method waits for the cluster."""

    @property
    def writable(self) -> Container[Target]:
        """Return the targets that can be written to, as far as is known."""

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return code and detail of why a target can't be written to; None: it can be, but
        outside ``writable`` ask ``refusal`` for each record. ``TARGET_ASKED``: the shard has to
        wait; ``TARGET_LATER``: too many topics are being asked, so the record is requeued.
        """

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return code and detail of why the topic refuses this record; None: it accepts it.
        ``TARGET_LATER``: beside what was reserved, it can take it in a later transaction.
        """

    @property
    def small(self) -> Container[str]:
        """Return the topics that take only little in one transaction, none of which is in
        ``writable``.
        """

    def reserve(self, outputs: Iterable[Output]) -> None:
        """Count those of ``outputs``, all of which will be sent, that go to topics in ``small``."""


class Targets(WritableTargets, Protocol):
    """Facts about targets, with a background lookup of unknown ones; ``writable`` is emptied when
    it may have changed.
    """

    writable: set[Target]

    def expect(self, targets: Collection[Target]) -> None:
        """Look up unknown ones of ``targets`` in the background."""


class Checkpoints(Protocol):
    """Newest checkpoints of all slices, as they were read back from the checkpoint topic."""

    def take_updated(self) -> Collection[int]:
        """Return the slices with a newer checkpoint, or a foreign record, since the last call."""

    def follow(self, slice_no: int) -> None:
        """Request a search for a slice's newest checkpoint. Does not block."""

    def read_back(self, slice_no: int) -> ReadBack | None:
        """Return a slice's newest checkpoint, the same object until there is a newer one."""

    def is_newest(self, slice_no: int) -> bool:
        """Return whether what ``read_back`` returns from now on is not older than the end of the
        checkpoints when their consumer connected; ``take_updated`` tells when that changes.
        """

    def is_unserved(self, slice_no: int) -> bool:
        """Return whether the whole checkpoint topic was read, and holds no record of the slice."""

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """Return the checkpoints read back since the last call at which copies are compared,
        oldest first: the same on every node, not newer than ``read_back``.
        """


class TakeOverClient(Protocol):
    """Queries to Kafka and ZooKeeper for a take-over, on a helper thread. Those that block raise
    ``KafkaEdgeError`` if there is no answer in time.
    """

    def enter(self, writer: str) -> None:
        """Make ``writer`` the writer of this process. Does not block."""

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        """Return the slices that ZooKeeper confirms as this node's."""

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        """Wait until the claims of the slices above these ``turn`` numbers are read back; return
        them. All earlier transactions in the claims topic have ended then; a writer that leaves
        one open is fenced after a second or two.
        """

    def newest(self, slice_no: int) -> bytes | None:
        """Return the newest known checkpoint of a slice; None: it was never served."""

    def fence(self, writers: Collection[str]) -> None:
        """Fence writers, so that they can't commit any more; those fenced before are skipped."""

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        """Read the checkpoints to the present end; return the newest; None: never served."""

    def bounds(self, topic_ids: Mapping[Place, str]) -> Mapping[Place, Bounds]:
        """Return the bounds of these logs; without those that give no answer, or whose topic has
        another id: it was deleted and created again.
        """


class Background(Protocol):
    """Helper threads for calls that block."""

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run ``work`` on a helper thread, and return the future of its result."""


class OwnershipView(Protocol):
    """Ownership of slices by ZooKeeper."""

    def roles(self) -> Mapping[int, Role]:
        """Return this node's roles, replica where missing; the same object until one changes."""

    def epoch(self, slice_no: int) -> int:
        """Return the lowest epoch for the present ownership of a slice."""

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node knows."""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Report whether this node settles records of a slice now: from the end of its take-over
        to its last transaction.
        """

    def gave_up(self, slice_no: int, why: str) -> None:
        """Report why a slice can't be served here, so that another node takes it over."""


class Observer(Protocol):
    """Receiver of numbers for metrics, called once per batch."""

    def ingested(self, records: int) -> None: ...

    def settled(self, tally: OutputCounters, now_ms: int) -> None:
        """Add sums over committed outputs. ``now_ms``: time after their commit, epoch ms."""

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        """Count a transaction; not ``committed``: aborted, or its result is unknown."""

    def turned(self, seconds: float) -> None:
        """Add the duration of one iteration of the loop, without the wait for records."""
