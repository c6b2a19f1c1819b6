"""Mistakes with records that are scheduled only if none of their id is pending."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from delayservice.contract.codec import Payload
from delayservice.contract.entry import ABSENT, COPY, INVALID, Entry
from delayservice.engine import outcome
from delayservice.engine.cancels import OffsetAdvance
from delayservice.engine.cursor import Key
from delayservice.engine.outcome import Output
from delayservice.engine.settle import Settler
from tests.simulation.mutating import mistake, rewritten
from tests.simulation.sim_store import SimStore


def pending_one_is_ignored() -> AbstractContextManager[Any]:
    """It is scheduled beside a pending record of its id."""
    return rewritten(OffsetAdvance, "_schedule_if_absent", "if not pending", "if True")


def settled_one_keeps_it_out() -> AbstractContextManager[Any]:
    """What was delivered meanwhile counts as pending."""
    right = "victim[1] >= offset or victim > k"
    return rewritten(OffsetAdvance, "_pending_victims", right, "True")


def it_settles_the_pending_one() -> AbstractContextManager[Any]:
    """It cancels what it finds, as other records with an id do."""
    never = frozenset({COPY, INVALID})
    return patch("delayservice.engine.marking._NEVER_SETTLE", never)


@mistake(OffsetAdvance, "take")
def copy_in_flight_is_not_awaited(
    original: Any, walk: OffsetAdvance, entry: Entry, *rest: Any
) -> bool:
    """It does not wait for a requeued record of its id to be read back."""
    flying = walk.in_flight
    if entry[1] == ABSENT:
        walk.in_flight = {}
    taken: bool = original(walk, entry, *rest)
    if entry[1] == ABSENT:
        for record_id, bases in walk.in_flight.items():
            flying.setdefault(record_id, []).extend(bases)
        walk.in_flight = flying
    return taken


@mistake(SimStore, "sighted_from")
def sightings_are_lost(_: Any, store: SimStore, seen_by: int) -> list[tuple[int, Key]]:
    """A new owner does not know what it found pending."""
    del store, seen_by
    return []


@mistake(OffsetAdvance, "note_absent")
def copies_are_not_found(_: Any, walk: OffsetAdvance, *read: Any) -> None:
    """It finds no requeued record that was read after it."""
    del walk, read


def dead_copy_keeps_it_out() -> AbstractContextManager[Any]:
    """A requeued record that was cancelled before it counts as pending."""
    return rewritten(OffsetAdvance, "note_absent", " and not 0 <= x < absent", "")


def it_can_not_be_cancelled() -> AbstractContextManager[Any]:
    """A cancel right behind it does not find it."""
    right = "now_ms, offset + 1)"
    return rewritten(OffsetAdvance, "_schedule_if_absent", right, "now_ms, offset + 2)")


@mistake(Settler, "settle")
def requeued_one_is_kept_out(
    original: Any, settler: Settler, offset: int, key_ms: int, payload: Payload, *rest: Any
) -> Output | None:
    """A requeued record with an id ends as one that finds another pending does."""
    output: Output | None = original(settler, offset, key_ms, payload, *rest)
    meta = payload[6]
    if output is None or output[0] != outcome.DELIVERED or meta is None or meta[0] is None:
        return output
    is_requeued = meta[1] is not None
    told = settler.undelivered.control(outcome.KEPT, offset, meta[0], meta[1])
    return told if is_requeued else output
