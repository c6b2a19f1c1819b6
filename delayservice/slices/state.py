"""State of one worker's loop, and the events by which other threads reach it.

Only the loop's thread reads and changes the state; other threads put events into the inbox.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple, TypeAlias, TypeVar

from delayservice.engine.estimates import Pacer
from delayservice.engine.ports import Background, Bounds, Place, Role
from delayservice.slices.agenda import Agenda
from delayservice.slices.edges import Edges
from delayservice.slices.lane import Lane
from delayservice.slices.log_reading import LogAnswer, LogWanted
from delayservice.slices.slice import Slice, Taken
from delayservice.slices.writer import Writer

# Checkpoints that wait for a comparison of the broker's clock; older ones are dropped. While the
# clock is not trusted, one is written each second.
_PROBES_MAX = 64

Answer = TypeVar("Answer")


# --- events ----------------------------------------------------------------------------------


class WriterOpened(NamedTuple):
    opened: Future[str]


class CommitEnded(NamedTuple):
    commit: Commit
    timing: Future[Timing]


class TakeOverEnded(NamedTuple):
    """``stored``: S at its start, of each lane that was there."""

    slices: tuple[int, ...]
    stored: Mapping[Lane, int]
    taken: Future[dict[int, Taken]]


class LogEndsFound(NamedTuple):
    query: LogEndQuery
    bounds: Future[Mapping[Place, Bounds]]


class LogFound(NamedTuple):
    """A log that had moved: the id of its topic now, and its bounds. ``tenure``: that of the
    lane when it was asked.
    """

    lane: Lane
    is_truncated: bool | None
    tenure: int
    found: Future[tuple[str | None, Bounds]]


class LogRead(NamedTuple):
    """Answer to what a lane wanted of its log again."""

    lane: Lane
    wanted: LogWanted
    answer: Future[LogAnswer]


class WriterOutdated(NamedTuple):
    why: str


class CommandArrived(NamedTuple):
    """Command for the copies of a slice."""

    slice_no: int


Event: TypeAlias = (
    WriterOpened
    | CommitEnded
    | TakeOverEnded
    | LogEndsFound
    | LogFound
    | LogRead
    | WriterOutdated
    | CommandArrived
)


class Inbox:
    """Events in order of arrival. Any thread may put one, which ends the loop's wait."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._wake = wake

    def put(self, event: Event) -> None:
        self._events.put(event)
        self._wake()

    @property
    def is_empty(self) -> bool:
        return self._events.empty()

    def drain(self) -> Iterator[Event]:
        while not self._events.empty():
            yield self._events.get()


# --- parts of the state ------------------------------------------------------------------------


class Timing(NamedTuple):
    """Duration of a commit, and when the broker acknowledged it (monotonic); None: unknown."""

    took_s: float
    acknowledged_s: float | None


@dataclass(slots=True)
class Probe:
    """Checkpoint by which the broker's clock is compared, once read back. Monotonic seconds."""

    slice_no: int
    data: bytes
    sent_s: float
    acknowledged_s: float | None = None


@dataclass(slots=True, eq=False)
class Commit:
    """Commit under way: by slice its checkpoints, the claims and releases it carries, and the
    claims that it deletes.
    """

    started_s: float
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    claiming: list[int] = field(default_factory=list)
    releasing: list[int] = field(default_factory=list)
    forgotten: list[tuple[int, str]] = field(default_factory=list)
    probe: Probe | None = None

    @property
    def is_change(self) -> bool:
        return bool(self.claiming or self.releasing)


class Transaction:
    """Content of the next commit, and the commit under way.

    ``changing``: slices whose phase changes with the next commit. ``touched``: slices that may have
    something to commit. ``records`` and ``bytes`` of outputs sent since the last commit.
    ``rewritten``: slices whose checkpoint is written even if it is unchanged. ``forgettable``:
    claims to be deleted. ``claims``: number of those written by this process. ``timing``: of the
    last commit begun.
    """

    def __init__(self, pacer: Pacer) -> None:
        self.changing: set[int] = set()
        self.touched: set[int] = set()
        self.rewritten: set[int] = set()
        self.forgettable: list[tuple[int, str]] = []
        self.records = 0
        self.bytes = 0
        self.commit: Commit | None = None
        # Not a part of the commit, which its callback refers to: that would be a cycle for each.
        self.timing: Future[Timing] = Future()
        self.pacer = pacer
        self.last_commit_s = -math.inf
        self.claims = 0
        self.probes: deque[Probe] = deque(maxlen=_PROBES_MAX)


