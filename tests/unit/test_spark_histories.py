"""Small histories, sound and unsound, each with the verdict that the audit must give."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from connectors.spark.audit import engine
from connectors.spark.audit.state import IDENTIFIED, SPECIAL
from connectors.spark.ledger.facts import NEVER_MS
from delayservice.contract.contracts import Contract
from delayservice.contract.entry import CANCEL, FIRE, Headers
from delayservice.contract.home import homebound
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import to_input_headers
from delayservice.contract.recurrence import Recurrence, encode
from delayservice.contract.replays import marker
from delayservice.engine.checkpoint import Lost
from delayservice.engine.cursor import Cursor
from tests.unit.spark_world import (
    AT_HOME,
    CONTRACT,
    DELAY,
    HASHES,
    HOMES,
    LETTERS,
    OTHER,
    OUTCOMES,
    TARGET,
    Audit,
    Snapshot,
    World,
    deleted,
)
from tests.unit.test_imports import imports_of

HOUR = 3_600_000
MINUTE = 60_000
T = 500_000 * HOUR
"""When histories begin."""
ID = b"a"
NAMED = ("delay-id", ID)
EVERY = ("delay-every", b"60000")
ASKED = [("delay-at", b"%d" % (T + HOUR)), ("delay-target-topic", TARGET.encode())]

Build = Callable[[World], None]


class Case(NamedTuple):
    """A history, and what must be said of it."""

    build: Build
    at_ms: int | None
    findings: list[tuple[str, int]] = []  # noqa: RUF012  # never changed
    unjudged: dict[str, int] = {}  # noqa: RUF012  # as above
    status: int = 0


def is_begun(wanted: Case) -> bool:
    """Whether a cut may lie behind the first record: it was pending then, and nothing is gone."""
    world = made(wanted)
    first = world.logs[world.delay][:1]
    is_told = "overdue_since_ms" in world.rules
    return bool(first) and not world.start and not is_told and len(world.cuts) == 1


CASES: dict[str, Case] = {}


def case(
    *findings: tuple[str, int],
    at_ms: int | None = 2 * HOUR,
    unjudged: dict[str, int] | None = None,
) -> Callable[[Build], Build]:
    """Register a history with its verdict; its status follows.

    All is settled up to ``at_ms`` after the beginning; None: the history moves the cursors itself.
    """

    def add(build: Build) -> Build:
        status = 3 if findings else 4 if unjudged else 0
        CASES[build.__name__] = Case(build, at_ms, sorted(findings), unjudged or {}, status)
        return build

    return add


def made(wanted: Case, *of: Any) -> World:
    world = World(*of)
    wanted.build(world)
    if wanted.at_ms is not None:
        world.settled(T + wanted.at_ms)
    world.cut(T + (wanted.at_ms or 0))
    return world


def first_record_of(world: World) -> Snapshot:
    return Snapshot({**dict.fromkeys(world.logs, 0), world.delay: 1})


def counted(build: Build) -> dict[str, int]:
    return made(CASES[build.__name__]).audit().counts


def told_of(w: World, op: bytes, name: bytes = ID) -> tuple[int, int]:
    """A record with an id that is due in an hour, and what is to happen to it a second later."""
    record = w.source(T, T + HOUR, ("delay-id", name))
    return record, w.control(T + 1_000, name, op)


def settled_by(w: World, op: bytes, said: str, answered: str, name: bytes = ID) -> int:
    """A record with this outcome, settled by a control record with an outcome of its own."""
    record, control = told_of(w, op, name)
    w.outcome(T + 1_010, said, record, control)
    w.outcome(T + 1_010, answered, control)
    return control


def fired_by(w: World, op: bytes, answered: str, name: bytes = ID) -> int:
    """A record delivered by a control record, which has this outcome."""
    record, control = told_of(w, op, name)
    told = [("delay-id", name), ("delay-fired-by", b"%d" % control)]
    w.delivery(T + 1_010, record, T + HOUR, *told)
    w.outcome(T + 1_010, answered, control)
    return control


# --- cancels and fires ---------------------------------------------------------------------------


@case()
def cancelled_in_time(w: World) -> None:
    settled_by(w, b"cancel", "cancelled", "cancelled")


@case(unjudged={"control_expired": 1})
def cancel_that_retention_deleted_before_h_had_passed_it(w: World) -> None:
    """A copy of the log holds it: what it was to cancel is delivered, or waits, and is not lost."""
    for due_ms in (HOUR, 2 * HOUR, 9 * HOUR):
        w.source(T, T + due_ms, NAMED)  # the second and third reschedule the one before
    w.control(T + 1_000, ID, b"cancel")
    w.lost = (Lost(0, 4),)
    w.delivery(T + HOUR, 0, T + HOUR, NAMED)
    copy = w.requeue(T + 30 * 60_000, 1, T + 2 * HOUR, base=3, name=ID)
    w.delivery(T + 2 * HOUR, copy, T + 2 * HOUR, NAMED, origin=f"{w.delay}:0:1")


def ignored(w: World, due_ms: int, told_ms: int, delivered_ms: int, answered_ms: int) -> None:
    """A cancel that finds its record pending no more."""
    record = w.source(T, T + due_ms, NAMED)
    cancel = w.control(T + told_ms, ID, b"cancel")
    w.delivery(T + delivered_ms, record, T + due_ms, NAMED)
    w.outcome(T + answered_ms, "not_pending", cancel)


@case(("wrong_outcome", 0), at_ms=HOUR)
def cancel_ignored_though_it_was_walked_before(w: World) -> None:
    ignored(w, 10_000, 1_000, 10_002, 1_010)


@case(at_ms=HOUR)
def cancel_came_too_late_and_one_broker_was_slow(w: World) -> None:
    """Both were settled in one transaction, and a broker appended the delivery 3 s later."""
    ignored(w, 10_000, 10_500, 15_000, 12_000)


@case(("wrong_outcome", 0))
def cancel_ignored_though_it_was_written_long_before(w: World) -> None:
    """Its own outcome came later than the delivery: H would have lagged for an hour."""
    ignored(w, HOUR, 1_000, HOUR + 2, HOUR + 500)


@case(at_ms=HOUR)
def cancel_came_too_late(w: World) -> None:
    """H lagged for two seconds, and K passed the record before the cancel was walked."""
    ignored(w, 10_000, 9_000, 10_002, 11_000)


@case(at_ms=3 * HOUR)
def cancel_waited_for_an_outage_to_end(w: World) -> None:
    """Nothing was delivered in time meanwhile: K may be walked before H is."""
    ignored(w, HOUR, 1_000, 2 * HOUR, 2 * HOUR + 50)


@case(("duplicated", 0))
def cancelled_and_delivered(w: World) -> None:
    cancelled_in_time(w)
    w.delivery(T + HOUR, 0, T + HOUR, NAMED)


@case(("wrong_outcome", 0), at_ms=HOUR)
def cancel_says_that_it_settled_what_was_not_there(w: World) -> None:
    cancel = w.control(T, ID, b"cancel")
    w.outcome(T + 10, "cancelled", cancel)


@case(("wrong_outcome", 1))
def cancel_says_not_pending_and_settled_one(w: World) -> None:
    settled_by(w, b"cancel", "cancelled", "not_pending")


@case(("wrong_outcome", 0))
def cancelled_by_a_fire(w: World) -> None:
    settled_by(w, b"fire", "cancelled", "fired")


@case(("wrong_outcome", 1))
def fire_answered_by_a_cancel_outcome(w: World) -> None:
    fired_by(w, b"fire", "cancelled")


@case()
def fired_early(w: World) -> None:
    fired_by(w, b"fire", "fired")


@case(("wrong_outcome", 0))
def fired_by_a_cancel(w: World) -> None:
    fired_by(w, b"cancel", "not_pending")


@case(("wrong_outcome", 1), at_ms=HOUR)
def fire_says_fired_and_the_record_came_in_its_own_time(w: World) -> None:
    record = w.source(T, T + 10_000, NAMED)
    fire = w.control(T + 9_990, ID, b"fire")
    w.delivery(T + 10_000, record, T + 10_000, NAMED)
    w.outcome(T + 10_010, "fired", fire)


# --- records that are scheduled if none of their id is pending -----------------------------------

IF_ABSENT = ("delay-if", b"absent")


def tried_again(w: World, outcome: str = "", *, op: bytes = b"") -> int:
    """A record of an id, perhaps something that settles it, and one that is to be kept out."""
    record = w.source(T, T + HOUR, NAMED)
    if op:
        control = w.control(T + 500, ID, op)
        w.outcome(T + 510, "cancelled", record, control)
        w.outcome(T + 510, "cancelled", control)
    else:
        w.delivery(T + HOUR, record, T + HOUR, NAMED)
    absent = w.source(T + 1_000, T + 2 * HOUR, NAMED, IF_ABSENT)
    if outcome:
        w.outcome(T + 1_010, outcome, absent)
    return absent


def scheduled_after_all(w: World, absent: int) -> None:
    copy = w.requeue(T + 1_010, absent, T + 2 * HOUR, base=absent + 1, name=ID)
    origin = f"{w.delay}:0:{absent}"
    w.delivery(T + 2 * HOUR, copy, T + 2 * HOUR, NAMED, origin=origin)


@case()
def kept_out_by_a_pending_record(w: World) -> None:
    tried_again(w, "kept")


@case(at_ms=3 * HOUR)
def scheduled_behind_a_cancel(w: World) -> None:
    scheduled_after_all(w, tried_again(w, op=b"cancel"))


@case()
def scheduled_then_cancelled(w: World) -> None:
    absent = w.source(T, T + HOUR, NAMED, IF_ABSENT)
    copy = w.requeue(T + 10, absent, T + HOUR, base=1, name=ID)
    control = w.control(T + 2_000, ID, b"cancel")
    w.outcome(T + 2_010, "cancelled", copy, control)
    w.outcome(T + 2_010, "cancelled", control)


def requeued_around(w: World) -> int:
    """A record that is requeued behind one that is to be kept out."""
    record = w.source(T, T + HOUR, NAMED)
    absent = w.source(T + 5_000, T + 2 * HOUR, NAMED, IF_ABSENT)
    copy = w.requeue(T + 5_001, record, T + HOUR, base=1, name=ID)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED, origin=f"{w.delay}:0:0")
    return absent


@case()
def kept_out_by_a_requeued_record(w: World) -> None:
    w.outcome(T + 10_000, "kept", requeued_around(w))


def absent_twice(w: World, kept_ms: int) -> None:
    """The first is requeued late, at T + 9,000, and the second is kept out."""
    first, second = (w.source(T + n * 1_000, T + HOUR, NAMED, IF_ABSENT) for n in range(2))
    copy = w.requeue(T + 9_000, first, T + HOUR, base=1, name=ID)
    w.outcome(kept_ms, "kept", second)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED, origin=f"{w.delay}:0:0")


@case()
def kept_out_as_soon_as_the_requeued_record_was_read(w: World) -> None:
    absent_twice(w, T + 9_020)


@case(("wrong_outcome", 1))
def kept_out_before_the_requeued_record_was_written(w: World) -> None:
    absent_twice(w, T + 1_010)


@case(("wrong_outcome", 1), at_ms=3 * HOUR)
def scheduled_beside_a_requeued_record(w: World) -> None:
    absent = requeued_around(w)
    copy = w.requeue(T + 20_000, absent, T + 2 * HOUR, base=2, name=ID)
    w.delivery(T + 2 * HOUR, copy, T + 2 * HOUR, NAMED, origin=f"{w.delay}:0:1")


@case(("wrong_outcome", 1), at_ms=3 * HOUR)
def scheduled_beside_a_pending_record(w: World) -> None:
    scheduled_after_all(w, tried_again(w))


@case(("wrong_outcome", 2))
def kept_out_though_what_was_pending_had_been_cancelled(w: World) -> None:
    tried_again(w, "kept", op=b"cancel")


@case(("wrong_outcome", 1))
def it_cancelled_what_it_found(w: World) -> None:
    tried_again(w, "cancelled")


@case(("lost", 1))
def neither_scheduled_nor_kept_out(w: World) -> None:
    tried_again(w)


# --- reschedules ---------------------------------------------------------------------------------


@case(at_ms=3 * HOUR)
def rescheduled(w: World) -> None:
    old = w.source(T, T + HOUR, NAMED)
    new = w.source(T + 1_000, T + 2 * HOUR, NAMED)
    w.outcome(T + 1_010, "replaced", old, new)
    w.delivery(T + 2 * HOUR, new, T + 2 * HOUR, NAMED)


@case(("wrong_outcome", 0), at_ms=3 * HOUR)
def both_versions_of_a_reschedule_delivered(w: World) -> None:
    old = w.source(T, T + HOUR, NAMED)
    new = w.source(T + 1_000, T + 2 * HOUR, NAMED)
    w.delivery(T + HOUR, old, T + HOUR, NAMED)
    w.delivery(T + 2 * HOUR, new, T + 2 * HOUR, NAMED)


@case(("wrong_outcome", 0))
def replaced_by_a_cancel(w: World) -> None:
    settled_by(w, b"cancel", "replaced", "cancelled")


@case(("wrong_outcome", 0), at_ms=3 * HOUR)
def old_version_delivered_after_what_lies_behind_the_new_one(w: World) -> None:
    """Late, so that nothing follows from the time that the new version was written."""
    old = w.source(T, T + HOUR, NAMED)
    new = w.source(T + 1_000, T + 9 * HOUR, NAMED)
    for _ in range(300):
        w.delivery(T + 3_000, w.source(T + 2_000, T + 3_000), T + 3_000)
    w.delivery(T + 2 * HOUR, old, T + HOUR, NAMED)
    assert new == 1


@case(*(("early", offset) for offset in range(2, 302)), at_ms=3 * HOUR)
def old_version_delivered_late_and_others_too_early(w: World) -> None:
    """From a delivery that is wrong itself, nothing follows for others."""
    old = w.source(T, T + HOUR, NAMED)
    w.source(T + 1_000, T + 9 * HOUR, NAMED)
    for _ in range(300):
        w.delivery(T + 3_000, w.source(T + 2_000, T + HOUR), T + HOUR)
    w.delivery(T + 2 * HOUR, old, T + HOUR, NAMED)


# --- expiry --------------------------------------------------------------------------------------


@case(("wrong_outcome", 0), at_ms=HOUR)
def delivered_after_its_expiry(w: World) -> None:
    record = w.source(T, T + 10_000, ("delay-expires-at", b"%d" % (T + 20_000)))
    w.delivery(T + 30_000, record, T + 10_000)


@case(at_ms=HOUR)
def delivered_just_before_its_expiry(w: World) -> None:
    record = w.source(T, T + 10_000, ("delay-expires-at", b"%d" % (T + 10_000)))
    w.delivery(T + 10_040, record, T + 10_000)  # the transaction took a moment


@case(("wrong_outcome", 0), at_ms=HOUR)
def expired_too_early(w: World) -> None:
    record = w.source(T, T + 10_000, ("delay-expires-at", b"%d" % (T + 20_000)))
    w.outcome(T + 10_005, "expired", record)


# --- one delivery --------------------------------------------------------------------------------


@case(
    ("altered", 0),
    ("altered", 1),
    ("wrong_target", 2),
    ("altered", 3),
    ("wrong_target", 4),
    ("altered", 5),
    ("altered", 6),
)
def deliveries_that_differ_from_their_records(w: World) -> None:
    for _ in range(4):
        w.source(T, T + MINUTE)
    w.source(T, T + MINUTE, ("delay-target-partition", b"3"))
    for due_ms in (1, 2):
        w.source(T, T + MINUTE + due_ms)
    w.delivery(T + MINUTE, 0, T + MINUTE, value=b"other")
    w.delivery(T + MINUTE, 1, T + MINUTE + 1)
    w.delivery(T + MINUTE, 2, T + MINUTE, topic=OTHER)
    w.delivery(T + MINUTE, 3, T + MINUTE, origin=f"{w.delay}:0:4")
    w.delivery(T + MINUTE, 4, T + MINUTE)
    w.delivery(T + MINUTE + 2, 5, T + MINUTE + 2)  # swapped with the next one
    w.delivery(T + MINUTE + 2, 6, T + MINUTE + 1)


@case(("duplicated", 0), ("duplicated", 1))
def second_deliveries_beside_the_right_one(w: World) -> None:
    for topics in ((OTHER, TARGET), (TARGET, OTHER)):
        record = w.source(T, T + MINUTE)
        for topic in topics:
            w.delivery(T + MINUTE + 2_000 * (topic == TARGET), record, T + MINUTE, topic=topic)


@case(("late", 0))
def late_deliveries(w: World) -> None:
    """Lateness begins when the record was there."""
    w.strictness = replace(w.strictness, late_ms=100)
    for at_ms in (T, T + MINUTE + 1):
        w.delivery(T + MINUTE + 101, w.source(at_ms, T + MINUTE), T + MINUTE)


@case(("lost", 0), ("not_checkpointed", 3), ("not_checkpointed", 4), at_ms=None)
def settled_between_two_checkpoints(w: World) -> None:
    """The earlier one says what can be lost, the later one what is not checkpointed."""
    for due_ms in (0, MINUTE, MINUTE, 9 * MINUTE, MINUTE):
        w.source(T, T + due_ms)
    for offset, due_ms in ((2, MINUTE), (3, 9 * MINUTE), (4, MINUTE)):
        w.delivery(T + due_ms, offset, T + due_ms)
    w.earlier = Cursor((T + 1, 0), 3)
    w.settled(T + 2 * MINUTE, h=4)


@case(("early", 4))
def requeued_record_that_came_early(w: World) -> None:
    """One may have been fired before it was requeued; nothing could have fired the other one."""
    for name in (ID, b"b"):
        w.source(T, T + HOUR, ("delay-id", name))
    fire = w.control(T + 1, ID, b"fire")
    w.outcome(T + 2, "fired", fire)
    parked = w.requeue(T + 2, 0, T + HOUR, base=fire + 1, name=ID, attempt=2)
    other = w.requeue(T + 2, 1, T + HOUR, base=2, name=b"b", attempt=2)
    w.delivery(T + 3, parked, T + HOUR, NAMED, origin=w.here)
    w.delivery(T + 3, other, T + HOUR, ("delay-id", b"b"), origin=f"{w.delay}:0:1")


@case(("unknown_source", 1), at_ms=MINUTE)
def outputs_of_a_deleted_topic_of_the_same_name(w: World) -> None:
    w.born_ms = T + HOUR
    for offset, at_ms in ((0, T), (1, T), (1, T + HOUR)):
        w.delivery(at_ms, offset, T)
    w.delivery(T + HOUR, w.source(T + HOUR, T), T)


@case(("lost", 0), ("lost", 3), ("lost", 4), unjudged={"evidence_deleted": 2})
def evidence_that_begins_later(w: World) -> None:
    """A record is judged whose delivery would be there still; one with an id may be cancelled."""
    for more in ((), (("delay-expires-at", b"%d" % (T + 9 * HOUR)),), (NAMED,)):
        w.source(T, T + HOUR, *more)
    w.source(T, T + HOUR - 1)
    w.source(T + HOUR + 1, T)
    w.source(T, T + 9 * HOUR, ("delay-id", b"b"))
    w.rules = {"complete_since_ms": {HASHES[OUTCOMES]: (T + HOUR,)}}


@case(("wrong_target", 0), ("altered", 1))
def requeued_records_that_differ(w: World) -> None:
    for _ in range(2):
        w.source(T, T + HOUR)
    other = w.requeue(T + 1, 0, T + HOUR, base=2, target=OTHER)
    w.delivery(T + HOUR, other, T + HOUR, origin=w.here, topic=OTHER)
    changed = w.requeue(T + 1, 1, T + HOUR, base=2, value=b"other")
    w.delivery(T + HOUR, changed, T + HOUR, origin=f"{w.delay}:0:1", value=b"other")


# --- dead letters --------------------------------------------------------------------------------


@case()
def dead_letters_that_are_right(w: World) -> None:
    bad = [("delay-at", b"soon"), ("own", b"1")]
    w.letter(T + 1, w.write(w.delay, T, bad), "time-invalid", bad)
    w.letter(T + HOUR, w.source(T, T + HOUR), "target-unknown", ASKED)
    left_out = b"its key, value and headers (5 bytes) are left out, for it was refused; too large"
    w.letter(T + HOUR, w.source(T, T + HOUR), "too-large", [], None, left_out)


@case()
def dead_letter_that_was_replayed(w: World) -> None:
    """Its headers are its record's; the marker of a replay settles nothing."""
    bad = [("delay-replayed", b"0"), ("delay-at", b"soon")]
    w.letter(T + 1, w.write(w.delay, T, bad), "time-invalid", bad)
    w.write(LETTERS, T + 2, list(marker([0, 1])))


