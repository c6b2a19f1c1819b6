"""Kinds of findings, and the rows that judges give."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.ledger.facts import OutputRow, SourceRow
from connectors.spark.ledger.rows import LedgerRow

LOST: Final = "lost"
DUPLICATED: Final = "duplicated"
EARLY: Final = "early"
LATE: Final = "late"
OVERDUE: Final = "overdue"
ALTERED: Final = "altered"
WRONG_TARGET: Final = "wrong_target"
WRONG_OUTCOME: Final = "wrong_outcome"
NOT_CHECKPOINTED: Final = "not_checkpointed"
UNKNOWN_SOURCE: Final = "unknown_source"
MISSING_CODE: Final = "dead_letter_missing_code"
MALFORMED: Final = "malformed"

KINDS: Final = (
    LOST,
    DUPLICATED,
    EARLY,
    LATE,
    OVERDUE,
    ALTERED,
    WRONG_TARGET,
    WRONG_OUTCOME,
    NOT_CHECKPOINTED,
    UNKNOWN_SOURCE,
    MISSING_CODE,
    MALFORMED,
)
"""Kinds of findings."""

FOUND: Final = 0
UNJUDGED: Final = 1
CARRIED: Final = 2
SETTLED: Final = 3
"""Verdicts: something is wrong; it can't be judged; it is judged at a later cut; it was judged."""

CERTAIN: Final = 0
IF_MARKED: Final = 1
UNLESS_MARKED: Final = 2
IF_OTHER: Final = 3
IF_UNMARKED: Final = 4
"""Conditions under which a verdict counts: always; if the earlier cursor has passed the record's
canceller; unless the later cursor has; if the output names another canceller; unless the earlier
cursor has passed it."""

LOST_ROLE: Final = -1
UNJUDGED_ROLE: Final = -2
"""In place of the role of what settled a record: nothing did, or nothing is known."""

FINDING: Final = (
    "id string, kind string, topic string, partition int, offset long, source string, "
    "target string, target_partition int, target_offset long, due_ms long, at_ms long, "
    "detail string"
)
"""A finding, as it is written; ``docs/audit.md`` says what each column is."""


_NAMES_IT: Final = (
    "kind",
    "topic",
    "partition",
    "offset",
    "target",
    "target_partition",
    "target_offset",
)
_ID_DIGITS: Final = 32


def with_ids(found: DataFrame) -> DataFrame:
    """Return findings with their ``id``, which is derived from what the finding says."""
    text = sf.to_json(sf.struct(*_NAMES_IT))
    return found.select(sf.substring(sf.sha2(text, 256), 1, _ID_DIGITS).alias("id"), "*")


class RecordVerdict(NamedTuple):
    """A verdict on one record: it is wrong, can't be judged, is carried on or is judged.

    Attributes:
        kind: of a finding, or the reason why it can't be judged; empty of the other verdicts.
        shard, offset: the record.
        source: its ``delay-source``.
        output: what the finding is about.
        due_ms: when it was due; 0: unknown.
        detail: one sentence for people.
        when: whether that depends on the record's canceller.
        claim: the canceller that the output names; -1: none.
        record_id: of the record.
        base: the first offset at which its canceller may be.
        since_ms: of a lost record: it holds only if the topics are complete since this time.
        aim: of a lost record: its target topic.
        verdict: one of those above.
        row: of what is carried or settled: its row of the ledger.
    """

    kind: str
    shard: int
    offset: int
    source: str = ""
    output: OutputRow | None = None
    due_ms: int = 0
    detail: str = ""
    when: int = CERTAIN
    claim: int = -1
    record_id: bytes | None = None
    base: int = 0
    since_ms: int = 0
    aim: int = -1
    verdict: int = FOUND
    row: LedgerRow | None = None


class Settled(NamedTuple):
    """The place of what settled a record: ``role``, when, and where."""

    role: int
    at_ms: int
    topic: int
    partition: int
    place: int


class Remembered(NamedTuple):
    """Details that are kept of a judged record to which more may come.

    Attributes:
        begun: the last occurrence of its schedule that was begun.
    """

    source: SourceRow
    begun: int = 0
    is_home: bool = False
