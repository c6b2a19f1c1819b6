"""One step of an audit: from the previous cut, if there is one, to this cut.

    1  sift     records since the previous cut as rows of the ledger; of an audit with only this
                step, sums of blocks take the place of records that were delivered correctly   sieve
    2  due      pending records that may be settled by now, or whose id is named       carried_state
    3  match    records with their outputs, which settles nearly all                           match
    4  look up  earlier records that outputs name                                      carried_state
    5  judge    the remaining records one by one, and those of an id together            row_judges
    6  keep     findings, and the input of the next step                               carried_state

Each part writes what the next one reads, so that nothing is computed twice and memory stays
bounded. The work grows with the number of new and due records, not with that of pending ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.log_ends import EARLIEST, offsets_of
from connectors.spark.audit.carried_state import CarriedState
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.frames import apart, findings_of, passed
from connectors.spark.audit.match import (
    ODD,
    PENDING,
    SOUND,
    UNMATCHED,
    family,
    match,
    unpaired,
)
from connectors.spark.audit.row_judges import COUNT, PassedTimes, judge_records
from connectors.spark.audit.rules import DELETED, Rules
from connectors.spark.audit.sieve import (
    BLOCK,
    BLOCK_BITS,
    PLAIN,
    ROW,
    SIFTED,
    SUM,
    Sieve,
    blocks_of,
    counted,
    in_blocks,
    sift,
)
from connectors.spark.audit.state import KEY, StoredRun
from connectors.spark.audit.verdicts import FOUND, LOST, UNJUDGED, UNKNOWN_SOURCE
from connectors.spark.common.clients import admin_of
from connectors.spark.common.cut import Cut
from connectors.spark.common.frames import kept, or_false, table
from connectors.spark.common.log_times import first_times
from connectors.spark.common.topics import Place, Span, read_topic
from connectors.spark.ledger.facts import DELIVERED, NEVER_MS, OUTCOME, SOURCE
from connectors.spark.ledger.native import (
    classified_deliveries,
    classified_outcomes,
    classified_sources,
)
from connectors.spark.ledger.rows import NO_ID, Ledger, name_hash
from connectors.spark.ledger.unread import Completion
from delayservice.contract import names

# Number of records up to which planning, and starting tasks, take most of the time of a step.
SMALL: Final = 200_000


class Logs(Protocol):
    """Source of the records that one step of an audit reads."""

    def records(self, spans: Mapping[Place, Span]) -> DataFrame:
        """Return the committed records at some offsets, columns ``topics.ROW_SCHEMA``."""

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

    def records(self, spans: Mapping[Place, Span]) -> DataFrame:
        if self.evidence.offsets > SMALL:
            return read_topic(self.spark, self.client, spans)
        return read_topic(self.spark, self.client, spans, tasks_min=1)

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        spans = self.evidence.spans
        starts = offsets_of(admin_of(self.client), spans.keys(), EARLIEST)
        moved = {p: starts[p] for p, span in spans.items() if starts[p] > span.start}
        if not moved:
            return decided
        begun = [(name_hash(f"{topic}:{number}"), at) for (topic, number), at in moved.items()]
        starts_now = table(self.spark, "shard long, start_now long", begun)
        is_gone = or_false(sf.col("offset") < sf.col("start_now"))
        decided = (
            decided.join(sf.broadcast(starts_now), "shard", "left")
            .where(~(is_gone & (sf.col("kind") == UNKNOWN_SOURCE)))
            .drop("start_now")
        )
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


FoundRows: TypeAlias = Sequence[Mapping[str, Any]]
FoundT = TypeVar("FoundT", DataFrame, FoundRows)


@dataclass(frozen=True, slots=True)
class StepResult(Generic[FoundT]):
    """Findings and unjudged records (``verdicts.FINDING``), counts, and the stored folders."""

    found: FoundT
    unjudged: FoundT
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

    def run(self, held: CarriedState | None = None) -> StepResult[DataFrame]:
        """Judge all records of this step; ``held``: None if the audit has only this step."""
        if held is None:
            rows, matched, even = self._sieved()
        else:
            new = self._kept("sifted", self._sifted(self.evidence.spans, adds_up=False))
            stored = self._kept("stored", sift(held.beside(new), self.rules))
            rows, even = new.unionByName(stored), None
            matched = self._kept("matched", match(rows, self.rules), "status")
        usual = self._count_usual(matched, even)
        odd = unpaired(matched.where(sf.col("status").isin(ODD, UNMATCHED)))
        odd = odd.unionByName(apart(rows))
        if held is not None and usual.unmatched:
            odd = _with_earlier(odd, held, matched)
        known = passed(matched, self.evidence.offsets, even) if usual.has_ids else PassedTimes()
        judged = judge_records(odd, self.rules, known, keeps=held is not None)
        judged = self._kept("judged", judged, "verdict")
        sums = judged.where(sf.col("verdict") == COUNT).groupBy("kind").agg(sf.sum("number"))
        self.counts.update({row[0]: row[1] for row in sums.collect()})
        decided = self.logs.still_true(judged, self.rules)
        runs = () if held is None else held.keep(matched, decided)
        told = findings_of(decided)
        verdict = sf.col("verdict")
        found, unjudged = (told.where(verdict == one).drop("verdict") for one in (FOUND, UNJUDGED))
        return StepResult(found, unjudged, dict(sorted(self.counts.items())), runs)

    def _kept(self, name: str, rows: DataFrame, *by: str) -> DataFrame:
        return kept(rows, f"{self.work}/{name}", *by)

    def _sifted(self, spans: Mapping[Place, Span], *, adds_up: bool) -> DataFrame:
        logs, ledger = self.logs, self.ledger
        shards = {shard.place for shard in self.cut.shards}
        outcomes = {place for place in spans if ledger.roles.get(place[0]) == OUTCOME}

        def of(places: Collection[Place]) -> DataFrame:
            return logs.records({place: span for place, span in spans.items() if place in places})

        classified = (
            classified_sources(of(shards & spans.keys()), ledger)
            .unionByName(classified_deliveries(of(spans.keys() - shards - outcomes), ledger))
            .unionByName(classified_outcomes(of(outcomes), ledger))
        )
        sifting = _Sifting(Completion(ledger), Sieve(self.rules, adds_up=adds_up))
        return classified.mapInArrow(sifting.rows, SIFTED)

    def _sieved(self) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Return the rows to match, matched rows, and the blocks that were delivered correctly."""
        sifted = self._kept("sifted", self._sifted(self.evidence.spans, adds_up=True), "part")
        rest, sums = (sifted.where(sf.col("part") == part) for part in (ROW, SUM))
        blocks = self._kept("blocks", blocks_of(sums), "is_even")
        even, odd_blocks = blocks.where("is_even"), blocks.where("not is_even")
        rows, number = rest, 0
        while True:
            if not odd_blocks.isEmpty():
                again = self._sifted(self._spans(odd_blocks, sums), adds_up=False)
                again = in_blocks(again.where(sf.col("part") == PLAIN), odd_blocks)
                rows = rest.unionByName(self._kept(f"again-{number}", again))
            matched = self._kept(f"matched-{number}", match(rows, self.rules), "status")
            # What is not plain may name a record of an even block.
            block = sf.shiftright("offset", BLOCK_BITS).alias("block")
            named_blocks = matched.where(sf.col("status") == UNMATCHED).select("shard", block)
            hit = even.join(sf.broadcast(named_blocks), BLOCK, "left_semi")
            if hit.isEmpty():
                return rows, matched, even
            odd_blocks = self._kept(f"odd_blocks-{number}", odd_blocks.unionByName(hit))
            even = even.join(sf.broadcast(odd_blocks), BLOCK, "left_anti")
            number += 1

    def _spans(self, blocks: DataFrame, sums: DataFrame) -> dict[Place, Span]:
        """Return the offsets from the first to the last row of some blocks in each partition."""
        is_source = sf.col("role") == SOURCE
        shard = sf.when(is_source, sf.col("shard")).alias("of_shard")
        chosen = sums.join(sf.broadcast(blocks.select(*BLOCK)), BLOCK, "left_semi")
        told = chosen.groupBy(shard, "topic", "partition").agg(
            sf.min("place"), sf.max("last_place")
        )
        shards = {name_hash(one.name): one.place for one in self.cut.shards}
        topics = {number: topic for topic, number in self.ledger.topics.items()}
        spans = {}
        for of_shard, topic, partition, first, last in told.collect():
            place = (topics[topic], partition) if of_shard is None else shards[of_shard]
            spans[place] = Span(first, last + 1)
        return spans

    def _count_usual(self, matched: DataFrame, even: DataFrame | None) -> _Usual:
        """Count the records that need no judge; return what the others are."""
        has_id = sf.max(sf.col("s_id_hash") != NO_ID)
        told = matched.groupBy("status", "o_role").agg(sf.count("*"), has_id).collect()
        by_role: Counter[int | None] = Counter()
        for status, role, number, _ in told:
            by_role[role] += number if status in (SOUND, PENDING) else 0
        sound, pending = (0, 0) if even is None else counted(even)
        delivered, outcomes = sound + by_role[DELIVERED], by_role[OUTCOME]
        pending += by_role[None]
        self.counts.update(sources=delivered + outcomes + pending, pending=pending)
        self.counts.update(delivered=delivered, outputs=delivered + outcomes)
        self.counts.update(given_an_outcome=outcomes)
        odd = [row for row in told if row[0] in (ODD, UNMATCHED)]
        unmatched = sum(row[2] for row in odd if row[0] == UNMATCHED)
        return _Usual(unmatched, has_ids=any(row[3] for row in odd))


class _Usual(NamedTuple):
    unmatched: int
    has_ids: bool


class _Sifting:
    def __init__(self, completion: Completion, sieve: Sieve) -> None:
        self._completion = completion
        self._sieve = sieve

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._sieve.rows(self._completion.rows(batches))


def _with_earlier(odd: DataFrame, held: CarriedState, matched: DataFrame) -> DataFrame:
    """Return ``odd`` with the records of earlier cuts that its outputs name."""
    keys = matched.where(sf.col("status") == UNMATCHED).select(*KEY).distinct()
    earlier = held.look_up(keys).withColumn("family", family())
    # What names an earlier record joins the other records of its id.
    own = earlier.where(sf.col("id_hash") != NO_ID).select(*KEY, sf.col("family").alias("own"))
    odd = odd.join(sf.broadcast(own.distinct()), KEY, "left")
    odd = odd.withColumn("family", sf.coalesce("own", "family")).drop("own")
    return odd.unionByName(earlier)
