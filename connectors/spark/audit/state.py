"""State of an audit between two cuts: numbered folders with manifests.

A folder holds the rows that one cut added, as *stored runs* (``StoredRun``): Parquet folders of
rows of one kind.

==========  =======================================================================================
kind        rows
==========  =======================================================================================
pending     records without a settlement that were not due yet, sorted by key
identified  the same, of records that have an id
gone        records of these kinds that were settled before they were due
open        rows to judge again at the next cut; each cut replaces them
recent      judged records (``REMEMBERED``) that may be delivered again after a crash
special     judged records, with details to compare later outputs with
judged      all other judged records: bitmaps of offsets, by settlement (``JUDGED_ROWS``)
==========  =======================================================================================

A cut takes up the pending records that became due since the one before: those with a key after the
``due_ms`` of that cut's manifest. Runs whose last key is not after it are dropped.

A cut exists as soon as its manifest does: a killed process begins again from the last manifest, and
ignores the data of the unfinished cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import EarlierCut
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import (
    delete,
    is_there,
    names_in,
    parquet_range,
    read_text,
    write_parquet,
    write_text,
)
from connectors.spark.common.frames import table
from connectors.spark.common.topics import Place
from connectors.spark.ledger.expressions import row_with
from connectors.spark.ledger.facts import NEVER_MS, REMEMBERED, SOURCE
from connectors.spark.ledger.rows import LEDGER
from delayservice.base.errors import DelayServiceError

PENDING: Final = "pending"
IDENTIFIED: Final = "identified"
GONE: Final = "gone"
OPEN: Final = "open"
RECENT: Final = "recent"
SPECIAL: Final = "special"
JUDGED: Final = "judged"

WAITING: Final = (PENDING, IDENTIFIED)
BY_KEY: Final = (*WAITING, GONE)
_KINDS: Final = (*BY_KEY, OPEN, RECENT, SPECIAL, JUDGED)

# Columns of stored rows of kind judged: kind and topic as in a REMEMBERED row, block and offsets
# from Spark's bitmap_bucket_number and bitmap_construct_agg.
JUDGED_ROWS: Final = "shard long, kind byte, topic long, block long, offsets binary"
_BLOCK_BITS: Final = 15
BITMAP_BITS: Final = 1 << _BLOCK_BITS
# Sizes as powers of 2: a bitmap of offsets has 2**15 bits, a byte 2**3.
_BYTE_BITS: Final = 3

VERSION: Final = 1
KEY: Final = ["shard", "offset"]
# Number of stored runs of one kind and similar size from which on they are merged into one.
RUNS_MAX: Final = 8
_TIER_BITS: Final = 4


class StoredRun(msgspec.Struct, frozen=True):
    """One Parquet folder with the rows of one kind that cut ``number`` stored.

    Attributes:
        taken_ms: time of the newest cut that has rows in it, epoch ms.
        first_ms, last_ms: least and greatest key of its rows, epoch ms.
        part: suffix that distinguishes folders of the same cut and kind.
    """

    number: int
    kind: str
    rows: int
    taken_ms: int
    first_ms: int = 0
    last_ms: int = 0
    part: str = ""

    @property
    def folder(self) -> str:
        return f"{self.number:08d}/rows{self.part}/stored={self.kind}"

    @property
    def tier(self) -> tuple[str, int]:
        """Stored runs that agree in this may be merged."""
        return self.kind, self.rows.bit_length() // _TIER_BITS

    def is_passed(self, due_ms: int) -> bool:
        return self.kind in BY_KEY and self.last_ms <= due_ms


class LogPosition(msgspec.Struct, frozen=True):
    """Exclusive ``end`` up to which one partition was read. ``seen_ms``: time of its first record,
    epoch ms. ``start`` and ``judged`` are set for shards, as in ``evidence.EarlierCut``; unset: -1.
    """

    topic: str
    partition: int
    topic_id: str
    end: int
    seen_ms: int = -1
    start: int = -1
    judged: int = -1

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class AuditManifest(msgspec.Struct, frozen=True):
    """Facts about one cut of an audit, with which the next step goes on.

    Attributes:
        number: number of the cut, from 1 on.
        overdue_ms: records due before this time, epoch ms, were already reported as overdue.
        due_ms: pending records with a key up to this time, epoch ms, were taken up.
        findings, unjudged: numbers by kind and by reason, since the audit began.
        audit: random id of the audit, which names the sender of its published results.
    """

    number: int = 0
    taken_ms: int = 0
    overdue_ms: int = -NEVER_MS
    due_ms: int = 0
    logs: tuple[LogPosition, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    findings: Mapping[str, int] = {}
    unjudged: Mapping[str, int] = {}
    audit: str = ""
    v: int = VERSION

    def deleted(self, cut: Cut) -> list[str]:
        """Return the shards whose topic was deleted or created again since."""
        ids = cut.topic_ids
        return [
            f"{log.topic}:{log.partition}"
            for log in self.logs
            if log.start >= 0
            and (
                log.topic not in cut.partitions or ids.get(log.topic, log.topic_id) != log.topic_id
            )
        ]

    def past(self, topic_ids: Mapping[str, str]) -> EarlierCut:
        logs = [log for log in self.logs if topic_ids.get(log.topic) == log.topic_id]
        return EarlierCut(
            ends={log.place: log.end for log in logs},
            starts={log.place: log.start for log in logs if log.start >= 0},
            judged={log.place: log.judged for log in logs if log.judged >= 0},
            seen_ms={log.place: log.seen_ms for log in logs if log.seen_ms >= 0},
            overdue_ms=self.overdue_ms,
        )


class State:
    """Folders and manifests in which one audit keeps its state from cut to cut."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")

    def newest(self) -> AuditManifest:
        """Return the manifest of the last cut, or an empty one before the first."""
        names = [name for name in names_in(self._path) if name.startswith("manifest-")]
        if not names:
            return AuditManifest()
        path = f"{self._path}/{names[-1]}"
        try:
            found = msgspec.json.decode(read_text(path) or "", type=AuditManifest)
        except msgspec.MsgspecError as exc:
            raise DelayServiceError(
                f"{path} is no manifest of an audit ({exc}): name another folder, or delete this "
                "one to begin anew"
            ) from exc
        if found.v != VERSION:
            raise DelayServiceError(
                f"{path} is of version {found.v}, and this reads {VERSION}: upgrade "
                "this Spark job, or delete the folder to begin anew"
            )
        return found

    def commit(self, manifest: AuditManifest, before: AuditManifest) -> None:
        """Write the manifest, which completes the cut, and delete files that no manifest needs."""
        text = msgspec.json.encode(manifest).decode()
        write_text(f"{self._path}/manifest-{manifest.number:08d}.json", text)
        runs = {run.number for run in (*before.runs, *manifest.runs)}
        last = {before.number, manifest.number}
        self._sweep(runs | last, last)

    def recover(self, manifest: AuditManifest) -> None:
        last = {manifest.number}
        self._sweep({run.number for run in manifest.runs} | last, last)

    def summary_path(self, number: int) -> str:
        return f"{self._path}/{number:08d}/summary.json"

    def _sweep(self, folders: set[int], manifests: set[int]) -> None:
        for name in names_in(self._path):
            number = name.removeprefix("manifest-").removesuffix(".json")
            kept = folders if name == number else manifests
            if number.isdecimal() and int(number) not in kept:
                delete(f"{self._path}/{name}")

    def path_of(self, run: StoredRun) -> str:
        return f"{self._path}/{run.folder}"

    def read(self, runs: Iterable[StoredRun], schema: str = LEDGER) -> DataFrame:
        paths = list(map(self.path_of, runs))
        if not paths:
            return table(self._spark, schema)
        return self._spark.read.schema(schema).parquet(*paths)

    def write(self, rows: DataFrame, number: int, taken_ms: int, part: str = "") -> list[StoredRun]:
        """Write rows by their kind in the column ``stored``; return the runs that are not empty."""
        path = f"{self._path}/{number:08d}/rows{part}"
        by = ["stored", "key_ms"] if "key_ms" in rows.columns else ["stored", "block"]
        rows = rows.repartition("stored", "shard", by[1]).sortWithinPartitions(*by)
        rows.write.mode("overwrite").partitionBy("stored").parquet(path)
        if not is_there(path):
            raise DelayServiceError(
                f"{path} was written, and can't be seen from here: Spark runs elsewhere, so name a "
                "folder that is shared"
            )
        kinds = [name.removeprefix("stored=") for name in names_in(path) if "=" in name]
        made = [StoredRun(number, kind, 0, taken_ms, part=part) for kind in kinds]
        return [self._counted(run) for run in made]

    def write_table(self, kind: str, rows: pa.Table, number: int, taken_ms: int) -> StoredRun:
        """As ``write``, for rows of one kind, without Spark."""
        run = StoredRun(number, kind, 0, taken_ms)
        write_parquet(self.path_of(run), rows)
        return self._counted(run)

    def _counted(self, run: StoredRun) -> StoredRun:
        rows, first_ms, last_ms = parquet_range(self.path_of(run), "key_ms")
        return msgspec.structs.replace(run, rows=rows, first_ms=first_ms, last_ms=last_ms)

    def live(
        self,
        runs: Sequence[StoredRun],
        after_ms: int,
        until_ms: int = NEVER_MS,
        kinds: Sequence[str] = WAITING,
    ) -> DataFrame:
        """Return the records still pending with a key after ``after_ms``, up to ``until_ms``."""
        held = [run for run in runs if run.last_ms > after_ms and run.first_ms <= until_ms]
        is_asked = (sf.col("key_ms") > after_ms) & (sf.col("key_ms") <= until_ms)
        pending = self.read(run for run in held if run.kind in kinds).where(is_asked)
        gone = [run for run in held if run.kind == GONE]
        if not gone:
            return pending
        return pending.join(self.read(gone).where(is_asked).select(*KEY), KEY, "left_anti")

    def folded(self, judged: DataFrame) -> DataFrame:
        """Return ``REMEMBERED`` rows as bitmaps of offsets, without time and place."""
        after = sf.col("offset") + 1  # Spark's own count of bits begins with 1
        block = sf.bitmap_bucket_number(after).alias("block")
        offsets = sf.bitmap_construct_agg(sf.bitmap_bit_position(after)).alias("offsets")
        folded = judged.groupBy("shard", "kind", "topic", block).agg(offsets)
        return folded.withColumn("stored", sf.lit(JUDGED))

    def judged(self, runs: Iterable[StoredRun], keys: DataFrame) -> DataFrame:
        """Return ``REMEMBERED`` rows for those of ``keys`` that the stored bitmaps contain."""
        held = self.read((run for run in runs if run.kind == JUDGED), JUDGED_ROWS)
        bit = sf.col("offset").bitwiseAND(BITMAP_BITS - 1)
        byte = sf.substr("offsets", (sf.shiftright(bit, _BYTE_BITS) + 1).cast("int"), sf.lit(1))
        number = sf.conv(sf.hex(byte), 16, 10).cast("long")
        mask = bit.bitwiseAND((1 << _BYTE_BITS) - 1).cast("int")
        is_set = sf.call_function("shiftright", number, mask).bitwiseAND(1) == 1
        block = (sf.shiftright("offset", _BLOCK_BITS) + 1).alias("block")
        found = held.join(sf.broadcast(keys.select(*KEY, block)), ["shard", "block"]).where(is_set)
        return found.select(*row_with(*KEY, "kind", "topic", role=sf.lit(REMEMBERED)))

    def without(
        self, runs: Sequence[StoredRun], shards: Sequence[int], number: int, due_ms: int
    ) -> tuple[list[StoredRun], int]:
        """Write all stored folders again without the rows of some shards; return them, and the
        number of pending records that were dropped. It is rare: rows need not hold the id of their
        topic.
        """
        is_theirs = sf.col("shard").isin(list(shards))
        pending = self.live(runs, due_ms).where(is_theirs).count()
        opened = self.read(run for run in runs if run.kind == OPEN)
        pending += opened.where(is_theirs & (sf.col("role") == SOURCE)).count()
        left: list[StoredRun] = []
        for kind in _KINDS:
            held = [run for run in runs if run.kind == kind]
            if held:
                rows = self._of_kind(kind, held).where(~is_theirs)
                newest_ms = max(run.taken_ms for run in held)
                left += self.write(rows, number, newest_ms, f"-anew-{kind}")
        return left, pending

    def _of_kind(self, kind: str, runs: Sequence[StoredRun]) -> DataFrame:
        schema = JUDGED_ROWS if kind == JUDGED else LEDGER
        return self.read(runs, schema).withColumn("stored", sf.lit(kind))

    def merged(self, runs: Sequence[StoredRun], number: int, due_ms: int) -> list[StoredRun]:
        """Merge stored runs of the same tier, except kinds ``open`` and ``recent``."""
        tiers: dict[tuple[str, int], list[StoredRun]] = {}
        for run in runs:
            tiers.setdefault(run.tier, []).append(run)
        return [one for tier in tiers.values() for one in self._merged(tier, number, due_ms)]

    def _merged(self, runs: Sequence[StoredRun], number: int, due_ms: int) -> list[StoredRun]:
        first = runs[0]
        if len(runs) < RUNS_MAX or first.kind in (OPEN, RECENT):
            return list(runs)
        rows = self._of_kind(first.kind, runs)
        if first.kind == JUDGED:
            rows = rows.groupBy("shard", "kind", "topic", "block", "stored").agg(
                sf.bitmap_or_agg("offsets").alias("offsets")
            )
        if first.kind in BY_KEY:
            rows = rows.where(sf.col("key_ms") > due_ms)
        newest_ms = max(run.taken_ms for run in runs)
        return self.write(rows, number, newest_ms, f"-{first.kind}-{first.tier[1]}")
