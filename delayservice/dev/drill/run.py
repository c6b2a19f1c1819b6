"""Runs a drill: a history with defects, the jobs that should find them, and the verdict."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from delayservice.commands.extras import how_to_install
from delayservice.dev.drill.history import History, Life
from delayservice.dev.drill.judge import Finding, Verdict, judge
from delayservice.dev.drill.nodes import answering, publish
from delayservice.dev.drill.replicas import NODES, STALE, Copy, Spoiler, copies_of, keep
from delayservice.dev.drill.sabotage import LATE_MS, Defect, Saboteur
from delayservice.dev.drill.service import Shard
from delayservice.dev.drill.users import Names, Users
from delayservice.dev.drill.wire import HOUR_MS
from delayservice.dev.drill.writing import Ends, Topics, Writer
from delayservice.dev.progress import steps
from delayservice.dev.signals import ignored_signals
from delayservice.errors import DelayServiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.spark.common.progress import Say
    from delayservice.dev.progress import Steps

# The injector must not come near what is judged: Spark's jobs are imported when they are run.
# ruff: noqa: PLC0415

UNACCOUNTED: Final = "unaccounted"
TOPIC_KINDS: Final = (*Saboteur.KINDS, UNACCOUNTED)
COPY_KINDS: Final = (*Spoiler.KINDS, STALE)
KINDS: Final = (*TOPIC_KINDS, *COPY_KINDS)
"""Every kind of defect."""

_SECRET: Final = b"of a drill, and of nothing else"
_BEHIND_PART: Final = 20
"""A copy that lacks this part of its log is behind."""
_FINDINGS_SPARE: Final = 10_000
"""So many findings beyond those that are expected are looked at."""


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """What to inject.

    Attributes:
        records: that producers write.
        defects: of all kinds together.
        seed: of everything that chance decides.
        partitions: of the delay topic and of the targets.
        bootstrap: a cluster; empty: one is started.
        keep: leave topics and folders.
        checkpoint_partitions: of the checkpoint topic; slices share them. 0: one for each slice, as
            in older clusters.
    """

    records: int = 1_000_000
    defects: int = 200
    seed: int = 20_260_101
    bootstrap: str = ""
    keep: bool = False
    partitions: int = 8
    checkpoint_partitions: int = 3


@dataclass(frozen=True, slots=True)
class Drill:
    """A history with defects, ready to be judged.

    Attributes:
        options: what was asked for.
        bootstrap: where it is.
        folder: for results; the nodes' folders are in it.
        life: the history.
        copies: of all nodes.
        folders: the nodes' state folders, by their names.
        defects: what was injected.
    """

    options: DrillOptions
    bootstrap: str
    folder: Path
    life: Life
    copies: Sequence[Copy]
    folders: dict[str, str]
    defects: Sequence[Defect]


@contextmanager
def prepared(options: DrillOptions, *, is_shown: bool) -> Iterator[Drill]:
    """A drill on a cluster; what was started or made is gone afterwards, unless it is to be kept.

    Raises:
        DelayServiceError: it can't be made; says what to do.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="delay-drill-"))
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with steps(Console(stderr=True), is_shown=is_shown) as shown:
            bootstrap = options.bootstrap or stack.enter_context(_cluster(options, folder, shown))
            topics = Topics(bootstrap)
            if options.bootstrap and not options.keep:
                stack.callback(_undisturbed, topics)
            drill = _make(options, bootstrap, topics, folder, shown)
        yield drill


@contextmanager
def _cluster(options: DrillOptions, folder: Path, shown: Steps) -> Iterator[str]:
    # Imported late: it needs the development extra, a drill with --bootstrap does not.
    try:
        from delayservice.dev.cluster import EmbeddedCluster
    except ModuleNotFoundError as exc:
        raise DelayServiceError(
            f"the embedded cluster needs the package {exc.name}, which is not installed: "
            f"{how_to_install('dev')}, or name a cluster with --bootstrap"
        ) from exc
    cluster = EmbeddedCluster(1, 0, folder=folder / "cluster" if options.keep else None)
    with shown.doing("starting Kafka"):
        cluster.start()
    try:
        yield cluster.bootstrap
    finally:
        with ignored_signals():
            cluster.stop()


def _undisturbed(topics: Topics) -> None:
    """A second Ctrl-C must not leave half of them behind."""
    with ignored_signals():
        topics.delete()


def _make(
    options: DrillOptions, bootstrap: str, topics: Topics, folder: Path, shown: Steps
) -> Drill:
    rng = random.Random(options.seed)  # noqa: S311  # a drill repeats itself from its seed
    run = folder.name.removeprefix("delay-drill-").lower()
    names = Names(run, options.partitions, _SECRET, options.checkpoint_partitions)
    topic_id = _make_topics(names, topics)
    ends = Ends()
    shards = [Shard((names.delay, number)) for number in range(options.partitions)]
    # It ends at a full hour, so that one seed makes one history at any time of day.
    now_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS
    life = Life(names, topic_id, shards, now_ms, ends)
    kinds = list(itertools.islice(itertools.cycle(KINDS), options.defects))
    rng.shuffle(kinds)
    defects = _write(options, bootstrap, life, kinds, rng, shown)
    copies = copies_of(life)
    with shown.doing("keeping copies"):
        spoiler = Spoiler(copies, ends.holes, rng)
        defects += spoiler.spoil([kind for kind in kinds if kind in COPY_KINDS])
        folders = keep(life, copies, folder)
        publish(life, copies, Writer(bootstrap, ends, transactional=False))
    topics.check(ends)
    return Drill(options, bootstrap, folder, life, copies, folders, defects)


