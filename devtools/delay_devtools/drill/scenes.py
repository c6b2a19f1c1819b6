"""Scenes of a delay service: what it must not do, each with the findings that it must lead to, and
what only looks like that.

The one definition of the defects of topics, for the drill and for tests. A scene's name is the kind
of defect. ``yield`` is the time in which the service passes what was written before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from delay_devtools.drill.stage import GRACE_MS, LATE_MS, MINUTE_MS, SECOND_MS, Scene, Stage
from delay_devtools.drill.wire import DAY_MS, HOUR_MS, MAX_DELAY_MS

LONG_MS: Final = MAX_DELAY_MS + HOUR_MS
"""A delay that the first contract does not allow, and the second one does."""
_SOON_MS: Final = SECOND_MS + 50

# --- deliveries ----------------------------------------------------------------------------------


def dropped(s: Stage) -> Iterator[None]:
    """A delivery is left out."""
    record = s.asks()
    yield
    s.finds("lost", record)


def duplicated(s: Stage) -> Iterator[None]:
    """It is written again, after longer than a crash explains."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    again_ms = right.at_ms + GRACE_MS + s.rng.randint(1, GRACE_MS)
    s.finds("duplicated", record, s.says(replace(right, at_ms=again_ms)))


def early(s: Stage) -> Iterator[None]:
    """Its timestamp is before the due time."""
    record = s.asks()
    yield
    at_ms = record.request.due_ms - s.rng.randint(1, 5_000)
    s.finds("early", record, s.says(replace(s.does("deliver", record), at_ms=at_ms)))


def late(s: Stage) -> Iterator[None]:
    """Its timestamp is more than a minute after the due time."""
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
    """Another value."""
    return _altered(s, value=b"another")


def altered_key(s: Stage) -> Iterator[None]:
    """A key that it did not have, in a partition that is right for it."""
    record = s.asks(is_keyed=False, to=0)
    yield
    wrong = replace(s.does("deliver", record), key=b"another")
    s.finds("altered", record, s.says(wrong))


def altered_headers(s: Stage) -> Iterator[None]:
    """A header less, or headers turned round."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    own = s.rng.choice((right.own[1:], right.own[::-1]))
    s.finds("altered", record, s.says(replace(right, own=own)))


def altered_due_time(s: Stage) -> Iterator[None]:
    """It says that it was due at another time."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    told = [("delay-due-at", b"%d" % (record.request.due_ms - 1)), *right.told[1:]]
    s.finds("altered", record, s.says(replace(right, told=told)))


def altered_source(s: Stage) -> Iterator[None]:
    """It says that it was written at another offset."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    source = f"{s.shard.name}:{record.offset - 1}".encode()
    told = [right.told[0], ("delay-source", source), *right.told[2:]]
    s.finds("altered", record, s.says(replace(right, told=told)))


def wrong_target(s: Stage) -> Iterator[None]:
    """In the other target."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    other = s.names.targets[right.place[0] == s.names.targets[0]]
    wrong = replace(right, place=(other, right.place[1]))
    s.finds("wrong_target", record, s.says(wrong))


def wrong_partition(s: Stage) -> Iterator[None]:
    """In another partition than its key's, or than the one that it names."""
    is_keyed = s.rng.random() < 0.5  # noqa: PLR2004  # either
    record = s.asks(is_keyed=is_keyed) if is_keyed else s.asks(is_keyed=False, to=0)
    yield
    right = s.does("deliver", record)
    topic, partition = right.place
    wrong = replace(right, place=(topic, (partition + 1) % s.names.partitions))
    s.finds("wrong_target", record, s.says(wrong))


def extra_output(s: Stage) -> Iterator[None]:
    """Beside the delivery, one of an aborted record, or of a transaction's marker."""
    record = s.asks()
    yield
    s.delivers(record)
    other = replace(record, offset=s.hole())
    s.finds("unknown_source", other, s.says(s.does("deliver", other)))


