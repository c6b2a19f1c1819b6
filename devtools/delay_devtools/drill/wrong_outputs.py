"""Scenes with wrong deliveries, expiries and dead letters."""

from __future__ import annotations

from collections.abc import Iterator
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


SCENES: Final[tuple[Scene, ...]] = (
    *(dropped, duplicated, early, late, altered_value, altered_key, altered_headers),
    *(altered_due_time, altered_source, wrong_target, wrong_partition, extra_output, poisoned),
    *(expired_without_expiry, expired_too_early, delivered_after_expiry, letter_of_another_code),
    *(letter_without_code, letter_without_content, letter_without_id, delivered_and_lettered),
    *(broken_delivered, broken_of_another_code, broken_and_altered, letter_of_the_former_contract),
)
