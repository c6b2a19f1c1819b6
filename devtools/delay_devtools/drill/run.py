from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from delay_devtools.cluster import EmbeddedCluster, started, undisturbed
from delay_devtools.drill.history import STEPS, TAIL_MS, HistoryWriter, Life, Theatre
from delay_devtools.drill.judge import DrillVerdict, Finding, judge
from delay_devtools.drill.nodes import answering, publish
from delay_devtools.drill.replicas import NODES, STALE, ShardCopy, Spoiler, copies_of, keep
from delay_devtools.drill.scenes import DEFECTS, FIRST, LAST, SOUND, STEPS_OF
from delay_devtools.drill.service import ModelShard
from delay_devtools.drill.stage import GRACE_MS, LATE_MS, TAIL, Defect, Scenery
from delay_devtools.drill.users import TopicNames, Users
from delay_devtools.drill.wire import HOUR_MS
from delay_devtools.drill.writing import CountedWriter, Ends, TopicAdmin
from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.smoke.progress import steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.spark.audit import AuditOptions
    from connectors.spark.common.progress import Say
    from delayservice.smoke.progress import Steps

# The injector must not depend on the code under test: Spark's jobs are imported when they run.
# ruff: noqa: PLC0415

COPY_KINDS: Final = (*Spoiler.KINDS, STALE)
KINDS: Final = (*DEFECTS, *COPY_KINDS)

_SECRET: Final = b"of a drill, and of nothing else"
# World of the findings of audits that run while the history is written, each of the records since
# the one before.
FOLLOWED: Final = "follow"
# Age in ms at which a record that is due and not settled counts as overdue.
_STALE_MS: Final = 6 * HOUR_MS
# Divisor of the mean number of records in a partition; a copy that lacks more records than the
# result counts as behind.
_BEHIND_PART: Final = 20
_FINDINGS_SPARE: Final = 10_000


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """Options of a drill. ``checkpoint_partitions``: 0 for one for each slice; ``cuts``: number of
    audits of the world ``follow``, the last one after the end.
    """

    records: int = 1_000_000
    defects: int = 300
    seed: int = 20_260_101
    bootstrap: str = ""
    keep: bool = False
    partitions: int = 8
    checkpoint_partitions: int = 3
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class Drill:
    options: DrillOptions
    bootstrap: str
    folder: Path
    life: Life
    copies: Sequence[ShardCopy]
    folders: dict[str, str]
    defects: Sequence[Defect]
    seconds: dict[str, float]


@contextmanager
def prepared(
    options: DrillOptions, spark: SparkSession | None = None, *, is_shown: bool
) -> Iterator[Drill]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="delay-drill-"))
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with steps(Console(stderr=True), is_shown=is_shown) as shown:
            bootstrap = options.bootstrap
            if not bootstrap:
                embedded = EmbeddedCluster(
                    1, 0, folder=folder / "cluster" if options.keep else None
                )
                bootstrap = stack.enter_context(started(embedded, shown)).bootstrap
            topics = TopicAdmin(bootstrap)
            if options.bootstrap and not options.keep:
                stack.callback(undisturbed, topics.delete)
            drill = _make(options, bootstrap, topics, folder, shown, spark)
        yield drill


def _make(
    options: DrillOptions,
    bootstrap: str,
    topics: TopicAdmin,
    folder: Path,
    shown: Steps,
    spark: SparkSession | None,
) -> Drill:
    rng = random.Random(options.seed)  # noqa: S311  # a drill repeats itself from its seed
    run = folder.name.removeprefix("delay-drill-").lower()
    names = TopicNames(run, options.partitions, _SECRET, options.checkpoint_partitions)
    topic_id = _make_topics(names, topics)
    ends = Ends()
    shards = [ModelShard((names.delay, number)) for number in range(options.partitions)]
    # The history ends at a full hour, so that a seed gives the same one at any time of day.
    now_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS
    life = Life(names, topic_id, shards, now_ms, ends)
    kinds = list(itertools.islice(itertools.cycle(KINDS), options.defects))
    rng.shuffle(kinds)
    drill = Drill(options, bootstrap, folder, life, [], {}, [], {})
    cuts = cuts_of(options) if spark is not None else []

    def pause(step: int) -> None:
        if spark is not None and step in cuts:
            _follow(drill, spark)

    defects = _write(options, bootstrap, life, kinds, rng, shown, pause)
    if life.gone:
        topics.forget((names.delay, 0), life.gone)
    if spark is not None and options.cuts:
        _follow(drill, spark, is_last=True)
        defects = [one._replace(worlds=("topics", FOLLOWED)) for one in defects]
    copies = copies_of(life)
    with shown.doing("keeping copies"):
        spoiler = Spoiler(copies, ends.holes, rng)
        defects += spoiler.spoil([kind for kind in kinds if kind in COPY_KINDS])
        folders = keep(life, copies, folder)
        publish(life, copies, CountedWriter(bootstrap, ends, transactional=False))
    topics.check(ends)
    return replace(drill, copies=copies, folders=folders, defects=defects)


def cuts_of(options: DrillOptions) -> list[int]:
    return [STEPS * number // options.cuts for number in range(1, options.cuts)]


def _make_topics(names: TopicNames, topics: TopicAdmin) -> str:
    checkpoint = names.own("checkpoint")
    wide = [names.delay, *names.targets, checkpoint]
    narrow = [names.own(what) for what in ("dead_letter", "outcomes", "digests", "repairs")]
    # Records have timestamps of the history, and retention must not delete them for their age.
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
    pause: Callable[[int], None],
) -> list[Defect]:
    theatre = theatre_of(life, kinds, rng)
    plain, producer, owner = (
        CountedWriter(bootstrap, life.ends, transactional=transactional)
        for transactional in (False, True, True)
    )
    history = HistoryWriter(life, Users(life.names, rng), theatre, plain, producer, owner)
    bar = shown.bar("writing the history", options.records)
    history.write(options.records, bar.at, pause)
    if theatre.waiting:
        raise DelayServiceError(
            f"{theatre.waiting.total()} defects were not over in time: ask for fewer defects, or "
            "for more records"
        )
    return theatre.defects


