"""Limits of when a due record may go: rates of target topics, caps of seconds.

Whatever is over a limit gets an instant of its own, is settled by a copy with that key, and goes
when the key has come. So nothing waits in memory, and nothing is held up by it. Pure; ``now_ms`` is
an input.

Everything here is decided when a record is settled and never when it is read: the key of a record
must be a pure function of the log (design rule 2), which no rate is. What was decided is a fact of
the log afterwards: the key of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import Final, Generic, Literal, TypeAlias, TypeVar

SlotPolicy: TypeAlias = Literal["accept", "spread", "dead-letter"]
"""Treatment of records beyond the cap of their second."""

AHEAD_MS: Final = 50
"""A record whose turn is so near goes at once: a copy would take about as long."""
BURST_MS: Final = 1_000
"""Part of a rate that may be caught up with after a delay; more would be a burst."""
_KEPT_S: Final = 3_600
"""Time for which a second is remembered after it has passed."""
_BEHIND_S: Final = 60
"""Time for which a second is capped after it has passed."""
_SECOND_MS: Final = 1_000
_FORGET_EVERY: Final = 1_024

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", int, float)


@dataclass(frozen=True, slots=True)
class FlowRules:
    """The limits of one slice.

    ``rates``: patterns of target topics, in the order in which they are tried, with the records per
    second that this slice may deliver to each topic; 0: no limit. ``slot_records_max``: records of
    one shard with a due time in the same second that are delivered in it; 0: no limit.
    """

    rates: tuple[tuple[str, float], ...] = ()
    slot_records_max: int = 0
    slot_policy: SlotPolicy = "accept"


class Staged(Generic[K, V]):
    """Numbers that are changed in a transaction: what it did is kept, or forgotten, with it."""

    def __init__(self) -> None:
        self._committed: dict[K, V] = {}
        self._staged: dict[K, V] = {}

    def get(self, key: K, default: V) -> V:
        """Return the number as the transaction sees it."""
        found = self._staged.get(key)
        return self._committed.get(key, default) if found is None else found

    def put(self, key: K, number: V) -> None:
        """Change it in the transaction."""
        self._staged[key] = number

    def raise_to(self, key: K, number: V) -> None:
        """Raise it to at least ``number``, whatever becomes of the transaction."""
        self._committed[key] = max(self._committed.get(key, number), number)
        if key in self._staged:
            self._staged[key] = max(self._staged[key], number)

    def commit(self) -> None:
        """Keep what was changed."""
        self._committed.update(self._staged)
        self._staged.clear()

    def abort(self) -> None:
        """Forget what was changed."""
        self._staged.clear()

    def keep(self, is_kept: Callable[[K, V], bool]) -> None:
        """Forget all others of what is committed."""
        self._committed = {key: n for key, n in self._committed.items() if is_kept(key, n)}


Second: TypeAlias = tuple[str, int]
"""``(delay topic, epoch second)``."""


class Flow:
    """The limits of one slice and what they have let through. Single-threaded, as its loop.

    Attributes:
        over_cap: records beyond the cap of their second, committed ones only.
    """

    def __init__(self, rules: FlowRules) -> None:
        self._rules = rules
        self._intervals_ms: dict[str, float] = {}
        self._next_ms: Staged[str, float] = Staged()
        self._moved_ms: Staged[str, int] = Staged()
        self._went_ms: Staged[str, float] = Staged()
        self._taken: Staged[Second, int] = Staged()
        self._with_room: Staged[Second, int] = Staged()
        self._all = (
            *(self._next_ms, self._moved_ms, self._went_ms),
            *(self._taken, self._with_room),
        )
        self._over_cap = 0
        self._commits = 0
        self.over_cap = 0

    @property
    def limits(self) -> bool:
        """Return whether there is any limit."""
        return bool(self._rules.rates) or self.has_cap

    @property
    def has_rates(self) -> bool:
        """Return whether any target has one."""
        return bool(self._rules.rates)

    @property
    def has_cap(self) -> bool:
        """Return whether a second has one."""
        return bool(self._rules.slot_records_max)

    @property
    def dead_letters(self) -> bool:
        """Return whether what is beyond the cap of its second is refused instead of moved."""
        return self._rules.slot_policy == "dead-letter"

    # --- rates ---------------------------------------------------------------------------------

    def _interval_ms(self, target: str) -> float:
        known = self._intervals_ms.get(target)
        if known is None:
            rates = (rate for pattern, rate in self._rules.rates if fnmatchcase(target, pattern))
            rate = next(rates, 0.0)
            known = self._intervals_ms[target] = _SECOND_MS / rate if rate else 0.0
        return known

    def turn_ms(self, target: str, key_ms: int, now_ms: int) -> int | None:
        """Take the next turn of a target. Turns are in the order of asking and evenly apart; what
        was not used is lost.

        Args:
            target: its topic.
            key_ms: the key of the record that asks: it does not overtake one that was given an
                instant after it, nor the same one, for the copy of that lies behind it in the log.
            now_ms: now.

        Returns:
            When the turn is, epoch milliseconds, or None: it is now.
        """
        interval_ms = self._interval_ms(target)
        if not interval_ms:
            return None
        at_ms = max(self._next_ms.get(target, 0.0), float(now_ms))
        self._next_ms.put(target, at_ms + interval_ms)
        if at_ms <= now_ms + AHEAD_MS and self._moved_ms.get(target, 0) < key_ms:
            self._went_ms.put(target, self._earliest_ms(target, now_ms) + interval_ms)
            return None
        turn_ms = ceil(at_ms)
        self._moved_ms.put(target, turn_ms)
        return turn_ms

    def may_go(self, target: str, now_ms: int) -> bool:
        """Return whether a record whose turn has come may go now: an outage leaves no burst."""
        earliest_ms = self._earliest_ms(target, now_ms)
        if earliest_ms > now_ms:
            return False
        self._went_ms.put(target, earliest_ms + self._interval_ms(target))
        return True

    def _earliest_ms(self, target: str, now_ms: int) -> float:
        return max(self._went_ms.get(target, 0.0), float(now_ms - BURST_MS))

    def observe(self, target: str, turn_ms: int) -> None:
        """Take a turn that a copy in the log was given, by this node or by an owner before it."""
        interval_ms = self._interval_ms(target)
        if interval_ms:
            self._next_ms.raise_to(target, turn_ms + interval_ms)
            self._moved_ms.raise_to(target, turn_ms)

    # --- caps ----------------------------------------------------------------------------------

    def second_ms(self, shard: str, due_ms: int, now_ms: int) -> int | None:
        """Take a place in the second of a due time, or in a later one. What is far behind takes
        none but to be refused: all of its seconds are over, and to look for a place in each of a
        day's would take minutes.

        Returns:
            When the place is, epoch milliseconds, or None: in its own second, or it does not matter
            to the policy.
        """
        cap = self._rules.slot_records_max
        due_s = due_ms // _SECOND_MS
        if due_s < now_ms // _SECOND_MS - _BEHIND_S and not self.dead_letters:
            return None
        taken = self._taken.get((shard, due_s), 0)
        if taken < cap:
            self._taken.put((shard, due_s), taken + 1)
            return None
        self._over_cap += 1
        if self._rules.slot_policy == "accept":
            return None
        if self.dead_letters:
            return due_ms
        at_s = self._with_room.get((shard, due_s), due_s + 1)
        while (taken := self._taken.get((shard, at_s), 0)) >= cap:
            at_s += 1
        self._with_room.put((shard, due_s), at_s)
        self._taken.put((shard, at_s), taken + 1)
        return at_s * _SECOND_MS + taken * _SECOND_MS // cap

    # --- commit --------------------------------------------------------------------------------

    def commit(self, now_ms: int) -> None:
        """Keep what was decided: the transaction is committed."""
        for numbers in self._all:
            numbers.commit()
        self.over_cap += self._over_cap
        self._over_cap = 0
        self._commits += 1
        if self._commits % _FORGET_EVERY == 0:
            self._forget(now_ms)

    def abort(self) -> None:
        """Forget what was decided: the transaction was aborted."""
        for numbers in self._all:
            numbers.abort()
        self._over_cap = 0

    def _forget(self, now_ms: int) -> None:
        """Forget seconds that have passed: they no longer limit anything."""
        since_s = now_ms // _SECOND_MS - _KEPT_S
        for seconds in (self._taken, self._with_room):
            seconds.keep(lambda second, _: second[1] >= since_s)
        for instants in (self._next_ms, self._moved_ms, self._went_ms):
            instants.keep(lambda _, instant_ms: instant_ms > now_ms - BURST_MS)
        self._intervals_ms.clear()