SENT_BACK = [
    ("own", b"1"),
    ("delay-backoff", b"1m,1h"),
    ("delay-target-topic", TARGET.encode()),
    ("delay-source", b"from the delivery before"),
]


@case(("altered", 3), ("altered", 4))
def records_that_consumers_send_back(w: World) -> None:
    kept: Headers = [SENT_BACK[0], SENT_BACK[2], SENT_BACK[1], ("delay-retries", b"2")]
    again = [*SENT_BACK, ("delay-retries", b"1")]
    w.write(w.delay, T, again)
    w.write(TARGET, T + HOUR, [*kept, *w.told(0, T + HOUR)])
    w.write(w.delay, T, again)
    asked = to_input_headers((TARGET, -1, None, b"value", kept, T + HOUR, None))[2]
    assert set(SENT_BACK[:3]) < set(asked)
    w.letter(T + HOUR, 1, "target-unknown", asked)
    exhausted = [*SENT_BACK, ("delay-retries", b"2")]
    w.letter(T + 1, w.write(w.delay, T, exhausted), "retries-exhausted", exhausted)
    w.write(w.delay, T, again)
    w.write(TARGET, T + HOUR, [*kept[:3], ("delay-retries", b"1"), *w.told(3, T + HOUR)])
    w.write(w.delay, T, again)
    w.letter(T + HOUR, 4, "target-unknown", [*asked[:2], ("delay-retries", b"0"), *asked[3:]])


