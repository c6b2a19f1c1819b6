"""Outcomes of a record, and the output that carries one to Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from delayservice.core.codec import Header
from delayservice.core.names import DELAY_ERROR

DELIVERED: Final = 0
DEAD_LETTERED: Final = 1
CANCELLED: Final = 2
REPLACED: Final = 3
NOT_PENDING: Final = 4
EXPIRED: Final = 5
ROLLED: Final = 6
PARKED: Final = 7
FIRED: Final = 8
RECURRED: Final = 9
"""The next occurrence of a schedule was appended: a beginning, which settles nothing."""
PACED: Final = 10
"""Over a limit, and given an instant of its own."""

COPIES: Final = frozenset({ROLLED, PARKED, RECURRED, PACED})
"""Outputs that come back through the delay topic."""

OUTCOME_NAMES: Final = (
    "delivered",
    "dead_lettered",
    "cancelled",
    "replaced",
    "not_pending",
    "expired",
    "rolled",
    "parked",
    "fired",
    "recurred",
    "paced",
)
"""Name of each outcome, by its number, as metrics and the outcome topic spell it."""

Target: TypeAlias = tuple[str, int]
"""``(topic, partition)`` that an output is written to; partition -1: by key."""

Output: TypeAlias = tuple[int, str, int, bytes | None, bytes | None, list[Header], int, int]
"""``(outcome, topic, partition, key, value, headers, due_ms, offset)``: a record to be written, and
the source ``offset`` that it settles. ``partition`` -1 means: by key. A tuple, for each delivered
record is one (``bench whole`` pays for it)."""


class Tally:
    """What outputs come to, so that they need not be kept until their commit: they let go of their
    memory while it is in the cache, and the next ones take it again (``bench whole``).

    Attributes:
        records: how many there are.
        counts: how many of each outcome, by its number.
        due_ms: of those that are delivered.
        codes: ``delay-error`` of those that are dead-lettered.
    """

    __slots__ = ("codes", "counts", "due_ms", "records")

    def __init__(self) -> None:
        """Nothing yet."""
        self.clear()

    def clear(self) -> None:
        """Start anew; what was handed out before is left as it is."""
        self.records = 0
        self.counts = [0] * len(OUTCOME_NAMES)
        self.due_ms: list[int] = []
        self.codes: list[str] = []

    def add(self, outputs: Sequence[Output]) -> None:
        """Count these."""
        delivered = [output[6] for output in outputs if output[0] == DELIVERED]
        self.records += len(outputs)
        self.due_ms += delivered
        self.counts[DELIVERED] += len(delivered)
        if len(delivered) == len(outputs):
            return
        for output in outputs:
            if output[0] != DELIVERED:
                self.counts[output[0]] += 1
            if output[0] == DEAD_LETTERED:
                self.codes.append((dict(output[5])[DELAY_ERROR] or b"").decode())
