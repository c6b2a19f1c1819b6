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
"""Treatment of records beyond the largest number in the second of their due time: deliver them,
move them to a later second, or dead-letter them."""

AHEAD_MS: Final = 50
"""Longest time, ms, from now to the instant given by a rate for which a record is not requeued but
delivered at once, because requeuing takes as long."""
BURST_MS: Final = 1_000
"""Length of the time whose missed deliveries may be made up at once after an outage, ms."""
_KEPT_S: Final = 3_600
"""Time for which counts of records in a second of due time are kept after that second, seconds."""
_BEHIND_S: Final = 60
"""Time for which the cap of a second of due time still applies after that second, seconds."""
_SECOND_MS: Final = 1_000
_FORGET_EVERY: Final = 1_024

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", int, float)


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Limits of the deliveries of one slice.

    ``rates``: patterns of target topics, of which the first match applies, with the records per
    second that this slice may deliver to each topic; 0: no limit. ``slot_records_max``: largest
    number of records of one shard that are delivered in the second of their due time; 0: no limit.
    ``slot_policy``: treatment of records beyond that number.
    """

    rates: tuple[tuple[str, float], ...] = ()
    slot_records_max: int = 0
    slot_policy: SlotPolicy = "accept"


class Staged(Generic[K, V]):
    """Numbers by key, whose changes are kept by a commit and dropped by an abort of the
    transaction.
    """

    def __init__(self) -> None:
        self._committed: dict[K, V] = {}
        self._staged: dict[K, V] = {}

    def get(self, key: K, default: V) -> V:
        """Return the number of ``key``, changes of the open transaction included; else
        ``default``.
        """
        found = self._staged.get(key)
        return self._committed.get(key, default) if found is None else found

    def put(self, key: K, number: V) -> None:
        """Set the number of ``key`` in the open transaction: ``commit`` keeps it, ``abort`` drops
        it.
        """
        self._staged[key] = number

    def raise_to(self, key: K, number: V) -> None:
        """Raise the number of ``key`` to at least ``number`` at once, even if the open transaction
        aborts.
        """
        self._committed[key] = max(self._committed.get(key, number), number)
        if key in self._staged:
            self._staged[key] = max(self._staged[key], number)

    def commit(self) -> None:
        """Keep all changes since the last commit or abort."""
        self._committed.update(self._staged)
        self._staged.clear()

    def abort(self) -> None:
        """Drop all changes since the last commit or abort."""
        self._staged.clear()

    def keep(self, is_kept: Callable[[K, V], bool]) -> None:
        """Drop the committed numbers for which ``is_kept`` returns False."""
        self._committed = {key: n for key, n in self._committed.items() if is_kept(key, n)}


Second: TypeAlias = tuple[str, int]
"""``(delay topic, second)``: a second of due times, counted from the epoch."""


class Flow:
    """Use of one slice's rates and caps so far. Not thread-safe.

    Attributes:
        over_cap: number of records beyond the cap of their second, in all transactions that were
            committed since the start.
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
        """Return whether any rate, or cap of records per second of due time, is set."""
        return bool(self._rules.rates) or self.has_cap

    @property
    def has_rates(self) -> bool:
        """Return whether the deliveries per second to any target are limited."""
        return bool(self._rules.rates)

    @property
    def has_cap(self) -> bool:
        """Return whether the number of records in a second of due time is limited."""
        return bool(self._rules.slot_records_max)

    @property
    def dead_letters(self) -> bool:
        """Return whether records beyond the largest number in their second are dead-lettered."""
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
        """Take the next instant at which the rate of a target allows a delivery. Instants are given
        in the order of calls, at even intervals; an unused one is lost.

        Args:
            target: the target topic.
            key_ms: key of the record, epoch milliseconds. It is not delivered at once if an earlier
                record was moved to this key or a later one, so that it does not overtake that
                record.
            now_ms: now, epoch milliseconds.

        Returns:
            The instant, epoch milliseconds; None: deliver now.
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
        """Return whether a record whose ``turn_ms`` has come may be delivered to ``target`` at
        ``now_ms``, epoch ms; if so, count the delivery. False: deliveries that were missed in an
        outage would be made up too fast.
        """
        earliest_ms = self._earliest_ms(target, now_ms)
        if earliest_ms > now_ms:
            return False
        self._went_ms.put(target, earliest_ms + self._interval_ms(target))
        return True

    def _earliest_ms(self, target: str, now_ms: int) -> float:
        return max(self._went_ms.get(target, 0.0), float(now_ms - BURST_MS))

    def observe(self, target: str, turn_ms: int) -> None:
        """Note the ``turn_ms``, epoch ms, of a requeued record that was read from the log, so that
        the rate of ``target`` gives other records later instants.
        """
        interval_ms = self._interval_ms(target)
        if interval_ms:
            self._next_ms.raise_to(target, turn_ms + interval_ms)
            self._moved_ms.raise_to(target, turn_ms)

    # --- caps ----------------------------------------------------------------------------------

    def second_ms(self, shard: str, due_ms: int, now_ms: int) -> int | None:
        """Take a place in the second of a due time, or in the next second with room. A record over
        a minute late is not moved: the search through the seconds of a day would take minutes.

        Args:
            shard: the delay topic.
            due_ms: due time of the record, epoch milliseconds.
            now_ms: now, epoch milliseconds.

        Returns:
            The time of the place, epoch milliseconds; with the policy ``dead-letter`` the due time,
            which means that the record is refused; None: the record keeps its time.
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
        """Keep the instants and places given since the last commit or abort. At times, drop those
        that no longer limit deliveries at ``now_ms``, epoch ms.
        """
        for numbers in self._all:
            numbers.commit()
        self.over_cap += self._over_cap
        self._over_cap = 0
        self._commits += 1
        if self._commits % _FORGET_EVERY == 0:
            self._forget(now_ms)

    def abort(self) -> None:
        """Drop the instants and places given since the last commit or abort."""
        for numbers in self._all:
            numbers.abort()
        self._over_cap = 0

    def _forget(self, now_ms: int) -> None:
        """Drop the seconds and instants before ``now_ms``, epoch ms, that no longer limit
        deliveries.
        """
        since_s = now_ms // _SECOND_MS - _KEPT_S
        for seconds in (self._taken, self._with_room):
            seconds.keep(lambda second, _: second[1] >= since_s)
        for instants in (self._next_ms, self._moved_ms, self._went_ms):
            instants.keep(lambda _, instant_ms: instant_ms > now_ms - BURST_MS)
        self._intervals_ms.clear()