def poisoned(s: Stage) -> Iterator[None]:
    """Beside the delivery, one whose headers can't be read."""
    record = s.asks()
    yield
    s.delivers(record)
    bad = s.rng.choice((b"9" * 30, "٣".encode(), b"-7"))  # the second is no digit of ours
    right = s.does("deliver", record)
    told = [*right.told[:2], ("delay-settles", bad)]
    where = s.says(replace(right, told=told))
    s.finds_by_itself("malformed", where)


# --- expiry, dead letters ------------------------------------------------------------------------


def expired_without_expiry(s: Stage) -> Iterator[None]:
    """The outcome ``expired`` of a record that does not expire."""
    record = s.asks()
    yield
    s.finds("wrong_outcome", record, s.says(s.does("expire", record)))


def expired_too_early(s: Stage) -> Iterator[None]:
    """The outcome ``expired`` before that time."""
    record = s.asks(expires=HOUR_MS)
    yield
    s.finds("wrong_outcome", record, s.says(s.does("expire", record)))


def delivered_after_expiry(s: Stage) -> Iterator[None]:
    """Delivered seconds after its expiry."""
    record = s.asks(expires=MINUTE_MS + SECOND_MS)
    yield
    wrong = s.does("deliver", record, MINUTE_MS + 5 * SECOND_MS)
    s.finds("wrong_outcome", record, s.says(wrong))


def letter_of_another_code(s: Stage) -> Iterator[None]:
    """A sound record is dead-lettered for what it is not."""
    record = s.asks()
    yield
    s.finds("wrong_outcome", record, s.says(s.does("letter", record, text="time-missing")))


def letter_without_code(s: Stage) -> Iterator[None]:
    """A dead letter that doesn't say why."""
    record = s.asks()
    yield
    right = s.does("letter", record, text="target-unknown")
    wrong = replace(right, told=right.told[2:])
    s.finds("dead_letter_missing_code", record, s.says(wrong))


def letter_without_content(s: Stage) -> Iterator[None]:
    """A dead letter without key, value and headers that does not say so."""
    record = s.asks()
    yield
    right = s.does("letter", record, text="target-unknown")
    wrong = replace(right, key=None, value=None, own=[])
    s.finds("altered", record, s.says(wrong))


def letter_without_id(s: Stage) -> Iterator[None]:
    """A dead letter that can't be sent again as it was, for its id is lost."""
    record = s.asks(is_named=True)
    yield
    right = s.does("letter", record, text="target-unknown")
    own = [header for header in right.own if header[0] != "delay-id"]
    s.finds("altered", record, s.says(replace(right, own=own)))


def delivered_and_lettered(s: Stage) -> Iterator[None]:
    """Delivered, and dead-lettered after that."""
    record = s.asks()
    yield
    s.delivers(record)
    letter = s.does("letter", record, text="target-unknown")
    s.finds("duplicated", record, s.says(replace(letter, at_ms=letter.at_ms + 2 * GRACE_MS)))


def broken_delivered(s: Stage) -> Iterator[None]:
    """Delivered although it breaks the contract."""
    record = s.breaks()
    yield
    record.request.due_ms = s.start_ms
    s.finds("wrong_outcome", record, s.delivers(record))


def broken_of_another_code(s: Stage) -> Iterator[None]:
    """Dead-lettered for something else than what it breaks."""
    record = s.breaks()
    yield
    wrong = s.does("letter", record, _SOON_MS, text="target-unknown")
    s.finds("wrong_outcome", record, s.says(wrong))


def broken_and_altered(s: Stage) -> Iterator[None]:
    """Its dead letter lacks one of its headers."""
    record = s.breaks()
    yield
    right = s.does("letter", record, _SOON_MS, text=record.request.code)
    s.finds("altered", record, s.says(replace(right, own=right.own[1:])))


def letter_of_the_former_contract(s: Stage) -> Iterator[None]:
    """Dead-lettered for what its contract allows, and the one before did not."""
    record = s.asks(LONG_MS)
    yield
    wrong = s.does("letter", record, DAY_MS + 50, text="delay-too-long")
    s.finds("wrong_outcome", record, s.says(wrong))


# --- cancelled, fired, replaced ------------------------------------------------------------------