@case(
    ("wrong_outcome", 0),
    ("wrong_outcome", 1),
    ("wrong_outcome", 2),
    ("wrong_outcome", 3),
    ("dead_letter_missing_code", 4),
)
def letters_whose_code_does_not_fit(w: World) -> None:
    bad = [("delay-at", b"soon")]
    w.letter(T + 1, w.write(w.delay, T, bad), "time-past", bad)
    for code in ("time-missing", "cron-invalid", "control-lost"):
        w.letter(T + HOUR, w.source(T, T + HOUR), code, ASKED)
    offset = w.source(T, T + HOUR)
    told = [("delay-source", b"%s:0:%d" % (w.delay.encode(), offset))]
    w.write(LETTERS, T + HOUR, [*told, ("delay-settles", b"%d" % offset)])


@case(("altered", 0), ("altered", 1), ("altered", 2), ("altered", 3))
def letters_without_their_content(w: World) -> None:
    bad = [("delay-at", b"soon")]
    w.letter(T + 1, w.write(w.delay, T, bad), "time-invalid", [], None)
    w.letter(T + HOUR, w.source(T, T + HOUR), "target-unknown", ASKED, None)
    w.letter(T + HOUR, w.source(T, T + HOUR, NAMED), "target-unknown", ASKED)  # without its id
    expires = ("delay-expires-at", b"%d" % (T + 9 * HOUR))
    w.letter(T + HOUR, w.source(T, T + HOUR, expires), "target-unknown", ASKED)


# --- requeued, recurring -------------------------------------------------------------------------


@case()
def requeued_and_delivered(w: World) -> None:
    record = w.source(T, T + HOUR, NAMED)
    copy = w.requeue(T + 1_000, record, T + HOUR, base=1, name=ID)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED, origin=f"{w.delay}:0:0")


@case(("altered", 1))
def requeued_with_a_base_that_names_itself(w: World) -> None:
    w.outcome(T, "not_pending", w.control(T, b"another", b"cancel"))
    record = w.source(T, T + HOUR, NAMED)
    copy = w.requeue(T + 1_000, record, T + HOUR, base=record, name=ID)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED, origin=f"{w.delay}:0:{record}")


