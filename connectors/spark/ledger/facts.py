"""Objects for rows of the ledger: facts of source records and of outputs that settle them."""

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
"""Roles of ledger rows. ``DISCLAIMED`` is a copy or envelope that the service found forged,
``CONTINUED`` the next occurrence of a schedule, as a row of the user's record, and ``ARRIVED`` an
envelope with that record that settles another one, or none: these three settle nothing. ``NAMED``
is a source record that was judged before and may cancel others, ``REMEMBERED`` one that was judged
before, with the place of its settlement."""

SOURCES: Final = frozenset({SOURCE, NAMED, REMEMBERED})
"""Roles of rows that are source records."""

SETTLING: Final = frozenset({DELIVERED, LETTER, OUTCOME, COPIED, FORWARDED})
"""Roles that settle a record."""

NO_PARTITION: Final = -1
NO_TIME: Final = -1
NEVER_MS: Final = 2**62
"""Time after all others, epoch ms, for what has not happened."""
HERE: Final = "#"
"""Value of ``origin`` for an outcome that names the place of the record that it settles."""


class SourceFacts(msgspec.Struct, array_like=True, frozen=True):
    """Facts about a source record that is not plain.

    Attributes:
        kind: kind of the record, as in ``entry``.
        record_id: id of the record.
        origin: ``delay-source`` of its outputs; empty: its own place.
        base: first offset whose record of the same id cancels it.
        expires_ms: time of its expiry, epoch ms.
        code: code of the rule of the contract that it breaks.
        attempt: number of the attempt of a copy.
        is_armed: whether its due time is known; false for a cron schedule before its first copy.
        target: name of its target topic, if the cluster has no such topic.
        recur: its recurrence, as in a payload; empty: it has one occurrence.
        is_verified: whether its signature was checked; without that it counts as genuine.
        acts: kind at home of a record that goes there; for a waiting group, of the last record.
        first_ms: first timestamp of a record that goes home, epoch ms.
        group: hash of all records that wait for their home together.
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
        origin: its ``delay-source``; empty: the place that it settles, or none for an outcome.
        outcome: for an outcome: the value of ``delay-outcome``.
        code: for a dead letter: the value of ``delay-error``.
        by: offset of the canceller that it names; -1: none.
        is_bare: whether it is a dead letter without content.
        says_bare: whether that dead letter states that its content is left out.
        whole_hash: for a dead letter: hash with all headers that the record was written with.
        target: for a copy or letter: the target topic that it names.
        target_partition: for a copy: the target partition that it names.
        record_id: for a copy or letter: the id that it names.
        expires_ms: for a copy or letter: the expiry that it names, epoch ms.
        recur: for a copy: its recurrence, as in a payload; empty: it has one occurrence.
        base: for a copy: first offset whose record of its id cancels it; -1: the copy
            is in another shard.
        is_mirror: whether it is a dead letter or outcome in a topic for other records.
        by_source: place at which the canceller was written before it came home.
        acts, first_ms, group: for a record that goes home: as in ``SourceFacts``.
        is_verified: for a copy or envelope: whether its signature was checked.
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
    """A ledger row of a source record."""

    shard: int
    offset: int
    key_ms: int
    due_ms: int
    written_ms: int
    content: int
    """Hash of the key, value and headers that its output must have."""
    topic: int
    """Hash of its target topic's name; -1: the cluster has no topic of that name."""
    partition: int
    """Target partition that it names; negative: its key chooses the partition."""
    facts: SourceFacts = PLAIN_SOURCE
    key_hash: int = -1
    """Hash of its output's key, which chooses a partition; -1: it has no key."""


class OutputRow(NamedTuple):
    """A ledger row of an output, which lies at ``topic``, ``partition``, ``place``."""

    role: int
    due_ms: int
    at_ms: int
    content: int
    topic: int
    partition: int
    place: int
    key_hash: int
    facts: OutputFacts = PLAIN_OUTPUT
