"""What users wrote, what became of it, and the words for a broken promise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from delayservice.contract.entry import Headers
from delayservice.engine.ports import Place

SCHEDULE, CANCEL, FIRE, INVALID, COPY = "schedule", "cancel", "fire", "invalid", "copy"
ABSENT = "absent"
"""A schedule that is dropped if a record of its id is pending."""
TOLERANCE_MS = 120
"""How far a clock may be off before nothing is settled by it."""
DENIED = "secrets"
"""The target that no node allows."""
FICKLE = "mails"
"""The target that some nodes allow, in some of their lives."""
HELD_MS = 100
"""How long a record is parked whose target is paused."""
HASHES = {b"id-0": 636277665, b"id-1": 142810902, b"id-2": 701930906, b"id-3": 1673184329}
"""What a Java producer takes modulo the partitions of a topic, of each id of the users."""


class ViolationError(AssertionError):
    """The service broke a promise."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One record as its user meant it, kept apart from what was written.

    ``every_ms`` or ``cron`` makes a schedule recur, ``times`` occurrences at most; its ``due_ms``
    is then where it begins, or 0.
    """

    op: str
    record_id: bytes | None = None
    due_ms: int = 0
    every_ms: int = 0
    cron: str = ""
    times: int | None = None
    expires_ms: int | None = None
    target: str = ""
    key: bytes | None = None
    value: bytes | None = None
    own: tuple[tuple[str, bytes | None], ...] = ()
    code: str = ""
    level_ms: int = 0
    """How long all records of its topic wait; 0: it says itself when it is due."""
    is_large: bool = False
    """It fits into its topic, but perhaps no copy of it does."""
    after_ms: int = 0
    """How long after it was written it is due, where it says it so; 0: it says when."""

    def home_in(self, partitions: int) -> int | None:
        """The partition where its id is at home; None: it has no id, or ids have no home."""
        if self.record_id is None or self.op == INVALID or not partitions:
            return None
        return HASHES[self.record_id] % partitions

    def sent_home(self) -> tuple[bytes | None, bytes | None, Headers]:
        """Key, value and headers as they go home: of a cancel or fire only what it asks for."""
        if self.op in (SCHEDULE, ABSENT):
            return self.key, self.value, self.headers()
        return None, None, [("delay-op", self.op.encode()), ("delay-id", self.record_id)]

    @property
    def recurs(self) -> bool:
        """Whether it is to come more than once."""
        return bool(self.every_ms or self.cron)

    def headers(self) -> Headers:
        """Own headers around the service's, as producers do."""
        asked: Headers = []
        if self.op == ABSENT:
            asked.append(("delay-if", b"absent"))
        if self.op in (SCHEDULE, ABSENT):
            if self.after_ms:
                asked.append(("delay-after", b"%d" % self.after_ms))
            elif self.due_ms and not self.level_ms:
                asked.append(("delay-at", b"%d" % self.due_ms))
            asked.append(("delay-target-topic", self.target.encode()))
            asked += self.recurrence(self.times)
        if self.op in (CANCEL, FIRE):
            asked.append(("delay-op", self.op.encode()))
        if self.record_id is not None:
            asked.append(("delay-id", self.record_id))
        if self.expires_ms is not None:
            asked.append(("delay-expires-at", b"%d" % self.expires_ms))
        return [*self.own[:1], *asked, *self.own[1:]]

    def recurrence(self, times: int | None) -> Headers:
        """What says how a schedule recurs, ``times`` from now."""
        said: Headers = []
        if self.every_ms:
            said.append(("delay-every", b"%d" % self.every_ms))
        if self.cron:
            said.append(("delay-cron", self.cron.encode()))
        if times is not None:
            said.append(("delay-times", b"%d" % times))
        return said


