"""One step of an audit: from the cut before, if there is one, to this one.

    1  read     records since the cut before, as rows of the ledger                        ledger
    2  due      what was pending and may be settled by now                                 state
    3  match    records with what settles them; nearly all are done then                   match
    4  look up  what outputs and ids of this step name of earlier ones                     state
    5  judge    what is left, record by record                                             court
    6  decide   what depends on other records of the same id                               court
    7  keep     findings, and what the next step needs                                     state

Each step writes down what the next one reads, so that nothing is computed twice and memory stays
bounded. Work follows what is new and what comes due, and not what is pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.court import COUNT, LINE, Passed, decide_by_ids, judge_records
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.findings import (
    CERTAIN,
    FOUND,
    LOST,
    UNJUDGED,
    UNKNOWN_SOURCE,
    with_ids,
)
from connectors.spark.audit.held import Held
from connectors.spark.audit.match import ODD, PENDING, SOUND, UNMATCHED, match, unpaired
from connectors.spark.audit.rules import DELETED, Rules
from connectors.spark.audit.state import Run
from connectors.spark.common.cut import Cut, LogStarts, Span, first_times
from connectors.spark.common.frames import kept
from connectors.spark.common.topics import Place, read_topic
from connectors.spark.ledger.facts import NAMED, NEVER_MS
from connectors.spark.ledger.native import (
    ORDINARY,
    classified_outputs,
    classified_sources,
    ledger_of,
)
from connectors.spark.ledger.rows import NO_SHARD, Ledger, name_hash
from delayservice.core import names

_PASSED_MAX: Final = 500_000
"""Blocks of offsets of which the driver keeps when H had passed them."""
_BLOCK_BITS: Final = 8
_TASK_RECORDS: Final = 1_000_000
_TASKS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step.

    Attributes:
        found: findings, as ``findings.FINDING``.
        unjudged: the same of what could not be judged.
        counts: records by what became of them.
        runs: what the next step reads.
    """

    found: DataFrame
    unjudged: DataFrame
    counts: Mapping[str, int]
    runs: tuple[Run, ...] = ()


