"""Mistakes with ids that find home. Each is found by the kind of schedule that stands beside it.

One is not here: forwarding again at home shows only where two partitions have different counts,
which contracts never have; ``tests/unit/test_home.py`` has such contracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from connectors.kafka.sink import KafkaSink
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import COPY, HOMEBOUND, SCHEDULE, Entry
from delayservice.contract.home import waiting_group
from delayservice.contract.record import RecordReader, UserRecords
from delayservice.engine import outcome, to_home
from delayservice.engine.cancels import OffsetAdvance
from delayservice.engine.outcome import Output
from delayservice.engine.ports import Place
from delayservice.engine.to_home import ToHome
from delayservice.slices import ownership
from tests.simulation.mutating import Mutation, mistake, rewritten, together
from tests.simulation.plan import (
    HOMES,
    HOMES_ADDED,
    HOMES_AWAY,
    HOMES_LARGE,
    HOMES_LATE,
)

# --- a record goes home that is not to ---------------------------------------------------------


@mistake(RecordReader, "_read_copy")
def forward_requeued(original: Any, reader: RecordReader, offset: int, record: Any) -> Entry:
    """A copy of what was pending before goes home."""
    entry: Entry = original(reader, offset, record)
    _, _, at_ms, identity, payload, _ = entry
    is_here = payload[0] != reader._topic
    if identity is None or not is_here or reader._home(identity) == reader._partition:
        return entry
    return (offset, HOMEBOUND, 0, identity, record, (SCHEDULE, at_ms, reader._home(identity)))


def control_goes_home_anyway() -> AbstractContextManager[Any]:
    """A cancel or fire goes home although it has done its work."""
    return rewritten(OffsetAdvance, "_send_home", "bool(here) and kind != SCHEDULE", "False")


# --- it goes home in another way ---------------------------------------------------------------


def forward_before_acting() -> AbstractContextManager[Any]:
    """What is pending where a record lies is not settled by it."""
    return rewritten(OffsetAdvance, "_send_home", "here.append(victim)", "pass")


@mistake(KafkaSink, "send")
def forward_outside_transaction(
    original: Any, sink: KafkaSink, place: Place, outputs: Sequence[Output]
) -> None:
    """Envelopes are sent at once, whatever becomes of the transaction."""
    sent = [output for output in outputs if output[0] == outcome.FORWARDED]
    if sent:
        direct = sink._make(sink._options.idempotent())
        sink._produce(direct, place, sent)
        sink._flush(direct)
    original(sink, place, [output for output in outputs if output[0] != outcome.FORWARDED])


def delay_from_copy() -> AbstractContextManager[Any]:
    """A delay counts from the time at which the record came home."""
    right = "timestamp_ms, sent.written_ms, sent.source"
    wrong = "timestamp_ms, timestamp_ms, sent.source"
    return rewritten(RecordReader, "read_arrived", right, wrong)


@mistake(RecordReader, "read_batch")
def key_by_due_time(original: Any, reader: RecordReader, rows: Any) -> list[Entry]:
    """A schedule stays where it lies until it is due."""
    entries: list[Entry] = original(reader, rows)
    return [
        _as_if_at_home(reader, entry, row)
        if entry[1] == HOMEBOUND and entry[5][0] == SCHEDULE
        else entry
        for entry, row in zip(entries, rows, strict=True)
    ]


def _as_if_at_home(reader: RecordReader, entry: Entry, row: Any) -> Entry:
    with patch.object(reader, "_home", lambda _: reader._partition):
        return reader._read_any((entry[0], *row[1:]))


def home_by_current_count() -> AbstractContextManager[Any]:
    """The number of homes follows the settings of whoever takes over."""
    right = "self.id_partitions or contract.id_partitions"
    return rewritten(Contracts, "extended", right, "contract.id_partitions")


def home_is_counted_by_every_shard() -> AbstractContextManager[Any]:
    """A shard that is served first counts the partitions itself."""
    right = "0 if lane.partition else state.edges.partitions_of"
    return rewritten(ownership, "_with_homes", right, "state.edges.partitions_of")


def home_counts_as_late() -> AbstractContextManager[Any]:
    """What has come home is settled when H gets there."""
    right = "kind <= COPY and (key_ms, offset) <= k"
    came_home = "(kind == SCHEDULE and self._settler.provenance.elsewhere(payload[6]))"
    return rewritten(
        OffsetAdvance, "take", right, f"kind <= COPY and ((key_ms, offset) <= k or {came_home})"
    )


@mistake(UserRecords, "read")
def home_keeps_first_base(original: Any, records: UserRecords, origin: Any, record: Any) -> Entry:
    """What settles a record at home is looked for behind the offset that it had elsewhere."""
    entry: Entry = original(records, origin, record)
    if origin.source is None or entry[1] != SCHEDULE:
        return entry
    base = int(origin.source.rpartition(b":")[2]) + 1
    return (*entry[:1], COPY, *entry[2:5], min(base, entry[0]))


def home_read_by_its_contract() -> AbstractContextManager[Any]:
    """Where ids have no home yet, an envelope is none."""
    right = "if sent is None:"
    wrong = "if sent is None or not self._id_partitions:"
    return rewritten(RecordReader, "_come_home", right, wrong)


@mistake(ToHome, "go_on")
def expires_on_the_way(original: Any, own: ToHome, one: Any, now_ms: int, base: int) -> Any:
    """What waits for its home expires there."""
    said = dict(waiting_group(one.payload)[-1].original[2])
    expires = said.get("delay-expires-at")
    if expires is not None and int(expires) < now_ms:
        told = own._settler.undelivered.outcome(outcome.EXPIRED, one.offset, None, None, 0, None)
        return None if told is None else [told]
    return original(own, one, now_ms, base)


def control_too_large() -> AbstractContextManager[Any]:
    """A cancel or fire goes home with its value and its own headers."""
    return rewritten(to_home, "homebound", "kind not in (SCHEDULE, ABSENT)", "False")


# --- its home can't be written to --------------------------------------------------------------

_WAIT = "return [self._settler.requeuer.requeue(outcome.PARKED, offset, again, at_ms, base)]"


def away_drops() -> AbstractContextManager[Any]:
    """What can't go home is gone."""
    return rewritten(ToHome, "_send", _WAIT, "return []")


