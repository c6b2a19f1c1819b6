"""The expected outcomes of the records of one id, in the order of their offsets. Pure.

A record is cancelled, replaced or fired by its **canceller**: the first user record of its id at or
after its base (rules 8, 12 and 13 of ``docs/internals/design.md``). Whether its time came before
depends on when H passed the canceller. That instant is in no topic, but it has upper bounds: when
the canceller's own outcome was written, when anything behind it in the log was settled, and, as
long as the service was on time, when the canceller was written plus the lag that H is allowed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from connectors.spark.ledger.facts import OUTCOME
from connectors.spark.ledger.kinds import KIND_NAMES, PENDING, SETTLEMENTS, WAITING
from delayservice.contract.entry import CANCEL, COPY, FIRE, HOMEBOUND, SCHEDULE

ORDER_MS: Final = 1_000
"""Allowed difference of two timestamps of one service, in ms: clocks may step, and a transaction
takes a moment."""
ON_TIME_MS: Final = 1_000
"""A record that was settled within this time after it was due, in ms, was not held up."""
NONE: Final = -1


class Line(NamedTuple):
    """One record of an id, and its settlement as far as it is sound in itself.

    Attributes:
        offset: of the record.
        kind: as ``entry`` counts them.
        base: the first offset whose record of the id cancels it.
        key_ms: its key.
        written_ms: when the broker had it.
        settlement: a name of ``SETTLEMENTS``; empty: not settled, or not judged.
        at_ms: when the settlement was written.
        by: the canceller that the settlement names; -1: none.
        copy_base: of one that was requeued: the base of the new copy; -1 where it lies in another
            shard.
        acts: what it does to others of its id: SCHEDULE, CANCEL or FIRE; of what waits for its
            home, what it will do there.
        source: where it was written, if it has come home from there.
        by_source: where the settlement says that the canceller was written.
        is_home: whether an envelope with it is at its home, or none could be seen.
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


Wrong: TypeAlias = tuple[int, str]
"""``(place in the lines, why)`` of a line whose settlement is not the right one."""

PassedMs: TypeAlias = Callable[[int], int | None]
"""Offset to the earliest instant at which H is known to have passed it, epoch ms; None: unknown."""


class IdHistory:
    """The records of one id in one shard.

    Args:
        lines: in the order of their offsets.
        known_from: the first offset that was read; user records below it are not known.
    """

    def __init__(self, lines: Sequence[Line], known_from: int) -> None:
        self._lines = lines
        self._known_from = known_from
        self._users = [n for n, line in enumerate(lines) if line.kind not in (COPY, WAITING)]
        self._offsets = [lines[n].offset for n in self._users]

    def canceller(self, base: int) -> Line | None:
        """Return the canceller of a record, by its base; None: there is none in the log.

        Of a base below what was read, an earlier one may have been missed.
        """
        at = bisect_left(self._offsets, base)
        return self._lines[self._users[at]] if at < len(self._users) else None

    def is_certain(self, base: int) -> bool:
        """Return whether no canceller can have been missed."""
        return base >= self._known_from

    def judge(self, passed_ms: PassedMs, lag_ms: int) -> Iterator[Wrong]:
        """Yield lines that were settled in another way than the log demands.

        Args:
            passed_ms: what the settlements of other records prove about H.
            lag_ms: how far H may lag behind the log while records are delivered on time.
        """
        victims: dict[int, list[int]] = {}
        doubtful: set[int] = set()
        yield from self._lost_on_the_way()
        for number, line in enumerate(self._lines):
            canceller = self.canceller(line.base) if line.kind in PENDING else None
            if canceller is None:
                continue
            is_waiting = line.kind == WAITING
            against = _against_next if is_waiting else _against_canceller
            why = against(line, canceller, passed_ms, lag_ms)
            if why is not None:
                yield number, why
            if is_waiting:  # no control settles it where it lies
                continue
            victims.setdefault(canceller.offset, []).append(number)
            if why is not None or not line.settlement or line.by not in (NONE, canceller.offset):
                doubtful.add(canceller.offset)
        yield from self._wrong_controls(victims, doubtful)

    def _wrong_controls(
        self, victims: Mapping[int, Sequence[int]], doubtful: Container[int]
    ) -> Iterator[Wrong]:
        """Cancels and fires whose settlement does not fit what they settled."""
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
        """Records that waited for their home and did not get there, although all that waited went:
        none waits any more, and none was replaced or dead-lettered.
        """
        waited = [line for line in self._lines if line.kind == WAITING]
        gone = all(line.settlement in ("forwarded", "requeued") for line in waited)
        for number, line in enumerate(self._lines):
            is_sent = line.kind == HOMEBOUND and line.settlement == "requeued" and not line.is_home
            if is_sent and waited and gone:
                yield number, "it waited for its home, and what it waited with went without it"


