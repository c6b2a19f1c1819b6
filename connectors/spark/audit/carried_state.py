"""State of an audit within one step: reads rows that earlier steps have stored, and stores rows for
the next step. A *bucket* is a range of due times; rows of pending records are stored by bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.match import PENDING, SOUND, of_records, remembered, remembered_outputs
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
    State,
    StoredRun,
    bucket_of,
)
from connectors.spark.audit.state import PENDING as PLAIN
from connectors.spark.audit.verdicts import CARRIED, SETTLED
from connectors.spark.common.frames import kept
from connectors.spark.ledger.facts import SOURCE
from connectors.spark.ledger.rows import COLUMNS, LEDGER, NO_ID

_ROW: Final = [*KEY, "role", "topic", "partition", "place"]
_ID: Final = ["shard", "id_hash"]
_FINEST: Final = "0-"


class CarriedState:
    """Rows stored by earlier steps, of which this step reads some and adds others."""

    def __init__(
        self,
        state: State,
        runs: Sequence[StoredRun],
        number: int,
        taken_ms: int,
        rules: Rules,
        work: str,
    ) -> None:
        self._state = state
        self._number = number
        self._taken_ms = taken_ms
        self._grace_ms = rules.grace_ms
        self._work = work
        k_ms = [own.later.key[0] for own in rules.shards.values()]
        self._due_ms = max(0, rules.overdue_since_ms, *k_ms)
        self._runs = self._split(list(runs))
        self._due = {r.bucket for r in self._runs if r.bucket and r.start_ms <= self._due_ms}
        self._later = {run.bucket for run in self._runs if run.bucket} - self._due
        self._found = state.live([], ())

    def _split(self, runs: list[StoredRun]) -> list[StoredRun]:
        # Wide buckets whose due times have begun: their records are written into narrower ones.
        due = {run.bucket for run in runs if run.bucket and run.start_ms <= self._due_ms}
        wide = {bucket for bucket in due if not bucket.startswith(_FINEST)}
        if not wide:
            return runs
        rows = self._state.live(runs, wide)
        return [run for run in runs if run.bucket not in wide] + self._waiting(rows, "-split")

    def _waiting(self, rows: DataFrame, part: str = "") -> list[StoredRun]:
        rows = self._in_buckets(rows)
        has_id = sf.col("id_hash") != NO_ID
        kinds = ((PLAIN, ~has_id), (IDENTIFIED, has_id))
        return [r for kind, told in kinds for r in self._written(rows.where(told), kind, part)]

    def _in_buckets(self, rows: DataFrame) -> DataFrame:
        bucket = bucket_of(sf.greatest("key_ms", sf.lit(self._due_ms)), self._due_ms)
        return rows.select(*COLUMNS, bucket.alias("bucket"))

    def _written(self, rows: DataFrame, kind: str, part: str = "") -> list[StoredRun]:
        return self._state.write(rows, self._number, kind, self._taken_ms, part)

    def beside(self, new: DataFrame) -> DataFrame:
        """Return the stored rows to judge together with ``new`` ledger rows: rows that the last
        step handed on to be judged again, records that may be settled by now, and pending records
        whose id is in a new row.
        """
        opened = self._state.read(run for run in self._runs if run.kind == OPEN)
        due = self._state.live(self._runs, self._due)
        pending = self._state.live(self._runs, self._later, [IDENTIFIED])
        ids = new.where(sf.col("id_hash") != NO_ID).select(*_ID).distinct()
        self._found = kept(pending.join(ids, _ID, "left_semi"), f"{self._work}/identified")
        found = due.unionByName(self._found).select(*COLUMNS)
        return opened.unionByName(found)

    def look_up(self, keys: DataFrame) -> DataFrame:
        """Return the stored rows of the records ``keys`` that ``beside`` has not returned."""
        pending = self._state.live(self._runs, self._later).join(keys, KEY, "left_semi")
        early = kept(pending, f"{self._work}/early")
        self._found = self._found.unionByName(early)
        late = keys.join(early, KEY, "left_anti")
        rows = self._state.read(run for run in self._runs if run.kind in (RECENT, SPECIAL))
        newest = kept(
            rows.join(late, KEY, "left_semi").transform(newest_of_each), f"{self._work}/newest"
        )
        older = self._state.judged(self._runs, late.join(newest, KEY, "left_anti"))
        return early.select(*COLUMNS).unionByName(newest).unionByName(older)

    def keep(
        self, matched: DataFrame, decided: DataFrame, waiting: DataFrame, sound: DataFrame
    ) -> tuple[StoredRun, ...]:
        """Write the rows that the next step needs, and return all stored folders that it reads."""
        is_hidden = sf.col("kind") == HIDDEN
        again = self._packed(decided.where(is_hidden), CARRIED)
        carried = self._packed(decided.where(~is_hidden), CARRIED)
        carried = carried.join(self._found, _ROW, "left_anti")
        is_later = (sf.col("role") == SOURCE) & (sf.col("key_ms") > self._due_ms)
        still = of_records(matched.where(sf.col("status") == PENDING))
        still = still.join(self._found, KEY, "left_anti")
        pending = waiting.unionByName(still).unionByName(carried.where(is_later))
        paired = remembered(matched.where(sf.col("status") == SOUND))
        settled = paired.unionByName(self._packed(decided, SETTLED))
        moved = settled.select(*KEY).unionByName(again.select(*KEY))
        gone = self._found.join(moved, KEY, "left_semi").select(*COLUMNS, "bucket")
        is_kept = [r for r in self._runs if r.kind != OPEN and r.bucket not in self._due]
        new = [
            *self._waiting(pending),
            *self._written(carried.where(~is_later).unionByName(again), OPEN),
            *self._written(gone, GONE),
            *self._judged(settled.unionByName(sound.transform(remembered_outputs)), is_kept),
        ]
        return tuple(self._state.merged(is_kept + new, self._number))

    def _judged(self, settled: DataFrame, held: list[StoredRun]) -> list[StoredRun]:
        # Records with details are kept as rows; others as rows for the grace time of at_least_once,
        # and then as bitmaps of offsets: these leave held.
        settled = settled.withColumn("due_ms", sf.lit(self._number).cast("long"))
        is_plain = sf.col("more").isNull()
        written = self._written(settled.where(~is_plain), SPECIAL)
        old, plain = [], settled.where(is_plain)
        if self._grace_ms:
            since_ms = self._taken_ms - self._grace_ms
            old = [run for run in held if run.kind == RECENT and run.taken_ms < since_ms]
            held[:] = [run for run in held if run not in old]
            written += self._written(plain, RECENT)
            plain = self._state.read(old)
        return written + self._written(self._state.folded(plain), JUDGED)

    @staticmethod
    def _packed(decided: DataFrame, verdict: int) -> DataFrame:
        rows = decided.where(sf.col("verdict") == verdict).select("packed")
        return rows.mapInArrow(ledger_rows, LEDGER)


def newest_of_each(rows: DataFrame) -> DataFrame:
    # A record judged again has a row of each cut.
    row = sf.max_by(sf.struct(*COLUMNS), "due_ms").alias("row")
    return rows.groupBy(*KEY).agg(row).select("row.*")
