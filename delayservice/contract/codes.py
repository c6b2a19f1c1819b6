"""Reasons for which a record is dead-lettered: a stable code, and one line of explanation each.

Codes are part of the contract with users (``delay-error``): they are added, never renamed.
Explanations that end in *(target)* belong to codes found at delivery only. Of the other codes,
``target-denied``, ``cron-invalid`` and ``zone-invalid`` are found then or when the record is read,
and the rest when it is read.
"""

from __future__ import annotations

from typing import Final

from delayservice.base.errors import DelayServiceError

TIME_MISSING = "time-missing"
TIME_INVALID = "time-invalid"
TIME_AMBIGUOUS = "time-ambiguous"
TIME_PAST = "time-past"
DELAY_TOO_LONG = "delay-too-long"
TARGET_MISSING = "target-missing"
TARGET_INVALID = "target-invalid"
TARGET_DENIED = "target-denied"
TARGET_UNKNOWN = "target-unknown"
TARGET_UNAUTHORIZED = "target-unauthorized"
TARGET_REFUSED = "target-refused"
TARGET_DOWN = "target-down"
# Never in a dead letter.
TARGET_PAUSED = "target-paused"
# Never in a dead letter.
TARGET_ASKED = "target-asked"
# Never in a dead letter.
TARGET_LATER = "target-later"
TOO_LARGE = "too-large"
OP_INVALID = "op-invalid"
CRON_INVALID = "cron-invalid"
ZONE_INVALID = "zone-invalid"
HEADER_TOO_LARGE = "header-too-large"
HEADER_INVALID = "header-invalid"
COPY_FORGED = "copy-forged"
SLOT_FULL = "slot-full"
RETRIES_EXHAUSTED = "retries-exhausted"

EXPLANATIONS: dict[str, str] = {
    TIME_MISSING: "No header says when: set delay-at or delay-after.",
    TIME_INVALID: "A time header can't be read, or the record has no usable timestamp.",
    TIME_AMBIGUOUS: "Two time headers name different instants, or a level topic was given one.",
    TIME_PAST: "Due before it was written, and this topic dead-letters such records.",
    DELAY_TOO_LONG: "Due further away than this delay topic's longest delay.",
    TARGET_MISSING: "No target topic, and this delay topic has no default one.",
    TARGET_INVALID: "The target is no legal topic, partition or key, or two headers disagree.",
    TARGET_DENIED: "This delay topic may not deliver to that target topic.",
    TARGET_UNKNOWN: "The target topic or partition does not exist (target).",
    TARGET_UNAUTHORIZED: "The broker does not let the service write to the target (target).",
    TARGET_REFUSED: "The broker refuses the record by the target topic's own rules (target).",
    TARGET_DOWN: "No broker takes records for the target now (target).",
    SLOT_FULL: "More records are due in this second than the shard may deliver in it (target).",
    TOO_LARGE: "The broker refuses the record as too large (target).",
    OP_INVALID: "delay-op is unknown, or its delay-id is missing, empty or ambiguous.",
    CRON_INVALID: "The recurring schedule can't be served.",
    ZONE_INVALID: "The time zone of a recurring schedule is unknown.",
    HEADER_TOO_LARGE: "An input header or the id is over its size limit.",
    HEADER_INVALID: "A header's name is not UTF-8.",
    RETRIES_EXHAUSTED: "It failed once more than delay-backoff has delays.",
    COPY_FORGED: "The record claims to be the service's own copy, and its signature is wrong.",
}


DETAIL_CHARS_MAX: Final = 512
"""Longest ``delay-error-detail``, characters; the rest is cut off."""


def printable(detail: str) -> str:
    """Return a text cut to ``DETAIL_CHARS_MAX``, with U+FFFD for each non-printable character."""
    short = detail[:DETAIL_CHARS_MAX]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)


class RecordRefusedError(DelayServiceError):
    """Record that breaks the contract, with a code of ``EXPLANATIONS`` and a detail for people.
    ``RecordReader`` catches it and returns an ``INVALID`` entry.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
