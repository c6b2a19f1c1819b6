"""The state that an audit carries from one cut to the next: numbered folders with manifests.

A folder holds what one cut added, in runs of Parquet with the columns of the ledger:

=========  ========================================================================================
run        rows
=========  ========================================================================================
pending    records that nothing settles yet, by bucket of the time at which that is to happen
gone       records that were settled before the time of their bucket, by the same bucket
open       whatever has to be looked at again at the next cut; replaced by each cut
history    records that were judged (``REMEMBERED``), for what may still come for them
=========  ========================================================================================

A cut exists when its manifest does. So a run that was killed begins again from the last manifest,
and nothing that an unfinished cut left is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.evidence import Past
from connectors.spark.common.files import delete, names_in, read_text, write_text
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import NEVER_MS, SOURCE
from connectors.spark.ledger.rows import LEDGER
from delayservice.errors import DelayServiceError
from delayservice.units import DAY_MS, MINUTE_MS

PENDING: Final = "pending"
GONE: Final = "gone"
OPEN: Final = "open"
HISTORY: Final = "history"

_KINDS: Final = {PENDING: True, GONE: True, OPEN: False, HISTORY: False}
"""The kinds of runs, and whether they have buckets."""

VERSION: Final = 1
WIDTHS_MS: Final = (MINUTE_MS, 10 * MINUTE_MS, 120 * MINUTE_MS, DAY_MS, 30 * DAY_MS)
"""Widths of buckets: a record lies in one of the widest that is not longer than its delay."""
RUNS_MAX: Final = 8
"""Runs of one bucket and of about the same size before they are made one."""
_TIER_BITS: Final = 4
_BUCKET_IN_PATH: Final = r"/bucket=([0-9]+-[0-9]+)/"


class Run(msgspec.Struct, frozen=True):
    """Rows that one cut wrote.

    Attributes:
        number: of the cut.
        kind: one of those above.
        bucket: ``<width>-<number>``, as ``bucket_of`` names it; empty: it has none.
        rows: how many.
        taken_ms: when the newest cut was taken whose rows are in it.
        part: tells apart runs of one cut, kind and bucket.
    """

    number: int
    kind: str
    bucket: str
    rows: int
    taken_ms: int
    part: str = ""

    @property
    def folder(self) -> str:
        """The run's folder below the state's."""
        bucket = f"/bucket={self.bucket}" if self.bucket else ""
        return f"{self.number:08d}/{self.kind}{self.part}{bucket}"

    @property
    def start_ms(self) -> int:
        """The first instant of the bucket."""
        width, _, number = self.bucket.partition("-")
        return WIDTHS_MS[int(width)] * int(number)

    @property
    def tier(self) -> tuple[str, str, int]:
        """Kind, bucket and rough size; runs that share all three may be merged."""
        return self.kind, self.bucket, self.rows.bit_length() // _TIER_BITS


class Log(msgspec.Struct, frozen=True):
    """How far one partition was read: ``seen_ms``: when it got its first record; -1: it has none.

    ``start`` and ``judged`` are of shards, as in ``evidence.Past``; else -1.
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
        """Topic and partition."""
        return self.topic, self.partition