@dataclass(slots=True)
class Placed:
    """A committed record of a delay topic: a user's wish, or a copy of one.

    Attributes:
        origin: the offset of the user's record.
        due_ms: when it is due; of what recurs, this occurrence.
        number: of the occurrence; 0: it does not recur, or its first one is not known yet.
        since: user records of its id at or below this offset have had their effect.
        at_ms: what the copy's key says.
        home: the shard of the user's record, if that is another.
        was_fired: it was parked when it was to be delivered at once, whenever it is due.
        is_put_off: a cron schedule that has no occurrence yet, and ends where its copy ends.
        sent_by: writers whose workers delivered it outside of a transaction.
        outcome: how it was settled; empty: it is pending.
        by: the user record that settled it, or -1.
        in_commit: the transaction that settled it.
        base: of a copy, where the search for its canceller begins.
        is_at_home: it was sent here from ``home``.
        group: sources of what waits for its home in this copy, in the order of writing.
    """

    offset: int
    wish: Wish
    timestamp_ms: int
    origin: int
    due_ms: int
    number: int = 0
    since: int = -1
    at_ms: int = 0
    attempt: int = 1
    home: Place | None = None
    was_fired: bool = False
    is_put_off: bool = False
    sent_by: frozenset[str] = frozenset()
    outcome: str = ""
    by: int = -1
    in_commit: int = -1
    base: int = -1
    is_at_home: bool = False
    group: tuple[str, ...] = ()

    @classmethod
    def by_user(cls, offset: int, wish: Wish, timestamp_ms: int) -> Placed:
        """A user's record."""
        due_ms = wish.due_ms
        if wish.every_ms:
            due_ms = due_ms or timestamp_ms + wish.every_ms
        elif wish.cron:
            due_ms = timestamp_ms
        number = 1 if wish.every_ms else 0
        return cls(offset, wish, timestamp_ms, offset, due_ms, number, since=offset)

    @property
    def left(self) -> int | None:
        """Occurrences yet to come, this one included; None: without end."""
        return None if self.wish.times is None else self.wish.times - max(self.number, 1) + 1

    def source(self, place: Place) -> str:
        """``delay-source``."""
        number = f"#{self.number}" if self.number else ""
        place = self.home or place
        return f"{place[0]}:{place[1]}:{self.origin}{number}"

    @property
    def op(self) -> str:
        """What it is: a copy, or what the user wished."""
        return self.wish.op if self.is_users else COPY

    @property
    def is_users(self) -> bool:
        """Whether it counts as a user's record here."""
        return self.is_at_home or (self.home is None and self.origin == self.offset)


