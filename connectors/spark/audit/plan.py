"""The audit as Spark runs it, at one cut: from topics to judged rows, from those to findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.frames import decide_by_ids, judge_records
from connectors.spark.audit.judge import LOST, UNJUDGED, UNKNOWN_SOURCE
from connectors.spark.audit.rules import DELETED, Rules, ShardRules
from connectors.spark.common.cut import (
    Cut,
    LogStarts,
    ShardCut,
    Span,
    first_times,
    offsets_at,
    topic_policies,
)
from connectors.spark.common.topics import Place, read_topic
from connectors.spark.ledger.facts import LETTER, NEVER_MS, OUTCOME
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import LEDGER, NO_SHARD, Ledger
from connectors.spark.ledger.sources import SourceRows
from delayservice.core import names
from delayservice.core.cursor import OFFSET_MAX
from delayservice.errors import DelayServiceError

FINDING: Final = (
    "kind string, topic string, partition int, offset long, source string, target string, "
    "target_partition int, target_offset long, due_ms long, at_ms long, detail string"
)
"""A finding, as it is written; ``docs/audit.md`` says what each column is."""

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
    """The part of ``audit.AuditOptions`` that a plan needs: what to judge, and how strictly."""

    client: Mapping[str, str]
    dead_letter: str
    outcomes: str
    secrets: Sequence[bytes]
    ranges: Sequence[OffsetRange]
    late_ms: int | None
    early_ms: int
    grace_ms: int
    overdue_ms: int | None
    lag_ms: int


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
        self.cut = cut
        self._shards = _chosen(cut, scope.ranges)
        self._topics = sorted(cut.partitions)
        self._topic_numbers = {name: number for number, name in enumerate(self._topics)}
        self._shard_numbers = {(s.topic, s.partition): n for n, (s, _) in enumerate(self._shards)}
        self._contracts = {(s.topic, s.partition): s.contracts for s in cut.shards}
        self._policies = topic_policies(scope.client, {topic for topic, _ in cut.others})
        self._first_ms = first_times(scope.client, cut.spans)
        self._complete_ms = self._complete_since()
        self._judged = self._judged_ranges()
        self.rules = self._make_rules()
        self._sources, self._outputs = self._spans()
        cores = spark.sparkContext.defaultParallelism
        self._tasks = max(2 * cores, self.rows // _TASK_RECORDS + 1)

    @property
    def judged_ranges(self) -> list[OffsetRange]:
        """The ranges that the verdict is for: those that were asked for, else the offsets of each
        shard for which all evidence still exists.
        """
        return [
            OffsetRange(shard.topic, shard.partition, span.start, span.end)
            for (shard, _), span in zip(self._shards, self._judged, strict=True)
        ]

    @property
    def rows(self) -> int:
        """Offsets that are read."""
        spans = (*self._sources.values(), *self._outputs.values())
        return sum(span.end - span.start for span in spans)

    # --- judge ---------------------------------------------------------------------------------

    def judged(self) -> DataFrame:
        """Rows of ``verdicts.JUDGED``."""
        ledger = Ledger(
            self._shard_numbers,
            self._topic_numbers,
            self._contracts,
            {number: (r.start, r.stop) for number, (_, r) in enumerate(self._shards)},
            {topic: self.cut.partitions[topic] for topic in self.cut.delay_topics},
            {self._scope.dead_letter: LETTER, self._scope.outcomes: OUTCOME},
            tuple(self._scope.secrets),
        )
        sources = self._read(self._sources).mapInArrow(SourceRows(ledger).of, LEDGER)
        outputs = self._read(self._outputs).mapInArrow(OutputRows(ledger).of, LEDGER)
        return judge_records(sources.unionAll(outputs), self.rules, self._tasks)

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
        """Return the spans to read, of delay topics and of all others. For a few source offsets
        these are the offsets and all that was written since: any delay topic may hold copies.
        """
        delayed = {(shard.topic, shard.partition): shard.span for shard in self.cut.shards}
        others = dict(self.cut.others)
        if not self._scope.ranges:
            return delayed, others
        judged = self._judged_spans()
        written_ms = first_times(self._scope.client, judged).values()
        since_ms = min(written_ms, default=self.cut.taken_ms) - _CLOCKS_DIFFER_MS
        first = offsets_at(self._scope.client, [*delayed, *others], since_ms)
        first |= {place: span.start for place, span in judged.items()}
        return _since(delayed, first), _since(others, first)

    # --- findings ------------------------------------------------------------------------------

    def findings(self, judged: DataFrame) -> DataFrame:
        """Rows of ``FINDING`` and their ``verdict``, those that depend on others of their id
        decided.
        """
        certain = decide_by_ids(judged, self.rules, self._tasks)
        if self._scope.ranges:  # what names no record is in no range
            certain = certain.where(sf.col("shard") != NO_SHARD)
        return self._named(self._still_true(certain))

    def _still_true(self, found: DataFrame) -> DataFrame:
        """Without what is only missing because retention went on while the logs were read: of
        what is lost is not known any more.
        """
        spans = self.cut.spans
        starts = LogStarts(self._scope.client).of(spans.keys())
        for number, (shard, _) in enumerate(self._shards):
            start = starts[shard.topic, shard.partition]
            if start > shard.span.start:
                gone = (sf.col("shard") == number) & (sf.col("offset") < start)
                found = found.where(~(gone & (sf.col("kind") == UNKNOWN_SOURCE)))
        moved = {
            place: Span(starts[place], max(span.end, starts[place]))
            for place, span in self.cut.others.items()
            if starts[place] > span.start
        }
        if not moved:
            return found
        settled_ms = first_times(self._scope.client, moved, names.DELAY_SETTLES)
        since_ms: dict[str, int] = {}
        for place in moved:
            at_ms = settled_ms.get(place, NEVER_MS)
            since_ms[place[0]] = max(at_ms, since_ms.get(place[0], 0))
        own = (self._scope.dead_letter, self._scope.outcomes)
        bound = sf.lit(max((since_ms.get(topic, 0) for topic in own), default=0))
        for topic, at_ms in since_ms.items():
            is_aim = sf.col("aim") == self._topic_numbers[topic]
            bound = sf.greatest(bound, sf.when(is_aim, sf.lit(at_ms)).otherwise(0))
        is_unseen = (sf.col("kind") == LOST) & (sf.col("since_ms") < bound)
        return found.withColumns(
            {
                "verdict": sf.when(is_unseen, sf.lit(UNJUDGED)).otherwise(sf.col("verdict")),
                "kind": sf.when(is_unseen, sf.lit(DELETED)).otherwise(sf.col("kind")),
            }
        )

    def _named(self, found: DataFrame) -> DataFrame:
        """Numbers of shards and topics as names."""
        topics = self._spark.createDataFrame(
            list(enumerate(self._topics)), "target int, target_topic string"
        )
        rows = [(n, s.topic, s.partition) for n, (s, _) in enumerate(self._shards)]
        shards = self._spark.createDataFrame(rows, "shard int, topic string, partition int")
        return (
            found.join(sf.broadcast(shards), "shard", "left")
            .join(sf.broadcast(topics), "target", "left")
            .select(
                "kind",
                sf.coalesce("topic", "target_topic").alias("topic"),
                sf.coalesce("partition", "target_partition").alias("partition"),
                sf.coalesce("offset", "target_offset").alias("offset"),
                "source",
                sf.col("target_topic").alias("target"),
                *("target_partition", "target_offset", "due_ms", "at_ms", "detail", "verdict"),
            )
        )

    # --- rules ---------------------------------------------------------------------------------

    def _complete_since(self) -> dict[str, tuple[int, ...]]:
        """From when on the partitions of topics hold all that was written to them. Of one that
        retention has emptied, that is not known.
        """
        gone = {place: span for place, span in self.cut.others.items() if span.start > 0}
        settled_ms = first_times(self._scope.client, gone, names.DELAY_SETTLES)
        at_ms = self._first_ms | settled_ms
        cut = {place for place, span in self.cut.spans.items() if span.start > 0}
        return {
            topic: tuple(
                at_ms.get((topic, number), NEVER_MS) if (topic, number) in cut else 0
                for number in range(self.cut.partitions[topic])
            )
            for topic in {topic for topic, _ in self.cut.spans}
        }

    def _judged_ranges(self) -> list[Span]:
        """Return the offsets of the verdict, by shard."""
        evidence = [topic for topic in self._complete_ms if topic not in self.cut.delay_topics]
        held = [
            at_ms
            for topic in evidence
            if not self._policies[topic].is_compacted
            for at_ms in self._complete_ms[topic]
            if at_ms < NEVER_MS
        ]
        since_ms = max(held, default=0)
        spans = [_within(shard.span, chosen) for shard, chosen in self._shards]
        if self._scope.ranges or not since_ms:
            return spans
        places = [(shard.topic, shard.partition) for shard, _ in self._shards]
        first = offsets_at(self._scope.client, places, since_ms)
        held_spans = _since(dict(zip(places, spans, strict=True)), first)
        return [held_spans[place] for place in places]

    def _make_rules(self) -> Rules:
        read = {topic for topic, _ in self.cut.others}
        numbers = self._topic_numbers
        own = {self._scope.dead_letter, self._scope.outcomes}
        taken_ms, scope = self.cut.taken_ms, self._scope
        return Rules(
            shards=tuple(
                self._shard_rules(shard, chosen, judged)
                for (shard, chosen), judged in zip(self._shards, self._judged, strict=True)
            ),
            topics=tuple(self._topics),
            partitions=tuple(self.cut.partitions[topic] for topic in self._topics),
            read=frozenset(numbers[topic] for topic in read),
            dead_letter=numbers[scope.dead_letter],
            outcomes=numbers[scope.outcomes],
            delay_topics=frozenset(numbers[topic] for topic in self.cut.delay_topics),
            complete_since_ms={numbers[topic]: at for topic, at in self._complete_ms.items()},
            seen_ms={
                numbers[topic]: tuple(
                    self._first_ms.get((topic, number), NEVER_MS)
                    for number in range(self.cut.partitions[topic])
                )
                for topic in read
            },
            open_places=frozenset((numbers[t], number) for t, number in self.cut.open_places),
            compacted=frozenset(
                numbers[topic] for topic in read - own if self._policies[topic].is_compacted
            ),
            by_broker=frozenset(
                numbers[topic] for topic in read if self._policies[topic].is_by_broker
            ),
            late_ms=scope.late_ms,
            early_ms=scope.early_ms,
            overdue_since_ms=(
                -NEVER_MS if scope.overdue_ms is None else taken_ms - scope.overdue_ms
            ),
            grace_ms=scope.grace_ms,
            unsettled_since_ms=taken_ms - scope.grace_ms if scope.grace_ms else NEVER_MS,
            lag_ms=scope.lag_ms,
        )

    def _shard_rules(self, shard: ShardCut, chosen: OffsetRange, judged: Span) -> ShardRules:
        place = (shard.topic, shard.partition)
        span = _within(shard.span, chosen)
        # Delay topics have the broker's times: the service serves no other ones.
        first_ms = self._first_ms.get(place, self.cut.taken_ms)
        return ShardRules(
            shard.name,
            shard.earlier,
            shard.later,
            span.start,
            span.end,
            shard.span.end,
            shard.contracts,
            is_open=place in self.cut.open_places,
            is_level=any(contract.level_ms for _, contract in shard.contracts.entries()),
            judged_from=judged.start,
            known_from=span.start if self._scope.ranges else shard.span.start,
            born_ms=first_ms - _CLOCKS_DIFFER_MS,
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
