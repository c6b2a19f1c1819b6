"""Logs that an audit reads: those of a cluster or of an archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import EARLIEST, offsets_of
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.rules import DELETED, Rules
from connectors.spark.audit.verdicts import LOST, UNJUDGED, UNKNOWN_SOURCE
from connectors.spark.common.log_times import first_times
from connectors.spark.common.topics import TASK_RECORDS, Place, Span, native_options, read_topic
from connectors.spark.ledger.facts import NEVER_MS
from connectors.spark.ledger.rows import name_hash
from delayservice.contract import names

_TASKS_MIN: Final = 8


class Logs(Protocol):
    """Source of the records that one step of an audit reads."""

    def records(self, places: Iterable[Place]) -> DataFrame:
        """Return the committed records of some partitions, columns ``topics.ROW_SCHEMA``."""

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        """Return the verdicts ``decided`` corrected for retention that went on while the logs were
        read: a lost record becomes unjudged if its output may have been deleted, and a finding
        about an output without a record is dropped if the record was deleted.
        """


@dataclass(frozen=True, slots=True)
class KafkaLogs:
    spark: SparkSession
    client: Mapping[str, str]
    evidence: Evidence

    def records(self, places: Iterable[Place]) -> DataFrame:
        chosen = {place: self.evidence.spans[place] for place in places}
        count = sum(span.end - span.start for span in chosen.values())
        tasks = max(_TASKS_MIN, count // TASK_RECORDS + 1)
        return read_topic(self.spark, self.client, chosen, tasks)

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        spans = self.evidence.spans
        starts = offsets_of(admin_client(native_options(self.client)), spans.keys(), EARLIEST)
        moved = {p: starts[p] for p, span in spans.items() if starts[p] > span.start}
        for (topic, number), start in moved.items():
            is_gone = (sf.col("shard") == name_hash(f"{topic}:{number}")) & (
                sf.col("offset") < start
            )
            decided = decided.where(~(is_gone & (sf.col("kind") == UNKNOWN_SOURCE)))
        gone = {
            place: replace(spans[place], start=start, end=max(spans[place].end, start))
            for place, start in moved.items()
            if name_hash(place[0]) in rules.read
        }
        return self._unless_unseen(decided, gone, rules) if gone else decided

    def _unless_unseen(
        self, decided: DataFrame, gone: Mapping[Place, Span], rules: Rules
    ) -> DataFrame:
        settled_ms = first_times(self.client, gone, names.DELAY_SETTLES)
        since_ms: dict[int, int] = {}
        for place in gone:
            topic = name_hash(place[0])
            at_ms = settled_ms.get(place, NEVER_MS)
            since_ms[topic] = max(at_ms, since_ms.get(topic, 0))
        own = (rules.dead_letter, rules.outcomes)
        bound = sf.lit(max((since_ms.get(topic, 0) for topic in own), default=0))
        for topic, at_ms in since_ms.items():
            bound = sf.greatest(bound, sf.when(sf.col("aim") == topic, sf.lit(at_ms)).otherwise(0))
        is_unseen = (sf.col("kind") == LOST) & (sf.col("since_ms") <= bound)
        return decided.withColumns(
            {
                "verdict": sf.when(is_unseen, sf.lit(UNJUDGED)).otherwise(sf.col("verdict")),
                "kind": sf.when(is_unseen, sf.lit(DELETED)).otherwise(sf.col("kind")),
            }
        )