@dataclass(slots=True)
class ShardHistory:
    """One delay topic's partition as the oracle knows it: records by offset, and the cursor."""

    place: Place
    placed: dict[int, Placed] = field(default_factory=dict)
    key: tuple[int, int] = (0, 0)
    h: int = 0
    h_before: int = 0
    """H before the transaction at hand."""
    contracts: list[tuple[int, int, int, int]] = field(default_factory=list)
    """``(from_offset, roll_window_ms, roll_spread_ms, id_partitions)``."""
    log_start: int = 0
    read_to: int = 0
    """How far all nodes had read when the log was made to start there."""
    unwalked: tuple[int, int] = (0, 0)
    """Offsets that H skipped."""
    doubled_ids: set[bytes | None] = field(default_factory=set)
    """Ids of which two records are pending, because H has skipped a reschedule."""
    lost_from: int = 2**63
    """From which offset on the log has lost its end; these records may be left pending."""
    head: int = 0
    """H of the transaction at hand."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.place[0]}:{self.place[1]}"

    def cut(self, stop: int) -> ShardHistory:
        """The same in a log that has lost everything from ``stop`` on: so has what a lost record
        did to those below, unless K had passed them.
        """
        kept = {}
        for offset, record in self.placed.items():
            if offset < stop:
                by = self.canceller_of(record)
                is_undone = bool(record.outcome) and by is not None and by >= stop
                is_undone = is_undone and self.key_of(record) > self.key
                outcome, hit_by = ("", -1) if is_undone else (record.outcome, record.by)
                kept[offset] = replace(record, outcome=outcome, by=hit_by)
        h, h_before = min(self.h, stop), min(self.h_before, stop)
        return ShardHistory(self.place, kept, self.key, h, h_before, list(self.contracts))

    def window_ms(self, offset: int) -> int:
        """How long after its timestamp the record at an offset is rolled."""
        _, window_ms, spread_ms, _ = self._contract(offset)
        return window_ms - int((spread_ms + 1) * (offset * 2_654_435_761 % 2**32) / 2**32)

    def id_partitions(self, offset: int) -> int:
        """In how many partitions ids are at home by the contract of an offset."""
        return self._contract(offset)[3] if self.contracts else 0

    def _contract(self, offset: int) -> tuple[int, int, int, int]:
        begun = [contract for contract in self.contracts if contract[0] <= offset]
        return begun[-1] if begun else self.contracts[0]

    def home_of(self, record: Placed) -> int | None:
        """The partition to which a user's record has to be sent; None: it stays here."""
        if not record.is_users or record.is_at_home:
            return None
        home = record.wish.home_in(self.id_partitions(record.offset))
        return None if home == self.place[1] else home

    def key_of(self, record: Placed) -> tuple[int, int]:
        """Rule 2."""
        op = record.op
        if op == COPY:
            return (record.at_ms, record.offset)
        if op != SCHEDULE or self.home_of(record) is not None:
            return (0, record.offset)
        if record.wish.level_ms:
            return (record.due_ms, record.offset)
        roll_ms = record.timestamp_ms + self.window_ms(record.offset)
        return (max(min(record.due_ms, roll_ms), 1), record.offset)

    def is_cut(self, record: Placed) -> bool:
        """Whether the log no longer holds all that may have cancelled a copy."""
        return record.op == COPY and record.base < self.log_start <= record.offset

    def is_freed(self, record: Placed) -> bool:
        """Whether H has skipped what was to settle a record, or that found it pending away from
        its home: it is delivered in its time.
        """
        by, (first, stop) = self.canceller_of(record), self.unwalked
        if by is None:
            return False
        is_spared = self.placed[by].wish.op == ABSENT and by < self.head and not record.group
        return first <= by < stop or is_spared

    def since_of_next(self, record: Placed, base: int) -> int:
        """``since`` of the record with this base that goes on from one: if the canceller of that
        has expired, what came between them did not settle it either. If a schedule is among these,
        or among what the log has lost since, two records of one id are pending, and later ones of
        the id settle either.
        """
        by = self.canceller_of(record)
        if by is None or not (self.is_freed(record) or self.may_come_again(record)):
            return record.since
        named = self._named_after(record)
        if any(self.placed[o].wish.op == SCHEDULE for o in named if o < max(base, self.log_start)):
            self.doubled_ids.add(record.wish.record_id)
        return max({by, *(o for o in named if o < base)})

    def may_come_again(self, record: Placed) -> bool:
        """Whether a copy was settled by what the log no longer holds: who reads it again goes by
        what is left.
        """
        by = self.canceller_of(record)
        return self.is_cut(record) and by is not None and record.base <= by < self.log_start

    def cancellers_of(self, record: Placed) -> set[int | None]:
        """The user record that settles this one if nothing else does; several where what the log
        has lost leaves that open.
        """
        found = {self.canceller_of(record)}
        if self.may_come_again(record):
            left = (o for o in self._named_after(record) if o >= self.log_start)
            found.add(next(left, None))
        if record.wish.record_id in self.doubled_ids:
            found |= {None, *self._named_after(record)}
        return found

    def has_passed(self, record: Placed) -> set[bool]:
        """Rule 1: whether the cursor says that it is settled."""
        if record.outcome == "lost":
            return {True}
        passed = record.offset < self.h
        if record.op not in (SCHEDULE, COPY) or self.home_of(record) is not None:
            return {passed}
        passed = passed and self.key_of(record) <= self.key
        return {passed or (by is not None and by < self.h) for by in self.cancellers_of(record)}

    def canceller_of(self, record: Placed) -> int | None:
        """The user record that settles this one if nothing else does: the next of its id."""
        return next(iter(self._named_after(record)), None)

    def _named_after(self, record: Placed) -> list[int]:
        if record.wish.record_id is None or record.op in (CANCEL, FIRE, INVALID, ABSENT):
            return []
        if self.home_of(record) is not None:
            return []
        return sorted(
            other.offset
            for other in self.placed.values()
            if other.offset > record.since
            and (other.outcome != "lost" or other.offset < self.read_to)
            and other.is_users
            and other.wish.op != INVALID
            and (other.wish.op != ABSENT or self.home_of(other) is not None)
            and other.wish.record_id == record.wish.record_id
        )
