"""Outcomes of a record, the output that writes one to Kafka, and the settings for outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from delayservice.contract.entry import SCHEDULE, Entry, PolledRecord
from delayservice.contract.names import DELAY_ERROR, Header
from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist
from delayservice.engine.cursor import NO_MARK, Cursor

DELIVERED: Final = 0
DEAD_LETTERED: Final = 1
CANCELLED: Final = 2
REPLACED: Final = 3
NOT_PENDING: Final = 4
EXPIRED: Final = 5
ROLLED: Final = 6
PARKED: Final = 7
FIRED: Final = 8
# The output appends a schedule's next occurrence and settles no record.
RECURRED: Final = 9
# The record is requeued for a later instant: it is over a rate or cap, or its target can't take it
# now.
PACED: Final = 10
# The record is sent to the home partition of its id; ``due_ms`` of its output is the append time.
FORWARDED: Final = 11
# The record was to be scheduled only if none of its id was pending, and one was.
KEPT: Final = 12

# Their outputs go to a delay topic, as requeued records.
COPIES: Final = frozenset({ROLLED, PARKED, RECURRED, PACED})

# As metrics and the outcome topic spell them.
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
    "kept",
)

# Partition -1: chosen by the output's key.
Target: TypeAlias = tuple[str, int]

# (outcome, topic, partition, key, value, headers, due_ms, offset): a record to be written, and the
# source offset that it settles. For a delivery that was put off, ``due_ms`` is the negated end of
# the wait. A tuple, because every delivered record has one (``bench whole``).
Output: TypeAlias = tuple[int, str, int, bytes | None, bytes | None, list[Header], int, int]

PAST_DUE: Final = "past_due"
# Their lateness is measured apart: due before they were written, and put off.
RESUMED: Final = "resumed"
# Lateness is the time since the records were written.
SENT_HOME: Final = "forwarded"
_NOTHING_PAST: Final[Mapping[int, int]] = {}


class OutputCounters:
    """Sums over the outputs of a transaction, for metrics. Outputs need not be kept until the
    commit, so their memory is reused while it is in the cache (``bench whole``).

    ``delivered`` holds due times, epoch ms, by delay topic and target, without those in ``apart``:
    by kind, the instants from which lateness counts.
    """

    __slots__ = ("apart", "codes", "counts", "delivered", "records")

    def __init__(self) -> None:
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
        """Add outputs. ``written_ms``: append times, epoch ms, by offset, of records past due
        then.
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


# The lateness of further ones counts from their due times.
NOTED_MAX: Final = 20_000


class PastDue(dict[int, int]):
    """Append times, epoch ms, by source offset, of unsettled records that were due before then."""

    def __init__(self) -> None:
        super().__init__()
        self._keys_ms: dict[int, int] = {}

    def note(self, rows: Sequence[PolledRecord], entries: Sequence[Entry]) -> None:
        """Note those of ``rows``; ``entries`` are the same rows decoded."""
        found = [
            (entry[0], row[1], entry[2])
            for row, entry in zip(rows, entries, strict=True)
            if entry[2] < row[1] and entry[1] == SCHEDULE
        ]
        for offset, written_ms, key_ms in found[: NOTED_MAX - len(self)]:
            self[offset] = written_ms
            self._keys_ms[offset] = key_ms

    def forget(self, committed: Cursor) -> None:
        keys, gone = self._keys_ms, []
        for offset, key_ms in keys.items():  # in the order of reading, so the rest is not settled
            if offset >= committed.offset:
                break
            if committed.has_settled((key_ms, offset), NO_MARK):
                gone.append(offset)
        for offset in gone:
            del self[offset], keys[offset]


@dataclass(frozen=True, slots=True)
class Routes:
    """Topics for dead letters and outcomes, and settings of requeued records, equal for all
    shards.
    """

    dead_letter: str
    outcomes: str
    secret: bytes
    roll_window_ms: int
    # Rolls come up to this much earlier, which spreads bursts.
    roll_spread_ms: int
    # The wait after each failed attempt; after one more failure, a record is dead-lettered.
    park_delays_ms: tuple[int, ...]
    cron_time: CronTime
    # First wait of a record whose target is paused; up to half is added to spread records.
    held_ms: int = 60_000
    # Verify requeued records and envelopes while the secret is replaced.
    accepted: tuple[bytes, ...] = ()
    allowlist: Callable[[str], Allowlist] = Allowlist
    # Records are parked while their target does not exist, else dead-lettered.
    parks_missing: bool = True

    # The first one signs.
    @property
    def secrets(self) -> tuple[bytes, ...]:
        return (self.secret, *self.accepted)