def cancel_ignored(s: Stage) -> Iterator[None]:
    """Delivered in its own time, long after the cancel found nothing."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "not_pending")
    s.finds("wrong_outcome", record, s.delivers(record))


def cancelled_and_delivered(s: Stage) -> Iterator[None]:
    """Both the outcome and a delivery."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    outcome = s.says(s.does("cancelled", record, _SOON_MS, cancel.offset))
    s.delivers(record)
    s.finds("duplicated", record, outcome)


def cancelled_without_outcome(s: Stage) -> Iterator[None]:
    """The cancel says that it cancelled the record, which has no outcome."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    s.finds("lost", record)


def cancel_without_outcome(s: Stage) -> Iterator[None]:
    """A cancel has no outcome of its own."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, _SOON_MS, cancel.offset))
    s.finds("lost", cancel)


def cancel_tells_of_nothing(s: Stage) -> Iterator[None]:
    """It says that nothing was pending, and cancelled a record."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.says(s.does("cancelled", record, _SOON_MS, cancel.offset))
    s.finds("wrong_outcome", cancel, s.answers(cancel, "not_pending"))


def cancelled_by_another(s: Stage) -> Iterator[None]:
    """A cancelled record names an offset that is not its canceller."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("cancelled", record, _SOON_MS, record.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


def fired_as_cancelled(s: Stage) -> Iterator[None]:
    """A fire delivers its record and says that it cancelled it."""
    record, fire = s.asks(is_named=True), s.controls("fire")
    yield
    s.says(s.does("fire", record, _SOON_MS, fire.offset))
    s.finds("wrong_outcome", fire, s.answers(fire, "cancelled"))


def fired_by_a_cancel(s: Stage) -> Iterator[None]:
    """A cancel has its record delivered at once."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "not_pending")
    wrong = s.does("fire", record, _SOON_MS, cancel.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


def fired_too_late_to_expire(s: Stage) -> Iterator[None]:
    """Fired before it is due, and after its expiry."""
    record = s.asks(HOUR_MS, is_named=True, expires=2 * SECOND_MS)
    fire = s.controls("fire", 10 * SECOND_MS)
    yield
    wrong = s.does("fire", record, 10 * SECOND_MS + 50, fire.offset)
    s.answers(fire, "fired", 10 * SECOND_MS + 50)
    s.finds("wrong_outcome", record, s.says(wrong))


def both_versions_delivered(s: Stage) -> Iterator[None]:
    """A record and the one that replaced it long before."""
    old = s.asks(10 * MINUTE_MS, is_named=True)
    new = s.asks(20 * MINUTE_MS, SECOND_MS, is_named=True)
    yield
    s.delivers(new)
    s.finds("wrong_outcome", old, s.delivers(old))


def replaced_by_a_cancel(s: Stage) -> Iterator[None]:
    """A cancelled record has the outcome ``replaced``."""
    record, cancel = s.asks(is_named=True), s.controls("cancel")
    yield
    s.answers(cancel, "cancelled")
    wrong = s.does("replaced", record, _SOON_MS, cancel.offset)
    s.finds("wrong_outcome", record, s.says(wrong))


# --- requeued and recurring ----------------------------------------------------------------------


def _requeued(s: Stage, kind: str, changes: Mapping[str, object]) -> Iterator[None]:
    """A copy that differs from its record; it is delivered as it says itself."""
    record = s.asks(is_named=True, is_keyed=True, expires=HOUR_MS)
    yield
    copy, where = s.parks(record, changes)
    s.finds(kind, record, where)
    yield
    s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def requeued_without_id(s: Stage) -> Iterator[None]:
    """A copy lost its id."""
    return _requeued(s, "altered", {"record_id": None})


def requeued_without_expiry(s: Stage) -> Iterator[None]:
    """A copy lost its expiry."""
    return _requeued(s, "altered", {"expires_ms": None})


def requeued_for_another_time(s: Stage) -> Iterator[None]:
    """A copy is due at another time."""
    return _requeued(s, "altered", {"due_ms": s.start_ms + MINUTE_MS + 1})


def requeued_with_another_value(s: Stage) -> Iterator[None]:
    """A copy has another value."""
    return _requeued(s, "altered", {"value": b"another"})


def requeued_for_another_partition(s: Stage) -> Iterator[None]:
    """A copy names a target partition, and its record none."""
    return _requeued(s, "wrong_target", {"to": 0})


def requeued_before_its_record(s: Stage) -> Iterator[None]:
    """What cancels a copy is looked for from before its record on."""
    record = s.asks()
    yield
    copy, where = s.parks(record, base=record.offset - 1)
    s.finds("altered", record, where)
    yield
    s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def requeued_twice(s: Stage) -> Iterator[None]:
    """Two copies of one record."""
    record = s.asks()
    yield
    copies = [s.parks(record) for _ in range(2)]
    s.finds("duplicated", record, copies[1][1])
    yield
    for copy, _ in copies:
        s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def copy_dropped(s: Stage) -> Iterator[None]:
    """A copy is not delivered."""
    record = s.asks()
    yield
    copy, _ = s.parks(record)
    yield
    s.finds("lost", copy)


def recurrence_forked(s: Stage) -> Iterator[None]:
    """The second occurrence of a schedule is begun twice."""
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    occurrences = [s.occurs(record, 2, MINUTE_MS) for _ in range(2)]
    s.finds("duplicated", record, occurrences[1][1])
    yield
    for one, _ in occurrences:
        s.delivers(one)


def recurrence_shifted(s: Stage) -> Iterator[None]:
    """An occurrence is due when its period does not say so."""
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    one, where = s.occurs(record, 2, MINUTE_MS, after=1)
    s.finds("altered", record, where)
    yield
    s.delivers(one)


# --- what is believed, what is gone --------------------------------------------------------------


def forged_and_believed(s: Stage) -> Iterator[None]:
    """A stranger's copy of a record that was delivered is delivered as well."""
    record = s.asks()
    copy = s.forges(record)
    yield
    s.delivers(record)
    s.finds("duplicated", record, (*s.shard.place, copy.offset))
    s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def sent_home_from_home(s: Stage) -> Iterator[None]:
    """A record is sent to another partition, and nothing says that its id is at home there."""
    record = s.asks(is_named=True)
    yield
    there, where = s.sends_home(record)
    s.finds("wrong_outcome", record, where)
    yield
    s.says(s.arrived(there))


