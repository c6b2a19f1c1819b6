"""``delayservice dev drill``: a real run of the service with known defects, which Spark's jobs
must find.

A broker and one node serve users' stories (``stories``); an archive keeps what was in the topics;
operators spoil some of its rows (``operators``), and copies of the node's store (``copies``); the
jobs judge, and each finding is compared with what was spoilt (``judge``).
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from connectors.spark.archive import Archive, ArchiveOptions, Batch, audit_archive, capture
from connectors.spark.audit import AuditOptions, Following
from connectors.spark.common.progress import Say
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.run import reconcile
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.drill.copies import COPY_KINDS, DISKS, Copies
from delay_devtools.drill.judge import SHOWN_MAX, Defect, DrillVerdict, Finding, Found, judge
from delay_devtools.drill.operators import DEFECTS, GRACE_MS, LATE_MS, OVERDUE_MS, SOUND, Scene
from delay_devtools.drill.options import DrillOptions
from delay_devtools.drill.replay import Replay
from delay_devtools.drill.rows import Place, Rows, read_batch, write_batch
from delay_devtools.drill.stories import NAMES, PARTITIONS, SECRET, STORIES, RealRun
from delayservice.commands.console import err, out, print_json
from delayservice.store.folder import shard_name

KINDS: Final = (*DEFECTS, *COPY_KINDS)

_ARCHIVE: Final = "archive"
FOLLOW: Final = "follow"
# Stories of each kind that are not spoilt, and sound scenes of each kind.
_UNSPOILT: Final = 3
_SOUND: Final = 2
_PENDING_MIN: Final = 150
# A copy that lacks this part of the log counts as behind.
_BEHIND_PART: Final = 20
_SPARES: Final = 6
_FINDINGS_MAX: Final = 20_000


@dataclass(slots=True)
class Drill:
    """A drill; ``phases`` are the batches of the archive, and the checkpoints after them."""

    options: DrillOptions
    folder: Path
    bootstrap: str
    phases: list[tuple[int, dict[bytes, bytes]]] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    behind_records: int = 0

    @property
    def archive(self) -> Archive:
        return Archive(str(self.folder / _ARCHIVE))

    def audit_options(self, out: str, bootstrap: str = "") -> AuditOptions:
        return AuditOptions(
            client={"bootstrap.servers": bootstrap},
            out=str(self.folder / out),
            checkpoint=f"{NAMES.prefix}_checkpoint",
            dead_letter=f"{NAMES.prefix}_dead_letter",
            outcomes=f"{NAMES.prefix}_outcomes",
            allow=(NAMES.target("*"),),
            secrets=(SECRET,),
            late_ms=LATE_MS,
            grace_ms=GRACE_MS,
            overdue_ms=OVERDUE_MS,
        )


@contextmanager
def prepared(options: DrillOptions, spark: SparkSession, say: Say) -> Iterator[Drill]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="delay-drill-"))
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        say("starting Kafka")
        cluster = stack.enter_context(EmbeddedCluster(1, 0))
        drill = Drill(options, folder, cluster.bootstrap)
        rng = random.Random(options.seed)  # noqa: S311  # a drill repeats itself from its seed
        kinds = list(itertools.islice(itertools.cycle(KINDS), options.defects))
        _play(drill, spark, kinds, rng, say)
        say("spoiling records and copies")
        _spoil(drill, kinds, rng)
        yield drill


def _play(
    drill: Drill, spark: SparkSession, kinds: Sequence[str], rng: random.Random, say: Say
) -> None:
    spoilt = Counter(DEFECTS[kind].story for kind in kinds if kind in DEFECTS)
    spoilt.update([kind.story for kind in SOUND.values()] * _SOUND)
    stories = Counter({name: spoilt[name] + _UNSPOILT for name in STORIES})
    spares = PARTITIONS * (_UNSPOILT + len(kinds) // len(KINDS) * _SPARES)
    run = RealRun(drill.bootstrap, drill.folder, rng)
    say("playing stories")
    run.begin(stories, spares)
    _archive(drill, spark, run)
    run.fill(drill.options.records, say)
    _archive(drill, spark, run)
    say("leaving records pending")
    run.end(max(_PENDING_MIN, len(kinds)), spoilt["tail"] + _UNSPOILT)
    _archive(drill, spark, run)


def _archive(drill: Drill, spark: SparkSession, run: RealRun) -> None:
    options = drill.audit_options(_ARCHIVE, drill.bootstrap)
    batch = capture(spark, ArchiveOptions(options, values=True))
    drill.phases.append((batch.number, run.checkpoints()))


def _spoil(drill: Drill, kinds: Sequence[str], rng: random.Random) -> None:
    # The batch between is of plain records, which are left as they are.
    (first, _), _, (last, checkpoints) = drill.phases
    folders = {batch: drill.archive.folder(batch) for batch in (first, last)}
    archived = drill.archive.newest()
    found_rows = (row for batch, folder in folders.items() for row in read_batch(folder, batch))
    rows = Rows(found_rows, archived.ends)
    stories = rows.stories()
    worlds = (_ARCHIVE, FOLLOW) if drill.options.follow else (_ARCHIVE,)
    holes = list(rows.holes)
    for name in [*(kind for kind in kinds if kind in DEFECTS), *SOUND, *SOUND]:
        kind = DEFECTS.get(name) or SOUND[name]
        played = stories[kind.story]
        scene = Scene(played.pop(rng.randrange(len(played))), rows, stories["spare"], rng)
        kind.operator(scene)
        if name in DEFECTS:
            found = [(world, *found) for world in worlds for found in scene.found]
            drill.defects.append(Defect(name, tuple(found)))
    for batch, folder in folders.items():
        write_batch(folder, [row for row in rows.values() if row.batch == batch])
    drill.archive.commit(_longer(archived, rows.ends))
    shards = [json.loads(value)["shards"][NAMES.delay] for value in checkpoints.values()]
    drill.behind_records = min(shard["h"] for shard in shards) // _BEHIND_PART
    state, name = drill.folder / "state", shard_name(shards[0]["topic_id"])
    # The node's store still has some records that are settled.
    pending_ms = max(shard["k"][0] for shard in shards) + 60_000
    copies = Copies(state, name, pending_ms, holes)
    drill.defects += copies.spoil((kind for kind in kinds if kind in COPY_KINDS), rng)
    drill.folders = copies.folders


def _longer(batch: Batch, ends: Mapping[Place, int]) -> Batch:
    # Outputs that were added lie behind the end of their partition.
    cut, evidence = batch.cut, batch.evidence
    others = {place: replace(span, end=ends[place]) for place, span in cut.others.items()}
    return msgspec.structs.replace(
        batch,
        ends={**batch.ends, **{place: span.end for place, span in others.items()}},
        cut=replace(cut, others=others),
        evidence=replace(evidence, spans={**evidence.spans, **others}),
    )


# --- judge ---------------------------------------------------------------------------------------


def judged(drill: Drill, spark: SparkSession, say: Say) -> DrillVerdict:
    began_s = time.monotonic()
    say("auditing the archive")
    result = audit_archive(spark, drill.audit_options("audit"), str(drill.folder / _ARCHIVE))
    findings: list[Finding] = [(_ARCHIVE, *found) for found in _found(spark, result.findings_path)]
    seconds = {_ARCHIVE: time.monotonic() - began_s}
    for name, job in ((DISKS, _reconcile), (FOLLOW, _follow))[: 1 + drill.options.follow]:
        began_s = time.monotonic()
        findings += job(drill, spark, say)
        seconds[name] = time.monotonic() - began_s
    return judge(drill.defects, findings, result.records, seconds)


def _reconcile(drill: Drill, spark: SparkSession, say: Say) -> list[Finding]:
    options = ReconcileOptions(
        client={"bootstrap.servers": drill.bootstrap},
        out=str(drill.folder / DISKS),
        checkpoint=f"{NAMES.prefix}_checkpoint",
        folders=drill.folders,
        secrets=(SECRET,),
        behind_records=drill.behind_records,
    )
    rows = spark.read.parquet(reconcile(spark, options, say).paths["findings"]).collect()
    columns = ("kind", "node", "topic", "partition", "start_ms", "offset")
    return [(DISKS, *(row[name] for name in columns)) for row in rows]


def _follow(drill: Drill, spark: SparkSession, say: Say) -> list[Finding]:
    # Each audit is by a new object, which knows only the stored state.
    rows = [
        row for batch, _ in drill.phases for row in read_batch(drill.archive.folder(batch), batch)
    ]
    with EmbeddedCluster(1, 0) as cluster:
        replay = Replay(cluster.bootstrap, rows)
        for batch, checkpoints in drill.phases:
            say("writing spoilt records again")
            replay.write(batch, checkpoints)
            say("auditing them")
            Following(spark, drill.audit_options(FOLLOW, cluster.bootstrap)).step()
    path = str(drill.folder / FOLLOW / "findings")
    return [(FOLLOW, *replay.archived(found)) for found in _found(spark, path)]


def _found(spark: SparkSession, path: str) -> list[Found]:
    read = spark.read.option("recursiveFileLookup", value=True).parquet(path)
    found = []
    for row in read.limit(_FINDINGS_MAX).collect():
        output = None
        if row["target"] is not None:
            output = (row["target"], row["target_partition"], row["target_offset"])
        found.append(Found(row["kind"], row["topic"], row["partition"], row["offset"], output))
    return found


def show(verdict: DrillVerdict, drill: Drill, *, as_json: bool) -> None:
    if drill.options.keep:
        err.print(f"kept: {drill.folder}", markup=False)
    told = verdict.to_json()
    if as_json:
        print_json({**told, "seed": drill.options.seed})
        return
    for what, findings in (("missed", verdict.missed), ("invented", verdict.inventions)):
        for finding in findings[:SHOWN_MAX]:
            out.print(f"{what}: {finding}", style="red", markup=False)
    out.print(
        f"{told['found']:,} of {told['injected']:,} found, {told['invented']:,} invented, "
        f"{verdict.records:,} records in {told['seconds']:,.0f} s",
        style="bold green" if verdict.is_good else "bold red",
    )