@dataclass(slots=True)
class Roles:
    """Roles of this node, as the slices follow them. ``is_followed``: nothing has changed since.
    ``resting_s``: until when failed slices are not claimed again, monotonic.
    """

    of: Mapping[int, Role] = field(default_factory=dict)
    is_followed: bool = False
    are_heirs: bool = False
    need_writer: bool = False
    is_leaving: bool = False
    resting_s: dict[int, float] = field(default_factory=dict)

    def role(self, number: int) -> Role:
        return self.of.get(number, Role.REPLICA)


@dataclass(frozen=True, slots=True, eq=False)
class LogEndQuery:
    """``stored`` and ``awaited``: S and awaited end of each shard when the query was sent."""

    lanes: list[Lane]
    stored: Mapping[Place, int]
    awaited: Mapping[Place, int]


@dataclass(slots=True)
class LogEnds:
    """Queries for the log ends of shards in owned slices: of added shards, and of those that wait
    for an offset which the log may have lost.

    ``waiting``: queried after a pause; the values have no meaning. ``short``: too short by the
    last answer; a second answer has to confirm it before records are called lost. ``moved``: lanes
    whose log has moved, until it is known how.
    """

    asked: set[LogEndQuery] = field(default_factory=set)
    waiting: dict[Lane, None] = field(default_factory=dict)
    short: set[Lane] = field(default_factory=set)
    ask_after_s: float = -math.inf
    moved: set[Lane] = field(default_factory=set)

    def clear(self) -> None:
        """Drop all queries, because the writer was lost."""
        self.asked.clear()
        self.waiting.clear()
        self.short.clear()


class Upkeep:
    """``active``: slices that have changed since their digests and metrics were updated.
    ``updated``: those with a newer checkpoint. ``busy``: those whose copies have work. ``behind``:
    those that catch up or are new, the longest known first. ``tended``: those whose metrics are to
    be updated by the loop's owner.
    """

    def __init__(self, now_s: float) -> None:
        self.active: set[int] = set()
        self.updated: set[int] = set()
        self.busy: set[int] = set()
        self.behind: dict[int, None] = {}
        self.tended: dict[int, None] = {}
        self.round: deque[int] = deque()
        self.followed_s = self.tended_s = self.synced_s = now_s
        self.hurried_s = -math.inf


class LoopState:
    """``take_overs``: those under way. ``log_reads``: what is read of logs again. ``deferred``:
    events that wait for the end of the commit. ``has_backlog``: more records were due than could be
    settled. ``may_store``: the disk has room.
    """

    def __init__(self, edges: Edges) -> None:
        limits = edges.limits
        self.edges = edges
        self.clock = edges.clock
        self.secret_fingerprint = edges.fingerprints[0]
        self.inbox = Inbox(edges.source.wake)
        self.slices: dict[int, Slice] = {}
        self.agenda = Agenda()
        self.writer = Writer(edges.clock)
        self.transaction = Transaction(
            Pacer(limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
        )
        self.roles = Roles()
        self.take_overs: set[Future[dict[int, Taken]]] = set()
        self.log_ends = LogEnds()
        self.log_reads: dict[Lane, LogWanted] = {}
        self.deferred: deque[Event] = deque()
        self.upkeep = Upkeep(edges.clock.monotonic_s())
        self.has_backlog = False
        self.may_store = True

    def find(self, place: Place) -> tuple[Slice, Lane] | None:
        topic, number = place
        slice_ = self.slices.get(number)
        lane = None if slice_ is None else slice_.lanes.get(topic)
        return None if slice_ is None or lane is None else (slice_, lane)

    def run(
        self,
        helper: Background,
        work: Callable[[], Answer],
        event: Callable[[Future[Answer]], Event],
    ) -> Future[Answer]:
        """Run ``work`` on a helper thread; its end is an event."""
        future = helper.submit(work)
        future.add_done_callback(lambda done: self.inbox.put(event(done)))
        return future
