"""Operators: each spoils one story of the real run, as a broken service or a stranger would.

``DEFECTS`` has all kinds: the story to spoil and the operator. ``SOUND`` has what only looks like a
defect. ``Scene.finds`` says what the audit must report, and where.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from delay_devtools.drill.judge import Found
from delay_devtools.drill.rows import Header, Place, Row, Rows, Story
from delay_devtools.drill.stories import NAMES, PARTITIONS, SECRET, TARGETS
from delayservice.contract.partitioner import partition_for
from delayservice.contract.signing import Signer

# Largest time between two deliveries of a record that the audit accepts under at_least_once, in ms.
GRACE_MS: Final = 5_000
LATE_MS: Final = 60_000
OVERDUE_MS: Final = 6 * 3_600_000
_SOON_MS: Final = 50
_STRANGER: Final = b"a stranger's"
_FORMER: Final = b"the one before"
# A partition that does not exist.
_NOWHERE: Final = f"{NAMES.delay}:99:1".encode()
_NOTHING: Final[Mapping[str, object]] = {}
_COPY: Final = Signer(b"delay-copy 1", "delay-copy", "delay-copy-mac")
_HOME: Final = Signer(b"delay-home 1", "delay-home", "delay-home-mac")
_LETTERS: Final = (f"{NAMES.prefix}_dead_letter", 0)
_OUTCOMES: Final = (f"{NAMES.prefix}_outcomes", 0)


class Scene:
    """One story, and what an operator does to it."""

    def __init__(self, story: Story, rows: Rows, spares: list[Story], rng: random.Random) -> None:
        self.lives = story
        self.rows = rows
        self.rng = rng
        self.found: list[Found] = []
        self._spares = spares

    @property
    def source(self) -> Row:
        return self.lives[0].source

    @property
    def output(self) -> Row:
        return self.lives[-1].outputs[0]

    def finds(self, kind: str, source: Row, output: Row | None = None) -> None:
        self.found.append(Found(kind, *source.where, None if output is None else output.where))

    def repeat(self, row: Row, after_ms: int = 0, place: Place | None = None) -> Row:
        again = replace(row, timestamp_ms=row.timestamp_ms + after_ms)
        return self.rows.add(again, place or row.place)

    def move(self, row: Row, place: Place) -> Row:
        self.rows.remove(row)
        return self.rows.add(row, place)

    def insert(self, row: Row, partition: int) -> Row:
        """Put a row into the delay topic, in place and time of a spare record."""
        story = next(one for one in self._spares if one[0].source.partition == partition)
        self._spares.remove(story)
        (spare,) = story
        for gone in (*spare.outputs, spare.source):
            self.rows.remove(gone)
        made = replace(row, timestamp_ms=spare.source.timestamp_ms, headers=[*row.headers])
        return self.rows.put(made, spare.source.where)

    def deliver(self, source: Row, after_ms: int = _SOON_MS, **headers: bytes) -> Row:
        """Add the delivery of a user's record with ``delay-after``."""
        due_ms = source.timestamp_ms + int(source.text("delay-after") or 0)
        told = [*_own(source), ("delay-due-at", b"%d" % due_ms), *_settling(source)]
        told += [header for header in source.headers if header[0] == "delay-id"]
        made = replace(source, timestamp_ms=due_ms + after_ms, headers=told)
        made.has(**headers)
        place = source.text("delay-target-topic"), partition_for(source.key or b"", PARTITIONS)
        return self.rows.add(made, place)

    def hole(self, place: Place) -> int:
        """Return an offset without a committed record."""
        free = [one for one in self.rows.holes if one[:2] == place and one not in self.rows]
        return self.rng.choice(free)[2]


def _own(row: Row) -> list[Header]:
    return [header for header in row.headers if not header[0].startswith("delay-")]


def _settling(source: Row) -> list[Header]:
    return [("delay-source", source.name), ("delay-settles", b"%d" % source.offset)]


def sign(row: Row, changes: Mapping[str, object] = _NOTHING, secret: bytes = SECRET) -> None:
    """Sign a requeued record or envelope for the place where it is, with other fields."""
    signer = _COPY if row.header("delay-copy") else _HOME
    text = json.dumps({**row.claim(), **changes}, separators=(",", ":")).encode()
    content = (row.key, row.value, row.headers[:-2])
    row.headers = signer.signed(f"{row.topic}:{row.partition}", secret, text, content)[2]


Operator: TypeAlias = Callable[[Scene], object]
Change: TypeAlias = Callable[[Row], None]


class Kind(NamedTuple):
    """Kind of a defect: the story to spoil, and how."""

    story: str
    operator: Operator


# --- one output ----------------------------------------------------------------------------------


def drop(s: Scene, life: int = -1) -> None:
    s.rows.remove(s.lives[life].outputs[0])
    s.finds("lost", s.lives[life].source)