@case(("altered", 0), ("altered", 1), ("altered", 2))
def requeued_without_id_or_expiry_or_due_time(w: World) -> None:
    expires_ms = T + 9 * HOUR
    w.source(T, T + HOUR, NAMED)
    w.source(T, T + HOUR, ("delay-expires-at", b"%d" % expires_ms))
    w.source(T, T + HOUR)
    copies = [
        w.requeue(T + 1_000, offset, due_ms, base=3)
        for offset, due_ms in ((0, T + HOUR), (1, T + HOUR), (2, T + HOUR + 1))
    ]
    for offset, copy in enumerate(copies):
        due_ms = T + HOUR + (offset == 2)
        w.delivery(T + HOUR + 1, copy, due_ms, origin=f"{w.delay}:0:{offset}")


@case(("wrong_outcome", 0))
def requeued_after_its_cancel(w: World) -> None:
    record, cancel = told_of(w, b"cancel")
    w.outcome(T + 1_500, "not_pending", cancel)
    copy = w.requeue(T + 1_600, record, T + HOUR, base=2, name=ID)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED, origin=f"{w.delay}:0:0")


def recurring(number: int, left: int | None = None) -> bytes:
    return encode(Recurrence(60_000, number=number, left=left))


@case(at_ms=150_000)
def recurs_twice(w: World) -> None:
    record = w.source(T, T + 60_000, EVERY)
    due_ms = T + 60_000
    w.delivery(due_ms, record, due_ms, origin=f"{w.delay}:0:0#1")
    origin = f"{w.delay}:0:0#2"
    copy = w.requeue(due_ms, -1, due_ms + 60_000, base=1, origin=origin, recur=recurring(2))
    w.delivery(due_ms + 60_000, copy, due_ms + 60_000, origin=origin)
    origin = f"{w.delay}:0:0#3"
    w.requeue(due_ms + 60_000, -1, due_ms + 120_000, base=2, origin=origin, recur=recurring(3))


@case(("duplicated", 0), at_ms=150_000)
def recurrence_that_forks(w: World) -> None:
    recurs_twice(w)
    origin = f"{w.delay}:0:0#3"
    w.requeue(T + 130_000, -1, T + 240_000, base=2, origin=origin, recur=recurring(3))


@case(("altered", 0), at_ms=150_000)
def occurrence_that_its_period_does_not_give(w: World) -> None:
    recurs_twice(w)
    origin = f"{w.delay}:0:0#4"
    w.requeue(T + 130_000, -1, T + 240_001, base=2, origin=origin, recur=recurring(4))


# --- what exists and what does not ---------------------------------------------------------------


@case(("duplicated", 0))
def duplicate_of_a_record_that_retention_took(w: World) -> None:
    for at_ms in (T + 10, T + 5_000):
        w.delivery(at_ms, 0, T + 10)
    w.delivery(T + 10, 1, T + 10)
    for _ in range(3):
        w.source(T + HOUR, T + 9 * HOUR)
    w.start = 2


@case(("unknown_source", 0), ("unknown_source", 7), at_ms=HOUR)
def settlements_of_records_that_never_were(w: World) -> None:
    w.delivery(T + 1, 7, T + 1)
    w.logs[TARGET].insert(0, (T, None, b"value", told_by(b"3", f"{w.delay}:9:3".encode(), b"1")))


@case(at_ms=HOUR)
def what_consumers_and_mirrors_copy(w: World) -> None:
    record = w.source(T, T + 10_000)
    cancel = w.control(T, ID, b"cancel")
    w.delivery(T + 10_001, record, T + 10_000)
    w.outcome(T + 1, "not_pending", cancel)
    w.delivery(T + 10_001, record, T + 10_000, topic=OTHER)
    w.delivery(T + 10_900, record, T + 10_000, topic=OTHER, value=b"enriched")
    w.logs[OTHER] += w.logs[OUTCOMES]
    bad = [("delay-at", b"soon")]
    w.letter(T + 1, w.write(w.delay, T, bad), "time-invalid", bad)
    w.logs[OTHER] += w.logs[LETTERS]


@case()
def copies_signed_with_a_secret_that_was_replaced(w: World) -> None:
    requeued_and_delivered(w)
    w.secrets = (b"the next secret",)


@case()
def forged_copy_that_was_refused(w: World) -> None:
    record = w.source(T, T + 10_000)
    w.delivery(T + 10_000, record, T + 10_000)
    forged = w.requeue(T + 1, record, T + HOUR, base=1, secret=b"a stranger's")
    headers = w.logs[w.delay][forged][3]
    w.letter(T + 5, forged, "copy-forged", headers)


@case(("unknown_source", 50), at_ms=20_000)
def forged_copy_that_was_delivered(w: World) -> None:
    """It names a record that comes after it, as no copy of the service does."""
    origin = f"{w.delay}:0:50"
    forged = w.requeue(T, 50, T + 10_000, base=51, secret=b"a stranger's", origin=origin)
    w.delivery(T + 10_000, forged, T + 10_000, origin=origin)


@case(at_ms=None)
def forged_copy_that_nobody_has_looked_at(w: World) -> None:
    """H has not passed it, so no dead letter can say that it is forged: of a record that was
    delivered, of one that is pending, and of none.
    """
    for due_ms in (T + 10_000, T + 9 * HOUR):
        w.source(T, due_ms)
    w.delivery(T + 10_000, 0, T + 10_000)
    for settles in (0, 1, 2):
        w.requeue(T + 20_000, settles, T + 9 * HOUR, base=settles + 1, secret=b"a stranger's")
    w.settled(T + HOUR, h=2)


@case(("duplicated", 0), at_ms=None)
def copy_of_the_service_that_nobody_has_looked_at(w: World) -> None:
    w.delivery(T + 10_000, w.source(T, T + 10_000), T + 10_000)
    w.requeue(T + 20_000, 0, T + 9 * HOUR, base=1)
    w.settled(T + HOUR, h=1)


# --- ids that find home --------------------------------------------------------------------------

FAR = b"d"
"""An id that is at home in the second partition."""
NAMED_FAR = ("delay-id", FAR)


def far(w: World, contract: Contract = HOMES) -> int:
    """A record that has to go home."""
    w.contract = contract
    return w.source(T, T + HOUR, NAMED_FAR)


def sent_home(w: World) -> tuple[int, int]:
    """A record that has gone home, and its place there."""
    record = far(w)
    return record, w.envelope(T + 5, w.sent(record, FAR), record)


def waits(w: World) -> tuple[int, int]:
    """A record that waits for its home, and its copy."""
    record = far(w)
    return record, w.wait(T + 10, record, FAR, w.sent(record, FAR), base=1)


@case()
def sent_home_and_delivered(w: World) -> None:
    _, there = sent_home(w)
    w.delivery(T + HOUR + 2, there, T + HOUR, w.there, NAMED_FAR, origin=w.here)


@case(at_ms=HOUR)
def delay_counts_from_where_it_was_written(w: World) -> None:
    w.contract = HOMES
    after = ("delay-after", b"60000")
    record = w.write(w.delay, T, [after, ("delay-target-topic", TARGET.encode()), NAMED_FAR])
    there = w.envelope(T + 5_000, w.sent(record, FAR), record)
    w.delivery(T + 60_000, there, T + 60_000, w.there, NAMED_FAR, origin=w.here)


@case(at_ms=HOUR)
def recurs_at_home(w: World) -> None:
    w.contract = HOMES
    record = w.source(T, T + 60_000, NAMED_FAR, EVERY)
    there = w.envelope(T + 5, w.sent(record, FAR), record)
    due_ms = T + 60_000
    w.delivery(due_ms, there, due_ms, w.there, NAMED_FAR, origin=f"{w.here}#1")
    origin, after_ms = f"{w.here}#2", due_ms + 60_000
    copy = w.requeue(
        *(due_ms, -1, after_ms),
        base=there + 1,
        name=FAR,
        origin=origin,
        recur=recurring(2),
        partition=1,
    )
    w.delivery(after_ms, copy, after_ms, w.there, NAMED_FAR, origin=origin)


@case(("wrong_outcome", 0))
def delivered_where_it_lay_though_its_home_is_elsewhere(w: World) -> None:
    record = far(w)
    w.delivery(T + HOUR + 2, record, T + HOUR, NAMED_FAR)


@case(("lost", 0))
def never_sent_home(w: World) -> None:
    far(w)


