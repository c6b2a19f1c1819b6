"""Kinds of findings, and the verdicts that judges return."""

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
"""Verdicts on a record: it is wrong; it can't be judged; a later cut judges it; it was judged."""

CERTAIN: Final = 0
IF_MARKED: Final = 1
UNLESS_MARKED: Final = 2
IF_OTHER: Final = 3
IF_UNMARKED: Final = 4
"""Conditions under which a verdict counts: always; if the earlier cursor has passed the record's
canceller; unless the later cursor has; if the output names another canceller; unless the earlier
cursor has passed the canceller."""

LOST_ROLE: Final = -1
UNJUDGED_ROLE: Final = -2
"""Values in place of a settlement's role: there was no settlement, or it is unknown."""

FINDING: Final = (
    "id string, kind string, topic string, partition int, offset long, source string, "
    "target string, target_partition int, target_offset long, due_ms long, at_ms long, "
    "detail string"
)
"""Columns of a finding; ``docs/audit.md`` describes each."""


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
    """Return findings with their ``id``, a hash of the finding's kind and places."""
    text = sf.to_json(sf.struct(*_NAMES_IT))
    return found.select(sf.substring(sf.sha2(text, 256), 1, _ID_DIGITS).alias("id"), "*")


class RecordVerdict(NamedTuple):
    """A verdict on one record: an error, not to be judged, carried on or settled.

    Attributes:
        kind: kind of a finding, or the reason why it can't be judged; else empty.
        shard, offset: place of the record.
        source: ``delay-source`` of the record.
        output: the output that the finding is about.
        due_ms: due time of the record, epoch ms; 0: unknown.
        detail: one sentence for users.
        when: condition on the record's canceller under which the verdict counts.
        claim: offset of the canceller that the output names; -1: none.
        record_id: id of the record.
        base: first offset at which its canceller may lie.
        since_ms: for a lost record: it counts only if the topics are complete since this time.
        aim: for a lost record: its target topic.
        verdict: one of the verdicts above.
        row: for a carried or settled record: its ledger row.
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
    """Facts that are kept about the output that settled a record.

    Attributes:
        role: role of its ledger row, or ``LOST_ROLE`` or ``UNJUDGED_ROLE``.
        at_ms: time at which the broker appended it, epoch ms.
        topic: hash of the name of the topic that it is in.
        partition, place: partition and offset at which it is there.
    """

    role: int
    at_ms: int
    topic: int
    partition: int
    place: int


class Remembered(NamedTuple):
    """Details that are kept of a judged record that may get more outputs.

    Attributes:
        source: the record.
        begun: number of the last occurrence of its schedule that was begun; 0: none.
        is_home: whether it has arrived at the partition in which its id is decided.
    """

    source: SourceRow
    begun: int = 0
    is_home: bool = False