def repeat(s: Scene, life: int = -1) -> None:
    again = s.repeat(s.lives[life].outputs[0], GRACE_MS + s.rng.randint(1, GRACE_MS))
    s.finds("duplicated", s.lives[life].source, again)


def retime(s: Scene, kind: str, late_ms: range) -> None:
    s.output.timestamp_ms = int(s.output.text("delay-due-at")) + s.rng.choice(late_ms)
    s.finds(kind, s.lives[-1].source, s.output)


def retarget(s: Scene, topic: int = 0, partition: int = 0) -> None:
    place = _away(s.output, topic, partition)
    s.finds("wrong_target", s.lives[-1].source, s.move(s.output, place))


def _away(row: Row, topic: int, partition: int) -> Place:
    target = TARGETS[(TARGETS.index(row.topic) + topic) % 2]
    return target, (row.partition + partition) % PARTITIONS


def alter(s: Scene, change: Change, kind: str = "altered", life: int = -1) -> None:
    change(s.lives[life].outputs[0])
    s.finds(kind, s.lives[life].source, s.lives[life].outputs[0])


def say(s: Scene, life: int = -1, **headers: bytes | None) -> None:
    alter(s, lambda row: row.has(**headers), "wrong_outcome", life)


def say_itself(s: Scene) -> None:
    say(s, 0, delay_settled_by=b"%d" % s.source.offset)


def value(row: Row) -> None:
    row.value = b"another"


def key(row: Row) -> None:
    row.key = b"another"


def less(*names: str) -> Change:
    def without(row: Row) -> None:
        row.headers = [header for header in row.headers if header[0] not in names]

    return without


def due(row: Row) -> None:
    row.has(delay_due_at=b"%d" % (int(row.text("delay-due-at")) - 1))


def origin(row: Row) -> None:
    place, _, offset = row.text("delay-source").rpartition(":")
    row.has(delay_source=f"{place}:{int(offset) - 1}".encode())


def bare(row: Row) -> None:
    row.key = row.value = None
    row.headers = row.headers[-4:]


# --- outputs of nothing --------------------------------------------------------------------------


def extra(s: Scene) -> None:
    """Deliver an offset without a committed record."""
    unwritten = replace(s.source, offset=s.hole(s.source.place))
    output = s.repeat(s.output)
    output.has(**{name.replace("-", "_"): told for name, told in _settling(unwritten)})
    s.finds("unknown_source", unwritten, output)


def stray(s: Scene, kind: str, **headers: bytes) -> None:
    """Add an output whose headers name no record."""
    output = s.repeat(s.output)
    output.has(**headers)
    s.finds(kind, output, output)


# --- another outcome -----------------------------------------------------------------------------


def expire(s: Scene) -> None:
    s.rows.remove(s.output)
    shard = f"{s.source.topic}:{s.source.partition}".encode()
    told = [("delay-outcome", b"expired"), ("delay-shard", shard), *_settling(s.source)]
    made = replace(s.output, key=None, value=None, headers=told)
    s.finds("wrong_outcome", s.source, s.rows.add(made, _OUTCOMES))


def letter(s: Scene, kind: str, after_ms: int) -> None:
    """Dead-letter a delivered record."""
    made = s.repeat(s.output, after_ms, _LETTERS)
    made.headers = [*_own(s.source), ("delay-error", b"time-missing"), *_settling(s.source)]
    s.finds(kind, s.source, made)


def letter_instead(s: Scene) -> None:
    letter(s, "wrong_outcome", 0)
    s.rows.remove(s.output)


def deliver(s: Scene, life: int = 0) -> None:
    """Deliver a record instead of what settled it."""
    s.rows.remove(s.lives[life].outputs[0])
    s.finds("wrong_outcome", s.lives[life].source, s.deliver(s.lives[life].source))


def outlive(s: Scene) -> None:
    """Deliver a record after its expiry."""
    late_ms = int(s.source.text("delay-expires-at")) + 6_000
    for life in s.lives:
        life.outputs[0].timestamp_ms = late_ms
    s.finds("wrong_outcome", s.source, s.lives[0].outputs[0])


def ignore_cancel(s: Scene) -> None:
    s.lives[1].outputs[0].has(delay_outcome=b"not_pending")
    deliver(s)


def cancel_and_deliver(s: Scene) -> None:
    s.deliver(s.source)
    s.finds("duplicated", s.source, s.lives[0].outputs[0])


def fire_by_cancel(s: Scene) -> None:
    record, cancel = s.lives
    cancel.outputs[0].has(delay_outcome=b"not_pending")
    s.rows.remove(record.outputs[0])
    output = s.deliver(record.source, delay_fired_by=b"%d" % cancel.source.offset)
    output.timestamp_ms = record.outputs[0].timestamp_ms
    s.finds("wrong_outcome", record.source, output)