class Engine:
    """Makes one step.

    Args:
        spark: the session.
        client: options of librdkafka.
        work: a folder for what the parts of the step hand to each other.
        cut: the cut to judge at.
        evidence: what is known of the logs.
        rules: what to judge by.
        ledger: what to read by.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Mapping[str, str],
        work: str,
        cut: Cut,
        evidence: Evidence,
        rules: Rules,
        ledger: Ledger,
    ) -> None:
        self._spark = spark
        self._client = client
        self._work = work
        self._cut = cut
        self._evidence = evidence
        self._rules = rules
        self._ledger = ledger

    def run(self, held: Held | None = None) -> Step:
        """Make the step; without ``held`` it is the only one, and keeps nothing."""
        new = self._read()
        rows = new if held is None else new.unionByName(held.due())
        matched = self._kept("matched", match(rows, self._rules), "status")
        odd = unpaired(matched.where(sf.col("status").isin(ODD, UNMATCHED)))
        odd = odd.unionByName(rows.where((sf.col("shard") == NO_SHARD) | (sf.col("role") == NAMED)))
        if held is not None:
            odd = odd.unionByName(held.look_up(matched, rows))
        judged = judge_records(odd, self._rules, keeps=held is not None)
        judged = self._kept("judged", judged, "verdict")
        decided = self._kept("decided", self._decided(matched, judged), "verdict")
        counts = self._counts(matched, judged)
        runs = () if held is None else held.keep(matched, decided)
        return Step(self._named(decided, FOUND), self._named(decided, UNJUDGED), counts, runs)

    def _kept(self, name: str, rows: DataFrame, *by: str) -> DataFrame:
        return kept(rows, f"{self._work}/{name}", *by)

    # --- read ----------------------------------------------------------------------------------

    def _read(self) -> DataFrame:
        """Return the rows of the ledger that new records make."""
        delayed = {shard.place for shard in self._cut.shards}
        sources = classified_sources(self._records(self._evidence.spans, delayed), self._ledger)
        others = self._evidence.spans.keys() - delayed
        outputs = classified_outputs(self._records(self._evidence.spans, others), self._ledger)
        is_source = sf.lit(True)  # noqa: FBT003  # a literal of Spark's
        records = sources.withColumn("is_source", is_source).unionByName(
            outputs.withColumn("is_source", ~is_source)
        )
        self._classified = self._kept("records", records, "is_source", "reading")
        rows = [
            ledger_of(self._classified.where(told), self._ledger, of_sources=of_sources)
            for of_sources, told in ((True, "is_source"), (False, "not is_source"))
        ]
        return rows[0].unionByName(rows[1])

    def _records(self, spans: Mapping[Place, Span], places: Iterable[Place]) -> DataFrame:
        chosen = {place: spans[place] for place in places}
        count = sum(span.end - span.start for span in chosen.values())
        return read_topic(
            self._spark,
            self._client,
            {topic for topic, _ in chosen},
            {place: span.start for place, span in chosen.items()},
            {place: span.end for place, span in chosen.items()},
            max(_TASKS_MIN, count // _TASK_RECORDS + 1),
        )

    # --- judge ---------------------------------------------------------------------------------

    def _decided(self, matched: DataFrame, judged: DataFrame) -> DataFrame:
        """Return the verdicts that are certain by now."""
        verdict = sf.col("verdict")
        certain = judged.where(~verdict.isin(LINE, COUNT) & (sf.col("when") == CERTAIN))
        if judged.where(verdict == LINE).isEmpty():
            return self._still_true(certain)
        by_id = decide_by_ids(judged, self._passed(matched), self._rules)
        return self._still_true(certain.unionByName(by_id))

    def _passed(self, matched: DataFrame) -> Passed:
        """Return when H had passed the blocks of offsets that sound pairs are in."""
        count = sum(span.end - span.start for span in self._evidence.spans.values())
        bits = max(_BLOCK_BITS, (count // _PASSED_MAX).bit_length())
        blocks = (
            matched.where(sf.col("status") == SOUND)
            .groupBy("shard", sf.shiftright("offset", bits).alias("block"))
            .agg(sf.min("o_at_ms").alias("at_ms"))
        )
        return Passed(bits, ((row[0], row[1], row[2]) for row in blocks.collect()))

    def _still_true(self, decided: DataFrame) -> DataFrame:
        """Return verdicts without what is only missing because retention went on while the logs
        were read: of what is lost is not known any more.
        """
        spans = self._evidence.spans
        starts = LogStarts(self._client).of(spans.keys())
        moved = {p: starts[p] for p, span in spans.items() if starts[p] > span.start}
        for place, start in moved.items():
            shard = self._ledger.shards.get(place)
            if shard is not None:
                is_gone = (sf.col("shard") == shard) & (sf.col("offset") < start)
                decided = decided.where(~(is_gone & (sf.col("kind") == UNKNOWN_SOURCE)))
        gone = {
            place: replace(spans[place], start=start, end=max(spans[place].end, start))
            for place, start in moved.items()
            if place in self._cut.others
        }
        return self._unless_unseen(decided, gone) if gone else decided

    def _unless_unseen(self, decided: DataFrame, gone: Mapping[Place, Span]) -> DataFrame:
        """Return verdicts with those of lost records as unjudged whose settlement may have been in
        what is gone.
        """
        settled_ms = first_times(self._client, gone, names.DELAY_SETTLES)
        since_ms: dict[str, int] = {}
        for place in gone:
            at_ms = settled_ms.get(place, NEVER_MS)
            since_ms[place[0]] = max(at_ms, since_ms.get(place[0], 0))
        own = {self._rules.dead_letter, self._rules.outcomes}
        by_topic = {name_hash(topic): at_ms for topic, at_ms in since_ms.items()}
        bound = sf.lit(max((at for topic, at in by_topic.items() if topic in own), default=0))
        for topic, at_ms in by_topic.items():
            bound = sf.greatest(bound, sf.when(sf.col("aim") == topic, sf.lit(at_ms)).otherwise(0))
        is_unseen = (sf.col("kind") == LOST) & (sf.col("since_ms") < bound)
        return decided.withColumns(
            {
                "verdict": sf.when(is_unseen, sf.lit(UNJUDGED)).otherwise(sf.col("verdict")),
                "kind": sf.when(is_unseen, sf.lit(DELETED)).otherwise(sf.col("kind")),
            }
        )

    # --- results -------------------------------------------------------------------------------

    def _counts(self, matched: DataFrame, judged: DataFrame) -> dict[str, int]:
        """Return how many records there were, by what became of them."""
        sums = judged.where(sf.col("verdict") == COUNT).groupBy("kind").agg(sf.sum("number"))
        counts = Counter({row[0]: row[1] for row in sums.collect()})
        by_status = matched.groupBy("status").count().collect()
        plain = {row["status"]: row["count"] for row in by_status}
        sound, pending = plain.get(SOUND, 0), plain.get(PENDING, 0)
        ordinary = self._classified.where(sf.col("reading") == ORDINARY).count()
        counts.update(sources=sound + pending, delivered=sound, outputs=sound)
        counts.update(pending=pending, ordinary=ordinary)
        return dict(sorted(counts.items()))

    def _named(self, decided: DataFrame, verdict: int) -> DataFrame:
        """Return verdicts of one kind as ``FINDING``, with names in place of hashes."""
        rules, spark = self._rules, self._spark
        named = list(rules.topics.items())
        topics = spark.createDataFrame(named, "target long, target_topic string")
        rows = [(name_hash(s.name), s.topic, s.partition) for s in self._cut.shards]
        shards = spark.createDataFrame(rows, "shard long, topic string, partition int")
        return (
            decided.where(sf.col("verdict") == verdict)
            .join(sf.broadcast(shards), "shard", "left")
            .join(sf.broadcast(topics), "target", "left")
            .select(
                "kind",
                sf.coalesce("topic", "target_topic").alias("topic"),
                sf.coalesce("partition", "target_partition").alias("partition"),
                sf.coalesce("offset", "target_offset").alias("offset"),
                "source",
                sf.col("target_topic").alias("target"),
                *("target_partition", "target_offset", "due_ms", "at_ms", "detail"),
            )
            .transform(with_ids)
        )
