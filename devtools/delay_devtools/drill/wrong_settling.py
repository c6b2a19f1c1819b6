"""Scenes that inject wrong cancels, fires, requeued records, occurrences and checkpoints into the
history of a drill; ``scenes`` is their catalogue.

A scene writes records of producers, waits at ``yield`` until the service has handled them, and then
writes outputs of the service with one defect. It states the finding that the audit must report. A
control record has an outcome of its own, beside that of the record on which it acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from delay_devtools.drill.stage import GRACE_MS, SECOND_MS, SOON_MS, Scene, Stage
from delay_devtools.drill.wire import HOUR_MS, MINUTE_MS

# --- cancelled, fired, replaced ------------------------------------------------------------------


def cancel_ignored(s: Stage) -> Iterator[None]:
    """Cancel a record, write the outcome ``not_pending`` of the cancel, and deliver the record at
    its due time.
    """
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "not_pending")
    s.finds("wrong_outcome", record, s.delivers(record))


def cancelled_and_delivered(s: Stage) -> Iterator[None]:
    """Write both the outcome ``cancelled`` and a delivery of one record."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    outcome = s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.delivers(record)
    s.finds("duplicated", record, outcome)


def cancelled_without_outcome(s: Stage) -> Iterator[None]:
    """Write the outcome of a cancel, but leave out that of the cancelled record."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    s.finds("lost", record)


def cancel_without_outcome(s: Stage) -> Iterator[None]:
    """Write the outcome of a cancelled record, but leave out that of the cancel."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.finds("lost", cancel)


def cancel_tells_of_nothing(s: Stage) -> Iterator[None]:
    """Cancel a record and write its outcome ``cancelled``, but the outcome ``not_pending`` of the
    cancel.
    """
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, SOON_MS, cancel.offset))
    s.finds("wrong_outcome", cancel, s.answers(cancel, "not_pending"))


def cancelled_by_another(s: Stage) -> Iterator[None]:
    """Write a cancelled record's outcome with a wrong offset of the canceller."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("cancelled", record, SOON_MS, record.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


def fired_as_cancelled(s: Stage) -> Iterator[None]:
    """Deliver a fired record, and write the outcome ``cancelled`` of the fire."""
    record, fire = s.asks(is_named=True), s.controls("fire")
    yield
    s.says(s.does("fire", record, SOON_MS, fire.offset))
    s.finds("wrong_outcome", fire, s.answers(fire, "cancelled"))


def fired_by_a_cancel(s: Stage) -> Iterator[None]:
    """Deliver a record at once because of a cancel, as if the cancel were a fire."""
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
    """Deliver both a record and its replacement, which was written long before the record was
    due.
    """
    old = s.asks(10 * MINUTE_MS, is_named=True)
    new = s.asks(20 * MINUTE_MS, SECOND_MS, is_named=True)
    yield
    s.delivers(new)
    s.finds("wrong_outcome", old, s.delivers(old))


def replaced_by_a_cancel(s: Stage) -> Iterator[None]:
    """Cancel a record, and write its outcome as ``replaced``."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("replaced", record, SOON_MS, cancel.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


# --- requeued and recurring ----------------------------------------------------------------------


def _requeued(s: Stage, kind: str, changes: Mapping[str, object]) -> Iterator[None]:
    """Write a requeued record that differs from its record in ``changes`` (fields of ``Request``),
    and deliver the requeued record. The audit must report ``kind``.
    """
    record = s.asks(is_named=True, is_keyed=True, expires=HOUR_MS)
    yield
    copy, where = s.parks(record, changes)
    s.finds(kind, record, where)
    yield
    s.delivers_copy(copy)


def requeued_without_id(s: Stage) -> Iterator[None]:
    """Write a requeued record without the id of the original record."""
    return _requeued(s, "altered", {"record_id": None})


def requeued_without_expiry(s: Stage) -> Iterator[None]:
    """Write a requeued record without the expiry of the original record."""
    return _requeued(s, "altered", {"expires_ms": None})


def requeued_for_another_time(s: Stage) -> Iterator[None]:
    """Write a requeued record with another due time than the original record."""
    return _requeued(s, "altered", {"due_ms": s.start_ms + MINUTE_MS + 1})


def requeued_with_another_value(s: Stage) -> Iterator[None]:
    """Write a requeued record with another value than the original record."""
    return _requeued(s, "altered", {"value": b"another"})


def requeued_for_another_partition(s: Stage) -> Iterator[None]:
    """Write a requeued record with a target partition that the original record does not name."""
    return _requeued(s, "wrong_target", {"to": 0})


def requeued_before_its_record(s: Stage) -> Iterator[None]:
    """Write a requeued record whose ``base``, the first offset that can cancel it, is before the
    original record.
    """
    record = s.asks()
    yield
    copy, where = s.parks(record, base=record.offset - 1)
    s.finds("altered", record, where)
    yield
    s.delivers_copy(copy)


def requeued_twice(s: Stage) -> Iterator[None]:
    """Requeue one record twice, and deliver both requeued records."""
    record = s.asks()
    yield
    copies = [s.parks(record) for _ in range(2)]
    s.finds("duplicated", record, copies[1][1])
    yield
    for copy, _ in copies:
        s.delivers_copy(copy)


def copy_dropped(s: Stage) -> Iterator[None]:
    """Requeue a record, and leave out the delivery of the requeued record."""
    record = s.asks()
    yield
    copy, _ = s.parks(record)
    yield
    s.finds("lost", copy)


def recurrence_forked(s: Stage) -> Iterator[None]:
    """Write the second occurrence of a recurring schedule twice, and deliver both."""
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    occurrences = [s.occurs(record) for _ in range(2)]
    s.finds("duplicated", record, occurrences[1][1])
    yield
    for one, _ in occurrences:
        s.delivers(one)


def recurrence_shifted(s: Stage) -> Iterator[None]:
    """Write an occurrence of a recurring schedule whose due time does not match the period."""
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    one, where = s.occurs(record, after=1)
    s.finds("altered", record, where)
    yield
    s.delivers(one)


# --- forged, sent home, deleted ------------------------------------------------------------------


def forged_and_believed(s: Stage) -> Iterator[None]:
    """Deliver a record, and also a requeued record of it with a false signature."""
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
    """Deliver a record twice; retention deletes the record from the delay topic afterwards."""
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
    """Leave a record that was due hours ago without an outcome."""
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
