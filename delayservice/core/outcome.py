"""Outcomes of a record, and the output that carries one to Kafka."""

from __future__ import annotations

from typing import Final, TypeAlias

from delayservice.core.codec import Header

DELIVERED: Final = 0
DEAD_LETTERED: Final = 1
CANCELLED: Final = 2
REPLACED: Final = 3
NOT_PENDING: Final = 4
EXPIRED: Final = 5
ROLLED: Final = 6
PARKED: Final = 7

OUTCOME_NAMES: Final = (
    "delivered",
    "dead_lettered",
    "cancelled",
    "replaced",
    "not_pending",
    "expired",
    "rolled",
    "parked",
)
"""Name of each outcome, by its number, as metrics and the outcome topic spell it."""

Output: TypeAlias = tuple[int, str, int, bytes | None, bytes | None, list[Header], int, int]
"""``(outcome, topic, partition, key, value, headers, due_ms, offset)``: a record to be written, and
the source ``offset`` that it settles. ``partition`` -1 means: by key. A tuple, for each delivered
record is one (``bench whole`` pays for it)."""