class Manifest(msgspec.Struct, frozen=True):
    """One cut, and the runs that are to be read after it.

    Attributes:
        number: counts the cuts, from 1 on.
        taken_ms: when it was taken.
        overdue_ms: as ``evidence.Past`` has it.
        logs: how far each log was read.
        runs: what is carried.
        pending: records that are carried as pending.
        findings: how many there are, by kind, since the audit began.
        unjudged: the same of what could not be judged, by reason.
        audit: names the audit, for what it publishes.
        v: version of the format.
    """

    number: int = 0
    taken_ms: int = 0
    overdue_ms: int = -NEVER_MS
    logs: tuple[Log, ...] = ()
    runs: tuple[Run, ...] = ()
    pending: int = 0
    findings: Mapping[str, int] = {}
    unjudged: Mapping[str, int] = {}
    audit: str = ""
    v: int = VERSION

    def replaced(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return the shards of topics that were deleted and made anew since."""
        known = topic_ids.keys()
        logs = [log for log in self.logs if log.start >= 0 and log.topic in known]
        anew = [log for log in logs if topic_ids[log.topic] != log.topic_id]
        return [f"{log.topic}:{log.partition}" for log in anew]

    def past(self, topic_ids: Mapping[str, str]) -> Past:
        """Return the facts that hold at the next cut: those of topics that were not made anew."""
        logs = [log for log in self.logs if topic_ids.get(log.topic) == log.topic_id]
        return Past(
            ends={log.place: log.end for log in logs},
            starts={log.place: log.start for log in logs if log.start >= 0},
            judged={log.place: log.judged for log in logs if log.judged >= 0},
            seen_ms={log.place: log.seen_ms for log in logs if log.seen_ms >= 0},
            overdue_ms=self.overdue_ms,
        )


class State:
    """The folders and manifests of one audit.

    Args:
        spark: the session.
        path: folder or URL.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")

    def newest(self) -> Manifest:
        """Return the manifest of the last cut; without any, an empty one.

        Raises:
            DelayServiceError: it can't be read, or is of another version.
        """
        names = [name for name in names_in(self._path) if name.startswith("manifest-")]
        if not names:
            return Manifest()
        path = f"{self._path}/{names[-1]}"
        try:
            found = msgspec.json.decode(read_text(path) or "", type=Manifest)
        except msgspec.MsgspecError as exc:
            raise DelayServiceError(
                f"{path} is no manifest of an audit ({exc}): name another folder, or delete this "
                "one to begin anew"
            ) from exc
        if found.v != VERSION:
            raise DelayServiceError(
                f"{path} is of version {found.v}, and this reads {VERSION}: go on with the "
                "version that wrote it, or delete the folder to begin anew"
            )
        return found

    def commit(self, manifest: Manifest, before: Manifest) -> None:
        """Make a cut the last one, and delete what neither it nor the one before needs."""
        text = msgspec.json.encode(manifest).decode()
        write_text(f"{self._path}/manifest-{manifest.number:08d}.json", text)
        runs = {run.number for run in (*before.runs, *manifest.runs)}
        last = {before.number, manifest.number}
        self._sweep(runs | last, last)

    def recover(self, manifest: Manifest) -> None:
        """Delete what cuts left that were not finished."""
        last = {manifest.number}
        self._sweep({run.number for run in manifest.runs} | last, last)

    def summary_path(self, number: int) -> str:
        """Return where a cut keeps the summary of its results."""
        return f"{self._path}/{number:08d}/summary.json"

    def _sweep(self, folders: set[int], manifests: set[int]) -> None:
        for name in names_in(self._path):
            number = name.removeprefix("manifest-").removesuffix(".json")
            kept = folders if name == number else manifests
            if number.isdecimal() and int(number) not in kept:
                delete(f"{self._path}/{name}")

    def read(self, runs: Iterable[Run]) -> DataFrame:
        """Return the rows of some runs, as ``LEDGER``."""
        paths = [f"{self._path}/{run.folder}" for run in runs]
        if not paths:
            return self._spark.createDataFrame([], LEDGER)
        return self._spark.read.schema(LEDGER).parquet(*paths)

    def write(
        self, rows: DataFrame, number: int, kind: str, taken_ms: int, part: str = ""
    ) -> list[Run]:
        """Write rows as runs, and return those that have any.

        Args:
            rows: ``LEDGER``, and ``bucket`` where the kind has buckets.
            number: of the cut.
            kind: of the runs.
            taken_ms: as in ``Run``.
            part: as in ``Run``.
        """
        run = Run(number, kind, "", 0, taken_ms, part)
        path = f"{self._path}/{run.folder}"
        buckets = [name for name in rows.columns if name == "bucket"]
        rows.write.mode("overwrite").partitionBy(*buckets).parquet(path)
        schema = LEDGER + "".join(f", {name} string" for name in buckets)
        written = self._spark.read.schema(schema).parquet(path)
        if not buckets:
            count = written.count()
            return [msgspec.structs.replace(run, rows=count)] if count else []
        counts = written.groupBy("bucket").count().collect()
        return [msgspec.structs.replace(run, bucket=b, rows=count) for b, count in sorted(counts)]

    def live(self, runs: Sequence[Run], buckets: Iterable[str]) -> DataFrame:
        """Return the pending rows of some buckets that are not gone, and the ``bucket`` of each."""
        chosen = set(buckets)
        held = [run for run in runs if run.bucket in chosen]
        gone = self.read(run for run in held if run.kind == GONE).select("shard", "offset")
        pending = self._with_bucket(run for run in held if run.kind == PENDING)
        return pending.join(gone, ["shard", "offset"], "left_anti")

    def _with_bucket(self, runs: Iterable[Run]) -> DataFrame:
        bucket = sf.regexp_extract(sf.input_file_name(), _BUCKET_IN_PATH, 1)
        return self.read(runs).withColumn("bucket", bucket)

    def without(
        self, runs: Sequence[Run], shards: Sequence[int], number: int
    ) -> tuple[list[Run], int]:
        """Return runs without the rows of some shards, and how many records are not pending for it.

        All is written anew: topics are deleted and made again so seldom that the rows need not bear
        the id of their topic.
        """
        is_theirs = sf.col("shard").isin(list(shards))
        buckets = {run.bucket for run in runs}
        pending = self.live(runs, buckets).where(is_theirs).count()
        opened = self.read(run for run in runs if run.kind == OPEN)
        pending += opened.where(is_theirs & (sf.col("role") == SOURCE)).count()
        left: list[Run] = []
        for kind, has_buckets in _KINDS.items():
            held = [run for run in runs if run.kind == kind]
            rows = (self._with_bucket if has_buckets else self.read)(held).where(~is_theirs)
            if held:
                newest_ms = max(run.taken_ms for run in held)
                left += self.write(rows, number, kind, newest_ms, "-anew")
        return left, pending

    def merged(self, runs: Sequence[Run], number: int) -> list[Run]:
        """Return the runs, after those were made one of which there are too many of a size."""
        tiers: dict[tuple[str, str, int], list[Run]] = {}
        for run in runs:
            tiers.setdefault(run.tier, []).append(run)
        return [one for tier in tiers.values() for one in self._merged(tier, number)]

    def _merged(self, runs: Sequence[Run], number: int) -> list[Run]:
        first = runs[0]
        if len(runs) < RUNS_MAX or first.kind == OPEN:
            return list(runs)
        rows = self.read(runs).sort("shard", "offset")
        if first.bucket:
            rows = rows.withColumn("bucket", sf.lit(first.bucket))
        newest_ms = max(run.taken_ms for run in runs)
        part = f"-{first.bucket}-{first.tier[2]}"
        return self.write(rows, number, first.kind, newest_ms, part)


def bucket_of(key_ms: Column, now_ms: int) -> Column:
    """Return the name of the bucket of a key that is ``now_ms`` or later."""
    names = [
        sf.concat(sf.lit(f"{at}-"), ((key_ms - key_ms % width) / width).cast("bigint"))
        for at, width in enumerate(WIDTHS_MS)
    ]

    def wider(name: Column, at: int) -> Column:
        return sf.when(key_ms - now_ms >= WIDTHS_MS[at], names[at]).otherwise(name)

    return reduce(wider, range(1, len(WIDTHS_MS)), names[0])
