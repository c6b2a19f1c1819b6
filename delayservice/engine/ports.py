"""The interfaces of a worker's loop to the world. Kafka's are in ``connectors.kafka``; the
simulation in ``tests/simulation`` runs those on simulated clients, over a model log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from delayservice.contract.entry import Headers, Row
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.claims import Claimed
from delayservice.engine.outcome import Output, Tally, Target
from delayservice.engine.role import Role

Answer = TypeVar("Answer")

Place: TypeAlias = tuple[str, int]
"""A delay topic and its partition: names a shard."""


class Run(NamedTuple):
    """A gapless stretch ``[start, stop)`` of one delay topic's partition. ``rows`` may be fewer
    than the offsets, for transaction markers and aborted records take offsets too. All rows were
    appended by leaders of one epoch; -1: it is not known.
    """

    place: Place
    start: int
    rows: list[Row]
    stop: int
    leader_epoch: int = -1


class Trouble(NamedTuple):
    """Why a partition can't be read. ``has_moved``: its log no longer holds the position;
    ``is_truncated``: because its end was lost, wherever it ends by now.
    """

    place: Place
    why: str
    has_moved: bool
    is_truncated: bool = False


class Bounds(NamedTuple):
    """``[start, end)`` of a log: the first offset that is retained, and the high watermark.
    ``leader_epoch``: of its present leader; -1: it is not known.
    """

    start: int
    end: int
    leader_epoch: int = -1


NO_TIME: Final = -1
"""Value of ``ReadBack.broker_ms`` when the broker set no time of its own."""


class ReadBack(NamedTuple):
    """A checkpoint as it came back from Kafka.

    Attributes:
        data: its value.
        broker_ms: when the broker appended it, milliseconds since 1970.
        boot_ms: this machine's boot clock when it arrived.
        offset: its place in its partition of the checkpoint topic.
        acknowledged_s: when the broker had acknowledged it, monotonic seconds; None for a
            checkpoint of another writer, or where that is not known.
    """

    data: bytes
    broker_ms: int
    boot_ms: int
    offset: int
    acknowledged_s: float | None = None


class Source(Protocol):
    """The delay topics' partitions of a worker, read committed."""

    def seek(self, place: Place, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        """Read this partition from ``offset`` on; starts it if it was not read yet. ``last_read``:
        the last record below, if it is known; where the log holds another one, it has moved.
        """

    def drop(self, place: Place) -> None:
        """Read this partition no longer."""

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Run]:
        """Return what is there, at most about ``limit`` records; waits up to ``timeout_s`` for the
        first, and then up to ``gather_s`` for more. Each run starts where the one before of its
        partition stopped.
        """

    def wake(self) -> None:
        """End the present or next wait of ``poll``. Any thread may call this."""

    def take_troubles(self) -> Sequence[Trouble]:
        """Return the partitions that could not be read since the last call."""

    def pause(self, place: Place) -> None:
        """Fetch no more of this partition until ``resume``; what is fetched already is kept."""

    def resume(self, place: Place) -> None:
        """Fetch again."""

    def bounds(self, place: Place) -> Bounds:
        """Return where the log starts and ends now; the end counts open transactions."""

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that has this name now; None when the topic is missing."""

    def scan(self, place: Place, start: int, stop: int) -> Iterator[Run]:
        """Read ``[start, stop)`` aside, without touching the position of ``poll``."""


class Control(NamedTuple):
    """A record of the service's own that a commit carries: a checkpoint when ``writer`` is empty,
    else what that writer says of the slice in the claims topic; no value: the writer is forgotten.
    """

    slice_no: int
    value: bytes | None
    writer: str = ""


class Sink(Protocol):
    """The outputs of a worker, its checkpoints and its claims: one transactional producer at a
    time, the *writer*. ``open`` and ``commit`` run on a helper thread; nothing else is called
    meanwhile.
    """

    def open(self) -> str:
        """Make a writer with a name that was never used, give the one before up, and return the
        name.

        Raises:
            KafkaEdgeError: Kafka refuses, or does not answer.
        """

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """Write outputs of a shard; they become visible with the next commit (``at_least_once``:
        target outputs at once).

        Raises:
            RefusedError: the client refuses one of them for good.
            OwnershipLostError: fenced.
        """

    def commit(self, controls: Sequence[Control]) -> float | None:
        """Commit everything sent since the last commit together with ``controls``; return when
        the last of it was acknowledged, monotonic seconds, if that is known.

        Raises:
            RefusedError: the broker refused some outputs; the transaction was aborted.
            TransactionAbortedError: aborted for another reason; nothing of it is visible.
            OwnershipLostError: fenced, or it is not known whether it was committed.
        """

    def abort(self) -> None:
        """Drop everything sent since the last commit. Never after an uncertain commit.

        Raises:
            OwnershipLostError: fenced, or the abort itself failed.
        """

    def discard(self) -> None:
        """Give the writer up without committing or aborting; ``open`` makes a new one."""


class Targets(Protocol):
    """The known facts about target topics; never waits for the cluster.

    Attributes:
        fit: targets that can be written to as far as is known. Emptied when that may have changed.
    """

    fit: set[Target]

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """Return why a target can't be written to, as code and detail; None when it can, and then
        ``fit`` has it, unless it takes less than others. The code ``TARGET_ASKED`` says that the
        cluster is being asked, ``TARGET_LATER`` that the record is to be put off.
        """

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a topic does not take this record; see ``engine.writable.Targets``."""

    def expect(self, targets: Collection[Target]) -> None:
        """Look up in the background what is not known of these targets."""