def theatre_of(life: Life, kinds: Sequence[str], rng: random.Random) -> Theatre:
    plan: dict[int, list[str]] = {}
    for name in [*(kind for kind in kinds if kind in DEFECTS), *SOUND, *SOUND]:
        step = rng.choice(STEPS_OF.get(name, range(1, STEPS * 2 // 3)))
        plan.setdefault(0 if name in FIRST else TAIL if name in LAST else step, []).append(name)
    ahead_ms, stale_ms = life.now_ms - TAIL_MS // 2, life.now_ms - 2 * _STALE_MS
    shared = Scenery(life.names, life.shards, life.ends.holes, rng, ahead_ms, stale_ms)
    return Theatre(shared, plan, {**DEFECTS, **SOUND}, FIRST)


# --- judge ---------------------------------------------------------------------------------------


def judged(drill: Drill, spark: SparkSession, say: Say) -> DrillVerdict:
    seconds, findings = dict(drill.seconds), []
    if FOLLOWED in seconds:
        path = str(drill.folder / FOLLOWED / "findings")
        findings += read_findings(spark, path, FOLLOWED, len(drill.defects))
    for name, job in (("topics", _audit), ("digests", _digests), ("disks", _disks)):
        began_s = time.monotonic()
        path = job(drill, spark, say)
        seconds["audit" if name == "topics" else name] = time.monotonic() - began_s
        findings += read_findings(spark, path, name, len(drill.defects))
    return judge(drill.defects, findings, drill.life.records, seconds)


def show(verdict: DrillVerdict, drill: Drill, *, as_json: bool) -> None:
    if drill.options.keep:
        err.print(f"kept: {drill.folder}, topics *_drill_{drill.life.names.run}*", markup=False)
    told = verdict.to_json()
    if as_json:
        print_json({**told, "seed": drill.options.seed})
        return
    table = Table("defect", "injected", "found")
    for kind, count in sorted(verdict.injected.items()):
        style = None if verdict.found[kind] == count else "bold red"
        table.add_row(kind, f"{count:,}", f"{verdict.found[kind]:,}", style=style)
    out.print(table)
    for what, findings in (("missed", verdict.missed), ("invented", verdict.inventions)):
        for finding in findings:
            out.print(f"{what}: {finding}", style="red", markup=False)
    out.print(
        f"{told['found']:,} of {told['injected']:,} found, {verdict.invented:,} invented, "
        f"{verdict.records:,} records in {told['seconds']:,.0f} s",
        style="bold green" if verdict.is_good else "bold red",
    )


def audit_options(drill: Drill, out: str, *, is_over: bool = True, **more: object) -> AuditOptions:
    # Before the history is over, overdue records can't be found, as its time is not the clock's.
    from connectors.spark.audit import AuditOptions

    names, clock_ms = drill.life.names, time.time_ns() // 1_000_000
    options: dict[str, Any] = {
        "client": {"bootstrap.servers": drill.bootstrap},
        "out": out,
        "checkpoint": names.own("checkpoint"),
        "dead_letter": names.own("dead_letter"),
        "outcomes": names.own("outcomes"),
        "allow": (names.allow,),
        "secrets": (names.secret,),
        "late_ms": LATE_MS,
        "grace_ms": GRACE_MS,
        "overdue_ms": clock_ms - drill.life.now_ms + _STALE_MS if is_over else None,
    }
    return AuditOptions(**{**options, **more})


def _audit(drill: Drill, spark: SparkSession, say: Say) -> str:
    from connectors.spark.audit import audit

    say("auditing")
    return audit(spark, audit_options(drill, str(drill.folder / "audit"))).findings_path


def _follow(drill: Drill, spark: SparkSession, *, is_last: bool = False) -> None:
    # Each audit is by a new object, which knows only the stored state.
    from connectors.spark.audit import Following

    began_s = time.monotonic()
    Following(spark, audit_options(drill, str(drill.folder / FOLLOWED), is_over=is_last)).step()
    took_s = time.monotonic() - began_s
    drill.seconds[FOLLOWED] = drill.seconds.get(FOLLOWED, 0.0) + took_s


def _digests(drill: Drill, spark: SparkSession, say: Say) -> str:
    with answering(drill.bootstrap, drill.life, drill.copies):
        return _reconcile(drill, spark, say, {})


def _disks(drill: Drill, spark: SparkSession, say: Say) -> str:
    return _reconcile(drill, spark, say, drill.folders)


def _reconcile(drill: Drill, spark: SparkSession, say: Say, folders: dict[str, str]) -> str:
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.options import ReconcileOptions
    from connectors.spark.reconcile.run import reconcile

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


def read_findings(spark: SparkSession, path: str, job: str, expected: int) -> list[Finding]:
    read = spark.read.option("recursiveFileLookup", value=True)
    rows = read.parquet(path).limit(expected * 100 + _FINDINGS_SPARE).collect()
    if job not in ("topics", FOLLOWED):
        columns = ("kind", "node", "topic", "partition", "start_ms", "offset")
        return [(job, *(row[name] for name in columns)) for row in rows]
    found: list[Finding] = []
    for row in rows:
        output = None
        if row["target"] is not None:
            output = (row["target"], row["target_partition"], row["target_offset"])
        place = (row["topic"], row["partition"], row["offset"])
        found.append((job, row["kind"], *place, output))
    return found
