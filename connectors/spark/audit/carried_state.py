"""State of an audit within one step: reads rows that earlier steps have stored, and stores rows for
the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.match import PENDING, SOUND, of_records, remembered
from connectors.spark.audit.row_judges import ledger_rows
from connectors.spark.audit.rules import OPEN as HIDDEN
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.state import (
    GONE,
    IDENTIFIED,
    JUDGED,
    KEY,
    OPEN,
    RECENT,
    SPECIAL,
    AuditManifest,
    State,
    StoredRun,
)
from connectors.spark.audit.state import PENDING as PLAIN
from connectors.spark.audit.verdicts import CARRIED, SETTLED
from connectors.spark.common.frames import kept
from connectors.spark.ledger.facts import SOURCE
from connectors.spark.ledger.rows import COLUMNS, LEDGER, NO_ID, LedgerRow

_ROW: Final = [*KEY, "role", "topic", "partition", "place"]
_ID: Final = ["shard", "id_hash"]


class CarriedState:
    """Rows stored by earlier steps, of which this step reads some and adds others."""

    def __init__(
        self,
        state: State,
        runs: Sequence[StoredRun],
        before: AuditManifest,
        taken_ms: int,
        rules: Rules,
        work: str,
    ) -> None:
        self.state = state
        self.number = before.number + 1
        self.taken_ms = taken_ms
        self.grace_ms = rules.grace_ms
        self._work = work
        self.after_ms = before.due_ms
        k_ms = [own.later.key[0] for own in rules.shards.values()]
        self.due_ms = max(before.due_ms, rules.overdue_since_ms, *k_ms)
        self.runs = list(runs)

    def beside(self, new: DataFrame) -> DataFrame:
        """Return the stored rows to judge together with ``new`` ledger rows: rows that the last
        step handed on to be judged again, records that may be settled by now, and pending records
        whose id is in a new row or in one that was handed on.
        """
        self._found = self.state.read(())
        opened = self.state.read(run for run in self.runs if run.kind == OPEN)
        due = self.state.live(self.runs, self.after_ms, self.due_ms)
        if any(run.kind == IDENTIFIED for run in self.runs):
            pending = self.state.live(self.runs, self.due_ms, kinds=[IDENTIFIED])
            ids = new.select(*_ID).unionByName(opened.select(*_ID))
            ids = ids.where(sf.col("id_hash") != NO_ID).distinct()
            self._found = kept(pending.join(ids, _ID, "left_semi"), f"{self._work}/identified")
        return opened.unionByName(due).unionByName(self._found)

    def look_up(self, keys: DataFrame) -> DataFrame:
        """Return the stored rows of the records ``keys`` that ``beside`` has not returned."""
        pending = self.state.live(self.runs, self.due_ms).join(keys, KEY, "left_semi")
        early = kept(pending, f"{self._work}/early")
        self._found = self._found.unionByName(early)
        late = keys.join(early, KEY, "left_anti")
        rows = self.state.read(run for run in self.runs if run.kind in (RECENT, SPECIAL))
        newest = kept(
            rows.join(late, KEY, "left_semi").transform(newest_of_each), f"{self._work}/newest"
        )
        older = self.state.judged(self.runs, late.join(newest, KEY, "left_anti"))
        return early.unionByName(newest).unionByName(older)

    def keep(self, matched: DataFrame, decided: DataFrame) -> tuple[StoredRun, ...]:
        """Write the rows that the next step needs, and return all stored runs that it reads."""
        is_hidden = sf.col("kind") == HIDDEN
        again = self._packed(decided.where(is_hidden), CARRIED)
        carried = self._packed(decided.where(~is_hidden), CARRIED)
        carried = carried.join(self._found, _ROW, "left_anti")
        still = of_records(matched.where(sf.col("status") == PENDING))
        still = still.join(self._found, KEY, "left_anti")
        paired = remembered(matched.where(sf.col("status") == SOUND))
        settled = paired.unionByName(self._packed(decided, SETTLED))
        moved = settled.select(*KEY).unionByName(again.select(*KEY))
        gone = self._found.join(moved, KEY, "left_semi").withColumn("stored", sf.lit(GONE))
        settled = settled.withColumn("due_ms", sf.lit(self.number).cast("long"))
        is_plain = sf.col("more").isNull()
        special = settled.where(~is_plain).withColumn("stored", sf.lit(SPECIAL))
        recent = settled.where(is_plain).withColumn("stored", sf.lit(RECENT))
        rows = self._by_due(still.unionByName(carried))
        rows = rows.unionByName(again.withColumn("stored", sf.lit(OPEN)))
        rows = rows.unionByName(gone).unionByName(special)
        left, old = self.left()
        past = self.state.read(old)
        if self.grace_ms:
            rows = rows.unionByName(recent)
        else:
            past = past.unionByName(recent.drop("stored"))
        new = self.state.write(rows, self.number, self.taken_ms)
        new += self.state.write(self.state.folded(past), self.number, self.taken_ms, f"-{JUDGED}")
        return self.merged(left + new)

    def left(self) -> tuple[list[StoredRun], list[StoredRun]]:
        """Return the stored runs that the next step reads, and those that become bitmaps: records
        are kept as rows for the grace time of at_least_once.
        """
        since_ms = self.taken_ms - self.grace_ms
        held = [r for r in self.runs if r.kind != OPEN and not r.is_passed(self.due_ms)]
        old = [run for run in held if run.kind == RECENT and run.taken_ms < since_ms]
        return [run for run in held if run not in old], old

    def merged(self, runs: Sequence[StoredRun]) -> tuple[StoredRun, ...]:
        return tuple(self.state.merged(runs, self.number, self.due_ms))

    def _by_due(self, rows: DataFrame) -> DataFrame:
        is_later = (sf.col("role") == SOURCE) & (sf.col("key_ms") > self.due_ms)
        by_id = sf.when(sf.col("id_hash") == NO_ID, PLAIN).otherwise(IDENTIFIED)
        return rows.withColumn("stored", sf.when(is_later, by_id).otherwise(OPEN))

    @staticmethod
    def _packed(decided: DataFrame, verdict: int) -> DataFrame:
        rows = decided.where(sf.col("verdict") == verdict).select("packed")
        return rows.mapInArrow(ledger_rows, LEDGER)


def waiting_kind(row: LedgerRow, due_ms: int) -> str:
    """Return the kind of stored rows of which a row that is not settled is."""
    if row.role != SOURCE or row.key_ms <= due_ms:
        return OPEN
    return PLAIN if row.id_hash == NO_ID else IDENTIFIED


def newest_of_each(rows: DataFrame) -> DataFrame:
    # A record judged again has a row of each cut.
    row = sf.max_by(sf.struct(*COLUMNS), "due_ms").alias("row")
    return rows.groupBy(*KEY).agg(row).select("row.*")
