"""Kinds of findings (errors that an audit found), and the verdicts that judges return."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.frames import arrow_schema
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
FLOODED: Final = "flooded"

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
    FLOODED,
)

ID_FLOODED: Final = "id_flooded"
"""Reason not to judge the records of an id against each other: there are too many of them."""

FOUND: Final = 0
UNJUDGED: Final = 1
CARRIED: Final = 2
SETTLED: Final = 3
"""Verdicts on a record. ``FOUND``: it is wrong (a finding); ``UNJUDGED``: it can't be judged;
``CARRIED``: its ledger row is judged again at the next cut; ``SETTLED``: it was judged, and a row
of it is kept for later cuts."""

CERTAIN: Final = 0
IF_MARKED: Final = 1
UNLESS_MARKED: Final = 2
IF_OTHER: Final = 3
IF_UNMARKED: Final = 4
"""Conditions under which a verdict counts, by the cursors read before (earlier) and after (later)
the ends of the logs. ``CERTAIN``: always; ``IF_MARKED``: if the earlier H has passed the record's
canceller; ``IF_UNMARKED``: if it has not; ``UNLESS_MARKED``: if the later H has not; ``IF_OTHER``:
if the canceller that the output names is not the record's canceller."""

LOST_ROLE: Final = -1
# Values in place of the role of a settlement: LOST_ROLE: nothing settled the record; UNJUDGED_ROLE:
# it is unknown what settled it.
UNJUDGED_ROLE: Final = -2

FINDING: Final = (
    "id string, kind string, topic string, partition int, offset long, source string, "
    "target string, target_partition int, target_offset long, due_ms long, at_ms long, "
    "detail string"
)
"""Columns of a finding, as a Spark schema; ``docs/audit.md`` describes each."""

FINDING_NAMES: Final = tuple(arrow_schema(FINDING).names)

ABOUT: Final = {"topic": "target", "partition": "target_partition", "offset": "target_offset"}
"""Columns that say what a finding is about; and, for one that is about no record, those of the
output that it is about."""

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
    """Return findings with ``id``, a hash in hex that the same error has in every audit."""
    text = sf.to_json(sf.struct(*_NAMES_IT))
    return found.select(sf.substring(sf.sha2(text, 256), 1, _ID_DIGITS).alias("id"), "*")


def with_id(found: Mapping[str, Any]) -> dict[str, Any]:
    """As ``with_ids``, for one finding."""
    named = {name: found[name] for name in _NAMES_IT if found[name] is not None}
    text = json.dumps(named, separators=(",", ":"), ensure_ascii=False)
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS], **found}


class RecordVerdict(NamedTuple):
    """Verdict on one record: ``FOUND``, ``UNJUDGED``, ``CARRIED`` or ``SETTLED``.

    Attributes:
        kind: kind of a finding, or the reason why the record can't be judged; else empty.
        shard: hash of the shard's name.
        source: ``delay-source`` of the record: the place where it was first written.
        due_ms: due time of the record, epoch ms; 0: unknown.
        detail: one sentence for users.
        when: condition under which the verdict counts, such as ``IF_MARKED``.
        claim: source offset of the canceller that the output names; -1: it names no canceller.
        base: first source offset at which the record's canceller may be.
        since_ms: for a lost record: the verdict counts only if retention has deleted nothing
            written at or after this time, epoch ms.
        aim: for a lost record: hash of the name of its target topic.
        row: for a carried or settled record: the ledger row to keep; else None.
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
    base: int = 0
    since_ms: int = 0
    aim: int = -1
    verdict: int = FOUND
    row: LedgerRow | None = None


class Settled(NamedTuple):
    """Role, time (epoch ms) and place of the output that settled a record, or ``LOST_ROLE`` or
    ``UNJUDGED_ROLE``. ``topic`` is the hash of its name, ``place`` the offset.
    """

    role: int
    at_ms: int
    topic: int
    partition: int
    place: int


class Remembered(NamedTuple):
    """Details of a judged record that may get further outputs: one that recurs or goes to
    its home.
    """

    source: SourceRow
    begun: int = 0
    is_home: bool = False
