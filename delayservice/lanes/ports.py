"""What a slice loop needs of the world. Kafka implements these in ``connectors.kafka``; the
simulation in ``tests/simulation`` implements them with a model log that crashes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from delayservice.core.entry import Row
from delayservice.core.outcome import Output, Tally, Target
from delayservice.core.role import Role


class Run(NamedTuple):
    """A gapless stretch ``[start, stop)`` of one delay topic's partition. ``rows`` may be fewer
    than the offsets, for transaction markers and aborted records take offsets too.
    """

    topic: str
    start: int
    rows: list[Row]
    stop: int


class Bounds(NamedTuple):
    """``[start, end)`` of a log: the first offset that is retained, and the high watermark."""

    start: int
    end: int


class ReadBack(NamedTuple):
    """A checkpoint as it came back from Kafka: ``broker_ms`` is when the broker appended it,
    ``wall_ms`` and ``boot_ms`` are this machine's clocks when it arrived, ``offset`` is its place
    in its partition of the checkpoint topic.
    """

    data: bytes
    broker_ms: int
    wall_ms: int
    boot_ms: int
    offset: int


class Source(Protocol):
    """The delay topics' partitions of one slice, read committed."""

    def seek(self, topic: str, offset: int) -> None:
        """Read this topic's partition from ``offset`` on; starts it if it was not read yet."""

    def drop(self, topic: str) -> None:
        """Read this topic no longer."""

    def poll(self, timeout_s: float, limit: int) -> list[Run]:
        """Whatever is there, at most about ``limit`` records; waits up to ``timeout_s`` for the
        first. Each run starts where the one before of its topic stopped. When it raises, nothing
        was taken.
        """

    def pause(self, topic: str) -> None:
        """Fetch no more of this topic until ``resume``; what is fetched already is kept."""

    def resume(self, topic: str) -> None:
        """Fetch again."""

    def bounds(self, topic: str) -> Bounds:
        """Where the log starts and ends now; the end counts open transactions."""

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now; None when there is none."""

    def scan(self, topic: str, start: int, stop: int) -> Iterator[Run]:
        """Read ``[start, stop)`` aside, without touching the position of ``poll``."""


class Sink(Protocol):
    """The outputs of one slice, and its checkpoint: one fenced transactional producer."""

    def prepare(self) -> None:
        """This node is about to become the owner: do what can be done before ``init``."""

    def init(self) -> None:
        """Fence whoever wrote for this slice before, and abort what it left open.

        Raises:
            OwnershipLostError: fenced in turn.
        """

    def blocked(self, targets: Collection[Target]) -> dict[Target, tuple[str, str]]:
        """Those of ``targets`` that can't be written to now, with code and detail. Answers from
        cached metadata.
        """

    def still_blocked(
        self, blocked: Mapping[Target, tuple[str, str]]
    ) -> dict[Target, tuple[str, str]]:
        """Those of ``blocked`` that still can't be written to, as of a moment ago; never waits."""

    def send(self, shard: str, outputs: Sequence[Output], targets: Collection[Target]) -> None:
        """Write outputs of a delay topic, whose distinct targets are ``targets``; they become
        visible with the next commit (``at_least_once``: target outputs at once).

        Raises:
            RefusedError: the broker's client refuses one of them for good.
            OwnershipLostError: fenced.
        """

    def commit(self, checkpoint: bytes) -> None:
        """Commit everything sent since the last commit together with ``checkpoint``.

        Raises:
            RefusedError: the broker refused some outputs; the transaction was aborted.
            TransactionAbortedError: aborted for another reason; nothing of it is visible.
            OwnershipLostError: fenced, or nobody knows whether it was committed.
        """

    def abort(self) -> None:
        """Drop everything sent since the last commit. Never after an uncertain commit.

        Raises:
            OwnershipLostError: fenced, or the abort itself failed.
        """

    def discard(self) -> None:
        """Give the producer up without committing or aborting; ``init`` makes a new one."""


class Checkpoints(Protocol):
    """The checkpoint topic."""

    def latest(self, slice_no: int) -> bytes | None:
        """The newest committed checkpoint of the slice, read to the end of the log as of now. Asked
        after ``Sink.init``, so that no older owner can add to it any more.
        """

    def peek(self, slice_no: int) -> bytes | None:
        """The newest checkpoint below any open transaction. Asked before ``Sink.init``, when the
        old owner may have left a transaction open: to wait for its end would take its time-out.
        """

    def await_read_back(self, slice_no: int, data: bytes, timeout_s: float) -> bool:
        """Wait until the committed checkpoint ``data`` is read back; False if it is not in time."""

    def is_new(self, slice_no: int) -> bool:
        """Whether nobody has ever committed anything for the slice."""

    def read_back(self, slice_no: int) -> ReadBack | None:
        """The newest checkpoint that was read back in passing, for pruning; may lag. The same
        object until a newer one comes.
        """

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """Those that were read back since the last call and at which copies are to be compared: the
        same on every node, and none newer than what ``read_back`` gives by then.
        """


class DigestLog(Protocol):
    """The digest topic."""

    def write(self, row: tuple[bytes, bytes | None], on_lost: Callable[[], None]) -> None:
        """Write a row, some time soon; ``on_lost`` is called, by another thread, if it can't be."""


class RepairLog(Protocol):
    """The repair topic."""

    def answer(self, plan: str, value: bytes) -> None:
        """Write an answer to a command of ``plan``, some time soon."""


class Clock(Protocol):
    """Wall clock for due times, monotonic clock for elapsed ones."""

    def wall_ms(self) -> int:
        """Epoch milliseconds."""

    def monotonic_s(self) -> float:
        """Seconds that only ever grow."""


class Gate(Protocol):
    """Whether this node may settle. Asked before every transaction; told what came of it."""

    def role(self, slice_no: int) -> Role:
        """What this node may do with the slice now."""

    def confirm(self, slice_no: int) -> bool:
        """Whether it is the owner beyond doubt; takes a round trip. Before and after fencing."""

    def epoch(self, slice_no: int) -> int:
        """The least number of this ownership."""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """The slice has been taken over, or its last transaction is over."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """The slice can't be served here now: another node may have more luck."""

    def frozen(self) -> str | None:
        """Why the clock can't be trusted now, or None: nothing is settled meanwhile."""

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """A broker's timestamp: of a consumed record, or of our own checkpoint as read back, whose
        commit began at ``sent_s`` of the monotonic clock.
        """


class Observer(Protocol):
    """Told what happened, once per batch: metrics."""

    def ingested(self, records: int) -> None:
        """Source records were stored."""

    def settled(self, tally: Tally, now_ms: int) -> None:
        """Outputs were committed; ``now_ms`` is when that was known."""

    def transaction(self, seconds: float, *, committed: bool) -> None:
        """A transaction ended."""
