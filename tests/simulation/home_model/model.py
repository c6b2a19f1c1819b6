"""Two partitions of one delay topic whose ids find home: rules 8 to 14 with forwarding.

No Kafka, store or bytes: a partition is a log, its committed cursor ``(K, H)`` and the open
transaction of its owner. What an owner knows is computed from the log, as the service's store is.
One owner of each partition at a time, for take-over has a model of its own; a crash, an abort and a
fence are the same here: the open transaction is gone.

A step returns a new state. ``Setup.mutations`` names deliberate mistakes (see ``mutations``); each
stands where the rule that it breaks stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

SCHEDULE, CANCEL, FIRE = "schedule", "cancel", "fire"

USER, HOME, COPY = "user", "home", "copy"
"""A user's own record; one that was forwarded to its home; a requeued one."""

DELIVERED, FIRED, EXPIRED, TOO_LARGE = "delivered", "fired", "expired", "too-large"
CANCELLED, REPLACED, NOT_PENDING = "cancelled", "replaced", "not_pending"
UNREADABLE = "unreadable"
FINAL: Final = frozenset(
    {DELIVERED, FIRED, EXPIRED, TOO_LARGE, CANCELLED, REPLACED, NOT_PENDING, UNREADABLE}
)
FORWARDED, REQUEUED, CARRIED, OCCURRED = "forwarded", "requeued", "carried", "occurred"
"""What settles a record in its place, and is not the end of it."""

FATES: Final = {SCHEDULE: REPLACED, CANCEL: CANCELLED, FIRE: FIRED}
"""What becomes of a pending record of whose id another one is read."""

HASHES: Final = {"x": 4, "y": 3}
"""The hash of an id: x is at home in partition 0 of 2, y in partition 1 of 2 or 0 of 3 or 1."""

FOREVER: Final = 10_000
START_KEY: Final = (0, FOREVER)

Key: TypeAlias = tuple[int, int]
_T = TypeVar("_T")


class Place(NamedTuple):
    """Where a user's record was written: its identity wherever it goes."""

    partition: int
    offset: int


class Wish(NamedTuple):
    """A record that a user is going to write."""

    op: str
    after: int = 0
    name: str = "x"
    expires: int = FOREVER
    occurrences: int = 1
    is_large: bool = False


class Record(NamedTuple):
    """A record of a log.

    Attributes:
        kind: ``USER``, ``HOME`` or ``COPY``.
        source: the user's record.
        written: the first timestamp, from which the delay counts.
        after: the delay of the pending occurrence.
        is_large: whether it outgrows the size limit when it is sent home.
        at: when a requeued record takes its turn.
        base: the first offset whose record of the id settles a requeued record (rule 12).
        waits: whether a requeued record waits for its home.
        carried: what waited for home before it, and goes there before it.
    """

    kind: str
    op: str
    source: Place
    written: int
    after: int
    name: str
    expires: int
    occurrences: int
    is_large: bool
    at: int = 0
    base: int = 0
    waits: bool = False
    carried: tuple[Record, ...] = ()

    @property
    def due(self) -> int:
        """The due time."""
        return self.written + self.after


class Outcome(NamedTuple):
    """How a record was settled in its place; ``by``: the user's record that did it."""

    kind: str
    by: Place | None = None


class Cursor(NamedTuple):
    """``(K, H)``."""

    key: Key = START_KEY
    offset: int = 0


class Transaction(NamedTuple):
    """What an owner has staged."""

    cursor: Cursor
    settled: tuple[tuple[int, Outcome], ...] = ()
    copies: tuple[Record, ...] = ()
    forwards: tuple[tuple[int, Record], ...] = ()
    steps: int = 0


class Budget(NamedTuple):
    """How often trouble may still come."""

    drops: int = 1
    outages: int = 1
    parks: int = 0
    replays: int = 0