class Checkpoints(Protocol):
    """The checkpoint topic as it is tailed."""

    def take_news(self) -> Collection[int]:
        """Return the slices of which newer checkpoints were read back since the last call."""

    def read_back(self, slice_no: int) -> ReadBack | None:
        """Return the newest checkpoint that was read back: one object until the next."""

    def is_unserved(self, slice_no: int) -> bool:
        """Return whether the whole topic was read and holds no checkpoint of the slice."""

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """Return those that were read back since the last call and at which copies are to be
        compared: the same on every node, and none newer than what ``read_back`` gives by then.
        """


class Succession(Protocol):
    """The questions of a take-over to Kafka and the ensemble, on a helper thread; calls may wait.

    All of these raise ``KafkaEdgeError`` when they get no answer in time.
    """

    def enter(self, writer: str) -> None:
        """Take ``writer`` for the own one from now on; waits for nothing."""

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        """Return those that this node is to own, beyond doubt."""

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        """Wait until the own claims of these slices, each with a turn above the number given, are
        read back. Nothing that lies below a claim in its partition is undecided by then: a writer
        that leaves a transaction open there is fenced after a while.
        """

    def newest(self, slice_no: int) -> bytes | None:
        """Return the newest committed checkpoint in the topic; None: the topic holds none."""

    def legacy_writer(self, slice_no: int) -> str | None:
        """Return the transactional id of nodes of version 1; None: there was none."""

    def fence(self, writers: Collection[str]) -> None:
        """Fence these writers, unless this process has fenced them before."""

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        """Return the newest committed checkpoint of each slice, up to the end as of now."""

    def bounds(self, places: Collection[Place]) -> Mapping[Place, Bounds]:
        """Return where these logs start and end; a partition that gives no answer is left out."""


class Background(Protocol):
    """Threads for what blocks."""

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run ``work`` aside."""


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
        """Return epoch milliseconds."""

    def monotonic_s(self) -> float:
        """Return seconds that only ever grow."""


class Gate(Protocol):
    """The ensemble: says whether this node may settle, and takes what came of it."""

    def roles(self) -> Mapping[int, Role]:
        """Return what this node may do with each slice: one object until something changes."""

    def epoch(self, slice_no: int) -> int:
        """Return the least number of this ownership."""

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node knows."""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Note that the slice has been taken over, or that its last transaction is over."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """Note that the slice can't be served here now: another node may have more luck."""

    def frozen(self) -> str | None:
        """Return why the clock can't be trusted now, or None: nothing is settled meanwhile."""

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """Take a broker's timestamp: of a consumed record, or of our own checkpoint as read back,
        whose commit began at ``sent_s`` of the monotonic clock.
        """


class Observer(Protocol):
    """Hears what happened to a slice, once per batch: metrics."""

    def ingested(self, slice_no: int, records: int) -> None:
        """Note that source records were stored."""

    def settled(self, slice_no: int, tally: Tally, now_ms: int) -> None:
        """Note that outputs were committed; ``now_ms``: when that was known."""

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        """Note the end of a transaction that carried checkpoints of these slices."""

    def turned(self, seconds: float) -> None:
        """Note how long a turn of the loop took, without the wait for records."""