def duplicate_of_what_is_gone(s: Stage) -> Iterator[None]:
    """Delivered twice, and retention has taken the record since."""
    record = s.asks(3 * HOUR_MS)
    yield
    right = s.does("deliver", record)
    s.says(right)
    again = replace(right, at_ms=right.at_ms + 2 * GRACE_MS)
    s.finds("duplicated", record, s.says(again))


# --- the checkpoint ------------------------------------------------------------------------------


def unaccounted(s: Stage) -> Iterator[None]:
    """A delivery that no checkpoint has passed."""
    record = s.asks(s.ahead_ms - s.start_ms)
    yield
    s.finds("not_checkpointed", record, s.delivers(record))


def stuck(s: Stage) -> Iterator[None]:
    """Nothing comes of a record that was written and due long ago."""
    record = s.asks(s.stale_ms - s.start_ms, s.stale_ms - s.start_ms - MINUTE_MS)
    yield
    s.finds("overdue", record)


# --- sound ---------------------------------------------------------------------------------------


def redelivered(s: Stage) -> Iterator[None]:
    """Twice, as after a crash under ``at_least_once``."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    s.says(replace(right, at_ms=right.at_ms + GRACE_MS))


def forwarded(s: Stage) -> Iterator[None]:
    """A consumer copies a delivery with its headers to another topic."""
    record = s.asks()
    yield
    right = s.does("deliver", record)
    s.says(right)
    other = s.names.targets[right.place[0] == s.names.targets[0]]
    s.says(replace(right, place=(other, 0), value=b"enriched", at_ms=right.at_ms + HOUR_MS))


def requeued(s: Stage) -> Iterator[None]:
    """A copy of a record whose target was not there."""
    record = s.asks(is_named=True, expires=HOUR_MS)
    yield
    copy, _ = s.parks(record)
    yield
    s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def signed_before(s: Stage) -> Iterator[None]:
    """A copy that was signed with a secret that has been replaced since."""
    record = s.asks()
    yield
    copy, _ = s.parks(record, secret=b"the one before")
    yield
    s.says(s.does("deliver", copy, copy.key_ms - s.start_ms + 50))


def recurring(s: Stage) -> Iterator[None]:
    """A schedule of two occurrences."""
    record = s.asks(every=MINUTE_MS)
    yield
    s.says(s.numbered(s.does("deliver", record)))
    one, _ = s.occurs(record, 2, MINUTE_MS)
    yield
    s.delivers(one)


def forged_and_refused(s: Stage) -> Iterator[None]:
    """A stranger's copy of a record, which is dead-lettered."""
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
    """Dead-lettered for what the next contract allows."""
    record = s.asks(LONG_MS, code="delay-too-long")
    yield
    s.says(s.does("letter", record, _SOON_MS, text="delay-too-long"))


