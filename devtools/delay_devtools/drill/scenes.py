"""Catalogue of scenes. The name of a scene is the kind of its defect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from delay_devtools.drill.stage import (
    GRACE_MS,
    LATE_MS,
    LONG_MS,
    SECOND_MS,
    SOON_MS,
    Scene,
    Stage,
)
from delay_devtools.drill.wire import DAY_MS, HOUR_MS, MINUTE_MS


def redelivered(s: Stage) -> Iterator[None]:
    """Deliver a record twice, as after a crash under ``at_least_once``."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    s.says(replace(right, at_ms=right.at_ms + GRACE_MS))


def forwarded(s: Stage) -> Iterator[None]:
    """Copy a delivery with its headers to another topic, as a consumer may."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    other = s.names.targets[right.place[0] == s.names.targets[0]]
    s.says(replace(right, place=(other, 0), value=b"enriched", at_ms=right.at_ms + HOUR_MS))


def requeued(s: Stage) -> Iterator[None]:
    record = s.asks(is_named=True, expires=HOUR_MS)
    yield
    copy, _ = s.parks(record)
    yield
    s.delivers_copy(copy)


def signed_before(s: Stage) -> Iterator[None]:
    """Deliver a requeued record that was signed with a former cluster secret."""
    record = s.asks()
    yield
    copy, _ = s.parks(record, secret=b"the one before")
    yield
    s.delivers_copy(copy)


def recurring(s: Stage) -> Iterator[None]:
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    one, _ = s.occurs(record)
    yield
    s.delivers(one)


def forged_and_refused(s: Stage) -> Iterator[None]:
    record = s.asks()
    forged = s.forges(record)
    yield
    s.delivers(record)
    letter = s.does("letter", record, 2 * SECOND_MS, text="copy-forged")
    source = f"{s.shard.name}:{forged.offset}".encode()
    told = [*letter.told[:2], ("delay-source", source)]
    told.append(("delay-settles", b"%d" % forged.offset))
    s.says(replace(letter, own=s.headers_of(forged), told=told))


def letter_of_its_contract(s: Stage) -> Iterator[None]:
    """Dead-letter a record for a delay that its contract forbids and the next contract allows."""
    record = s.asks(LONG_MS, code="delay-too-long")
    yield
    s.says(s.does("letter", record, SOON_MS, text="delay-too-long"))


def left_out(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    letter = s.does("letter", record, text="too-large")
    why = b"its key, value and headers (105 bytes) are left out, for they were refused"
    told = [letter.told[0], ("delay-error-detail", why), *letter.told[2:]]
    s.says(replace(letter, key=None, value=None, own=[], told=told))


def expired_when_fired(s: Stage) -> Iterator[None]:
    record = s.asks(is_named=True, expires=2 * SECOND_MS)
    fire = s.controls("fire", 10 * SECOND_MS)
    yield
    s.says(s.does("expire", record, 10 * SECOND_MS + 50))
    s.answers(fire, "fired", 10 * SECOND_MS + 50)


# The audit must report nothing about these, which only look like defects.
_SOUND: Final[tuple[Scene, ...]] = (
    *(redelivered, forwarded, requeued, signed_before, recurring, forged_and_refused, left_out),
    *(expired_when_fired, letter_of_its_contract),
)


# --- deliveries ----------------------------------------------------------------------------------


def dropped(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    s.finds("lost", record)


def duplicated(s: Stage) -> Iterator[None]:
    """Deliver a record twice, with more time between than the audit accepts under
    ``at_least_once``.
    """
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    again_ms = right.at_ms + GRACE_MS + s.rng.randint(1, GRACE_MS)
    s.finds("duplicated", record, s.says(replace(right, at_ms=again_ms)))


def early(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    at_ms = record.request.due_ms - s.rng.randint(1, 5_000)
    s.finds("early", record, s.says(replace(s.does("deliver", record), at_ms=at_ms)))


def late(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    at_ms = record.request.due_ms + LATE_MS + s.rng.randint(1, LATE_MS)
    s.finds("late", record, s.says(replace(s.does("deliver", record), at_ms=at_ms)))


def _altered(s: Stage, **changes: object) -> Iterator[None]:
    record = s.asks(is_keyed=False)
    yield
    right = s.does("deliver", record)
    wrong = replace(right, **changes)  # type: ignore[arg-type]  # fields of it
    s.finds("altered", record, s.says(wrong))


def altered_value(s: Stage) -> Iterator[None]:
    return _altered(s, value=b"another")


def altered_key(s: Stage) -> Iterator[None]:
    """Deliver a record that has no key with a key, in the correct partition, which it names."""
    record = s.asks(is_keyed=False, to=0)
    yield
    wrong = replace(s.does("deliver", record), key=b"another")
    s.finds("altered", record, s.says(wrong))


def altered_headers(s: Stage) -> Iterator[None]:
    """Deliver a record without one of its headers, or with its headers in reverse order."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    own = s.rng.choice((right.own[1:], right.own[::-1]))
    s.finds("altered", record, s.says(replace(right, own=own)))