def away_blocks() -> AbstractContextManager[Any]:
    """What can't go home holds up what comes after it."""
    return rewritten(ToHome, "_send", _WAIT, "return None")


def away_dead_letters() -> AbstractContextManager[Any]:
    """What can't go home is dead-lettered."""
    return rewritten(
        ToHome, "_send", _WAIT, "return self.refused(WaitingForHome(offset, again), *obstacle)"
    )


def waiting_is_not_found() -> AbstractContextManager[Any]:
    """What waits is not taken along."""
    right = "waiting.append(WaitingForHome(victim[1], payload))"
    return rewritten(OffsetAdvance, "_send_home", right, "pass")


def waiting_copy_is_hit_late() -> AbstractContextManager[Any]:
    """What waits is not found by the record right behind it."""
    right = "self._send(target, group, settles, waiting, offset, now_ms, offset + 1)"
    sent = "sent, record_id, offset + "
    return together(
        rewritten(ToHome, "leave", right, right.replace("+ 1", "+ 2")),
        rewritten(OffsetAdvance, "_send_home", f"{sent}1", f"{sent}2"),
    )


def waiting_is_settled() -> AbstractContextManager[Any]:
    """What waits is settled where it does, as anything pending: the design's text, literally."""
    return rewritten(OffsetAdvance, "_send_home", "self._to_home.is_waiting(payload)", "False")


def carried_is_lost() -> AbstractContextManager[Any]:
    """What waited before a record does not go with it."""
    right = "self._to_home.leave(entry, record_id, carried,"
    return rewritten(
        OffsetAdvance, "_send_home", right, "self._to_home.leave(entry, record_id, (),"
    )


def carried_comes_last() -> AbstractContextManager[Any]:
    """What waited before a record goes home after it."""
    return rewritten(
        ToHome,
        "leave",
        "self._send(target, group, settles, waiting",
        "self._send(target, group[::-1], settles[::-1], waiting",
    )


def refused_takes_along() -> AbstractContextManager[Any]:
    """What waits ends with a record that is too large to go home."""
    right = "[self._to_home.go_on(one, now_ms, offset + 1) for one in waiting]"
    return rewritten(OffsetAdvance, "_send_home", right, "[]")


WITH_HOMES: dict[Mutation, dict[str, Any]] = {
    forward_requeued: HOMES_LATE,
    control_goes_home_anyway: HOMES_LATE,
    forward_before_acting: HOMES_LATE,
    forward_outside_transaction: HOMES,
    delay_from_copy: HOMES,
    key_by_due_time: HOMES,
    home_by_current_count: HOMES_ADDED,
    # Needs a shard that is first served after partitions were added, by a node that has not read
    # how many partition 0 counted.
    home_is_counted_by_every_shard: HOMES_ADDED
    | {"moves": 0.4, "actions": 60, "nodes": 3, "late": 0.8, "helper": 0.3},
    home_counts_as_late: HOMES,
    home_keeps_first_base: HOMES,
    home_read_by_its_contract: HOMES_LATE,
    expires_on_the_way: HOMES_AWAY,
    control_too_large: HOMES,
    away_drops: HOMES_AWAY,
    away_blocks: HOMES_AWAY | {"load": True, "rate_per_s": 0.0},
    away_dead_letters: HOMES_AWAY,
    waiting_is_not_found: HOMES_AWAY,
    waiting_copy_is_hit_late: HOMES_AWAY,
    waiting_is_settled: HOMES_AWAY,
    carried_is_lost: HOMES_AWAY,
    carried_comes_last: HOMES_AWAY,
    refused_takes_along: HOMES_LARGE,
}
"""Each mistake, and the kind of schedule that finds it."""
