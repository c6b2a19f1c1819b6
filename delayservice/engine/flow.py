"""Limits of deliveries: rates of target topics, and caps of records per second of due time.

A record over a limit is requeued for a later instant (``turn_ms`` if a rate gives it). So no record
waits in memory, and no other record is held up. Pure; ``now_ms`` is an input.

All of this is decided when a record is settled, never when it is read: the key of a record must
follow from the log alone (design rule 2), and not from a rate. Afterwards the log holds the
decision, as the key of the requeued record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import Final, Generic, Literal, TypeAlias, TypeVar

SlotPolicy: TypeAlias = Literal["accept", "spread", "dead-letter"]

# A record with a shorter wait is not requeued but delivered at once: requeuing takes as long.
AHEAD_MS: Final = 50
# Deliveries missed in this time may be made up at once after an outage.
BURST_MS: Final = 1_000
# Counts of a second are kept for this time after it.
_KEPT_S: Final = 3_600
# The cap of a second still applies for this time after it.
_BEHIND_S: Final = 60
_SECOND_MS: Final = 1_000
_FORGET_EVERY: Final = 1_024

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", int, float)


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Limits of the deliveries of one slice; 0: no limit. ``rates``: records per second by
    pattern of target topics, of which the first match applies. ``slot_records_max``: records of
    one shard in the second of their due time.
    """

    rates: tuple[tuple[str, float], ...] = ()
    slot_records_max: int = 0
    slot_policy: SlotPolicy = "accept"


class Staged(Generic[K, V]):
    """Numbers by key, whose changes are kept by a commit and dropped by an abort."""

    def __init__(self) -> None:
        self._committed: dict[K, V] = {}
        self._staged: dict[K, V] = {}
        # Staged numbers that were replaced since ``save``.
        self._replaced: list[tuple[K, V | None]] | None = None

    def get(self, key: K, default: V) -> V:
        found = self._staged.get(key)
        return self._committed.get(key, default) if found is None else found

    def put(self, key: K, number: V) -> None:
        if self._replaced is not None:
            self._replaced.append((key, self._staged.get(key)))
        self._staged[key] = number

    def raise_to(self, key: K, number: V) -> None:
        """Raise the number of ``key`` to at least ``number``, even if the transaction aborts."""
        self._committed[key] = max(self._committed.get(key, number), number)
        if key in self._staged:
            self._staged[key] = max(self._staged[key], number)

    def commit(self) -> None:
        self._committed.update(self._staged)
        self.abort()

    def abort(self) -> None:
        self._staged.clear()
        self._replaced = None

    def save(self) -> None:
        self._replaced = []

    def restore(self) -> None:
        for key, number in reversed(self._replaced or ()):
            if number is None:
                del self._staged[key]
            else:
                self._staged[key] = number
        self._replaced = None

    def keep(self, is_kept: Callable[[K, V], bool]) -> None:
        self._committed = {key: n for key, n in self._committed.items() if is_kept(key, n)}


# (delay topic, second since the epoch) of due times.
Second: TypeAlias = tuple[str, int]


class Flow:
    """Use of one slice's rates and caps so far. Not thread-safe. ``over_cap`` counts committed
    records beyond the cap of their second.
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
        self._over_cap = self._over_cap_saved = 0
        self._calls = 0
        self.over_cap = 0

    def renew(self, rules: FlowRules) -> None:
        """Follow other rules from now on."""
        self._rules = rules
        self._intervals_ms.clear()

    @property
    def limits(self) -> bool:
        return bool(self._rules.rates) or self.has_cap

    @property
    def has_rates(self) -> bool:
        return bool(self._rules.rates)

    @property
    def has_cap(self) -> bool:
        return bool(self._rules.slot_records_max)

    @property
    def dead_letters(self) -> bool:
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
        """Take the next instant, epoch ms, at which the rate of a target allows a delivery; None:
        deliver now. Instants come in the order of calls, at even intervals; an unused one is lost.

        A record is not delivered at once if an earlier one was moved to its key or a later one, so
        that it does not overtake.
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
        """Count and allow the delivery of a record whose ``turn_ms`` has come. False: deliveries
        that were missed in an outage would be made up too fast.
        """
        earliest_ms = self._earliest_ms(target, now_ms)
        if earliest_ms > now_ms:
            return False
        self._went_ms.put(target, earliest_ms + self._interval_ms(target))
        return True

    def _earliest_ms(self, target: str, now_ms: int) -> float:
        return max(self._went_ms.get(target, 0.0), float(now_ms - BURST_MS))

    def observe(self, target: str, turn_ms: int, written_ms: int) -> None:
        """Note the ``turn_ms`` of a requeued record read from the log: the rate gives others
        later ones. At times, drop what no longer limited when the record was written, epoch ms, as
        a replica never commits.
        """
        self._next_ms.raise_to(target, turn_ms + self._interval_ms(target))
        self._moved_ms.raise_to(target, turn_ms)
        self._forget_at_times(written_ms)

    # --- caps ----------------------------------------------------------------------------------

    def second_ms(self, shard: str, due_ms: int, now_ms: int) -> int | None:
        """Take a place, epoch ms, in the second of a due time or the next with room; None: it keeps
        its time. With the policy ``dead-letter`` the due time means that the record is refused.

        A record over a minute late is not moved: searching the seconds of a day would take minutes.
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

    def judge_again(self) -> None:
        """Take back the count of the record that ``second_ms`` has just refused: it comes again."""
        self._over_cap -= 1

    # --- commit --------------------------------------------------------------------------------

    def commit(self, now_ms: int) -> None:
        """Keep what was given since the last commit or abort, and at times drop what no longer
        limits.
        """
        for numbers in self._all:
            numbers.commit()
        self.over_cap += self._over_cap
        self._over_cap = 0
        self._forget_at_times(now_ms)

    def abort(self) -> None:
        for numbers in self._all:
            numbers.abort()
        self._over_cap = 0

    def save(self) -> None:
        """Remember what was given so far, for ``restore`` before the next commit or abort."""
        for numbers in self._all:
            numbers.save()
        self._over_cap_saved = self._over_cap

    def restore(self) -> None:
        """Take back what was given since ``save``."""
        for numbers in self._all:
            numbers.restore()
        self._over_cap = self._over_cap_saved

    def _forget_at_times(self, now_ms: int) -> None:
        self._calls += 1
        if self._calls % _FORGET_EVERY:
            return
        since_s = now_ms // _SECOND_MS - _KEPT_S
        for seconds in (self._taken, self._with_room):
            seconds.keep(lambda second, _: second[1] >= since_s)
        for instants in (self._next_ms, self._moved_ms, self._went_ms):
            instants.keep(lambda _, instant_ms: instant_ms > now_ms - BURST_MS)
        self._intervals_ms.clear()