@case(unjudged={"evidence_deleted": 1})
def sent_home_where_nothing_is_left(w: World) -> None:
    far(w)
    w.rules = {"complete_since_ms": {HASHES[DELAY]: (0, NEVER_MS)}}


@case(("wrong_outcome", 0))
def sent_home_though_it_was_there(w: World) -> None:
    w.contract = HOMES
    record = w.source(T, T + HOUR, NAMED)
    there = w.envelope(T + 5, w.sent(record, ID), record)
    w.delivery(T + HOUR + 2, there, T + HOUR, w.there, NAMED, origin=w.here)


@case(("unknown_source", 1), ("unknown_source", 2))
def envelopes_of_records_that_never_were(w: World) -> None:
    envelopes_of_records_behind_the_end(w)
    w.markers = 2


@case()
def envelopes_of_records_behind_the_end(w: World) -> None:
    """They were written after the end of their log was looked at."""
    sent = w.sent(far(w), FAR)
    other, third = (sent._replace(source=f"{w.delay}:0:{n}".encode()) for n in (1, 2))
    at = [w.envelope(T + 5, sent, 0), w.envelope(T + 5, other, 1), w.envelope(T + 5, third)]
    for n in (1, 2):
        w.outcome(T + 6, "replaced", at[n - 1], at[n], w.by(n), partition=1)
    w.delivery(T + HOUR, at[2], T + HOUR, w.there, NAMED_FAR, origin=f"{w.delay}:0:2")


@case(("duplicated", 0))
def sent_home_twice(w: World) -> None:
    record, first = sent_home(w)
    came_again(w, first, w.envelope(T + 6, w.sent(record, FAR), record))


@case(("duplicated", 0))
def sent_home_and_carried_there_again(w: World) -> None:
    record, first = sent_home(w)
    came_again(w, first, w.envelope(T + 6, w.sent(record, FAR)))


def came_again(w: World, first: int, second: int) -> None:
    """Of two envelopes of one record, the second is delivered."""
    w.outcome(T + 7, "replaced", first, second, w.by(0), partition=1)
    w.delivery(T + HOUR + 2, second, T + HOUR, w.there, NAMED_FAR, origin=w.here)


@case(("altered", 0), ("altered", 1), ("altered", 2))
def altered_on_the_way_home(w: World) -> None:
    for _ in range(3):
        far(w)
    key, _, headers = w.sent(0, FAR).original
    theres = [
        w.envelope(T + 5, w.sent(0, FAR)._replace(original=(key, b"other", headers)), 0),
        w.envelope(T + 5, w.sent(1, FAR)._replace(written_ms=T + 1), 1),
        w.envelope(T + 5, w.sent(2, FAR)._replace(kind=CANCEL), 2),
    ]
    w.outcome(T + 6, "replaced", theres[0], theres[1], w.by(1), partition=1)
    w.outcome(T + 6, "replaced", theres[1], theres[2], w.by(2), partition=1)
    w.delivery(T + HOUR, theres[2], T + HOUR, w.there, NAMED_FAR, origin=f"{w.delay}:0:2")


@case(("wrong_target", 0))
def sent_to_a_wrong_home(w: World) -> None:
    """It stays in its partition."""
    record = far(w)
    there = w.envelope(T + 5, w.sent(record, FAR), record, partition=0)
    w.delivery(T + HOUR + 2, there, T + HOUR, NAMED_FAR, origin=w.here)


@case(("altered", AT_HOME))
def delivered_at_home_under_its_place_there(w: World) -> None:
    _, there = sent_home(w)
    w.delivery(T + HOUR + 2, there, T + HOUR, NAMED_FAR, origin=f"{w.delay}:1:0")


@case(("altered", AT_HOME))
def control_told_at_home_under_its_place_there(w: World) -> None:
    w.contract = HOMES
    cancel = w.control(T, FAR, b"cancel")
    there = w.envelope(T + 5, w.sent(cancel, FAR, CANCEL), cancel)
    source = ("delay-source", f"{w.delay}:1:0".encode())
    w.outcome(T + 6, "not_pending", there, None, source, partition=1)


@case()
def breaks_the_contract_at_home(w: World) -> None:
    """Its home has another contract."""
    w.contract = HOMES
    bad: Headers = [*ASKED, NAMED_FAR, ("delay-every", b"no")]
    sent = homebound(0, FAR, f"{w.delay}:9:0".encode(), T, (None, b"value", bad))
    there = w.envelope(T + 5, sent)
    w.letter(T + 6, there, "time-invalid", bad, b"value", b"why", w.there, origin=f"{w.delay}:9:0")


@case()
def cancelled_at_home(w: World) -> None:
    w.contract = HOMES
    record = w.write(w.home, T, [*ASKED, NAMED_FAR])
    cancel = w.control(T, FAR, b"cancel")
    there = w.envelope(T + 5, w.sent(cancel, FAR, CANCEL), cancel)
    w.outcome(T + 6, "cancelled", record, there, w.by(0), partition=1)
    source = ("delay-source", w.here.encode())
    w.outcome(T + 6, "cancelled", there, None, source, partition=1)


@case(("wrong_outcome", AT_HOME))
def cancelled_at_home_by_what_was_written_elsewhere(w: World) -> None:
    cancelled_at_home(w)
    headers = w.logs[OUTCOMES][0][3]
    headers[headers.index(w.by(0))] = w.by(3)


@case(("wrong_outcome", AT_HOME))
def cancelled_at_home_by_an_envelope_that_is_not_named(w: World) -> None:
    cancelled_at_home(w)
    w.logs[OUTCOMES][0][3].remove(w.by(0))


@case(("wrong_outcome", 0))
def cancelled_here_by_what_has_not_come_home(w: World) -> None:
    cancelled_in_time(w)
    w.logs[OUTCOMES][0][3].append(w.by(7))


@case()
def cancel_that_did_its_work_where_it_lay(w: World) -> None:
    """The record was pending when homes were turned on."""
    w.turned_on = settled_by(w, b"cancel", "cancelled", "cancelled", FAR)


@case(("wrong_outcome", 1))
def cancel_that_did_its_work_and_went_home(w: World) -> None:
    record, cancel = told_of(w, b"cancel", FAR)
    w.outcome(T + 1_010, "cancelled", record, cancel)
    there = w.envelope(T + 1_010, w.sent(cancel, FAR, CANCEL), cancel)
    w.outcome(T + 1_020, "not_pending", there, partition=1)
    w.turned_on = cancel


@case(("wrong_outcome", 1))
def fire_that_did_its_work_and_was_cancelled(w: World) -> None:
    w.turned_on = fired_by(w, b"fire", "cancelled", FAR)


@case(at_ms=HOUR)
def recurred_where_it_lay_when_homes_were_turned_on(w: World) -> None:
    w.source(T, T + 60_000, NAMED_FAR, EVERY)
    due_ms = T + 60_000
    w.delivery(due_ms, 0, due_ms, NAMED_FAR, origin=f"{w.here}#1")
    origin = f"{w.here}#2"
    w.requeue(due_ms, -1, T + 120_000, base=1, origin=origin, recur=recurring(2), name=FAR)
    cancel = w.control(T + 61_000, FAR, b"cancel")
    w.outcome(T + 61_010, "cancelled", 1, cancel)
    w.outcome(T + 61_010, "cancelled", cancel)
    w.turned_on = cancel


@case()
def too_large_for_its_home(w: World) -> None:
    record = far(w)
    w.letter(T + 1, record, "too-large", [*ASKED, NAMED_FAR])


@case()
def dead_letter_of_a_cancel_that_was_to_go_home(w: World) -> None:
    """It is whole there, and would have gone without key and own headers."""
    w.contract = HOMES
    headers = [NAMED_FAR, ("delay-op", b"cancel"), ("own", b"1")]
    cancel = w.write(w.delay, T, headers, None, b"key")
    w.letter(T + 1, cancel, "too-large", headers, None)


@case(("wrong_outcome", 0), ("altered", 1))
def letters_of_what_was_to_go_home_that_do_not_fit(w: World) -> None:
    w.letter(T + 1, far(w), "target-unknown", [*ASKED, NAMED_FAR])
    w.letter(T + 1, far(w), "too-large", [*ASKED, NAMED_FAR], b"other")


# While the home can't be written to.


