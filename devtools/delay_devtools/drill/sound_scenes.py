"""Scenes without a defect that look like a defect: the audit must report nothing about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from delay_devtools.drill.stage import (
    GRACE_MS,
    LONG_MS,
    SECOND_MS,
    SOON_MS,
    Scene,
    Stage,
)
from delay_devtools.drill.wire import HOUR_MS, MINUTE_MS


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


SCENES: Final[tuple[Scene, ...]] = (
    *(redelivered, forwarded, requeued, signed_before, recurring, forged_and_refused, left_out),
    *(expired_when_fired, letter_of_its_contract),
)