def _against_next(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    """Say why the settlement of a copy that waits for its home does not fit the next record of its
    id, which takes it along, or replaces it; None: it does.
    """
    if not line.settlement:
        return None
    is_replaced = line.acts == canceller.acts == SCHEDULE
    if line.settlement == "replaced":
        if line.by == canceller.offset and not is_replaced:
            return f"it was replaced by {_what(canceller)}"
        return _other_source(line, canceller)
    if not is_replaced or canceller.settlement not in ("forwarded", "requeued"):
        return None  # it went along, or on
    return _ignored(line, canceller, passed_ms, lag_ms)


def _other_source(line: Line, canceller: Line) -> str | None:
    """Say why a settlement names its canceller's source in a wrong way; None: it does not."""
    if line.by != canceller.offset or line.by_source == canceller.source:
        return None
    named = f"names {line.by_source}" if line.by_source else "names no other place"
    written = canceller.source or "its own place"
    return f"it {named} as where {_what(canceller)} was written, which is {written}"


def _what(canceller: Line) -> str:
    return f"{KIND_NAMES[canceller.acts]} at offset {canceller.offset}"


def _against_canceller(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    """Say why the settlement of a record does not fit its canceller; None: it does."""
    if not line.settlement:
        return None
    settlement = SETTLEMENTS[line.settlement]
    wanted = FIRE if line.settlement == "delivered" and line.by != NONE else settlement.by
    if wanted is None:
        return _ignored(line, canceller, passed_ms, lag_ms)
    if line.by != canceller.offset:
        return None  # what another offset is to have done is a finding of its own
    if wanted == canceller.acts:
        return None if wanted == FIRE else _other_source(line, canceller)
    verb = "fired" if wanted == FIRE else settlement.verb
    return f"it was {verb} by {_what(canceller)}"


def _ignored(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> str | None:
    """Say why a record that was settled in its own time could not be any more; None: it could."""
    verb = SETTLEMENTS[line.settlement].verb
    what = _what(canceller)
    if canceller.acts == FIRE and line.kind != WAITING and _may_be_fired(line, canceller):
        return None
    if line.settlement == "requeued" and line.copy_base > canceller.offset:
        return f"it was {verb} after H had passed {what}, which had settled it"
    bound_ms = _passed_by_ms(line, canceller, passed_ms, lag_ms)
    if bound_ms is None or line.at_ms <= bound_ms + ORDER_MS:
        return None
    return f"it was {verb} at {line.at_ms}, and {what} had settled it by {bound_ms}"


def _may_be_fired(line: Line, fire: Line) -> bool:
    """Return whether this settlement may be what a fire led to, which not all of them say."""
    if line.settlement == "requeued":
        return line.copy_base in (NONE, fire.offset + 1)
    return line.settlement != "delivered"


def _passed_by_ms(line: Line, canceller: Line, passed_ms: PassedMs, lag_ms: int) -> int | None:
    """Return the earliest instant at which H is known to have passed the canceller, epoch ms."""
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
    """Say why the outcome of a cancel or fire does not fit what it settled; None: it does.

    Args:
        line: the cancel or fire.
        victims: records whose canceller it is.
        is_complete: whether the log still holds every record that it may have settled.
    """
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