def _make_topics(names: Names, topics: Topics) -> str:
    """Make them; the id of the delay topic."""
    checkpoint = names.own("checkpoint")
    wide = [names.delay, *names.targets, checkpoint]
    narrow = [names.own(what) for what in ("dead_letter", "outcomes", "digests", "repairs")]
    # Records bear the times of the history, and are not to be gone for their age.
    old = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    compacted = {name: {"cleanup.policy": "compact"} for name in (checkpoint, narrow[2])}
    counts = {**dict.fromkeys(wide, names.partitions), **dict.fromkeys(narrow, 1)}
    counts[checkpoint] = names.checkpoint_partitions or names.partitions
    topics.make(counts, {**dict.fromkeys(counts, old), **compacted})
    return topics.id_of(names.delay)


def _write(
    options: DrillOptions,
    bootstrap: str,
    life: Life,
    kinds: Sequence[str],
    rng: random.Random,
    shown: Steps,
) -> list[Defect]:
    """Write the history; the defects of its outputs."""
    names, ends = life.names, life.ends
    saboteur = Saboteur(
        [kind for kind in kinds if kind in Saboteur.KINDS],
        options.records,
        rng,
        names.targets,
        names.partitions,
        names.own("dead_letter"),
        names.own("outcomes"),
        ends.holes,
    )
    plain, producer, owner = (
        Writer(bootstrap, ends, transactional=transactional)
        for transactional in (False, True, True)
    )
    history = History(life, Users(names, rng), saboteur, plain, producer, owner)
    bar = shown.bar("writing the history", options.records)
    history.write(options.records, kinds.count(UNACCOUNTED), bar.at)
    if saboteur.waiting:
        raise DelayServiceError(
            f"{saboteur.waiting.total()} defects found no record: ask for fewer defects, or for "
            "more records"
        )
    return saboteur.defects


# --- judge ---------------------------------------------------------------------------------------


def judged(drill: Drill, spark: SparkSession, say: Say) -> Verdict:
    """Run the jobs, and hold what they find against what was injected."""
    seconds, findings = {}, []
    for name, job in (("audit", _audit), ("digests", _digests), ("disks", _disks)):
        began_s = time.monotonic()
        path = job(drill, spark, say)
        seconds[name] = time.monotonic() - began_s
        findings += _read(spark, path, name, len(drill.defects))
    return judge(drill.defects, findings, drill.life.records, seconds)


def _audit(drill: Drill, spark: SparkSession, say: Say) -> str:
    from connectors.spark.audit import AuditOptions, audit

    say("auditing")
    names = drill.life.names
    options = AuditOptions(
        client={"bootstrap.servers": drill.bootstrap},
        out=str(drill.folder / "audit"),
        checkpoint=names.own("checkpoint"),
        dead_letter=names.own("dead_letter"),
        outcomes=names.own("outcomes"),
        allow=(names.allow,),
        secrets=(names.secret,),
        late_ms=LATE_MS,
        overdue_ms=None,  # the history ends at a full hour, and nothing is settled since
    )
    return audit(spark, options).findings_path


def _digests(drill: Drill, spark: SparkSession, say: Say) -> str:
    with answering(drill.bootstrap, drill.life, drill.copies):
        return _reconcile(drill, spark, say, {})


def _disks(drill: Drill, spark: SparkSession, say: Say) -> str:
    return _reconcile(drill, spark, say, drill.folders)


def _reconcile(drill: Drill, spark: SparkSession, say: Say, folders: dict[str, str]) -> str:
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.run import ReconcileOptions, reconcile

    names = drill.life.names
    options = ReconcileOptions(
        client={"bootstrap.servers": drill.bootstrap},
        out=str(drill.folder / ("disks" if folders else "digests")),
        checkpoint=names.own("checkpoint"),
        digests=names.own("digests"),
        repairs=names.own("repairs"),
        folders=folders,
        expected=Expected(nodes=NODES),
        secrets=(names.secret,),
        behind_records=drill.life.records // names.partitions // _BEHIND_PART,
    )
    return reconcile(spark, options, say).paths["findings"]


def _read(spark: SparkSession, path: str, job: str, expected: int) -> list[Finding]:
    rows = spark.read.parquet(path).limit(expected * 100 + _FINDINGS_SPARE).collect()
    if job != "audit":
        columns = ("kind", "node", "topic", "partition", "slot_start_ms", "offset")
        return [(job, *(row[name] for name in columns)) for row in rows]
    found: list[Finding] = []
    for row in rows:
        output = None
        if row["target"] is not None:
            output = (row["target"], row["target_partition"], row["target_offset"])
        place = (row["topic"], row["partition"], row["offset"])
        found.append(("topics", row["kind"], *place, output))
    return found
