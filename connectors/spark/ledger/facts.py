"""Ledger rows as objects, and the kinds of records and settlements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from delayservice.contract.entry import ABSENT, CANCEL, COPY, FIRE, HOMEBOUND, INVALID, SCHEDULE

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
"""Roles of ledger rows. Source records: ``SOURCE``, a record to judge; ``NAMED``, which an earlier
cut judged and which may cancel others; ``REMEMBERED``, which an earlier cut judged, with the place
of its settlement. Outputs that settle: ``DELIVERED``, ``LETTER`` (dead-lettered), ``OUTCOME``
(record of the outcome topic), ``COPIED`` (requeued), ``FORWARDED`` (sent to its home). Outputs that
settle nothing: ``DISCLAIMED``, refused as forged; ``CONTINUED``, the next occurrence of a schedule;
``ARRIVED``, an envelope that brings the record home without settling it."""

ROLE_WORDS: Final[Mapping[int, str]] = {
    SOURCE: "source",
    DELIVERED: "delivered",
    LETTER: "dead_lettered",
    OUTCOME: "outcome",
    COPIED: "requeued",
    DISCLAIMED: "refused",
    CONTINUED: "continued",
    NAMED: "named",
    FORWARDED: "forwarded",
    ARRIVED: "arrived",
    REMEMBERED: "remembered",
}
"""Names of roles, as users see them."""

SOURCES: Final = frozenset({SOURCE, NAMED, REMEMBERED})

SETTLING: Final = frozenset({DELIVERED, LETTER, OUTCOME, COPIED, FORWARDED})

NO_PARTITION: Final = -1
NO_TIME: Final = -1
NEVER_MS: Final = 2**62
"""Time later than all others, epoch ms: it stands for events that have not happened."""
# Value of origin for an outcome that names as its source the very record that it settles.
HERE: Final = "#"


class SourceFacts(msgspec.Struct, array_like=True, frozen=True):
    """Facts about a source record for which its ledger row has no column.

    Attributes:
        kind: ``SCHEDULE``, ``CANCEL``, ``COPY`` (requeued record), ….
        origin: ``delay-source`` that its outputs must have; empty: its own place.
        base: first source offset at which its canceller may be; 0: the offset after its own.
        expires_ms: value of ``delay-expires-at``, epoch ms.
        code: for an invalid record: error code of the rule that it breaks; else empty.
        attempt: for a requeued record: number of the attempt to deliver it.
        is_armed: whether its due time is known; false for a user's cron schedule, whose first
            occurrence is a requeued record.
        target: name of its target topic, if the cluster has no topic of that name; else empty.
        recur: its recurrence, encoded as in a payload; empty: it does not recur.
        is_verified: whether its signature was verified, or it needs none; otherwise it counts as
            genuine.
        acts: for a record that goes to its home: its kind there; of records that wait together, the
            kind of the last.
        first_ms: for a record that goes to its home: timestamp with which it was first written,
            epoch ms.
        group: hash of the records that wait together to be sent to their home; 0: none wait.
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
    """Facts about an output for which its ledger row has no column.

    Attributes:
        origin: its ``delay-source``; empty: this is the place of the record that it settles, or,
            for an outcome, there is no such header.
        outcome: for an outcome: the value of ``delay-outcome``.
        code: for a dead letter: the value of ``delay-error``.
        by: source offset of the canceller that it names; -1: it names no canceller.
        is_bare: whether it is a dead letter without content.
        says_bare: whether it is a dead letter which states that its content is left out.
        whole_hash: for a dead letter: hash of the content with all headers of the record.
        target, record_id: for a requeued record or dead letter: what it names.
        target_partition: for a requeued record: what it names; negative: no partition.
        expires_ms: for a requeued record or dead letter: its ``delay-expires-at``, epoch ms.
        recur: for a requeued record: its recurrence, encoded as in a payload.
        base: for a requeued record: first source offset at which its canceller may be; -1: it is in
            another shard than the record that it settles.
        is_mirror: whether it is a dead letter or outcome that another producer has copied to a
            target topic.
        by_source: for an outcome: place where the canceller was written before it came to its
            home; empty: it was written there.
        acts, first_ms, group: as in ``SourceFacts``.
        is_verified: for a requeued record or envelope: whether its signature was verified.
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
    """Ledger row of a source record, with its facts unpacked; ``rows.LEDGER`` describes the
    columns.
    """

    shard: int
    offset: int
    key_ms: int
    due_ms: int
    written_ms: int
    content: int
    """Hash of the key, value and headers that its output must have."""
    topic: int
    """Hash of the name of its target topic; -1: the cluster has no topic of that name."""
    partition: int
    """Target partition that it names; negative: its key chooses the partition."""
    facts: SourceFacts = PLAIN_SOURCE
    key_hash: int = -1
    """Hash of the key that its output must have, which chooses the partition; -1: no key."""


class OutputRow(NamedTuple):
    """Ledger row of an output, with its facts unpacked; its place is topic, partition,
    ``place``.
    """

    role: int
    due_ms: int
    at_ms: int
    content: int
    topic: int
    partition: int
    place: int
    key_hash: int
    facts: OutputFacts = PLAIN_OUTPUT


# Kind of a requeued record that waits until it can be sent to its home. Other kinds of records are
# in delayservice.contract.entry.
WAITING: Final = 100

_DELAYED: Final = frozenset({SCHEDULE, COPY})
# Kinds of source records that a canceller, a later record of their id, may settle.
PENDING: Final = _DELAYED | {WAITING}
# Kinds of records that their target may get.
DELIVERABLE: Final = _DELAYED | {ABSENT}
# Kinds of source records that must be sent to their home in another partition.
FOREIGN: Final = frozenset({HOMEBOUND, WAITING})

KIND_NAMES: Final[Mapping[int, str]] = {
    SCHEDULE: "a record",
    COPY: "a copy",
    CANCEL: "a cancel",
    FIRE: "a fire",
    INVALID: "a record that breaks the contract",
    HOMEBOUND: "a record whose id is at home in another partition",
    WAITING: "a copy that waits for its home",
    ABSENT: "a record that is scheduled if none of its id is pending",
}

KIND_WORDS: Final[Mapping[int, str]] = {
    SCHEDULE: "schedule",
    COPY: "requeued",
    CANCEL: "cancel",
    FIRE: "fire",
    INVALID: "invalid",
    HOMEBOUND: "homebound",
    WAITING: "waiting",
    ABSENT: "absent",
}
"""Names of kinds of source records, as users see them; ``KIND_NAMES`` are for sentences."""


class Settlement(NamedTuple):
    """Way in which an output settles a record.

    ``role`` is that of the output's rows, ``of`` are the kinds of source records, ``by`` is the
    kind of the canceller that must have caused it, and ``verb`` stands after "the record was".
    """

    role: int
    of: frozenset[int]
    by: int | None
    verb: str


SETTLEMENTS: Final[Mapping[str, Settlement]] = {
    "delivered": Settlement(DELIVERED, DELIVERABLE, None, "delivered"),
    "dead_lettered": Settlement(LETTER, DELIVERABLE | FOREIGN | {INVALID}, None, "dead-lettered"),
    "requeued": Settlement(COPIED, DELIVERABLE | FOREIGN, None, "requeued"),
    "forwarded": Settlement(FORWARDED, FOREIGN, None, "sent home"),
    "expired": Settlement(OUTCOME, DELIVERABLE, None, "expired"),
    "cancelled": Settlement(OUTCOME, _DELAYED | {CANCEL, HOMEBOUND}, CANCEL, "cancelled"),
    "replaced": Settlement(OUTCOME, _DELAYED | {WAITING}, SCHEDULE, "replaced"),
    "fired": Settlement(OUTCOME, frozenset({FIRE, HOMEBOUND}), None, "fired"),
    "not_pending": Settlement(
        OUTCOME, frozenset({CANCEL, FIRE}), None, "given the outcome not_pending"
    ),
    "kept": Settlement(OUTCOME, frozenset({ABSENT, HOMEBOUND}), None, "kept out"),
}
"""Kinds of settlements by name. Names of those with the role ``OUTCOME`` are the values of the
header ``delay-outcome``."""

# Values of delay-outcome, after an empty one. The index of each is the kind of its ledger rows.
OUTCOME_NAMES: Final = ("", *(name for name, s in SETTLEMENTS.items() if s.role == OUTCOME))
OUTCOME_KINDS: Final = {name: kind for kind, name in enumerate(OUTCOME_NAMES)}

_BY_ROLE: Final = {one.role: name for name, one in SETTLEMENTS.items() if one.role != OUTCOME}


def settlement_name(role: int, outcome: str) -> str:
    """Return the name in ``SETTLEMENTS``; an unknown outcome is returned unchanged."""
    return _BY_ROLE.get(role, outcome)
