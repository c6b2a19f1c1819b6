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
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.court import COUNT, LINE, Passed, judge_records
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.frames import decide, named, odd_rows, passed
from connectors.spark.audit.held import Held
from connectors.spark.audit.logs import Logs
from connectors.spark.audit.match import PENDING, SOUND, match
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.state import Run
from connectors.spark.audit.verdicts import FOUND, UNJUDGED
from connectors.spark.common.cut import Cut
from connectors.spark.common.frames import kept
from connectors.spark.ledger.native import (
    ORDINARY,
    classified_outputs,
    classified_sources,
    ledger_of,
)
from connectors.spark.ledger.rows import Ledger


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step.

    Attributes:
        found: findings, as ``verdicts.FINDING``.
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
        logs: what is read.
        work: a folder for what the parts of the step hand to each other.
        cut: the cut to judge at.
        evidence: what is known of the logs.
        rules: what to judge by.
        ledger: what to read by.
    """

    def __init__(
        self,
        spark: SparkSession,
        logs: Logs,
        work: str,
        cut: Cut,
        evidence: Evidence,
        rules: Rules,
        ledger: Ledger,
    ) -> None:
        self._spark = spark
        self._logs = logs
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
        odd = odd_rows(matched, rows)
        if held is not None:
            odd = odd.unionByName(held.look_up(matched, rows))
        judged = judge_records(odd, self._rules, keeps=held is not None)
        judged = self._kept("judged", judged, "verdict")
        decided = self._kept("decided", self._decided(matched, judged), "verdict")
        counts = self._counts(matched, judged)
        runs = () if held is None else held.keep(matched, decided)
        told = named(decided, self._cut, self._rules)
        verdict = sf.col("verdict")
        found, unjudged = (told.where(verdict == one).drop("verdict") for one in (FOUND, UNJUDGED))
        return Step(found, unjudged, counts, runs)

    def _kept(self, name: str, rows: DataFrame, *by: str) -> DataFrame:
        return kept(rows, f"{self._work}/{name}", *by)

    # --- read ----------------------------------------------------------------------------------

    def _read(self) -> DataFrame:
        """Return the rows of the ledger that new records make."""
        delayed = {shard.place for shard in self._cut.shards}
        sources = classified_sources(self._logs.records(delayed), self._ledger)
        others = self._evidence.spans.keys() - delayed
        outputs = classified_outputs(self._logs.records(others), self._ledger)
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

    # --- judge ---------------------------------------------------------------------------------

    def _decided(self, matched: DataFrame, judged: DataFrame) -> DataFrame:
        """Return the verdicts that are certain by now."""
        has_ids = not judged.where(sf.col("verdict") == LINE).isEmpty()
        offsets = sum(span.end - span.start for span in self._evidence.spans.values())
        known = passed(matched, offsets) if has_ids else Passed()
        return self._logs.still_true(decide(judged, known, self._rules), self._rules)

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
