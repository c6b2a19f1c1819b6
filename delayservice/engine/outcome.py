"""Outcomes of a record, and the output that writes one to Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from delayservice.contract.names import DELAY_ERROR, Header

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
"""Outcome of an output that appends a schedule's next occurrence; it settles no record."""
PACED: Final = 10
"""Outcome of a record requeued for a later instant, because it is over a rate or cap, or its
target can't take it in the open transaction."""
FORWARDED: Final = 11
"""Outcome of a record that was sent to the home partition of its id; ``due_ms`` of its output is
the record's append time."""

COPIES: Final = frozenset({ROLLED, PARKED, RECURRED, PACED})
"""Outcomes whose outputs go to a delay topic, as requeued records that the service reads again."""

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
    "forwarded",
)
"""Name of each outcome, by its number, as metrics and the outcome topic spell it."""

Target: TypeAlias = tuple[str, int]
"""``(topic, partition)`` to which an output is written; partition -1: chosen by the output's
key."""

Output: TypeAlias = tuple[int, str, int, bytes | None, bytes | None, list[Header], int, int]
"""``(outcome, topic, partition, key, value, headers, due_ms, offset)``: a record to be written, and
the source ``offset`` of the record that it settles. ``partition`` -1: chosen by the key. If a
delivered record was put off, by a limit or because its target failed or was paused, ``due_ms`` is
the negated end of the wait. A tuple, because every delivered record has one (``bench whole``)."""

PAST_DUE: Final = "past_due"
RESUMED: Final = "resumed"
"""Kinds of deliveries whose lateness is measured apart: ``PAST_DUE``, of records that were due
before they were written, and ``RESUMED``, of records that were put off."""
SENT_HOME: Final = "forwarded"
"""Kind of outputs that send records to the home partition of their id. Their lateness is the time
since the records were written."""
_NOTHING_PAST: Final[Mapping[int, int]] = {}


class Tally:
    """Sums over the outputs of a transaction, for metrics. The outputs themselves need not be kept
    until the commit, so their memory is reused while it is in the cache (``bench whole``).

    Attributes:
        records: number of outputs.
        counts: number of outputs of each outcome, by the outcome's number.
        delivered: due times of delivered records, epoch ms, by delay topic and target topic;
            without the records in ``apart``.
        apart: by kind (``PAST_DUE``, ``RESUMED``, ``SENT_HOME``), the instant from which the
            lateness of each record counts, epoch ms: when it was written, or the end of its wait.
        codes: ``delay-error`` of each dead letter.
    """

    __slots__ = ("apart", "codes", "counts", "delivered", "records")

    def __init__(self) -> None:
        """Start with empty sums."""
        self.clear()

    def clear(self) -> None:
        """Replace all sums by empty ones; lists that callers took from them stay unchanged."""
        self.records = 0
        self.counts = [0] * len(OUTCOME_NAMES)
        self.delivered: dict[tuple[str, str], list[int]] = {}
        self.apart: dict[str, list[int]] = {}
        self.codes: list[str] = []

    def add(
        self,
        outputs: Sequence[Output],
        topic: str,
        written_ms: Mapping[int, int] = _NOTHING_PAST,
    ) -> None:
        """Add outputs of the delay topic ``topic`` to the sums. ``written_ms``: append times, epoch
        ms, by source offset, of records that were due before they were written.
        """
        due_ms = [output[6] for output in outputs if output[0] == DELIVERED]
        self.records += len(outputs)
        self.counts[DELIVERED] += len(due_ms)
        if due_ms:
            target = outputs[0][1]
            one_target = len({output[1] for output in outputs}) == 1
            if one_target and not written_ms and min(due_ms) >= 0:  # nearly always
                self.delivered.setdefault((topic, target), []).extend(due_ms)
            else:
                self._add_one_by_one(outputs, topic, written_ms)
        if len(due_ms) == len(outputs):
            return
        for output in outputs:
            if output[0] != DELIVERED:
                self.counts[output[0]] += 1
            if output[0] == DEAD_LETTERED:
                self.codes.append((dict(output[5])[DELAY_ERROR] or b"").decode())
            elif output[0] == FORWARDED:
                self.apart.setdefault(SENT_HOME, []).append(output[6])

    def _add_one_by_one(
        self, outputs: Sequence[Output], topic: str, written_ms: Mapping[int, int]
    ) -> None:
        for output in outputs:
            if output[0] != DELIVERED:
                continue
            since_ms, written = output[6], written_ms.get(output[7])
            if since_ms < 0:
                self.apart.setdefault(RESUMED, []).append(-since_ms)
            elif written is not None:
                self.apart.setdefault(PAST_DUE, []).append(written)
            else:
                self.delivered.setdefault((topic, output[1]), []).append(since_ms)
