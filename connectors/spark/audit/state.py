"""State of an audit between two cuts: numbered folders with manifests.

A folder holds the rows that one cut added, as *stored folders* (``StoredRun``): Parquet folders of
rows of one kind. A *bucket* is a range of due times, from a minute to 30 days wide.

==========  =======================================================================================
kind        rows
==========  =======================================================================================
pending     records without a settlement, by bucket of the time at which they are due
identified  records without a settlement that have an id, by the same buckets
gone        records that were settled before the time of their bucket, by the same buckets
open        rows to judge again at the next cut; each cut replaces them
recent      judged records (``REMEMBERED``) that may be delivered again after a crash
special     judged records, with details to compare later outputs with
judged      all other judged records: bitmaps of offsets, by settlement (``_JUDGED_ROWS``)
==========  =======================================================================================

A cut exists as soon as its manifest does: a killed process begins again from the last manifest, and
ignores the data of the unfinished cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import EarlierCut
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import delete, names_in, read_text, write_text
from connectors.spark.common.frames import kept
from connectors.spark.common.topics import Place
from connectors.spark.ledger.expressions import row_with
from connectors.spark.ledger.facts import NEVER_MS, REMEMBERED, SOURCE
from connectors.spark.ledger.rows import LEDGER
from delayservice.base.errors import DelayServiceError
from delayservice.config.units import DAY_MS, MINUTE_MS

PENDING: Final = "pending"
IDENTIFIED: Final = "identified"
GONE: Final = "gone"
OPEN: Final = "open"
RECENT: Final = "recent"
SPECIAL: Final = "special"
JUDGED: Final = "judged"

WAITING: Final = (PENDING, IDENTIFIED)
_BUCKETED: Final = (*WAITING, GONE)
_KINDS: Final = (*_BUCKETED, OPEN, RECENT, SPECIAL, JUDGED)

# Columns of stored rows of kind judged: kind and topic as in a REMEMBERED row, block and offsets
# from Spark's bitmap_bucket_number and bitmap_construct_agg.
_JUDGED_ROWS: Final = "shard long, kind byte, topic long, block long, offsets binary"
_BLOCK_BITS: Final = 15
# Sizes as powers of 2: a bitmap of offsets has 2**15 bits, a byte 2**3.
_BYTE_BITS: Final = 3

VERSION: Final = 1
KEY: Final = ["shard", "offset"]
# Widths of buckets (ranges of due times), in ms: a record is in a bucket of the largest width that
# is at most the time until it is due.
WIDTHS_MS: Final = (MINUTE_MS, 10 * MINUTE_MS, 120 * MINUTE_MS, DAY_MS, 30 * DAY_MS)
# Number of stored Parquet folders of one kind, bucket and similar size from which on they are
# merged into one.
RUNS_MAX: Final = 8
_TIER_BITS: Final = 4
_BUCKET_IN_PATH: Final = r"/bucket=([0-9]+-[0-9]+)/"


class StoredRun(msgspec.Struct, frozen=True):
    """One Parquet folder with the rows of one kind that cut ``number`` stored.

    Attributes:
        bucket: range of due times of its rows (``bucket_of``); empty: rows of all times.
        taken_ms: time of the newest cut that has rows in it, epoch ms.
        part: suffix that distinguishes folders of the same cut, kind and bucket.
    """

    number: int
    kind: str
    bucket: str
    rows: int
    taken_ms: int
    part: str = ""

    @property
    def folder(self) -> str:
        bucket = f"/bucket={self.bucket}" if self.bucket else ""
        return f"{self.number:08d}/{self.kind}{self.part}{bucket}"

    @property
    def start_ms(self) -> int:
        width, _, number = self.bucket.partition("-")
        return WIDTHS_MS[int(width)] * int(number)

    @property
    def tier(self) -> tuple[str, str, int]:
        """Stored folders that agree in this may be merged."""
        return self.kind, self.bucket, self.rows.bit_length() // _TIER_BITS


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
        findings, unjudged: numbers by kind and by reason, since the audit began.
        audit: random id of the audit, which names the sender of its published results.
    """

    number: int = 0
    taken_ms: int = 0
    overdue_ms: int = -NEVER_MS
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

    def read(self, runs: Iterable[StoredRun], schema: str = LEDGER) -> DataFrame:
        paths = [f"{self._path}/{run.folder}" for run in runs]
        if not paths:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(*paths)

    def write(
        self, rows: DataFrame, number: int, kind: str, taken_ms: int, part: str = ""
    ) -> list[StoredRun]:
        """Write rows to Parquet folders, one for each bucket; return those that are not empty."""
        run = StoredRun(number, kind, "", 0, taken_ms, part)
        path = f"{self._path}/{run.folder}"
        buckets = ["bucket"] if kind in _BUCKETED else []
        counts = kept(rows, path, *buckets).groupBy(*buckets).count().collect()
        found = [(row["bucket"] if buckets else "", row["count"]) for row in counts]
        return [
            msgspec.structs.replace(run, bucket=bucket, rows=count)
            for bucket, count in sorted(found)
            if count
        ]

    def live(
        self, runs: Sequence[StoredRun], buckets: Iterable[str], kinds: Sequence[str] = WAITING
    ) -> DataFrame:
        """Return the records of some buckets that are still pending, with the column ``bucket``."""
        chosen = set(buckets)
        held = [run for run in runs if run.bucket in chosen]
        pending = self._with_bucket(run for run in held if run.kind in kinds)
        gone = [run for run in held if run.kind == GONE]
        if not gone:
            return pending
        return pending.join(self.read(gone).select(*KEY), KEY, "left_anti")

    def _with_bucket(self, runs: Iterable[StoredRun]) -> DataFrame:
        bucket = sf.regexp_extract(sf.input_file_name(), _BUCKET_IN_PATH, 1)
        return self.read(runs).withColumn("bucket", bucket)

    def folded(self, judged: DataFrame) -> DataFrame:
        """Return ``REMEMBERED`` rows as bitmaps of offsets, without time and place."""
        after = sf.col("offset") + 1  # Spark's own count of bits begins with 1
        return judged.groupBy(
            "shard", "kind", "topic", sf.bitmap_bucket_number(after).alias("block")
        ).agg(sf.bitmap_construct_agg(sf.bitmap_bit_position(after)).alias("offsets"))

    def judged(self, runs: Iterable[StoredRun], keys: DataFrame) -> DataFrame:
        """Return ``REMEMBERED`` rows for those of ``keys`` that the stored bitmaps contain."""
        held = self.read((run for run in runs if run.kind == JUDGED), _JUDGED_ROWS)
        bit = sf.col("offset").bitwiseAND((1 << _BLOCK_BITS) - 1)
        byte = sf.substr("offsets", (sf.shiftright(bit, _BYTE_BITS) + 1).cast("int"), sf.lit(1))
        number = sf.conv(sf.hex(byte), 16, 10).cast("long")
        mask = bit.bitwiseAND((1 << _BYTE_BITS) - 1).cast("int")
        is_set = sf.call_function("shiftright", number, mask).bitwiseAND(1) == 1
        block = (sf.shiftright("offset", _BLOCK_BITS) + 1).alias("block")
        found = held.join(sf.broadcast(keys.select(*KEY, block)), ["shard", "block"]).where(is_set)
        return found.select(*row_with(*KEY, "kind", "topic", role=sf.lit(REMEMBERED)))

    def without(
        self, runs: Sequence[StoredRun], shards: Sequence[int], number: int
    ) -> tuple[list[StoredRun], int]:
        """Write all stored folders again without the rows of some shards; return them, and the
        number of pending records that were dropped. It is rare: rows need not hold the id of their
        topic.
        """
        is_theirs = sf.col("shard").isin(list(shards))
        buckets = {run.bucket for run in runs}
        pending = self.live(runs, buckets).where(is_theirs).count()
        opened = self.read(run for run in runs if run.kind == OPEN)
        pending += opened.where(is_theirs & (sf.col("role") == SOURCE)).count()
        left: list[StoredRun] = []
        for kind in _KINDS:
            held = [run for run in runs if run.kind == kind]
            if held:
                rows = self._of_kind(kind, held).where(~is_theirs)
                newest_ms = max(run.taken_ms for run in held)
                left += self.write(rows, number, kind, newest_ms, "-anew")
        return left, pending

    def _of_kind(self, kind: str, runs: Sequence[StoredRun]) -> DataFrame:
        if kind in _BUCKETED:
            return self._with_bucket(runs)
        return self.read(runs, _JUDGED_ROWS if kind == JUDGED else LEDGER)

    def merged(self, runs: Sequence[StoredRun], number: int) -> list[StoredRun]:
        """Merge stored folders of the same tier, except kinds ``open`` and ``recent``."""
        tiers: dict[tuple[str, str, int], list[StoredRun]] = {}
        for run in runs:
            tiers.setdefault(run.tier, []).append(run)
        return [one for tier in tiers.values() for one in self._merged(tier, number)]

    def _merged(self, runs: Sequence[StoredRun], number: int) -> list[StoredRun]:
        first = runs[0]
        if len(runs) < RUNS_MAX or first.kind in (OPEN, RECENT):
            return list(runs)
        rows = self._of_kind(first.kind, runs)
        if first.kind == JUDGED:
            rows = rows.groupBy("shard", "kind", "topic", "block").agg(
                sf.bitmap_or_agg("offsets").alias("offsets")
            )
        newest_ms = max(run.taken_ms for run in runs)
        part = f"-{first.bucket}-{first.tier[2]}"
        return self.write(rows.coalesce(1), number, first.kind, newest_ms, part)


def bucket_of(key_ms: Column, now_ms: int) -> Column:
    """Return a column with the bucket of a key: ``<index in WIDTHS_MS>-<number of the bucket>``."""
    names = [
        sf.concat(sf.lit(f"{at}-"), ((key_ms - key_ms % width) / width).cast("bigint"))
        for at, width in enumerate(WIDTHS_MS)
    ]

    def wider(name: Column, at: int) -> Column:
        return sf.when(key_ms - now_ms >= WIDTHS_MS[at], names[at]).otherwise(name)

    return reduce(wider, range(1, len(WIDTHS_MS)), names[0])
