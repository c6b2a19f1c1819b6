"""The audit as Spark runs it, at one cut: from topics to judged rows, from those to findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.judge import (
    CERTAIN,
    LOST,
    UNKNOWN_SOURCE,
    Rules,
    ShardRules,
)
from connectors.spark.audit.marks import NAMES, Names, decided
from connectors.spark.audit.verdicts import JUDGED, Court
from connectors.spark.cut import (
    Cut,
    LogStarts,
    ShardCut,
    Span,
    compacted,
    first_times,
    offsets_at,
)
from connectors.spark.ledger.facts import (
    LETTER,
    NEVER_MS,
    OUTCOME,
)
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import LEDGER, Ledger
from connectors.spark.ledger.sources import SourceRows
from connectors.spark.topics import Place, read_topic
from delayservice.core import names
from delayservice.core.cursor import OFFSET_MAX
from delayservice.errors import DelayServiceError

FINDING: Final = (
    "kind string, topic string, partition int, offset long, source string, target string, "
    "target_partition int, target_offset long, due_ms long, at_ms long, detail string"
)
"""A finding, as it is written; ``docs/audit.md`` says what each column is."""

_BLOCK_BITS: Final = 13
"""Records of so many neighbouring offsets are judged by one task: their rows pack well."""
_TASK_RECORDS: Final = 1_000_000
_CLOCKS_DIFFER_MS: Final = 600_000
"""No output has a timestamp that is so much before its source record's."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Source offsets ``[start, stop)`` of one shard."""

    topic: str
    partition: int
    start: int = 0
    stop: int = OFFSET_MAX


@dataclass(frozen=True, slots=True)
class Scope:
    """What is judged, and how strictly; see ``audit.AuditOptions``."""

    client: Mapping[str, str]
    dead_letter: str
    outcomes: str
    secrets: Sequence[bytes]
    ranges: Sequence[OffsetRange]
    late_ms: int | None
    early_ms: int
    grace_ms: int


