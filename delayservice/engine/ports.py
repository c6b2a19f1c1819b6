"""Interfaces of a worker's loop to Kafka, ZooKeeper and metrics. Those to Kafka are
implemented in ``connectors.kafka``; ``tests/simulation`` runs that code on simulated clients and a
model log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from delayservice.contract.entry import Headers, Row
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.claims import Claimed
from delayservice.engine.outcome import Output, Tally, Target
from delayservice.engine.role import Role

Answer = TypeVar("Answer")

Place: TypeAlias = tuple[str, int]
"""Delay topic and partition, which together name a shard."""


class Run(NamedTuple):
    """Records of a partition of a delay topic, read without a gap from offset ``start`` up to
    ``stop``, exclusive. ``rows`` may be fewer than the offsets, because transaction markers and
    aborted records take offsets too. A leader of ``leader_epoch`` appended all rows; -1: it is not
    known.
    """

    place: Place
    start: int
    rows: list[Row]
    stop: int
    leader_epoch: int = -1


class Trouble(NamedTuple):
    """Partition of a delay topic that can't be read. ``why``: the reason, for people;
    ``has_moved``: whether its log no longer holds the offset to be read next; ``is_truncated``:
    whether that is because the log has lost its end; ``damaged_at``: offset of a batch of records
    that was altered, at which reading stands still and is tried again; None: none was.
    """

    place: Place
    why: str
    has_moved: bool
    is_truncated: bool = False
    damaged_at: int | None = None


class Bounds(NamedTuple):
    """Bounds ``[start, end)`` of a partition's log: the first retained offset, and the high
    watermark. ``leader_epoch``: epoch of the present leader; -1: it is not known.
    """

    start: int
    end: int
    leader_epoch: int = -1


NO_TIME: Final = -1
"""Value of ``ReadBack.broker_ms`` when the broker did not set the record's timestamp."""


class ReadBack(NamedTuple):
    """Checkpoint as it was read back from Kafka.

    Attributes:
        data: the record's value.
        broker_ms: append time by the broker, epoch milliseconds, or ``NO_TIME``.
        boot_ms: this machine's boot clock when it arrived, milliseconds.
        offset: its offset in its partition of the checkpoint topic.
    """

    data: bytes
    broker_ms: int
    boot_ms: int
    offset: int