# --- requeued, recurring, sent home --------------------------------------------------------------


def requeue(s: Scene, **changes: object) -> None:
    """Requeue a record with other fields."""
    sign(s.lives[-1].source, changes)
    s.finds("altered", s.source, s.lives[-1].source)


def requeue_later(s: Scene) -> None:
    due_ms = int(s.output.text("delay-due-at")) + 1
    s.output.has(delay_due_at=b"%d" % due_ms)
    s.output.timestamp_ms += 1
    requeue(s, at=due_ms, due=due_ms)


def requeue_to(s: Scene, topic: int = 0, partition: int = 0) -> None:
    """Requeue a record for another topic or partition."""
    target, number = s.move(s.output, _away(s.output, topic, partition)).place
    sign(s.lives[-1].source, {"target": target, "partition": number if partition else -1})
    s.finds("wrong_target", s.source, s.lives[-1].source)


def carry_value(s: Scene) -> None:
    """Requeue a record, or send it home, with another value."""
    s.lives[-1].source.value = s.output.value = b"another"
    requeue(s)


def carry_time(s: Scene) -> None:
    """Send a record home with another time of writing."""
    due(s.output)
    requeue(s, written=s.source.timestamp_ms - 1)


def fork(s: Scene) -> None:
    """Requeue a record, or begin its next occurrence, a second time, and deliver that too."""
    right = s.lives[1].source
    again = s.insert(right, right.partition)
    output = s.repeat(s.lives[1].outputs[0], _later_ms(again, right))
    output.has(delay_settles=b"%d" % again.offset)
    s.finds("duplicated", s.source, again)


def forge(s: Scene) -> None:
    """Deliver a forged requeued record of a delivered one."""
    due_ms, base = int(s.output.text("delay-due-at")), s.source.offset + 1
    claim = {"at": due_ms, "due": due_ms, "base": base, "target": s.output.topic}
    claim |= {"partition": -1, "id": None, "attempt": 1, "expires": None}
    copy = _claimed(s, "delay-copy", claim, s.source.partition)
    sign(copy, secret=_STRANGER)
    output = s.repeat(s.output, _later_ms(copy, s.source))
    output.has(delay_settles=b"%d" % copy.offset)
    s.finds("duplicated", s.source, copy)


def send_home(s: Scene) -> None:
    """Send a record home that was written at its home."""
    away = (s.source.partition + 1) % PARTITIONS
    claim: dict[str, object] = {"op": "schedule", "written": s.source.timestamp_ms}
    claim["shard"] = f"{s.source.topic}:{s.source.partition}"
    envelope = _claimed(s, "delay-home", claim, away)
    sign(envelope)
    shard = f"{envelope.topic}:{away}".encode()
    s.output.timestamp_ms += _later_ms(envelope, s.source)
    s.output.has(delay_settles=b"%d" % envelope.offset, delay_shard=shard)
    s.finds("wrong_outcome", s.source, envelope)


def _later_ms(row: Row, before: Row) -> int:
    # Nothing is settled before it is in the log: the audit dates other records of the shard by it.
    return row.timestamp_ms - before.timestamp_ms


def _claimed(s: Scene, name: str, claim: Mapping[str, object], partition: int) -> Row:
    # Without a signature.
    said = {"v": 1, "settles": s.source.offset, "source": b64encode(s.source.name).decode()}
    told = [(name, json.dumps({**said, **claim}).encode()), (f"{name}-mac", b"")]
    own = s.source.headers if name == "delay-home" else _own(s.source)
    return s.insert(replace(s.source, headers=[*own, *told]), partition)


# --- the checkpoint ------------------------------------------------------------------------------


def run_ahead(s: Scene) -> None:
    """Deliver a record that no checkpoint has passed."""
    s.source.timestamp_ms -= 120_000
    s.finds("not_checkpointed", s.source, s.deliver(s.source))


def stick(s: Scene) -> None:
    s.source.timestamp_ms -= OVERDUE_MS + 3_600_000
    s.finds("overdue", s.source)


# --- sound ---------------------------------------------------------------------------------------


def forward(s: Scene) -> None:
    """Copy a delivery with its headers to another topic, as a consumer may."""
    s.repeat(s.output, 1_000, _away(s.output, 1, 1)).value = b"enriched"


def leave_out(s: Scene) -> None:
    bare(s.output)
    s.output.has(delay_error_detail=b"its key, value and headers (105 bytes) are left out, refused")


# --- the tables ----------------------------------------------------------------------------------