class Plan:
    """One audit at one cut.

    Args:
        spark: the session.
        scope: what is judged.
        cut: cursors and ends.

    Raises:
        DelayServiceError: a range is of no shard that is served.
        KafkaEdgeError: the cluster can't be asked.
    """

    def __init__(self, spark: SparkSession, scope: Scope, cut: Cut) -> None:
        self._spark = spark
        self._scope = scope
        self._cut = cut
        self._shards = _chosen(cut, scope.ranges)
        self._topics = sorted(cut.partitions)
        self._topic_numbers = {name: number for number, name in enumerate(self._topics)}
        self._shard_numbers = {(s.topic, s.partition): n for n, (s, _) in enumerate(self._shards)}
        self._contracts = {(s.topic, s.partition): s.contracts for s in cut.shards}
        self._rules = self._make_rules()
        self._sources, self._outputs = self._spans()
        cores = spark.sparkContext.defaultParallelism
        self._tasks = max(2 * cores, self.rows // _TASK_RECORDS + 1)

    @property
    def rows(self) -> int:
        """Offsets that are read."""
        spans = (*self._sources.values(), *self._outputs.values())
        return sum(span.end - span.start for span in spans)

    # --- judge ---------------------------------------------------------------------------------

    def judged(self) -> DataFrame:
        """Rows of ``audit_verdicts.JUDGED``."""
        ledger = Ledger(
            self._shard_numbers,
            self._topic_numbers,
            self._contracts,
            {number: (r.start, r.stop) for number, (_, r) in enumerate(self._shards)},
            {self._scope.dead_letter: LETTER, self._scope.outcomes: OUTCOME},
            tuple(self._scope.secrets),
        )
        sources = self._read(self._sources).mapInArrow(SourceRows(ledger).of, LEDGER)
        outputs = self._read(self._outputs).mapInArrow(OutputRows(ledger).of, LEDGER)
        block = sf.shiftright("offset", _BLOCK_BITS)
        return (
            sources.unionAll(outputs)
            .repartition(self._tasks, "shard", block)
            .sortWithinPartitions("shard", "offset", "role")
            .mapInArrow(Court(self._rules).judge, JUDGED)
        )

    def _read(self, spans: Mapping[Place, Span]) -> DataFrame:
        return read_topic(
            self._spark,
            self._scope.client,
            {topic for topic, _ in spans},
            {place: span.start for place, span in spans.items()},
            {place: span.end for place, span in spans.items()},
            self._tasks,
        )

    def _judged_spans(self) -> dict[Place, Span]:
        """The source offsets that are judged."""
        return {
            (shard.topic, shard.partition): _within(shard.span, chosen)
            for shard, chosen in self._shards
        }

    def _spans(self) -> tuple[dict[Place, Span], dict[Place, Span]]:
        """What is read of the delay topics and of all others: for a few source offsets, those and
        only what was written since they were, for copies of them may be in any delay topic.
        """
        delayed = {(shard.topic, shard.partition): shard.span for shard in self._cut.shards}
        others = dict(self._cut.others)
        if not self._scope.ranges:
            return delayed, others
        judged = self._judged_spans()
        written_ms = first_times(self._scope.client, judged).values()
        since_ms = min(written_ms, default=self._cut.taken_ms) - _CLOCKS_DIFFER_MS
        first = offsets_at(self._scope.client, [*delayed, *others], since_ms)
        first |= {place: span.start for place, span in judged.items()}
        return _since(delayed, first), _since(others, first)

    # --- findings ------------------------------------------------------------------------------

    def findings(self, judged: DataFrame) -> DataFrame:
        """Rows of ``FINDING`` among judged ones, cancellers looked up where they decide."""
        found = judged.where("number is null")
        undecided = found.where(sf.col("when") != CERTAIN)
        certain = found.where(sf.col("when") == CERTAIN)
        bases = _bases(undecided)
        if bases:
            certain = certain.unionByName(
                decided(undecided, self._names(bases), self._shard_table())
            )
        return self._named(self._still_true(certain))

    def _names(self, bases: Mapping[int, int]) -> DataFrame:
        """User records that bear an id, from the first base on that is asked for."""
        spans = {
            (shard.topic, shard.partition): Span(
                min(max(bases[number], shard.span.start), shard.span.end), shard.span.end
            )
            for number, (shard, _) in enumerate(self._shards)
            if number in bases
        }
        named = Names(self._shard_numbers, self._contracts, tuple(self._scope.secrets))
        return self._read(spans).mapInArrow(named.of_sources, NAMES)

    def _still_true(self, found: DataFrame) -> DataFrame:
        """Without what is only missing because retention went on while the logs were read."""
        spans = self._cut.spans
        starts = LogStarts(self._scope.client).of(spans.keys())
        for number, (shard, _) in enumerate(self._shards):
            start = starts[shard.topic, shard.partition]
            if start > shard.span.start:
                gone = (sf.col("shard") == number) & (sf.col("offset") < start)
                found = found.where(~(gone & (sf.col("kind") == UNKNOWN_SOURCE)))
        moved = {
            place: Span(starts[place], max(span.end, starts[place]))
            for place, span in self._cut.others.items()
            if starts[place] > span.start
        }
        if not moved:
            return found
        settled_ms = first_times(self._scope.client, moved, names.DELAY_SETTLES)
        since_ms = max(_complete_since(moved, settled_ms).values())
        return found.where((sf.col("kind") != LOST) | (sf.col("since_ms") >= since_ms))

    def _named(self, found: DataFrame) -> DataFrame:
        """Numbers of shards and topics as names."""
        topics = self._spark.createDataFrame(
            list(enumerate(self._topics)), "target int, target_topic string"
        )
        return (
            found.join(sf.broadcast(self._shard_table()), "shard")
            .join(sf.broadcast(topics), "target", "left")
            .select(
                *("kind", "topic", "partition", "offset", "source"),
                sf.col("target_topic").alias("target"),
                *("target_partition", "target_offset", "due_ms", "at_ms", "detail"),
            )
        )

    def _shard_table(self) -> DataFrame:
        rows = [
            (number, s.topic, s.partition, s.earlier.offset, s.later.offset)
            for number, (s, _) in enumerate(self._shards)
        ]
        schema = "shard int, topic string, partition int, earlier_h long, later_h long"
        return self._spark.createDataFrame(rows, schema)

    # --- rules ---------------------------------------------------------------------------------

    def _make_rules(self) -> Rules:
        spans = self._cut.spans
        first_ms = first_times(self._scope.client, spans)
        gone = {place: span for place, span in self._cut.others.items() if span.start > 0}
        settled_ms = first_times(self._scope.client, gone, names.DELAY_SETTLES)
        since_ms = _complete_since(spans, first_ms | settled_ms)
        own = {self._scope.dead_letter, self._scope.outcomes}
        read = {topic for topic, _ in self._cut.others}
        since_ms |= dict.fromkeys(compacted(self._scope.client, read - own), NEVER_MS)
        letters_ms = max((since_ms.get(topic, 0) for topic in own), default=0)
        copies_ms = max((since_ms.get(topic, 0) for topic in self._cut.delay_topics), default=0)
        numbers = self._topic_numbers
        return Rules(
            shards=tuple(
                _shard_rules(shard, chosen, letters_ms, copies_ms, self._born_ms(shard, first_ms))
                for shard, chosen in self._shards
            ),
            topics=tuple(self._topics),
            partitions=tuple(self._cut.partitions[topic] for topic in self._topics),
            read=frozenset(numbers[topic] for topic in read),
            complete_since_ms={numbers[topic]: at for topic, at in since_ms.items()},
            seen_ms={
                numbers[topic]: tuple(
                    first_ms.get((topic, number), NEVER_MS)
                    for number in range(self._cut.partitions[topic])
                )
                for topic in read
            },
            late_ms=self._scope.late_ms,
            early_ms=self._scope.early_ms,
            believes=not self._scope.secrets,
            unsettled_since_ms=(
                self._cut.taken_ms - self._scope.grace_ms if self._scope.grace_ms else NEVER_MS
            ),
        )

    def _born_ms(self, shard: ShardCut, first_ms: Mapping[Place, int]) -> int:
        """What is older settles none of the shard's records. Delay topics have the broker's times:
        the service serves no other ones.
        """
        first = first_ms.get((shard.topic, shard.partition), self._cut.taken_ms)
        return first - _CLOCKS_DIFFER_MS


def _shard_rules(
    shard: ShardCut, chosen: OffsetRange, letters_ms: int, copies_ms: int, born_ms: int
) -> ShardRules:
    span = _within(shard.span, chosen)
    is_level = any(contract.level_ms for _, contract in shard.contracts.entries())
    return ShardRules(
        shard.name,
        shard.earlier,
        shard.later,
        span.start,
        span.end,
        shard.span.end,
        shard.contracts,
        max(letters_ms, copies_ms) if is_level else letters_ms,
        born_ms,
    )


def _chosen(cut: Cut, ranges: Iterable[OffsetRange]) -> list[tuple[ShardCut, OffsetRange]]:
    """The shards that are judged, each with the offsets of it.

    Raises:
        DelayServiceError: a range is of no shard that is served.
    """
    wanted = {(r.topic, r.partition): r for r in ranges}
    served = {(shard.topic, shard.partition): shard for shard in cut.shards}
    unknown = sorted(wanted.keys() - served.keys())
    if unknown:
        topic, partition = unknown[0]
        raise DelayServiceError(
            f"{topic}:{partition} is no shard that the checkpoint knows; it knows "
            f"{', '.join(shard.name for shard in cut.shards) or 'none'}"
        )
    if wanted:
        return [(served[place], chosen) for place, chosen in sorted(wanted.items())]
    return [(shard, OffsetRange(shard.topic, shard.partition)) for shard in cut.shards]


def _within(span: Span, chosen: OffsetRange) -> Span:
    start = min(max(span.start, chosen.start), span.end)
    return Span(start, max(min(span.end, chosen.stop), start))


def _since(spans: Mapping[Place, Span], first: Mapping[Place, int]) -> dict[Place, Span]:
    """Logs from these offsets on; nothing of those that have none."""
    return {
        place: Span(min(max(span.start, first.get(place, span.end)), span.end), span.end)
        for place, span in spans.items()
    }


def _complete_since(spans: Mapping[Place, Span], first_ms: Mapping[Place, int]) -> dict[str, int]:
    """From when on topics hold all that was written: of those that retention has cut."""
    since_ms: dict[str, int] = {}
    for place, span in spans.items():
        if span.start > 0:
            first = first_ms.get(place, NEVER_MS)
            since_ms[place[0]] = max(since_ms.get(place[0], 0), first)
    return since_ms


def _bases(undecided: DataFrame) -> dict[int, int]:
    """By shard, the first offset at which a canceller is looked for. A row for each shard."""
    lowest = undecided.groupBy("shard").agg(sf.min("base").alias("base")).collect()
    return {row["shard"]: row["base"] for row in lowest}