Logs: TypeAlias = tuple[tuple[Record, ...], tuple[Record, ...]]
Outcomes: TypeAlias = tuple[tuple[Outcome | None, ...], tuple[Outcome | None, ...]]


class State(NamedTuple):
    """Everything there is.

    Attributes:
        logs: of the two partitions.
        keys: of each record, as its owner had it when it was appended.
        outcomes: of each record, committed.
        cursors: committed.
        open: transactions of the owners.
        wishes: how many each user has written.
        now: the clock.
        is_away: whether no partition can be written to from the other one's owner.
        partitions: how many the topic has at present.
        left: trouble to come.
    """

    logs: Logs
    keys: tuple[tuple[Key, ...], tuple[Key, ...]]
    outcomes: Outcomes
    cursors: tuple[Cursor, Cursor]
    open: tuple[Transaction | None, Transaction | None]
    wishes: tuple[int, int]
    now: int
    is_away: bool
    partitions: int
    left: Budget


@dataclass(frozen=True)
class Setup:
    """What is explored.

    Attributes:
        scripts: what the user at each partition writes, in order.
        contracts: for each partition ``(from_offset, count)``, ascending: the number of partitions
            that ids are at home in; 0: ids stay where they lie.
        budget: how often trouble may come.
        clock_max: the last instant; there is no trouble then.
        partitions: how many the topic has at first.
        steps_max: how many records an owner settles in one transaction.
        carried_max: how many records fit into one that waits for home.
        mutations: mistakes made on purpose.
    """

    scripts: tuple[tuple[Wish, ...], tuple[Wish, ...]]
    contracts: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = (
        ((0, 2),),
        ((0, 2),),
    )
    budget: Budget = field(default_factory=Budget)
    clock_max: int = 3
    partitions: int = 2
    steps_max: int = 2
    carried_max: int = 8
    mutations: frozenset[str] = frozenset()

    def start(self) -> State:
        """Nothing has happened."""
        cursors = (Cursor(), Cursor())
        pair: tuple[tuple[()], tuple[()]] = ((), ())
        return State(
            logs=pair,
            keys=pair,
            outcomes=pair,
            cursors=cursors,
            open=(None, None),
            wishes=(0, 0),
            now=1,
            is_away=False,
            partitions=self.partitions,
            left=self.budget,
        )

    def count_at(self, partition: int, offset: int) -> int:
        """The contract of an offset: the number of partitions that ids are at home in, or 0."""
        return [0, *(count for start, count in self.contracts[partition] if start <= offset)][-1]


def home_of(setup: Setup, partition: int, offset: int, name: str) -> int:
    """The home of an id by the contract of the offset where it is read."""
    count = setup.count_at(partition, offset)
    return HASHES[name] % count if count else partition


def is_foreign(setup: Setup, partition: int, offset: int, record: Record) -> bool:
    """Whether a record goes home from here: what has come home never does again."""
    return record.kind == USER and home_of(setup, partition, offset, record.name) != partition


def key_of(setup: Setup, partition: int, offset: int, record: Record) -> Key:
    """Rule 2."""
    if record.kind == COPY:
        return record.at, offset
    if record.op != SCHEDULE or is_foreign(setup, partition, offset, record):
        return 0, offset
    return record.due, offset


def canceller_of(log: tuple[Record, ...], offset: int) -> int:
    """``x``: the first user record of the id at or after the base; -1: there is none yet."""
    record = log[offset]
    base = record.base if record.kind == COPY else offset + 1
    return first_named(log, record.name, base, offset)


def first_named(log: tuple[Record, ...], name: str, base: int, offset: int) -> int:
    """The first user record of an id at or after ``base`` that is not ``offset``; or -1."""
    for at in range(base, len(log)):
        if at != offset and log[at].kind != COPY and log[at].name == name:
            return at
    return -1


def put(pair: tuple[_T, _T], index: int, item: _T) -> tuple[_T, _T]:
    """The pair with one item in another's place."""
    return (item, pair[1]) if index == 0 else (pair[0], item)
