"""Sends records with ids to the home partition of the id (``contract.home``). Pure.

A ``HOMEBOUND`` record has an id whose home is another partition. While that can't be written to,
the record *waits*: it is requeued where it lies, and carries the records of its id that waited
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from delayservice.contract.codec import Payload
from delayservice.contract.codes import TARGET_ASKED, TARGET_LATER, TARGET_PAUSED
from delayservice.contract.entry import Entry
from delayservice.contract.home import (
    SETTLES_NOTHING,
    Group,
    Sent,
    homebound,
    waiting_group,
    waiting_payload,
    write_envelope,
)
from delayservice.contract.provenance import is_large
from delayservice.engine import outcome
from delayservice.engine.outcome import Output, Target
from delayservice.engine.settle import Settler

# First wait while the home partition can't be written to.
_AGAIN_MS: Final = 1_000


class WaitingForHome(NamedTuple):
    """A pending record that waits until the home partition of its id can be written to."""

    offset: int
    payload: Payload


class ToHome:
    """Builder of the outputs that send one shard's records to the homes of their ids."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._topic = settler.topic
        self._shard_name = f"{settler.topic}:{settler.partition}"

    def is_waiting(self, payload: Payload) -> bool:
        """Return whether a pending record waits for its home: its target is its own delay topic."""
        return payload[0] == self._topic

    def leave(
        self, entry: Entry, record_id: bytes, carried: Group, took: int, now_ms: int
    ) -> list[Output] | None:
        """Return the outputs that send a ``HOMEBOUND`` record and ``carried``, earlier ones of
        its id, home, or the one that requeues them together; None: neither is possible now.
        ``took``: offset of the waiting record that contains ``carried``, or ``SETTLES_NOTHING``.
        """
        offset, _, _, _, original, (kind, written_ms, home) = entry
        source = self._settler.provenance.source(offset, None)
        sent = homebound(kind, record_id, source, written_ms, original)
        settles = [*[SETTLES_NOTHING] * len(carried), offset]
        if carried and took >= 0:
            settles[-2] = took
        target, group = (self._topic, home), (*carried, sent)
        waiting = partial(waiting_payload, target, record_id, group, now_ms, 2, took)
        return self._send(target, group, settles, waiting, offset, now_ms, offset + 1)

    def go_on(self, one: WaitingForHome, now_ms: int, base: int) -> list[Output] | None:
        """Return the outputs that send a waiting record and those it carries home, or requeue
        it; None: neither is possible now. ``base``: base of the requeued one.
        """
        group = waiting_group(one.payload)
        refusal = self._settler.verdicts.refusal(one.offset)
        if refusal is not None:
            return self.refused(one, *refusal)
        settles = [*[SETTLES_NOTHING] * (len(group) - 1), one.offset]
        topic, home, _, _, _, since_ms, meta = one.payload
        record_id, attempt = (meta[0] or b"", meta[2]) if meta is not None else (b"", 1)
        target, took = (topic, home), SETTLES_NOTHING
        again = partial(waiting_payload, target, record_id, group, since_ms, attempt + 1, took)
        return self._send(target, group, settles, again, one.offset, now_ms, base)

    def _send(
        self,
        target: Target,
        group: Group,
        settles: Sequence[int],
        waiting: Callable[[], Payload],
        offset: int,
        now_ms: int,
        base: int,
    ) -> list[Output] | None:
        targets = self._settler.targets
        obstacle = None if target in targets.writable else targets.obstacle(target)
        if obstacle is not None and obstacle[0] == TARGET_ASKED:
            return None
        if obstacle is not None and obstacle[0] != TARGET_PAUSED:  # that is for deliveries
            if not self._settler.requeuer.takes():
                return None
            again = waiting()
            at_ms = self._settler.requeuer.later_ms(offset, again, now_ms, _AGAIN_MS)
            return [self._settler.requeuer.requeue(outcome.PARKED, offset, again, at_ms, base)]
        return [
            self._envelope(sent, settled, target[1], offset)
            for sent, settled in zip(group, settles, strict=True)
        ]

    def _envelope(self, sent: Sent, settles: int, home: int, offset: int) -> Output:
        key, value, headers = write_envelope(
            self._topic, home, self._settler.routes.secret, sent, settles, self._shard_name
        )
        row = (key, value, headers, sent.written_ms, offset)
        return (outcome.FORWARDED, self._topic, home, *row)

    def refusal(self, entry: Entry, record_id: bytes, carried: Group) -> tuple[str, str] | None:
        """Return code and detail of why the delay topic refuses the record, alone or with
        ``carried``.
        """
        offset, _, _, _, original, (kind, written_ms, home) = entry
        found = self._settler.verdicts.refusal(offset)
        if found is not None:
            return found
        sent = homebound(kind, record_id, b"", written_ms, original)
        if not carried and not is_large(*sent.original[1:]):  # nearly all
            return None
        place = (self._topic, home)
        _, _, key, value, headers, _, _ = waiting_payload(
            place, record_id, (*carried, sent), 0, 1, SETTLES_NOTHING
        )
        if not is_large(value, headers):
            return None
        found = self._settler.targets.refusal(self._topic, key, value, headers)
        return None if found is None or found[0] == TARGET_LATER else found  # its size is right

    def refused(self, one: WaitingForHome, code: str, detail: str) -> list[Output] | None:
        """Return the dead letters of a waiting record and those it carries; None: not writable
        now.
        """
        undelivered = self._settler.undelivered
        *before, last = waiting_group(one.payload)
        letter = undelivered.dead_letter(one.offset, last.original, code, detail, 0, last.source)
        if letter is None:
            return None
        reason = (code, detail)
        beside = [
            undelivered.letter_beside(one.offset, o.original, reason, o.source) for o in before
        ]
        return [*beside, letter]