@case()
def waited_with_others_and_went(w: World) -> None:
    """A record waits, waits on, takes a cancel along that then goes with it."""
    record, first = waits(w)
    second = w.wait(T + 1_020, first, FAR, w.sent(record, FAR), base=1)
    cancel = w.control(T + 1_500, FAR, b"cancel")
    both = w.sent(record, FAR), w.sent(cancel, FAR, CANCEL)
    third = w.wait(T + 1_510, cancel, FAR, *both, base=cancel + 1, took=second)
    at = w.envelope(T + 3_000, both[0]), w.envelope(T + 3_000, both[1], third)
    w.outcome(T + 3_010, "cancelled", at[0], at[1], w.by(cancel), partition=1)
    w.outcome(T + 3_010, "cancelled", at[1], partition=1)


@case()
def waited_and_left_with_the_next_one(w: World) -> None:
    record, copy = waits(w)
    fire = w.control(T + 500, FAR, b"fire")
    at = (
        w.envelope(T + 510, w.sent(record, FAR), copy),
        w.envelope(T + 510, w.sent(fire, FAR, FIRE), fire),
    )
    fired_by = ("delay-fired-by", b"%d" % at[1])
    w.delivery(T + 520, at[0], T + HOUR, w.there, NAMED_FAR, fired_by, origin=w.here)
    w.outcome(T + 520, "fired", at[1], partition=1)


@case(at_ms=3 * HOUR)
def replaced_where_it_waited(w: World) -> None:
    replaced_while_it_waits(w, "replaced")


@case(("wrong_outcome", 1), at_ms=3 * HOUR)
def went_home_though_it_was_replaced_where_it_waited(w: World) -> None:
    """Long after the new one went."""
    replaced_while_it_waits(w, "")


def replaced_while_it_waits(w: World, outcome: str) -> None:
    old, copy = waits(w)
    new = w.source(T + 500, T + HOUR, NAMED_FAR)
    there = w.envelope(T + 510, w.sent(new, FAR), new)
    w.delivery(T + HOUR, there, T + HOUR, w.there, NAMED_FAR, origin=f"{w.delay}:0:{new}")
    if outcome:
        w.outcome(T + 510, outcome, copy, new)
    else:
        at = w.envelope(T + 2 * HOUR, w.sent(old, FAR), copy)
        w.delivery(T + 2 * HOUR + 1, at, T + HOUR, w.there, NAMED_FAR, origin=w.here)


@case(("wrong_outcome", 1))
def replaced_by_a_cancel_where_it_waited(w: World) -> None:
    _, copy = waits(w)
    cancel = w.control(T + 500, FAR, b"cancel")
    w.outcome(T + 510, "replaced", copy, cancel)
    there = w.envelope(T + 510, w.sent(cancel, FAR, CANCEL), cancel)
    w.outcome(T + 520, "not_pending", there, partition=1)


@case(("wrong_outcome", 0))
def left_behind_by_what_it_waited_with(w: World) -> None:
    record, first = waits(w)
    cancel = w.control(T + 500, FAR, b"cancel")
    both = w.sent(record, FAR), w.sent(cancel, FAR, CANCEL)
    second = w.wait(T + 510, cancel, FAR, *both, base=cancel + 1, took=first)
    there = w.envelope(T + 3_000, both[1], second)
    w.outcome(T + 3_010, "not_pending", there, partition=1)


@case(("altered", 1))
def taken_along_in_another_company(w: World) -> None:
    record, first = waits(w)
    cancel = w.control(T + 500, FAR, b"cancel")
    other = w.sent(record, FAR)._replace(original=(None, b"other", []))
    second = w.wait(
        *(T + 510, cancel, FAR, other, w.sent(cancel, FAR, CANCEL)), base=cancel + 1, took=first
    )
    at = w.envelope(T + 3_000, w.sent(record, FAR)), 1
    there = w.envelope(T + 3_000, w.sent(cancel, FAR, CANCEL), second)
    w.outcome(T + 3_010, "cancelled", at[0], there, w.by(cancel), partition=1)
    w.outcome(T + 3_010, "cancelled", there, partition=1)


@case(("altered", 3))
def waited_on_in_another_company(w: World) -> None:
    record, first = waits(w)
    cancel = w.control(T + 500, FAR, b"cancel")
    one, two = w.sent(record, FAR), w.sent(cancel, FAR, CANCEL)
    second = w.wait(T + 510, cancel, FAR, one, two, base=cancel + 1, took=first)
    other = one._replace(original=(None, b"other", []))
    third = w.wait(T + 2_000, second, FAR, other, two, base=cancel + 1)
    at = w.envelope(T + 3_000, one), w.envelope(T + 3_000, two, third)
    w.outcome(T + 3_010, "cancelled", at[0], at[1], w.by(cancel), partition=1)
    w.outcome(T + 3_010, "cancelled", at[1], partition=1)


@case(("wrong_outcome", 1))
def delivered_while_it_waited_for_its_home(w: World) -> None:
    _, copy = waits(w)
    w.delivery(T + HOUR, copy, T + HOUR, NAMED_FAR, origin=w.here)


@case()
def dead_lettered_while_it_waited(w: World) -> None:
    _, copy = waits(w)
    headers = [*ASKED, NAMED_FAR]
    w.letter(T + HOUR, copy, "too-large", headers, b"value", b"why", origin=w.here)


@case(("wrong_outcome", 2))
def fire_says_that_it_fired_what_waits_for_its_home(w: World) -> None:
    record, copy = waits(w)
    fire = w.control(T + 500, FAR, b"fire")
    w.outcome(T + 510, "fired", fire)
    there = w.envelope(T + 510, w.sent(record, FAR), copy)
    w.delivery(T + HOUR, there, T + HOUR, w.there, NAMED_FAR, origin=w.here)


@case()
def left_behind_where_nobody_can_tell(w: World) -> None:
    """The beginning of the home partition is gone."""
    left_behind_by_what_it_waited_with(w)
    w.rules = {"complete_since_ms": {HASHES[DELAY]: (0, NEVER_MS)}}


# What is believed.


@case()
def envelope_signed_with_a_secret_that_was_replaced(w: World) -> None:
    waited_with_others_and_went(w)
    w.secrets = (b"the next secret",)


@case()
def envelope_that_nobody_can_verify(w: World) -> None:
    cancelled_at_home(w)
    w.secrets = ()


@case()
def envelope_under_a_contract_without_homes(w: World) -> None:
    """They find home from elsewhere already."""
    sent_home_and_delivered(w)
    w.secrets, w.contract_at_home = (), CONTRACT


@case()
def forged_envelope_that_was_refused(w: World) -> None:
    sent_home_and_delivered(w)
    forged = w.envelope(T + 9, w.sent(0, FAR), 0, secret=b"a stranger's")
    _, _, _, headers = w.logs[w.home][forged]
    origin = f"{w.delay}:1:{forged}"
    w.letter(T + 10, forged, "copy-forged", headers, origin=origin)


@case(at_ms=HOUR)
def poison_in_envelopes(w: World) -> None:
    """Refused by the service, as it must be; nothing in them may end the job."""
    w.contract = HOMES
    bad: list[dict[str, object]] = [
        {"written": 10**20},
        {"settles": 10**20},
        {"settles": -7},
        {"source": "/w=="},
        {"source": base64.b64encode("delay_topic_any:٣:0".encode()).decode()},
        {"shard": "nowhere"},
        {"shard": f"{w.delay}:²"},
        {"op": "other"},
    ]
    source = base64.b64encode(w.here.encode()).decode()
    for one in bad:
        fields = {"v": 1, "op": "schedule", "source": source, "written": T, "settles": 0}
        told = json.dumps(fields | {"shard": f"{w.delay}:0"} | one).encode()
        headers = [*ASKED, NAMED, ("delay-home", told), ("delay-home-mac", b"0")]
        w.letter(T + 1, w.write(w.delay, T, headers), "copy-forged", headers)


# --- poison --------------------------------------------------------------------------------------


def told_by(settles: bytes, source: bytes, due: bytes) -> list[tuple[str, bytes | None]]:
    return [("delay-due-at", due), ("delay-source", source), ("delay-settles", settles)]