class Source(Protocol):
    """Consumer of a worker's partitions of delay topics; it returns committed records only."""

    def seek(self, place: Place, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read a partition from source offset ``offset`` on, instead of where it is read now.
        ``last_read``: the last record below that was read, if known. If the log holds another
        record in its place, ``take_troubles`` returns a ``Trouble``.
        """

    def drop(self, place: Place) -> None:
        """Stop reading a partition."""

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Run]:
        """Return fetched records, about ``limit`` at most; wait up to ``timeout_s`` seconds for the
        first, and then up to ``gather_s`` seconds for more. Each ``Run`` starts where the previous
        one of its partition stopped.
        """

    def wake(self) -> None:
        """End the present wait of ``poll``, or else the next one, early. Thread-safe."""

    def take_troubles(self) -> Sequence[Trouble]:
        """Return a ``Trouble`` for each partition that could not be read since the last call."""

    def pause(self, place: Place) -> None:
        """Stop fetching a partition until ``resume``; records fetched already are kept."""

    def resume(self, place: Place) -> None:
        """Fetch a paused partition again."""

    def bounds(self, place: Place) -> Bounds:
        """Return the first and the end offset of a partition's log now, open transactions
        included.
        """

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that has this name now; None when the topic is missing."""

    def scan(self, place: Place, start: int, stop: int) -> Iterator[Run]:
        """Yield the records at offsets ``[start, stop)`` of a partition, without effect on the
        position of ``poll``.

        Raises:
            KafkaEdgeError: the log no longer holds these offsets, or Kafka does not answer.
        """


class Control(NamedTuple):
    """Record about a slice that is committed with the outputs: its checkpoint if ``writer`` is
    empty, else a claim or release by that writer. ``value`` None: a tombstone, which deletes the
    writer's claim or release.
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
        """Give the present writer (transactional producer) up, and create one under a transactional
        id that was never used; return that id.

        Raises:
            KafkaEdgeError: Kafka refuses, or does not answer.
        """

    def check(self) -> None:
        """Raise ``WriterEndedError`` if the writer must not begin another transaction."""

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """Write outputs of the shard ``place``. They become visible with the next commit; under the
        guarantee ``at_least_once``, those with outcome ``DELIVERED`` are visible at once.

        Raises:
            OwnershipLostError: the writer is fenced or has ended.
        """

    def commit(self, controls: Sequence[Control]) -> float | None:
        """Commit all outputs sent since the last commit together with ``controls``; return when the
        broker had acknowledged the last record, monotonic seconds, or None if that is not known.

        Raises:
            WriterEndedError: the transaction was aborted; no output is visible.
            OwnershipLostError: the writer is fenced, or the result of the commit is unknown.
            KafkaEdgeError: the commit failed in another way; the writer can't be used any more.
        """

    def abort(self) -> None:
        """Abort all outputs sent since the last commit, and end the writer. Don't call it after a
        commit with an unknown result.
        """

    def discard(self) -> None:
        """Give the writer (transactional producer) up without commit or abort. Nothing can be sent
        until ``open`` is called.
        """


class WritableTargets(Protocol):
    """Known facts about target topics by which records are settled; no method waits for the
    cluster.
    """

    @property
    def fit(self) -> Container[Target]:
        """Return the targets that can be written to, as far as is known."""

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return why a target can't be written to now, as code and detail; None: it can be. If it
        still is not in ``fit``, ``refusal`` has to be called for each record, because the topic
        takes only small batches, or needs keys. Code ``TARGET_ASKED``: the cluster is being asked,
        and the shard has to wait. Code ``TARGET_LATER``: it is asked about too many topics already,
        and the record has to be requeued.
        """

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a writable topic refuses this record, as code and detail. None: it accepts the
        record, whose bytes count as part of the open transaction unless it is not among the outputs
        that are sent next. Code ``TARGET_LATER``: the topic can take it in a later transaction.
        """


class Targets(WritableTargets, Protocol):
    """Known facts about target topics, with a background lookup of unknown ones.

    Attributes:
        fit: targets that can be written to, as far as is known; emptied when that may have changed.
    """

    fit: set[Target]

    def expect(self, targets: Collection[Target]) -> None:
        """Look up in the background those of ``targets`` that are not known yet."""


class Checkpoints(Protocol):
    """Newest checkpoints of all slices, as they were read back from the checkpoint topic."""

    def take_news(self) -> Collection[int]:
        """Return the slices of which a newer checkpoint, or a record that is no valid one, was read
        back since the last call.
        """

    def read_back(self, slice_no: int) -> ReadBack | None:
        """Return the newest checkpoint of a slice, the same object until a newer one is read back;
        None: no checkpoint was read back yet.
        """

    def is_unserved(self, slice_no: int) -> bool:
        """Return whether the whole checkpoint topic was read, and holds no record of the slice."""

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """Return the checkpoints read back since the last call at which the copies of the slice are
        to be compared, oldest first. They are the same on every node, and not newer than the result
        of ``read_back``.
        """


class Succession(Protocol):
    """Queries to Kafka and ZooKeeper when this node takes slices over. They run on a helper thread,
    and may block.

    Methods that block raise ``KafkaEdgeError`` if there is no answer in time.
    """

    def enter(self, writer: str) -> None:
        """Make the transactional id ``writer`` the writer of this process. Does not block."""

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        """Return those of the slices of which ZooKeeper confirms that this node is the owner."""

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        """Wait until the claims of the slices by this process's writer are read back, and return
        them by slice. That is possible once all earlier transactions in the claims topic have
        ended. A writer that leaves one of them open is fenced after a second or two.

        Args:
            slices: by slice, a number (``turn``); the number of its claim must be higher.
        """

    def newest(self, slice_no: int) -> bytes | None:
        """Return the newest known checkpoint of a slice, as bytes; None: the slice was never
        served.
        """

    def fence(self, writers: Collection[str]) -> None:
        """Fence these writers (transactional ids), so that they can't commit any more. Writers that
        this process has fenced before are skipped.
        """

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        """Wait until the checkpoints of ``slices`` are read to the present end of their log; return
        the newest checkpoint of each, as bytes; None: the slice was never served.
        """

    def bounds(self, places: Collection[Place]) -> Mapping[Place, Bounds]:
        """Return the first and the end offset of the logs of these partitions. Partitions that give
        no answer are missing in the result.
        """


class Background(Protocol):
    """Helper threads for calls that block."""

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run ``work`` on a helper thread, and return the future of its result."""


class Gate(Protocol):
    """Ownership of slices by ZooKeeper: what this node may do with each slice, and reports about
    it.
    """

    def roles(self) -> Mapping[int, Role]:
        """Return this node's role for each slice; it is a replica of slices that are missing. The
        same object is returned until a role or an epoch changes.
        """

    def epoch(self, slice_no: int) -> int:
        """Return the lowest epoch that this node may use for its present ownership of a slice."""

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node knows."""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Report whether this node settles records of a slice now: True from the end of its
        take-over on, False after its last transaction.
        """

    def gave_up(self, slice_no: int, why: str) -> None:
        """Report that a slice can't be served here now, so that another node takes it over.
        ``why``: text for people.
        """


class Observer(Protocol):
    """Receiver of numbers for metrics, called once per batch."""

    def ingested(self, slice_no: int, records: int) -> None:
        """Count ``records`` more source records of a slice that were stored."""

    def settled(self, slice_no: int, tally: Tally, now_ms: int) -> None:
        """Add the sums ``tally`` over committed outputs of a slice. ``now_ms``: time after their
        commit, epoch ms, from which their lateness is computed.
        """

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        """Count a transaction with checkpoints of these slices. ``seconds``: duration of its
        commit; ``committed``: False: it was aborted, or its result is unknown.
        """

    def turned(self, seconds: float) -> None:
        """Add the duration of one iteration of the worker's loop, seconds, without the wait for
        records.
        """
