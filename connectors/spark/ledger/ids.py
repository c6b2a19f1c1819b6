"""Derives the expected outcomes of the records of one id, in the order of their offsets. No side
effects.

A record is cancelled, replaced or fired by its **canceller**: the first user's record of its id at
or after the record's base (rules 8, 12 and 13 of ``docs/internals/design.md``), unless it is
settled before H passes the canceller. No topic states when H passed the canceller, but upper bounds
of that time are known: when the canceller's own outcome was written; when a record after it was
settled; and, while the service is on time, when the canceller was written plus the allowed lag of
H.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from connectors.spark.ledger.facts import (
    KIND_NAMES,
    OUTCOME,
    PENDING,
    SETTLEMENTS,
    WAITING,
    OutputRow,
    SourceRow,
)
from delayservice.contract.entry import ABSENT, CANCEL, COPY, FIRE, HOMEBOUND, SCHEDULE
from delayservice.contract.recurrence import Recurrence, decode

# Largest time by which two timestamps of one service may be in the wrong order, in ms: a broker may
# append its part of a transaction 3 s after the others (``UNACKNOWLEDGED_S`` of the sink), and
# clocks may step.
ORDER_MS: Final = 5_000
# Largest time between due time and settlement at which a record counts as settled on time, in ms.
ON_TIME_MS: Final = 1_000
NONE: Final = -1


class Line(NamedTuple):
    """One record among those of its id in one shard, and its settlement if that is without errors
    of its own.

    Attributes:
        kind: ``SCHEDULE``, ``CANCEL``, ``COPY`` (requeued record), ….
        base: first source offset at which the canceller of the record may be.
        written_ms: time at which the broker appended it, epoch ms.
        settlement: name as in ``SETTLEMENTS``; empty: not settled, or not judged.
        at_ms: time at which the output that settles it was written, epoch ms.
        by: source offset of the canceller that the output names; -1: it names no canceller.
        copy_base: for a record that was requeued: base of the new record; -1: the new record is in
            another shard, or the record was not requeued.
        acts: effect on other records of its id: SCHEDULE, CANCEL, FIRE or ABSENT (none); for a
            record that waits to be sent to its home, the effect that it will have there.
        source: place where it was written before it came to its home; empty: it was written here.
        by_source: place where the canceller was first written, as the output names it; empty: the
            output names no other place than the canceller's own.
        is_home: whether its envelope is in its home, or may be there without having been read.
    """

    offset: int
    kind: int
    base: int
    key_ms: int
    written_ms: int
    settlement: str = ""
    at_ms: int = 0
    by: int = NONE
    copy_base: int = NONE
    acts: int = SCHEDULE
    source: str = ""
    by_source: str = ""
    is_home: bool = False


_SETTLES_NOTHING: Final = frozenset({COPY, WAITING, ABSENT})

Wrong: TypeAlias = tuple[int, str]
"""Index of a ``Line`` whose settlement is wrong, and the reason."""

PassedMs: TypeAlias = Callable[[int], int | None]
"""Function from a source offset to the earliest known time by which H had passed it, epoch ms;
None: no time is known."""


class IdHistory:
    """Records of one id in one shard in order, from which follows how each must be settled. Users'
    records below ``known_from`` are unknown. ``is_lost``: whether the record at an offset expired
    before it had an effect on another one, which then is delivered.
    """

    def __init__(
        self, lines: Sequence[Line], known_from: int, is_lost: Callable[[int], bool]
    ) -> None:
        self._lines = lines
        self._is_lost = is_lost
        self._known_from = known_from
        self._users = [n for n, line in enumerate(lines) if line.kind not in _SETTLES_NOTHING]
        self._offsets = [lines[n].offset for n in self._users]

    def canceller(self, base: int) -> Line | None:
        # Below the first offset that was read, the true canceller may be an unread record.
        at = bisect_left(self._offsets, base)
        return self._lines[self._users[at]] if at < len(self._users) else None

    def is_certain(self, base: int) -> bool:
        return base >= self._known_from

    def judge(self, passed_ms: PassedMs, lag_ms: int) -> Iterator[Wrong]:
        """Yield index and reason of each record that is settled in another way than the log
        demands.
        """
        victims: dict[int, list[int]] = {}
        doubtful: set[int] = set()
        yield from self._lost_on_the_way()
        for number, line in enumerate(self._lines):
            canceller = self.canceller(line.base) if line.kind in PENDING else None
            if canceller is None or self._is_lost(canceller.offset):
                continue
            is_waiting = line.kind == WAITING
            against = _against_next if is_waiting else _against_canceller
            why = against(line, canceller, passed_ms, lag_ms)
            if why is not None:
                yield number, why
            if is_waiting:  # control records act on it only at its home
                continue
            victims.setdefault(canceller.offset, []).append(number)
            if why is not None or not line.settlement or line.by not in (NONE, canceller.offset):
                doubtful.add(canceller.offset)
        yield from self._wrong_controls(victims, doubtful)
        yield from self._wrong_absent()

    # One pass, because an id that is throttled has thousands of absent records.
    def _wrong_absent(self) -> Iterator[Wrong]:
        delayed = (one for one in self._lines if one.kind in (SCHEDULE, COPY))
        coming = sorted(delayed, key=lambda one: one.base, reverse=True)
        begun: list[Line] = []
        for number, absent in enumerate(self._lines):
            if absent.kind != ABSENT or not absent.settlement:
                continue
            while coming and coming[-1].base <= absent.offset:
                begun.append(coming.pop())
            begun = [one for one in begun if self._may_pend(one, absent)]
            tolerance_ms = ORDER_MS if absent.settlement == "kept" else -ORDER_MS
            others = [one for one in begun if _was_read_by(one, absent, tolerance_ms)]
            if absent.settlement != "kept":
                since_ms = absent.at_ms + ORDER_MS
                kept_by = next((one for one in others if one.at_ms > since_ms), None)
                if kept_by is not None:
                    what = f"{KIND_NAMES[kept_by.kind]} at offset {kept_by.offset}"
                    verb = SETTLEMENTS[absent.settlement].verb
                    yield number, f"it was {verb} while {what} was pending"
            elif self._known_from == 0 and not any(
                not one.settlement or one.at_ms + ORDER_MS >= absent.written_ms for one in others
            ):
                yield number, "its outcome is kept, and no record of its id was pending"

    # False, as for all later absent ones: it was cancelled or settled long before.
    def _may_pend(self, line: Line, absent: Line) -> bool:
        canceller = self.canceller(line.base)
        is_hit = canceller is not None and canceller.offset < absent.offset
        is_over = bool(line.settlement) and line.at_ms + 2 * ORDER_MS < absent.written_ms
        return not (is_hit or is_over)

    def _wrong_controls(
        self, victims: Mapping[int, Sequence[int]], doubtful: Container[int]
    ) -> Iterator[Wrong]:
        for at, number in enumerate(self._users):
            line = self._lines[number]
            if line.acts == SCHEDULE or not line.settlement or line.offset in doubtful:
                continue
            held = [self._lines[n] for n in victims.get(line.offset, ())]
            is_complete = at > 0 or self._known_from == 0
            why = _control(line, held, is_complete=is_complete)
            if why is not None:
                yield number, why

    def _lost_on_the_way(self) -> Iterator[Wrong]:
        # All records that waited with it were sent, and none was replaced or dead-lettered.
        waited = [line for line in self._lines if line.kind == WAITING]
        gone = all(line.settlement in ("forwarded", "requeued") for line in waited)
        for number, line in enumerate(self._lines):
            is_sent = line.kind == HOMEBOUND and line.settlement == "requeued" and not line.is_home
            if is_sent and waited and gone:
                yield number, "it waited for its home, and what it waited with went without it"


# H had read it when it passed the absent one, which a requeued one may lie behind: for certain with
# a negative tolerance, perhaps with a positive one.
def _was_read_by(line: Line, absent: Line, tolerance_ms: int) -> bool:
    return line.offset < absent.offset or line.written_ms < absent.at_ms + tolerance_ms


def _against_next(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    # The next record of the id replaces the waiting one or is sent with it.
    if not line.settlement:
        return None
    is_replaced = line.acts == canceller.acts == SCHEDULE
    if line.settlement == "replaced":
        if line.by == canceller.offset and not is_replaced:
            return f"it was replaced by {_what(canceller)}"
        return _other_source(line, canceller)
    if not is_replaced or canceller.settlement not in ("forwarded", "requeued"):
        return None  # it was sent with the next record, or requeued again
    return _ignored(line, canceller, passed_ms, lag_ms)


def _other_source(line: Line, canceller: Line) -> str | None:
    if line.by != canceller.offset or line.by_source == canceller.source:
        return None
    named = f"names {line.by_source}" if line.by_source else "names no other place"
    written = canceller.source or "its own place"
    return f"it {named} as where {_what(canceller)} was written, which is {written}"


def _what(canceller: Line) -> str:
    return f"{KIND_NAMES[canceller.acts]} at offset {canceller.offset}"


def _against_canceller(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    if not line.settlement:
        return None
    settlement = SETTLEMENTS[line.settlement]
    wanted = FIRE if line.settlement == "delivered" and line.by != NONE else settlement.by
    if wanted is None:
        return _ignored(line, canceller, passed_ms, lag_ms)
    if line.by != canceller.offset:
        return None  # a wrong offset of the canceller is a finding of its own
    if wanted == canceller.acts:
        return None if wanted == FIRE else _other_source(line, canceller)
    verb = "fired" if wanted == FIRE else settlement.verb
    return f"it was {verb} by {_what(canceller)}"


def _ignored(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    # H had passed the canceller before the record was settled at its own time.
    verb = SETTLEMENTS[line.settlement].verb
    what = _what(canceller)
    if canceller.acts in (FIRE, ABSENT) and line.kind != WAITING and _may_be_fired(line, canceller):
        return None
    if line.settlement == "requeued" and line.copy_base > canceller.offset:
        return f"it was {verb} after H had passed {what}, which had settled it"
    bound_ms = _passed_by_ms(line, canceller, passed_ms, lag_ms)
    if bound_ms is None or line.at_ms <= bound_ms + ORDER_MS:
        return None
    return f"it was {verb} at {line.at_ms}, and {what} had settled it by {bound_ms}"


def _may_be_fired(line: Line, fire: Line) -> bool:
    # Only deliveries name the fire that caused them.
    if line.settlement == "requeued":
        return line.copy_base in (NONE, fire.offset + 1)
    return line.settlement != "delivered"


def _passed_by_ms(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> int | None:
    """Return the earliest time by which H is known to have passed the canceller, epoch ms."""
    bounds = []
    if canceller.settlement and canceller.kind != SCHEDULE:
        bounds.append(canceller.at_ms)
    elif canceller.settlement:
        bounds.append(max(canceller.at_ms, canceller.written_ms))
    later_ms = passed_ms(canceller.offset)
    if later_ms is not None:
        bounds.append(max(later_ms, canceller.written_ms))
    if line.at_ms - max(line.key_ms, line.written_ms) <= ON_TIME_MS:
        bounds.append(canceller.written_ms + lag_ms)
    return min(bounds, default=None)


def _control(line: Line, victims: Sequence[Line], *, is_complete: bool) -> str | None:
    own = [victim for victim in victims if victim.by == line.offset]
    if SETTLEMENTS[line.settlement].role != OUTCOME or line.settlement == "not_pending":
        verb = SETTLEMENTS[line.settlement].verb
        return f"it was {verb}, and it settled offset {own[0].offset}" if own else None
    if line.acts == CANCEL:
        is_empty = not own
    else:
        is_empty = not any(v in own or _may_be_fired(v, line) for v in victims)
    if is_complete and is_empty:
        return f"its outcome is {line.settlement}, and it settled nothing"
    return None


_FIRST = 1


def same_recurrence(held: bytes, copied: bytes) -> bool:
    # The first occurrence of a cron schedule only adds the number 1.
    if held == copied or not held or not copied:
        return held == copied
    before = decode(held)
    return not before.number and decode(copied) == msgspec.structs.replace(before, number=_FIRST)


def against_origin(source: SourceRow, output: OutputRow) -> str | None:
    """Return why an occurrence does not match the user's record with which its schedule began."""
    facts, told = source.facts, output.facts
    _, is_numbered, number = told.origin.partition("#")
    if not is_numbered:
        return None
    if not facts.recur or not told.recur:
        return f"the occurrence {told.origin} continues a record that does not recur"
    same = (source.content, facts.record_id, facts.expires_ms)
    if same != (output.content, told.record_id, told.expires_ms):
        return f"the occurrence {told.origin} has another content, id or expiry than its record"
    return _against(decode(facts.recur), source.due_ms, decode(told.recur), output, int(number))


def _against(
    first: Recurrence, first_due_ms: int, found: Recurrence, output: OutputRow, number: int
) -> str | None:
    name = output.facts.origin
    left = None if first.left is None else first.left - (number - _FIRST)
    wanted = msgspec.structs.replace(first, number=number, left=left)
    if found != wanted or number <= _FIRST or left == 0:
        return f"the occurrence {name} does not follow from its record's schedule"
    since_ms = output.due_ms - first_due_ms
    if first.every_ms and (since_ms <= 0 or since_ms % first.every_ms):
        return f"the occurrence {name} is due at {output.due_ms}, which its period does not give"
    return None