@case(
    ("malformed", 0),
    ("malformed", 1),
    ("malformed", 2),
    ("malformed", 3),
    ("altered", 0),
    at_ms=HOUR,
)
def poison_in_targets(w: World) -> None:
    place = w.here.encode()
    record = w.source(T, T + 10_000)
    w.write(TARGET, T, told_by(b"9" * 30, place, b"1"))
    w.write(TARGET, T, told_by("٣".encode(), place, b"1"))
    w.write(TARGET, T, told_by(b"0", b"\xff\xfe:0:0", b"1"))
    w.write(TARGET, T, told_by(b"-7", place, b"1"))
    w.write(TARGET, T + 10_000, told_by(b"%d" % record, place, b"8" * 5_000))


@case(at_ms=HOUR)
def poison_in_copies(w: World) -> None:
    """Refused by the service, as it must be; nothing in them may end the job."""
    fields = b'"v":1,"base":0,"at":1,"target":"to_a","id":null,"attempt":1,"expires":null'
    bad = [
        b'"settles":99999999999999999999,"source":"","due":1,"partition":0',
        b'"settles":0,"source":"/w==","due":1,"partition":0',
        b'"settles":0,"source":"","due":99999999999999999999999,"partition":0',
        b'"settles":0,"source":"","due":1,"partition":99999999999',
        '"settles":0,"source":"","due":1,"partition":0,"shard":"delay_topic_any:²"'.encode(),
        b'"settles":0,"source":"","due":1,"partition":0,"recur":"/w=="',
    ]
    for more in bad:
        headers = [("delay-copy", b"{" + fields + b"," + more + b"}"), ("delay-copy-mac", b"0")]
        w.letter(T + 1, w.write(w.delay, T, headers), "copy-forged", headers)


# --- honest verdicts -----------------------------------------------------------------------------


@case(unjudged={"evidence_deleted": 2}, at_ms=HOUR)
def dead_letters_gone(w: World) -> None:
    for _ in range(2):
        w.source(T, T + 10_000)
    w.delivery(T + 10_000, w.source(T, T + 10_000), T + 10_000)
    w.rules = deleted(LETTERS)


@case(("lost", 0), at_ms=HOUR)
def outcomes_gone(w: World) -> None:
    """A record without id and expiry has no outcome that could be there."""
    w.source(T, T + 10_000)
    w.rules = deleted(OUTCOMES)


@case(unjudged={"target_not_read": 1}, at_ms=HOUR)
def target_not_read(w: World) -> None:
    w.source(T, T + 10_000)
    w.rules = {"read": frozenset({0, 1})}


HIDDEN = {"behind_open_transaction": 1}
TARGET_IS_OPEN = {"open_places": frozenset({(HASHES[TARGET], 0)})}


@case(unjudged=HIDDEN, at_ms=HOUR)
def behind_an_open_transaction(w: World) -> None:
    w.source(T, T + 10_000)
    w.rules = TARGET_IS_OPEN


@case(unjudged=HIDDEN)
def outcome_of_a_cancel_behind_an_open_transaction(w: World) -> None:
    record, cancel = told_of(w, b"cancel")
    w.outcome(T + 1_010, "cancelled", cancel)
    w.rules = {"open_places": frozenset({(HASHES[OUTCOMES], 0)})}
    assert record < cancel


@case(unjudged=HIDDEN, at_ms=2_000)
def cancelled_behind_an_open_transaction_long_before_it_is_due(w: World) -> None:
    w.source(T, T + HOUR, NAMED)
    w.cut()
    w.outcome(T + 1_010, "cancelled", w.control(T + 1_000, ID, b"cancel"))
    w.settled(T + 2_000)
    w.cut()
    w.rules = {"open_places": frozenset({(HASHES[OUTCOMES], 0)})}


@case(unjudged=HIDDEN, at_ms=HOUR)
def copy_of_a_delivery_behind_an_open_transaction(w: World) -> None:
    w.delivery(T + 10_000, w.source(T, T + 10_000), T + 10_000, topic=OTHER)
    w.rules = TARGET_IS_OPEN


@case(at_ms=HOUR)
def behind_an_open_transaction_below_the_range(w: World) -> None:
    w.source(T, T + 10_000)
    w.judged_from = 1
    w.rules = TARGET_IS_OPEN


@case(("overdue", 0), ("overdue", 1), at_ms=None)
def cursor_that_does_not_move(w: World) -> None:
    w.source(T, T + 10_000)
    w.control(T, ID, b"cancel")
    w.source(T, T + 9 * HOUR)
    w.settled(T, h=0)
    w.rules = {"overdue_since_ms": T + HOUR}


@case(at_ms=HOUR)
def redelivered_after_a_crash_under_at_least_once(w: World) -> None:
    redelivered(w, T + 25_000)


def redelivered(w: World, again_ms: int) -> None:
    record = w.source(T, T + 10_000)
    for at_ms in (T + 10_000, again_ms):
        w.delivery(at_ms, record, T + 10_000)
    w.rules = {"grace_ms": 60_000}


@case(at_ms=HOUR)
def cancelled_after_a_crash_under_at_least_once(w: World) -> None:
    """The delivery was ahead of its checkpoint, and the next owner walked the cancel first."""
    record = w.source(T, T + 10_000, NAMED)
    cancel = w.control(T + 9_990, ID, b"cancel")
    w.delivery(T + 10_000, record, T + 10_000, NAMED)
    w.outcome(T + 20_000, "cancelled", record, cancel)
    w.outcome(T + 20_000, "cancelled", cancel)
    w.rules = {"grace_ms": 60_000}


@case(("duplicated", 0), at_ms=HOUR)
def redelivered_too_late_under_at_least_once(w: World) -> None:
    redelivered(w, T + 90_000)


@case(at_ms=HOUR)
def target_with_the_clock_of_a_broker(w: World) -> None:
    record = w.source(T, T + 10_000)
    w.delivery(T + 9_600, record, T + 10_000)
    w.rules = {"by_broker": frozenset({HASHES[TARGET]})}


@case(("early", 3), ("wrong_outcome", 4), ("wrong_outcome", 5), at_ms=HOUR)
def clocks_that_may_differ_by_what_the_nodes_allow(w: World) -> None:
    expiry = ("delay-expires-at", b"%d" % (T + 10_000))
    records = [w.source(T, T + 10_000, *more) for more in ([], [expiry], [expiry]) * 2]
    for off_ms, (plain, late, expired) in ((2_000, records[:3]), (2_001, records[3:])):
        w.delivery(T + 10_000 - off_ms, plain, T + 10_000)
        w.delivery(T + 15_000 + off_ms, late, T + 10_000)
        w.outcome(T + 10_000 - off_ms, "expired", expired)
    w.strictness = replace(w.strictness, clock_tolerance_ms=2_000)
    w.rules = {"by_broker": frozenset({HASHES[TARGET], HASHES[OUTCOMES]})}


# --- followed from cut to cut --------------------------------------------------------------------


@case(("early", 2), ("lost", 1), ("not_checkpointed", 2))
def pending_records_are_carried_until_they_are_settled(w: World) -> None:
    soon_ms, later_ms = T + MINUTE, T + HOUR
    for due_ms in (soon_ms, soon_ms, later_ms):
        w.source(T, due_ms)
    w.settled(T)
    w.cut()
    w.delivery(soon_ms, 0, soon_ms)
    w.delivery(soon_ms, 2, later_ms)  # early, and out of its turn
    w.settled(soon_ms + 1)
    w.cut()


@case(("duplicated", 1), ("lost", 2), ("wrong_outcome", 2))
def outputs_of_records_that_were_judged(w: World) -> None:
    for offset in range(4):
        w.source(T, T)
        if offset != 2:
            w.delivery(T, offset, T)
    w.settled(T + 1)
    w.cut()
    w.delivery(T, 1, T)
    w.delivery(T, 2, T)
    w.delivery(T, 3, T, topic=OTHER)


@case(("lost", 1), at_ms=MINUTE)
def cancels_of_what_was_pending_at_an_earlier_cut(w: World) -> None:
    names = (b"a", b"b")
    for name in names:
        w.source(T, T + HOUR, ("delay-id", name))
    w.settled(T)
    w.cut()
    first, second = (w.control(T + 1, name, b"cancel") for name in names)
    w.outcome(T + 2, "cancelled", 0, first)
    w.outcome(T + 2, "cancelled", first)
    w.outcome(T + 2, "not_pending", second)