def altered_due_time(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    right = s.does("deliver", record)
    told = [("delay-due-at", b"%d" % (record.request.due_ms - 1)), *right.told[1:]]
    s.finds("altered", record, s.says(replace(right, told=told)))


def altered_source(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    right = s.does("deliver", record)
    source = f"{s.shard.name}:{record.offset - 1}".encode()
    told = [right.told[0], ("delay-source", source), *right.told[2:]]
    s.finds("altered", record, s.says(replace(right, told=told)))


def wrong_target(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    right = s.does("deliver", record)
    other = s.names.targets[right.place[0] == s.names.targets[0]]
    wrong = replace(right, place=(other, right.place[1]))
    s.finds("wrong_target", record, s.says(wrong))


def wrong_partition(s: Stage) -> Iterator[None]:
    is_keyed = s.rng.random() < 0.5  # noqa: PLR2004  # either
    record = s.asks(is_keyed=is_keyed) if is_keyed else s.asks(is_keyed=False, to=0)
    yield
    right = s.does("deliver", record)
    topic, partition = right.place
    wrong = replace(right, place=(topic, (partition + 1) % s.names.partitions))
    s.finds("wrong_target", record, s.says(wrong))


def extra_output(s: Stage) -> Iterator[None]:
    # An offset without a committed record: that of an aborted record, or of a transaction's marker.
    record = s.asks()
    yield
    s.delivers(record)
    other = replace(record, offset=s.hole())
    s.finds("unknown_source", other, s.says(s.does("deliver", other)))


def poisoned(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    s.delivers(record)
    bad = s.rng.choice((b"9" * 30, "٣".encode(), b"-7"))  # the second is an Arabic digit
    right = s.does("deliver", record)
    told = [*right.told[:2], ("delay-settles", bad)]
    where = s.says(replace(right, told=told))
    s.finds_by_itself("malformed", where)


# --- expiry, dead letters ------------------------------------------------------------------------


def expired_without_expiry(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    s.finds("wrong_outcome", record, s.says(s.does("expire", record)))


def expired_too_early(s: Stage) -> Iterator[None]:
    record = s.asks(expires=HOUR_MS)
    yield
    s.finds("wrong_outcome", record, s.says(s.does("expire", record)))


def delivered_after_expiry(s: Stage) -> Iterator[None]:
    record = s.asks(expires=MINUTE_MS + SECOND_MS)
    yield
    wrong = s.does("deliver", record, MINUTE_MS + 5 * SECOND_MS)
    s.finds("wrong_outcome", record, s.says(wrong))


def letter_of_another_code(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    s.finds("wrong_outcome", record, s.says(s.does("letter", record, text="time-missing")))


def letter_without_code(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    right = s.does("letter", record, text="target-unknown")
    wrong = replace(right, told=right.told[2:])
    s.finds("dead_letter_missing_code", record, s.says(wrong))


def letter_without_content(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    right = s.does("letter", record, text="target-unknown")
    wrong = replace(right, key=None, value=None, own=[])
    s.finds("altered", record, s.says(wrong))


def letter_without_id(s: Stage) -> Iterator[None]:
    """Write a dead letter without the record's id, so that it can't be replayed unchanged."""
    record = s.asks(is_named=True)
    yield
    right = s.does("letter", record, text="target-unknown")
    own = [header for header in right.own if header[0] != "delay-id"]
    s.finds("altered", record, s.says(replace(right, own=own)))


def delivered_and_lettered(s: Stage) -> Iterator[None]:
    record = s.asks()
    yield
    s.delivers(record)
    letter = s.does("letter", record, text="target-unknown")
    s.finds("duplicated", record, s.says(replace(letter, at_ms=letter.at_ms + 2 * GRACE_MS)))


def broken_delivered(s: Stage) -> Iterator[None]:
    record = s.breaks()
    yield
    record.request.due_ms = s.start_ms
    s.finds("wrong_outcome", record, s.delivers(record))


def broken_of_another_code(s: Stage) -> Iterator[None]:
    record = s.breaks()
    yield
    wrong = s.does("letter", record, SOON_MS, text="target-unknown")
    s.finds("wrong_outcome", record, s.says(wrong))


def broken_and_altered(s: Stage) -> Iterator[None]:
    record = s.breaks()
    yield
    right = s.does("letter", record, SOON_MS, text=record.request.code)
    s.finds("altered", record, s.says(replace(right, own=right.own[1:])))


def letter_of_the_former_contract(s: Stage) -> Iterator[None]:
    """Dead-letter a record for a delay that only the contract before its own forbids."""
    record = s.asks(LONG_MS)
    yield
    wrong = s.does("letter", record, DAY_MS + 50, text="delay-too-long")
    s.finds("wrong_outcome", record, s.says(wrong))


_WRONG_OUTPUTS: Final[tuple[Scene, ...]] = (
    *(dropped, duplicated, early, late, altered_value, altered_key, altered_headers),
    *(altered_due_time, altered_source, wrong_target, wrong_partition, extra_output, poisoned),
    *(expired_without_expiry, expired_too_early, delivered_after_expiry, letter_of_another_code),
    *(letter_without_code, letter_without_content, letter_without_id, delivered_and_lettered),
    *(broken_delivered, broken_of_another_code, broken_and_altered, letter_of_the_former_contract),
)


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


# A control record has an outcome of its own, beside that of the record on which it acts.
_WRONG_SETTLING: Final[tuple[Scene, ...]] = (
    *(cancel_ignored, cancelled_and_delivered, cancelled_without_outcome, cancel_without_outcome),
    *(cancel_tells_of_nothing, cancelled_by_another, fired_as_cancelled, fired_by_a_cancel),
    *(fired_too_late_to_expire, both_versions_delivered, replaced_by_a_cancel, requeued_without_id),
    *(requeued_without_expiry, requeued_for_another_time, requeued_with_another_value),
    *(requeued_for_another_partition, requeued_before_its_record, requeued_twice, copy_dropped),
    *(recurrence_forked, recurrence_shifted, forged_and_believed, sent_home_from_home),
    *(duplicate_of_what_is_gone, unaccounted, stuck),
)


# Scenes that write a defect into topics, by kind of defect. A seed selects kinds by this order, so
# a change of it changes every history.
DEFECTS: Final[Mapping[str, Scene]] = {
    scene.__name__: scene for scene in (*_WRONG_OUTPUTS, *_WRONG_SETTLING)
}

SOUND: Final[Mapping[str, Scene]] = {scene.__name__: scene for scene in _SOUND}

# Names of the scenes that begin at the start of the history in the first shard, whose first records
# are deleted as by retention.
FIRST: Final = frozenset({"duplicate_of_what_is_gone"})

# Number, from 0, of the step of the history after which the second contract applies.
TURN: Final = 12

# Numbers of the steps of the history in which a scene that depends on the contract may begin, by
# name of the scene.
STEPS_OF: Final[Mapping[str, range]] = {
    "letter_of_its_contract": range(1, TURN),
    "letter_of_the_former_contract": range(TURN + 1, TURN + 8),
}

# Names of the scenes at the end of the history, whose records have offsets from H on.
LAST: Final = frozenset({"unaccounted", "stuck"})
