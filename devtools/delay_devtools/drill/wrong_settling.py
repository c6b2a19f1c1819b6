"""Scenes with wrong cancels, fires, requeued records, occurrences and checkpoints.

A control record has an outcome of its own, beside that of the record on which it acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from delay_devtools.drill.stage import GRACE_MS, SECOND_MS, SOON_MS, Scene, Stage
from delay_devtools.drill.wire import HOUR_MS, MINUTE_MS

# --- cancelled, fired, replaced ------------------------------------------------------------------


def cancel_ignored(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "not_pending")
    s.finds("wrong_outcome", record, s.delivers(record))


def cancelled_and_delivered(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    outcome = s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.delivers(record)
    s.finds("duplicated", record, outcome)


def cancelled_without_outcome(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    s.finds("lost", record)


def cancel_without_outcome(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.finds("lost", cancel)


def cancel_tells_of_nothing(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.finds("wrong_outcome", cancel, s.answers(cancel, "not_pending"))


def cancelled_by_another(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("cancelled", record, SOON_MS, record.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


def fired_as_cancelled(s: Stage) -> Iterator[None]:
    record, fire = s.asks(is_named=True), s.controls("fire")
    yield
    s.says(s.does("fire", record, SOON_MS, fire.offset))
    s.finds("wrong_outcome", fire, s.answers(fire, "cancelled"))


def fired_by_a_cancel(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "not_pending")
    wrong = s.does("fire", record, SOON_MS, cancel.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


def fired_too_late_to_expire(s: Stage) -> Iterator[None]:
    """Deliver a fired record after its expiry and before its due time."""
    record = s.asks(HOUR_MS, is_named=True, expires=2 * SECOND_MS)
    fire = s.controls("fire", 10 * SECOND_MS)
    yield
    wrong = s.does("fire", record, 10 * SECOND_MS + 50, fire.offset)
    s.answers(fire, "fired", 10 * SECOND_MS + 50)
    s.finds("wrong_outcome", record, s.says(wrong))


def both_versions_delivered(s: Stage) -> Iterator[None]:
    # The replacement was written long before the record was due.
    old = s.asks(10 * MINUTE_MS, is_named=True)
    new = s.asks(20 * MINUTE_MS, SECOND_MS, is_named=True)
    yield
    s.delivers(new)
    s.finds("wrong_outcome", old, s.delivers(old))


def replaced_by_a_cancel(s: Stage) -> Iterator[None]:
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("replaced", record, SOON_MS, cancel.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


# --- requeued and recurring ----------------------------------------------------------------------


def _requeued(s: Stage, kind: str, changes: Mapping[str, object]) -> Iterator[None]:
    record = s.asks(is_named=True, is_keyed=True, expires=HOUR_MS)
    yield
    copy, where = s.parks(record, changes)
    s.finds(kind, record, where)
    yield
    s.delivers_copy(copy)


def requeued_without_id(s: Stage) -> Iterator[None]:
    return _requeued(s, "altered", {"record_id": None})


def requeued_without_expiry(s: Stage) -> Iterator[None]:
    return _requeued(s, "altered", {"expires_ms": None})


def requeued_for_another_time(s: Stage) -> Iterator[None]:
    return _requeued(s, "altered", {"due_ms": s.start_ms + MINUTE_MS + 1})


def requeued_with_another_value(s: Stage) -> Iterator[None]:
    return _requeued(s, "altered", {"value": b"another"})


def requeued_for_another_partition(s: Stage) -> Iterator[None]:
    return _requeued(s, "wrong_target", {"to": 0})


def requeued_before_its_record(s: Stage) -> Iterator[None]:
    # base is the first offset that can cancel the requeued record.
    record = s.asks()
    yield
    copy, where = s.parks(record, base=record.offset - 1)
    s.finds("altered", record, where)
    yield
    s.delivers_copy(copy)


def requeued_twice(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    copies = [s.parks(record) for _ in range(2)]
    s.finds("duplicated", record, copies[1][1])
    yield
    for copy, _ in copies:
        s.delivers_copy(copy)


def copy_dropped(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    copy, _ = s.parks(record)
    yield
    s.finds("lost", copy)


def recurrence_forked(s: Stage) -> Iterator[None]:
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    occurrences = [s.occurs(record) for _ in range(2)]
    s.finds("duplicated", record, occurrences[1][1])
    yield
    for one, _ in occurrences:
        s.delivers(one)


def recurrence_shifted(s: Stage) -> Iterator[None]:
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    one, where = s.occurs(record, after=1)
    s.finds("altered", record, where)
    yield
    s.delivers(one)


# --- forged, sent home, deleted ------------------------------------------------------------------


def forged_and_believed(s: Stage) -> Iterator[None]:
    record = s.asks()
    copy = s.forges(record)
    yield
    s.delivers(record)
    s.finds("duplicated", record, (*s.shard.place, copy.offset))
    s.delivers_copy(copy)


def sent_home_from_home(s: Stage) -> Iterator[None]:
    """Write the envelope of a record to another partition, although the record was written to the
    home of its id.
    """
    record = s.asks(is_named=True)
    yield
    there, where = s.sends_home(record)
    s.finds("wrong_outcome", record, where)
    yield
    s.says(s.arrived(there))


def duplicate_of_what_is_gone(s: Stage) -> Iterator[None]:
    record = s.asks(3 * HOUR_MS)
    yield
    right = s.does("deliver", record)
    s.says(right)
    again = replace(right, at_ms=right.at_ms + 2 * GRACE_MS)
    s.finds("duplicated", record, s.says(again))


# --- the checkpoint ------------------------------------------------------------------------------


def unaccounted(s: Stage) -> Iterator[None]:
    """Deliver a record whose offset and key are beyond those that the last checkpoint covers."""
    record = s.asks(s.ahead_ms - s.start_ms)
    yield
    s.finds("not_checkpointed", record, s.delivers(record))


def stuck(s: Stage) -> Iterator[None]:
    record = s.asks(s.stale_ms - s.start_ms, s.stale_ms - s.start_ms - MINUTE_MS)
    yield
    s.finds("overdue", record)


SCENES: Final[tuple[Scene, ...]] = (
    *(cancel_ignored, cancelled_and_delivered, cancelled_without_outcome, cancel_without_outcome),
    *(cancel_tells_of_nothing, cancelled_by_another, fired_as_cancelled, fired_by_a_cancel),
    *(fired_too_late_to_expire, both_versions_delivered, replaced_by_a_cancel, requeued_without_id),
    *(requeued_without_expiry, requeued_for_another_time, requeued_with_another_value),
    *(requeued_for_another_partition, requeued_before_its_record, requeued_twice, copy_dropped),
    *(recurrence_forked, recurrence_shifted, forged_and_believed, sent_home_from_home),
    *(duplicate_of_what_is_gone, unaccounted, stuck),
)
