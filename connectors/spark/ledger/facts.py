"""Facts of source records and of what settles them: what a row of the ledger says, as objects."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from delayservice.contract.entry import SCHEDULE

SOURCE: Final = 0
DELIVERED: Final = 1
LETTER: Final = 2
OUTCOME: Final = 3
COPIED: Final = 4
DISCLAIMED: Final = 5
CONTINUED: Final = 6
NAMED: Final = 7
FORWARDED: Final = 8
ARRIVED: Final = 9
REMEMBERED: Final = 10
"""Roles of ledger rows. ``DISCLAIMED`` names a copy or an envelope that the service found forged,
``CONTINUED`` the next occurrence of a schedule, as a row of the user's record, and ``ARRIVED`` an
envelope with that record in it which settles another one, or none: these three settle nothing.
``NAMED`` is a source record that was judged before and may cancel one that was not, ``REMEMBERED``
one that was judged before, with the place of what settled it."""

SOURCES: Final = frozenset({SOURCE, NAMED, REMEMBERED})
"""Roles of rows that are source records."""

SETTLING: Final = frozenset({DELIVERED, LETTER, OUTCOME, COPIED, FORWARDED})
"""Roles that settle a record."""

NO_PARTITION: Final = -1
NO_TIME: Final = -1
NEVER_MS: Final = 2**62
HERE: Final = "#"
"""``origin`` of an outcome that names the place of the record that it settles."""


class SourceFacts(msgspec.Struct, array_like=True, frozen=True):
    """Facts about a source record that is not plain.

    Attributes:
        kind: as ``entry`` counts them.
        record_id: its id.
        origin: ``delay-source`` of what settles it; empty: its own place.
        base: the first offset whose record of the same id cancels it.
        expires_ms: after this it is expired.
        code: why it breaks the contract.
        attempt: of a copy.
        is_armed: whether its due time is known; not of a cron schedule before its first copy.
        target: its target topic, where that is none of the cluster's.
        recur: its recurrence, as a payload holds it; empty: it has one occurrence.
        is_verified: whether its signature was checked; one that was not is believed.
        acts: of what goes home: the kind that it is there; of what waits, of the last of them.
        first_ms: of the same, its first timestamp.
        group: of what waits for its home: a hash of all that do.
    """

    kind: int = SCHEDULE
    record_id: bytes | None = None
    origin: str = ""
    base: int = 0
    expires_ms: int | None = None
    code: str = ""
    attempt: int = 1
    is_armed: bool = True
    target: str = ""
    recur: bytes = b""
    is_verified: bool = True
    acts: int = SCHEDULE
    first_ms: int = NO_TIME
    group: int = 0


class OutputFacts(msgspec.Struct, array_like=True, frozen=True):
    """Facts about an output that is not a plain delivery.

    Attributes:
        origin: its ``delay-source``; empty: the place that it settles, and of an outcome: none.
        by: the canceller that it names; -1: none.
        is_bare: a dead letter without content.
        says_bare: whether that letter says that its content is left out.
        whole_hash: of a dead letter: of all headers that the record was written with.
        target: of a copy or letter: the target topic that it names.
        target_partition: of a copy: the target partition that it names.
        record_id: of a copy or letter: the id that it names.
        base: of a copy: the first offset whose record of its id cancels it.
        is_mirror: a dead letter or outcome in a topic that the service writes none to.
        by_source: where it says that the canceller was written, which came home.
        acts: of what goes home, ``first_ms``, ``group``: as of a source record.
        is_verified: of a copy or envelope: whether its signature was checked.
    """

    origin: str = ""
    outcome: str = ""
    code: str = ""
    by: int = -1
    is_bare: bool = False
    says_bare: bool = False
    whole_hash: int = 0
    target: str = ""
    target_partition: int = NO_PARTITION
    record_id: bytes | None = None
    expires_ms: int | None = None
    recur: bytes = b""
    base: int = -1
    is_mirror: bool = False
    by_source: str = ""
    acts: int = SCHEDULE
    first_ms: int = NO_TIME
    group: int = 0
    is_verified: bool = True


PLAIN_SOURCE: Final = SourceFacts()
PLAIN_OUTPUT: Final = OutputFacts()


class SourceRow(NamedTuple):
    """A source record: a row of the ledger."""

    shard: int
    offset: int
    key_ms: int
    due_ms: int
    written_ms: int
    content: int
    """Hash of key, value and headers that its output must have."""
    topic: int
    """Number of its target topic; -1: the cluster has none of that name."""
    partition: int
    facts: SourceFacts = PLAIN_SOURCE
    key_hash: int = -1
    """Hash of its output's key, which chooses a partition; -1: it has no key."""


class OutputRow(NamedTuple):
    """A row of the ledger: a record at ``topic``, ``partition``, ``place`` that settles another."""

    role: int
    due_ms: int
    at_ms: int
    content: int
    topic: int
    partition: int
    place: int
    key_hash: int
    facts: OutputFacts = PLAIN_OUTPUT
