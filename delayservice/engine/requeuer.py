"""Builds the outputs that append pending records to a delay topic again. Pure.

The *base* of a requeued record is the first offset at which a record of its id cancels it.
"""

from __future__ import annotations

from typing import Final

from delayservice.contract.codec import Payload, next_attempt, with_turn
from delayservice.contract.codes import TARGET_PAUSED
from delayservice.contract.contracts import Contracts
from delayservice.contract.provenance import Provenance
from delayservice.contract.requeue import write_copy
from delayservice.contract.times import spread_ms
from delayservice.engine import outcome
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.ports import WritableTargets

_HELD_PARTS: Final = 8
# A wait is an eighth of the time since the record was due, but at least the first wait.
_HELD_TIMES_MAX: Final = 10
# First wait of a record that its target can't take in the present transaction, ms.
_LATER_MS: Final = 200


class Requeuer:
    """Builder of the outputs that requeue the records of one shard.

    ``topic`` None: records wait or are dead-lettered instead. ``contracts`` None: the settings
    alone say when a record must be rolled.
    """

    def __init__(
        self,
        shard: tuple[str, int],
        provenance: Provenance,
        routes: Routes,
        targets: WritableTargets,
    ) -> None:
        self.topic: str | None = shard[0]
        self.contracts: Contracts | None = None
        self._from, self._partition = shard
        self._shard_name = f"{shard[0]}:{shard[1]}"
        self._provenance = provenance
        self._routes = routes
        self._targets = targets

    def takes(self) -> bool:
        """Return whether the topic to requeue in can be written to now; True if there is none."""
        if self.topic is None:
            return True
        place = (self.topic, self._partition)
        found = None if place in self._targets.writable else self._targets.obstacle(place)
        return found is None or found[0] == TARGET_PAUSED  # that is for deliveries

    def requeue(
        self,
        kind: int,
        offset: int,
        payload: Payload,
        at_ms: int,
        base: int,
        settles: int | None = None,
    ) -> Output:
        """Return the output that appends a record to ``topic``, or to its own delay topic.
        ``kind`` is one of ``outcome.COPIES``; ``at_ms``: when it is to be settled, epoch ms;
        ``settles`` None: ``offset``.
        """
        topic = self.topic or self._from
        key, value, headers = write_copy(
            topic,
            self._partition,
            self._routes.secret,
            settles=offset if settles is None else settles,
            source=self._provenance.source(offset, payload[6]),
            base=base,
            at_ms=at_ms,
            payload=payload,
            shard=None if topic == self._from else self._shard_name,
        )
        return (kind, topic, self._partition, key, value, headers, payload[5], offset)

    def roll(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output:
        """Return the output that requeues a record until it is due, or must be rolled again."""
        at_ms = self.at_ms(offset, payload, now_ms)
        return self.requeue(outcome.ROLLED, offset, payload, at_ms, base)

    def pace(self, offset: int, payload: Payload, at_ms: int, now_ms: int, base: int) -> Output:
        """Return the output that requeues a record over a rate or cap until ``at_ms``, epoch ms,
        or its roll time.
        """
        bounded_ms = min(at_ms, self.at_ms(offset, (*payload[:5], at_ms, None), now_ms))
        return self.requeue(outcome.PACED, offset, payload, bounded_ms, base)

    def park(self, offset: int, payload: Payload, now_ms: int, base: int, attempt: int) -> Output:
        """Return the output that parks a record until its next attempt or roll time.
        ``attempt``: number of the one that failed, from 1.
        """
        at_ms = now_ms + self._routes.park_delays_ms[attempt - 1]
        at_ms = min(at_ms, self.at_ms(offset, (*payload[:5], at_ms, None), now_ms))
        again = (*payload[:6], next_attempt(payload[6]))
        return self.requeue(outcome.PARKED, offset, again, at_ms, base)

    def give_turn(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
        """Return the output that requeues a record that its target can't take in the open
        transaction; None: there is no topic for it.
        """
        if self.topic is None:
            return None
        at_ms = self.later_ms(offset, payload, now_ms, _LATER_MS)
        if payload[5] > now_ms and not was_tried(payload):
            again = (*payload[:6], next_attempt(payload[6]))
        else:
            again = (*payload[:6], with_turn(payload[6], at_ms))
        return self.requeue(outcome.PACED, offset, again, at_ms, base)

    def hold(self, offset: int, payload: Payload, now_ms: int, base: int) -> Output | None:
        """Return the output that parks a record whose target is paused; None: there is no topic
        for it. Only a fired record's attempt rises: it could not be told from a rolled one
        otherwise.
        """
        if self.topic is None:
            return None
        at_ms = self.later_ms(offset, payload, now_ms, self._routes.held_ms)
        if payload[5] > now_ms and not was_tried(payload):
            payload = (*payload[:6], next_attempt(payload[6]))
        return self.requeue(outcome.PARKED, offset, payload, at_ms, base)

    def later_ms(self, offset: int, payload: Payload, now_ms: int, at_first_ms: int) -> int:
        """Return the time, epoch ms, until which a record that can't be settled now is requeued:
        after ``at_first_ms``, or up to ten times that if it is long past due, plus up to half as
        much to spread records; earlier if it must be rolled.
        """
        wait_ms = min(
            max(at_first_ms, (now_ms - payload[5]) // _HELD_PARTS), _HELD_TIMES_MAX * at_first_ms
        )
        at_ms = now_ms + wait_ms + spread_ms(offset, wait_ms // 2)
        return min(at_ms, self.at_ms(offset, (*payload[:5], at_ms, None), now_ms))

    def at_ms(self, offset: int, payload: Payload, now_ms: int) -> int:
        """Return the key time, epoch ms, of a requeued record: its due or roll time."""
        routes = self._routes
        windows = [(routes.roll_window_ms, routes.roll_spread_ms)]
        if self.contracts is not None:
            # Those of the settings may never apply to the record that is appended, and the log is
            # read from as far back as the contracts say.
            later = self.contracts.since(offset)
            windows += [(c.roll_window_ms, c.roll_spread_ms) for c in later]
        window_ms, spread = min(windows)
        return max(min(payload[5], now_ms + window_ms - spread_ms(offset, spread)), 1)


def was_tried(payload: Payload) -> bool:
    """Return whether it is a second or later attempt. If it is not due yet, it was fired."""
    meta = payload[6]
    return meta is not None and meta[2] > 1
