"""One step of an audit: from the previous cut, if there is one, to this cut.

    1  read     records since the previous cut, as rows of the ledger              ledger
    2  due      pending records that may be settled by now, or whose id is named   carried_state
    3  sieve    blocks of records without ids that were delivered correctly        plain_blocks
    4  match    other records with their outputs, which settles nearly all         match
    5  look up  earlier records that outputs name                                  carried_state
    6  judge    the remaining records, one by one                                  row_judges
    7  decide   verdicts that depend on other records of the same id               row_judges
    8  keep     findings, and the input of the next step                           carried_state

Each part writes what the next one reads, so that nothing is computed twice and memory stays
bounded. The work grows with the number of new and due records, not with that of pending ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import admin_client
from connectors.kafka.log_ends import EARLIEST, offsets_of
from connectors.spark.audit.carried_state import CarriedState
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.frames import apart, decide, named, passed
from connectors.spark.audit.match import ODD, PENDING, SOUND, UNMATCHED, match, unpaired
from connectors.spark.audit.plain_blocks import blocks_of, counted, in_blocks, is_plain, waiting
from connectors.spark.audit.row_judges import COUNT, LINE, PassedTimes, judge_records
from connectors.spark.audit.rules import DELETED, Rules
from connectors.spark.audit.state import KEY, StoredRun
from connectors.spark.audit.verdicts import FOUND, LOST, UNJUDGED, UNKNOWN_SOURCE
from connectors.spark.common.cut import Cut
from connectors.spark.common.frames import kept
from connectors.spark.common.log_times import first_times
from connectors.spark.common.topics import TASK_RECORDS, Place, Span, native_options, read_topic
from connectors.spark.ledger.expressions import COMPLETE, ORDINARY
from connectors.spark.ledger.facts import DELIVERED, NEVER_MS, OUTCOME
from connectors.spark.ledger.native import (
    classified_deliveries,
    classified_outcomes,
    classified_sources,
)
from connectors.spark.ledger.rows import COLUMNS, Ledger, name_hash
from connectors.spark.ledger.unread import read_in_python
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


@dataclass(frozen=True, slots=True)
class StepResult:
    """Findings and unjudged records (``verdicts.FINDING``), counts, and the stored folders."""

    found: DataFrame
    unjudged: DataFrame
    counts: Mapping[str, int]
    runs: tuple[StoredRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """Judge of the records between two cuts."""

    spark: SparkSession
    logs: Logs
    work: str
    cut: Cut
    evidence: Evidence
    rules: Rules
    ledger: Ledger
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, held: CarriedState | None = None) -> StepResult:
        """Judge all records of this step; ``held``: None if the audit has only this step."""
        rows = self._read()
        if held is not None:
            rows = rows.unionByName(held.beside(rows))
        plain, rest = rows.where(is_plain()), rows.where(~is_plain())
        blocks = self._kept("blocks", blocks_of(plain, self.rules), "is_even")
        even, uneven = blocks.where("is_even"), blocks.where("not is_even")
        sifted = in_blocks(plain, even)
        if not uneven.isEmpty():
            rest = rest.unionByName(in_blocks(plain, uneven))
        matched = self._kept("matched", match(rest, self.rules), "status")
        odd, sifted = self._odd(matched, sifted, held)
        odd = odd.unionByName(apart(rest))
        judged = judge_records(odd, self.rules, keeps=held is not None)
        judged = self._kept("judged", judged, "verdict")
        decided = self._kept("decided", self._decided(even, matched, judged), "verdict")
        self._count(even, matched, judged)
        runs: tuple[StoredRun, ...] = ()
        if held is not None:
            sound = sifted.where(sf.col("role") == DELIVERED)
            runs = held.keep(matched, decided, waiting(sifted, self.rules), sound)
        told = named(decided, self.cut, self.rules)
        verdict = sf.col("verdict")
        found, unjudged = (told.where(verdict == one).drop("verdict") for one in (FOUND, UNJUDGED))
        return StepResult(found, unjudged, dict(sorted(self.counts.items())), runs)

    def _kept(self, name: str, rows: DataFrame, *by: str) -> DataFrame:
        return kept(rows, f"{self.work}/{name}", *by)

    def _read(self) -> DataFrame:
        logs, ledger = self.logs, self.ledger
        delayed = {shard.place for shard in self.cut.shards}
        others = self.evidence.spans.keys() - delayed
        outcomes = {place for place in others if ledger.roles.get(place[0]) == OUTCOME}
        classified = (
            (1, classified_sources(logs.records(delayed), ledger)),
            (0, classified_deliveries(logs.records(others - outcomes), ledger)),
            (0, classified_outcomes(logs.records(outcomes), ledger)),
        )
        of_sources = sf.lit
        first, *more = (rows.withColumn("of_sources", of_sources(n)) for n, rows in classified)
        for rows in more:
            first = first.unionByName(rows)
        read = self._kept("records", first, "of_sources", "reading")
        self.counts["ordinary"] = read.where(sf.col("reading") == ORDINARY).count()
        rows = read.where(sf.col("reading") == COMPLETE).select(*COLUMNS)
        for number in (0, 1):
            rest = read.where((sf.col("of_sources") == number) & (sf.col("reading") != ORDINARY))
            if not rest.where(sf.col("reading") != COMPLETE).isEmpty():
                made = read_in_python(rest, ledger, of_sources=bool(number))
                rows = rows.unionByName(self._kept(f"made-{number}", made))
        return rows

    def _odd(
        self, matched: DataFrame, sifted: DataFrame, held: CarriedState | None
    ) -> tuple[DataFrame, DataFrame]:
        odd = unpaired(matched.where(sf.col("status").isin(ODD, UNMATCHED)))
        keys = matched.where(sf.col("status") == UNMATCHED).select(*KEY).distinct()
        if keys.isEmpty():
            return odd, sifted
        beside = self._kept("beside", sifted.join(sf.broadcast(keys), KEY, "left_semi"))
        sound, pending = counted(blocks_of(beside, self.rules))
        self.counts.update(sources=-sound - pending, delivered=-sound)
        self.counts.update(outputs=-sound, pending=-pending)
        odd = odd.unionByName(beside)
        if held is not None:
            odd = odd.unionByName(held.look_up(keys.join(beside, KEY, "left_anti")))
        return odd, sifted.join(sf.broadcast(keys), KEY, "left_anti")

    def _decided(self, even: DataFrame, matched: DataFrame, judged: DataFrame) -> DataFrame:
        has_ids = not judged.where(sf.col("verdict") == LINE).isEmpty()
        offsets = sum(span.end - span.start for span in self.evidence.spans.values())
        known = passed(matched, offsets, even) if has_ids else PassedTimes()
        return self.logs.still_true(decide(judged, known, self.rules), self.rules)

    def _count(self, even: DataFrame, matched: DataFrame, judged: DataFrame) -> None:
        sums = judged.where(sf.col("verdict") == COUNT).groupBy("kind").agg(sf.sum("number"))
        self.counts.update({row[0]: row[1] for row in sums.collect()})
        usual = matched.where(sf.col("status").isin(SOUND, PENDING))
        by_role = {row[0]: row[1] for row in usual.groupBy("o_role").count().collect()}
        sound, pending = counted(even)
        delivered, told = sound + by_role.get(DELIVERED, 0), by_role.get(OUTCOME, 0)
        pending += by_role.get(None, 0)
        self.counts.update(sources=delivered + told + pending, pending=pending)
        self.counts.update(delivered=delivered, outputs=delivered + told, given_an_outcome=told)