def left_out(s: Stage) -> Iterator[None]:
    """A dead letter that says that its content is left out."""
    record = s.asks()
    yield
    letter = s.does("letter", record, text="too-large")
    why = b"its key, value and headers (105 bytes) are left out, for they were refused"
    told = [letter.told[0], ("delay-error-detail", why), *letter.told[2:]]
    s.says(replace(letter, key=None, value=None, own=[], told=told))


def expired_when_fired(s: Stage) -> Iterator[None]:
    """A fire comes after the expiry."""
    record = s.asks(is_named=True, expires=2 * SECOND_MS)
    fire = s.controls("fire", 10 * SECOND_MS)
    yield
    s.says(s.does("expire", record, 10 * SECOND_MS + 50))
    s.answers(fire, "fired", 10 * SECOND_MS + 50)


DEFECTS: Final[Mapping[str, Scene]] = {
    scene.__name__: scene
    for scene in (
        *(dropped, duplicated, early, late, altered_value, altered_key, altered_headers),
        *(altered_due_time, altered_source, wrong_target, wrong_partition, extra_output, poisoned),
        *(expired_without_expiry, expired_too_early, delivered_after_expiry),
        *(letter_of_another_code, letter_without_code, letter_without_content, letter_without_id),
        *(delivered_and_lettered, broken_delivered, broken_of_another_code, broken_and_altered),
        letter_of_the_former_contract,
        *(cancel_ignored, cancelled_and_delivered, cancelled_without_outcome),
        *(cancel_without_outcome, cancel_tells_of_nothing, cancelled_by_another),
        *(fired_as_cancelled, fired_by_a_cancel, fired_too_late_to_expire),
        *(both_versions_delivered, replaced_by_a_cancel, requeued_without_id),
        *(requeued_without_expiry, requeued_for_another_time, requeued_with_another_value),
        *(requeued_for_another_partition, requeued_before_its_record, requeued_twice),
        *(copy_dropped, recurrence_forked, recurrence_shifted, forged_and_believed),
        *(sent_home_from_home, duplicate_of_what_is_gone, unaccounted, stuck),
    )
}
"""Kinds of defects of topics."""

FIRST: Final = frozenset({duplicate_of_what_is_gone.__name__})
"""They begin with the history, in the first shard, the beginning of which retention takes."""

TURN: Final = 12
"""The step after which the contract is another one."""

STEPS_OF: Final[Mapping[str, range]] = {
    letter_of_its_contract.__name__: range(1, TURN),
    letter_of_the_former_contract.__name__: range(TURN + 1, TURN + 8),
}
"""When scenes begin that depend on the contract."""

LAST: Final = frozenset({unaccounted.__name__, stuck.__name__})
"""They come at the end: H does not pass them."""

SOUND: Final[Mapping[str, Scene]] = {
    scene.__name__: scene
    for scene in (
        *(redelivered, forwarded, requeued, signed_before, recurring, forged_and_refused, left_out),
        *(expired_when_fired, letter_of_its_contract),
    )
}
"""They look like defects, and are none."""