def told_apart(w: World) -> None:
    """A cut between what a control record (offset 1) settled and its own outcome, the last one."""
    w.earlier = Cursor((T, 0), 1)
    w.settled(T + 2 * HOUR)
    w.cut()
    own = w.cuts[-1]
    w.cuts[-1] = own._replace(ends={**own.ends, OUTCOMES: own.ends[OUTCOMES] - 1})


@case()
def cancelled_before_a_cut_and_told_after_it(w: World) -> None:
    cancelled_in_time(w)
    told_apart(w)


@case()
def fired_before_a_cut_and_told_after_it(w: World) -> None:
    fired_early(w)
    told_apart(w)


@case()
def kept_out_before_a_cut_and_told_after_it(w: World) -> None:
    kept_out_by_a_pending_record(w)
    told_apart(w)


@case(("wrong_outcome", 0))
def cancelled_by_a_fire_before_a_cut_and_told_after_it(w: World) -> None:
    """Once: the fire did settle something."""
    cancelled_by_a_fire(w)
    told_apart(w)


@case(("wrong_outcome", 1))
def cancelled_before_a_cut_and_told_otherwise_after_it(w: World) -> None:
    cancel_says_not_pending_and_settled_one(w)
    told_apart(w)


@case(at_ms=None)
def wrong_output_that_is_ahead_of_its_checkpoint(w: World) -> None:
    w.strictness = replace(w.strictness, grace_ms=MINUTE)
    w.delivery(T + 1, w.source(T, T), T, value=b"other")
    w.settled(T - 1)
    w.cut(T + MINUTE)


@case(("altered", 0), at_ms=MINUTE)
def wrong_output_whose_checkpoint_came_later(w: World) -> None:
    wrong_output_that_is_ahead_of_its_checkpoint(w)


@case()
def delivered_at_a_cut_before_its_checkpoint(w: World) -> None:
    w.strictness = replace(w.strictness, grace_ms=MINUTE)
    w.source(T, T + HOUR)
    for _ in range(2):
        w.settled(T)
        w.cut(T)
        w.delivery(T + HOUR, 0, T + HOUR)
    w.logs[TARGET].pop()


def delivered_again_after_two_cuts(w: World, grace_ms: int) -> None:
    w.strictness = replace(w.strictness, grace_ms=grace_ms)
    w.delivery(T, w.source(T, T), T)
    w.settled(T + 1)
    for _ in range(2):
        w.cut(T + 2 * MINUTE)
    w.delivery(T + 10, 0, T)


@case(at_ms=2 * MINUTE)
def delivered_again_within_the_grace_time(w: World) -> None:
    delivered_again_after_two_cuts(w, MINUTE)


@case(("duplicated", 0), at_ms=2 * MINUTE)
def delivered_again_after_the_grace_time(w: World) -> None:
    delivered_again_after_two_cuts(w, 1)


@case(("duplicated", 1))
def copies_that_nobody_can_verify_wait_until_h_has_passed_them(w: World) -> None:
    """One is refused as forged then, the others are not; only the last one settles its record."""
    for _ in range(2):
        w.delivery(T, w.source(T, T), T)
    records = (0, 1, w.source(T, T))
    first, *others = (w.requeue(T, n, T, base=n + 1, secret=b"a stranger's") for n in records)
    w.settled(T + 1, h=first)
    w.cut()
    w.letter(T + 2, first, "copy-forged", w.logs[w.delay][first][3])
    for number, copy in enumerate(others, 1):
        w.delivery(T, copy, T, origin=f"{w.delay}:0:{number}")


@case(("duplicated", 0), at_ms=150_000)
def recurrence_that_forks_behind_a_cut(w: World) -> None:
    recurs_twice(w)
    w.settled(T + 150_000)
    w.cut()
    origin = f"{w.delay}:0:0#3"
    w.requeue(T + 130_000, -1, T + 240_000, base=2, origin=origin, recur=recurring(3))


@case(("duplicated", 0))
def sent_home_again_behind_a_cut(w: World) -> None:
    record, first = sent_home(w)
    w.settled(T + 6)
    w.cut()
    came_again(w, first, w.envelope(T + 6, w.sent(record, FAR)))


@case()
def recurs_at_home_behind_a_cut(w: World) -> None:
    """The cut has judged the record, and not its second occurrence."""
    recurs_at_home(w)
    seen = {name: min(1, len(log)) for name, log in w.logs.items()}
    cursor = Cursor((T + 90_000, 0), 1)
    w.cuts.append(Snapshot(seen, cursor, cursor))


@case(("duplicated", 0))
def recurrence_that_forks_at_home_behind_two_cuts(w: World) -> None:
    recurs_at_home_behind_a_cut(w)
    w.settled(T + 180_000)
    w.cut()
    copy = w.requeue(
        *(T + 130_000, -1, T + 180_000),
        base=1,
        name=FAR,
        origin=f"{w.here}#2",
        recur=recurring(2),
        partition=1,
    )
    w.delivery(T + 180_000, copy, T + 180_000, w.there, NAMED_FAR, origin=f"{w.here}#2")


def test_of_records_that_went_home_no_details_are_stored() -> None:
    runs = made(CASES[sent_home_and_delivered.__name__]).audit().runs
    assert not [run for run in runs if run.kind == SPECIAL]


def test_a_pending_record_is_stored_once_however_often_its_id_is_named() -> None:
    w = World()
    w.source(T, T + HOUR, NAMED)
    w.settled(T)
    for _ in range(3):
        w.cut()
        w.control(T, ID, b"cancel")
        w.settled(T, h=1)  # H has not passed it
    assert sum(run.rows for run in w.audit().runs if run.kind == IDENTIFIED) == 1


@pytest.mark.parametrize("hidden", [1, 2])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_record_whose_canceller_waits_is_not_forgotten_when_its_outcome_was_hidden(
    tmp_path: Path, hidden: int, *, is_lost: bool
) -> None:
    w, outcomes_are_open = World(), {"open_places": frozenset({(HASHES[OUTCOMES], 0)})}
    audit = Audit([w], str(tmp_path))
    w.source(T, T + 2 * HOUR, NAMED)
    for rules in ({}, *[outcomes_are_open] * hidden, {}):
        if rules and len(w.cuts) == 1:
            w.source(T + 1, T + 3 * HOUR, NAMED)
        elif not rules and w.cuts and not is_lost:
            w.outcome(T + 2, "replaced", 0, 1)
        w.rules = rules
        w.settled(T + 2)
        w.cut()
        audit.step(w.cuts[-1:])
        assert audit.found()[0].unjudged == (HIDDEN if rules else {})
    assert audit.found() == [([("lost", 0)], {}, 3) if is_lost else ([], {}, 0)]


@pytest.mark.parametrize("name", CASES)
def test_a_history_has_its_verdict(name: str) -> None:
    wanted = CASES[name]
    assert made(wanted).audit().found() == [wanted[2:]]


@pytest.mark.parametrize("name", [name for name, one in CASES.items() if is_begun(one)])
def test_a_history_has_its_verdict_though_an_earlier_cut_saw_its_first_record(name: str) -> None:
    wanted = CASES[name]
    world = made(wanted)
    world.cuts.insert(0, first_record_of(world))
    assert world.audit().found() == [wanted[2:]]


def test_ids_are_at_home_where_the_histories_say() -> None:
    assert (partition_for(ID, 2), partition_for(FAR, 2)) == (0, 1)


def test_mirrored_and_redelivered_outputs_are_counted() -> None:
    assert counted(what_consumers_and_mirrors_copy)["mirrored"] == 4
    assert counted(redelivered_after_a_crash_under_at_least_once)["redelivered"] == 1


def test_the_judge_shares_no_code_with_what_settles_records() -> None:
    folder = Path(engine.__file__).parents[1]
    modules = [path for part in ("ledger", "audit") for path in (folder / part).glob("*.py")]
    assert len(modules) > len(("ledger", "audit"))
    settling = ("delayservice.engine", "delayservice.slices", "delayservice.contract.provenance")
    assert all(find_spec(name) for name in settling)
    for path in modules:
        shared = {name for name in imports_of(path) if name.startswith(settling)}
        assert shared <= {"delayservice.engine.cursor"}, path