_LATE: Final = range(LATE_MS + 1, 2 * LATE_MS)
_UNCODED: Final = less("delay-error", "delay-error-detail")
_POISON: Final = partial(stray, kind="malformed")
_DELIVERED: Final = "plain keyed tombstone level named rolled sent_home"
# What is done, to which stories, and how.
_DEFECTS: Final[tuple[tuple[str, str, Operator], ...]] = (
    ("dropped", f"{_DELIVERED} expiring recurring replaced denied invalid gone", drop),
    ("dropped", "expired idle", drop),
    ("record_dropped", "cancelled fired replaced", partial(drop, life=0)),
    ("control_dropped", "cancelled fired", partial(drop, life=1)),
    ("repeated", f"{_DELIVERED} recurring invalid gone expired idle aged", repeat),
    ("record_repeated", "cancelled fired", partial(repeat, life=0)),
    ("hastened", _DELIVERED, partial(retime, kind="early", late_ms=range(-5_000, 0))),
    ("delayed", _DELIVERED, partial(retime, kind="late", late_ms=_LATE)),
    ("retargeted", _DELIVERED, partial(retarget, topic=1)),
    ("shifted", "keyed placed rekeyed tombstone named", partial(retarget, partition=1)),
    ("altered_value", f"{_DELIVERED} denied", partial(alter, change=value)),
    ("altered_key", "placed", partial(alter, change=key)),
    ("altered_headers", "plain invalid", partial(alter, change=less("own"))),
    ("altered_order", "plain", partial(alter, change=lambda row: row.headers.reverse())),
    ("altered_due_time", "plain", partial(alter, change=due)),
    ("altered_source", "plain", partial(alter, change=origin)),
    ("altered_content", "invalid", partial(alter, change=bare)),
    ("altered_id", "denied", partial(alter, change=less("delay-id"))),
    ("altered_time", "denied", partial(alter, change=less("delay-at"))),
    ("said_unknown", "invalid", partial(say, delay_error=b"target-unknown")),
    ("said_missing", "denied", partial(say, delay_error=b"time-missing")),
    ("said_replaced", "cancelled", partial(say, life=0, delay_outcome=b"replaced")),
    ("said_idle", "cancelled fired", partial(say, delay_outcome=b"not_pending")),
    ("said_cancelled", "fired idle", partial(say, delay_outcome=b"cancelled")),
    ("said_by_itself", "cancelled replaced", say_itself),
    ("uncoded", "denied gone", partial(alter, change=_UNCODED, kind="dead_letter_missing_code")),
    ("extra", "plain", extra),
    ("nowhere", "plain", partial(stray, kind="unknown_source", delay_source=_NOWHERE)),
    ("poisoned", "plain", partial(_POISON, delay_settles=b"9" * 30)),
    ("poisoned", "keyed", partial(_POISON, delay_settles="٣".encode())),  # an Arabic digit
    ("poisoned", "named", partial(_POISON, delay_source=b"elsewhere")),
    ("expired", "plain expiring", expire),
    ("lettered", "plain", letter_instead),
    ("lettered_too", "keyed", partial(letter, kind="duplicated", after_ms=2 * GRACE_MS)),
    ("delivered", "expired replaced too_long invalid", deliver),
    ("outlived", "expiring fired", outlive),
    ("ignored", "cancelled", ignore_cancel),
    ("delivered_too", "cancelled", cancel_and_deliver),
    ("fired", "cancelled", fire_by_cancel),
    ("requeued_without_id", "rolled", partial(requeue, id=None)),
    ("requeued_without_expiry", "rolled", partial(requeue, expires=None)),
    ("requeued_below", "rolled", lambda s: requeue(s, base=s.source.offset - 1)),
    ("requeued_later", "rolled recurring", requeue_later),
    ("requeued_elsewhere", "rolled recurring", partial(requeue_to, topic=1)),
    ("requeued_aside", "rolled recurring", partial(requeue_to, partition=1)),
    ("carried_value", "rolled sent_home", carry_value),
    ("carried_time", "sent_home", carry_time),
    ("forked", "rolled recurring", fork),
    ("forged", "plain", forge),
    ("sent_home", "named", send_home),
    ("ran_ahead", "tail", run_ahead),
    ("stuck", "tail", stick),
)
_SOUND: Final[tuple[tuple[str, str, Operator], ...]] = (
    ("redelivered", "plain level", lambda s: s.repeat(s.output, GRACE_MS)),
    ("forwarded", "plain keyed", forward),
    ("left_out", "denied", leave_out),
    ("signed_before", "rolled recurring", lambda s: sign(s.lives[-1].source, secret=_FORMER)),
)


def _by_name(rows: Iterable[tuple[str, str, Operator]]) -> dict[str, Kind]:
    return {
        f"{story}_{name}": Kind(story, operator)
        for name, stories, operator in rows
        for story in stories.split()
    }


DEFECTS: Final[Mapping[str, Kind]] = _by_name(_DEFECTS)
SOUND: Final[Mapping[str, Kind]] = _by_name(_SOUND)
