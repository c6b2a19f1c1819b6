"""The state of an audit as one step uses it: what comes due, what is looked up, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.court import ledger_rows
from connectors.spark.audit.match import PENDING, SOUND, UNMATCHED, of_records, remembered
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.state import GONE, HISTORY, OPEN, Run, State, bucket_of
from connectors.spark.audit.state import PENDING as PENDING_RUN
from connectors.spark.audit.verdicts import CARRIED, SETTLED
from connectors.spark.common.frames import kept
from connectors.spark.ledger.facts import SOURCE
from connectors.spark.ledger.rows import COLUMNS, LEDGER, NO_ID

_KEY: Final = ["shard", "offset"]
_ROW: Final = [*_KEY, "role", "topic", "partition", "place"]
_FIRST_LOOK: Final = 8
_GROWTH: Final = 4
"""How many of the newest runs of the history are searched first, and how many times more each time
after that: most of what comes late comes soon."""
_FINEST: Final = "0-"


class Held:
    """The state that earlier steps left.

    Args:
        state: the folders.
        runs: what is in them.
        number: of this step's cut.
        taken_ms: when that was taken.
        rules: what this step judges by.
        work: a folder for what is found.
    """

    def __init__(
        self,
        state: State,
        runs: Sequence[Run],
        number: int,
        taken_ms: int,
        rules: Rules,
        work: str,
    ) -> None:
        self._state = state
        self._number = number
        self._taken_ms = taken_ms
        self._work = work
        k_ms = [own.later.key[0] for own in rules.shards.values()]
        self._due_ms = max(0, rules.overdue_since_ms, *k_ms)
        self._runs = self._split(list(runs))
        self._due = {r.bucket for r in self._runs if r.bucket and r.start_ms <= self._due_ms}

    def _split(self, runs: list[Run]) -> list[Run]:
        """Return runs with those of wide buckets that come due as runs of narrow ones."""
        due = {run.bucket for run in runs if run.bucket and run.start_ms <= self._due_ms}
        wide = {bucket for bucket in due if not bucket.startswith(_FINEST)}
        if not wide:
            return runs
        rows = self._in_buckets(self._state.live(runs, wide))
        return [run for run in runs if run.bucket not in wide] + self._written(
            rows, PENDING_RUN, "-split"
        )

    def _in_buckets(self, rows: DataFrame) -> DataFrame:
        bucket = bucket_of(sf.greatest("key_ms", sf.lit(self._due_ms)), self._due_ms)
        return rows.select(*COLUMNS, bucket.alias("bucket"))

    def _written(self, rows: DataFrame, kind: str, part: str = "") -> list[Run]:
        return self._state.write(rows, self._number, kind, self._taken_ms, part)

    def due(self) -> DataFrame:
        """Return rows that have to be looked at: of records that may be settled by now, and what
        is open.
        """
        opened = self._state.read(run for run in self._runs if run.kind == OPEN)
        return opened.unionByName(self._state.live(self._runs, self._due).select(*COLUMNS))

    # --- look up -------------------------------------------------------------------------------

    def look_up(self, matched: DataFrame, rows: DataFrame) -> DataFrame:
        """Return rows of earlier records that this step speaks of: pending ones whose time has not
        come, by what settles them and by their ids, and those that were judged.

        Args:
            matched: as ``match`` gives it.
            rows: the rows of the ledger of this step.
        """
        keys = matched.where(sf.col("status") == UNMATCHED).select(*_KEY).distinct()
        ids = rows.where((sf.col("role") == SOURCE) & (sf.col("id_hash") != NO_ID))
        ids = ids.select("shard", "id_hash").distinct()
        later = {run.bucket for run in self._runs if run.bucket} - self._due
        pending = self._state.live(self._runs, later)
        named = pending.where(sf.col("id_hash") != NO_ID)
        found = pending.join(keys, _KEY, "left_semi").unionByName(
            named.join(ids, ["shard", "id_hash"], "left_semi")
        )
        self._found = kept(found.dropDuplicates(_KEY), f"{self._work}/found")
        late = kept(keys.join(self._found, _KEY, "left_anti"), f"{self._work}/late")
        return self._found.select(*COLUMNS).unionByName(self._remembered(late))

    def _remembered(self, keys: DataFrame) -> DataFrame:
        """Return the newest row of the history for each key that has any."""
        runs = sorted((r for r in self._runs if r.kind == HISTORY), key=lambda run: -run.number)
        found = self._state.read([])
        at, look = 0, _FIRST_LOOK
        while at < len(runs) and not keys.isEmpty():
            rows = self._state.read(runs[at : at + look]).join(keys, _KEY, "left_semi")
            newest = kept(rows.transform(newest_of_each), f"{self._work}/past-{at}")
            keys = keys.join(newest, _KEY, "left_anti")
            found = found.unionByName(newest)
            at, look = at + look, look * _GROWTH
        return found

    # --- keep ----------------------------------------------------------------------------------

    def keep(self, matched: DataFrame, decided: DataFrame) -> tuple[Run, ...]:
        """Write down what the next step needs, and return all runs that it reads."""
        carried = self._packed(decided, CARRIED).join(self._found, _ROW, "left_anti")
        is_later = (sf.col("role") == SOURCE) & (sf.col("key_ms") > self._due_ms)
        plain = of_records(matched.where(sf.col("status") == PENDING))
        pending = self._in_buckets(plain.unionByName(carried.where(is_later)))
        settled = self._packed(decided, SETTLED)
        gone = self._found.join(settled, _KEY, "left_semi")
        sound = remembered(matched.where(sf.col("status") == SOUND))
        history = sound.unionByName(settled).withColumn("due_ms", sf.lit(self._number))
        is_kept = [r for r in self._runs if r.kind != OPEN and r.bucket not in self._due]
        new = [
            *self._written(pending, PENDING_RUN),
            *self._written(carried.where(~is_later), OPEN),
            *self._written(gone, GONE),
            *self._written(history.sort(*_KEY), HISTORY),
        ]
        return tuple(self._state.merged(is_kept + new, self._number))

    @staticmethod
    def _packed(decided: DataFrame, verdict: int) -> DataFrame:
        rows = decided.where(sf.col("verdict") == verdict).select("packed")
        return rows.mapInArrow(ledger_rows, LEDGER)


def newest_of_each(rows: DataFrame) -> DataFrame:
    """Return the newest row of each judged record: that with the highest number of a cut."""
    row = sf.max_by(sf.struct(*COLUMNS), "due_ms").alias("row")
    return rows.groupBy(*_KEY).agg(row).select("row.*")
