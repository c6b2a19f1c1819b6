"""``delayservice spark``: jobs that prove, compare, report and schedule, by Spark."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.commands import spark_schedule
from delayservice.commands.console import err, out, print_error, print_json
from delayservice.commands.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    SetOption,
    load_settings,
    moment_ms,
)
from delayservice.commands.spark_session import (
    EXIT_FINDINGS,
    STATUS,
    ConfOption,
    MasterOption,
    Running,
    await_query,
    pairs,
    require_extra,
    running,
    told_to_stop,
)
from delayservice.contracts import allowed_patterns
from delayservice.errors import DelayServiceError, KafkaEdgeError

if TYPE_CHECKING:
    from connectors.spark.audit import AuditOptions, AuditResult
    from connectors.spark.audit.state import Manifest
    from delayservice.settings import Settings

# Help is read more often than anything runs: what is heavy is imported by the command.
# ruff: noqa: PLC0415

EXIT_ERROR: Final = 1

app = typer.Typer(
    help="Prove, compare, report and schedule with Spark, here or on a cluster.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Since = Annotated[
    str | None, typer.Option(help="Written at or after: RFC 3339, or 2h for two hours ago.")
]
_Until = Annotated[str | None, typer.Option(help="Written before; as --since.")]
_Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", "-t", metavar="TOPIC", help="Read this target; repeatable. Default: all."
    ),
]
_Out = Annotated[
    str, typer.Option("--out", help="Folder or URL of the results; former ones are replaced.")
]
_Publish = Annotated[
    bool, typer.Option("--publish", help="Findings go to the topic `topics.audit`, too.")
]


@app.command(
    epilog="Examples: [bold]delayservice spark audit -b localhost:9092 --late 5s[/]"
    "\n\n[bold]delayservice spark audit -c delayservice.toml --all-topics --publish[/]"
    "\n\n[bold]delayservice spark audit -c delayservice.toml --follow[/]"
    f"\n\n{STATUS[:-1]}, 4 nothing was found and something could not be judged."
)
def audit(
    *,
    output: _Out = "delay-audit",
    targets: _Targets = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Read every topic, whatever is allowed.")
    ] = False,
    late: Annotated[
        str | None, typer.Option(help="What is later than this is a finding: 500ms, 5s.")
    ] = None,
    early: Annotated[str, typer.Option(help="Tolerance for early delivery.")] = "0",
    overdue: Annotated[
        str, typer.Option(help="What is not settled so long after its time is a finding.")
    ] = "10m",
    lag: Annotated[
        str, typer.Option(help="A cancel that was written longer before the due time wins.")
    ] = "30s",
    grace: Annotated[
        str | None,
        typer.Option(
            help="At least once: younger outputs may be ahead of the checkpoint, and deliveries "
            "may come again within this time.",
            show_default="1m under at_least_once, else 0",
        ),
    ] = None,
    publish: _Publish = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is written from now on, until Ctrl-C.")
    ] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="With --follow: begin at the start of the logs.")
    ] = False,
    interval: Annotated[str, typer.Option(help="With --follow: time from cut to cut.")] = "1m",
    archived: Annotated[
        str | None,
        typer.Option("--archive", help="Audit an archive, by its folder or URL, and no cluster."),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove from the topics that every settled record has exactly one settlement, and a right one.

    Findings are written as Parquet, each with its offset.
    """
    require_extra()
    from connectors.spark.archive import audit_archive
    from connectors.spark.audit import audit as run
    from delayservice.commands.send import delay_ms

    settings = load_settings(config, sets, bootstrap)
    options = replace(
        _audit_options(settings, output, targets),
        all_topics=all_topics,
        late_ms=None if late is None else delay_ms("--late", late),
        early_ms=delay_ms("--early", early),
        grace_ms=delay_ms("--grace", grace or _usual_grace(settings)),
        overdue_ms=delay_ms("--overdue", overdue),
        lag_ms=delay_ms("--lag", lag),
        topic=settings.topics.audit if publish else None,
    )
    with running("audit", master, conf, as_json=as_json) as job:
        if follow:
            interval_s = delay_ms("--interval", interval) / 1_000
            status = _follow(job, options, interval_s, from_start=from_start, as_json=as_json)
            raise typer.Exit(status)
        job.say("auditing")
        if archived is None:
            found = run(job.spark, options)
        else:
            found = audit_archive(job.spark, options, archived)
    if as_json:
        print_json(found.to_json())
    else:
        rate = f"{found.seconds:,.0f} s, {found.rows_per_s:,.0f} records/s"
        out.print(f"{found.records:,} records audited in {rate}")
        for note in found.cut.notes:
            err.print(f"not audited: {note}", style="yellow", markup=False)
        _show_judged(found)
    raise typer.Exit(found.status)


@app.command(
    epilog="Examples: [bold]delayservice spark archive -c delayservice.toml --out s3a://ops/delay[/]"
    "\n\n[bold]delayservice spark archive -b localhost:9092 --once[/]"
)
def archive(
    *,
    output: Annotated[str, typer.Option("--out", help="Folder or URL of the archive.")] = (
        "delay-archive"
    ),
    targets: _Targets = None,
    once: Annotated[
        bool, typer.Option("--once", help="Write what is there, and end; otherwise until Ctrl-C.")
    ] = False,
    interval: Annotated[str, typer.Option(help="Time from batch to batch.")] = "1m",
    values: Annotated[
        bool, typer.Option("--values", help="Keep values; otherwise only their hashes.")
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep sources, deliveries, outcomes and dead letters as Parquet, to audit them later.

    Started again with the same --out, it goes on where it stopped.
    """
    require_extra()
    from connectors.spark.archive import ArchiveOptions, start_archive
    from delayservice.commands.send import delay_ms

    settings = load_settings(config, sets, bootstrap)
    interval_ms = 0 if once else delay_ms("--interval", interval)
    options = ArchiveOptions(_audit_options(settings, output, targets), interval_ms, values)
    with running("archive", master, conf, as_json=as_json) as job:
        query = start_archive(job.spark, options)
        job.say(f"writing to {output}")
        batches = await_query(query)
    if as_json:
        print_json({"v": 1, "kind": "archive", "batches": batches, "path": output})
    else:
        out.print(f"{batches:,} batches written to ", end="")
        out.print(output, style="bold green", markup=False)


@app.command(
    epilog="Examples: [bold]delayservice spark reconcile -c delayservice.toml[/]"
    "\n\n[bold]delayservice spark reconcile -c delayservice.toml --follow --repair 10[/]"
    "\n\n[bold]delayservice spark reconcile --folder n1=/backup/n1 --folder n2=/backup/n2 -b B[/]"
    f"\n\n{STATUS}"
)
def reconcile(
    *,
    output: _Out = "delay-reconcile",
    folders: Annotated[
        list[str] | None,
        typer.Option(
            "--folder",
            metavar="NODE=FOLDER",
            help="Compare state folders on disk instead of running nodes; repeatable.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="A node that should report, repeatable; others are not looked at. None: all.",
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            min=0,
            help="Copies that each shard should have; 0: one on every --node, and without any "
            "--node one at all.",
        ),
    ] = 0,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hold every slot against the delay topics.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details/--no-details", help="Ask nodes for records that differ.")
    ] = True,
    behind: Annotated[str, typer.Option(help="Age from which a copy is behind.")] = "10m",
    publish: _Publish = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Compare and publish again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        str, typer.Option(help="With --follow: from one comparison to the next.")
    ] = "1m",
    repairs: Annotated[
        int,
        typer.Option(
            "--repair",
            min=0,
            metavar="N",
            help="With --follow: rebuild wrong copies of replicas, N times at most; 0: only plan.",
        ),
    ] = 0,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the copies that nodes hold, and write what differs, a page and a repair plan."""
    require_extra()
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.run import ReconcileOptions
    from connectors.spark.reconcile.run import reconcile as run
    from delayservice.commands import spark_follow
    from delayservice.commands.send import delay_ms

    if repairs and (folders or not follow):
        raise typer.BadParameter("it needs --follow, and no --folder", param_hint="--repair")
    settings = load_settings(config, sets, bootstrap)
    options = ReconcileOptions(
        client=settings.kafka.client_config("consumer"),
        out=output,
        checkpoint=settings.topics.checkpoint,
        digests=settings.topics.digests,
        repairs=settings.topics.repairs,
        folders=dict(pairs("--folder", folders)),
        expected=Expected(tuple(nodes or ()), replicas, delay_ms("--behind", behind)),
        deep=deep,
        details=details,
        secrets=_secrets(settings),
        topic=settings.topics.audit if publish or follow else None,
    )
    with running("reconcile", master, conf, as_json=as_json) as job:
        if follow:
            interval_s = delay_ms("--interval", interval) / 1_000
            status = spark_follow.run(job, options, interval_s, repairs, as_json=as_json)
            raise typer.Exit(status)
        found = run(job.spark, options, job.say)
    if as_json:
        print_json(found.to_json())
    else:
        out.print(f"{len(found.compared):,} shards compared in {found.seconds:,.0f} s")
        for note in found.notes:
            err.print(note, style="yellow", markup=False)
        _show_findings(found.findings, found.sample, found.paths["findings"])
        out.print(f"page {found.paths['report']}\nplan {found.paths['plan']}", markup=False)
    raise typer.Exit(0 if found.is_clean else EXIT_FINDINGS)


@app.command(
    epilog="Examples: [bold]delayservice spark repair delay-reconcile/plan.json[/]"
    "\n\n[bold]delayservice spark repair delay-reconcile/plan.json --yes[/]"
    f"\n\n{STATUS}"
)
def repair(
    plan: Annotated[Path, typer.Argument(help="The plan.json that reconcile wrote.")],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Carry it out; otherwise it is only shown.")
    ] = False,
    timeout: Annotated[str, typer.Option(help="How long nodes may take for some steps.")] = "10m",
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have nodes read the ranges of a repair plan again; without --yes, only show them."""
    require_extra()
    from delayservice.commands import spark_repair
    from delayservice.commands.send import delay_ms

    settings = load_settings(config, sets, bootstrap)
    timeout_s = delay_ms("--timeout", timeout) / 1_000
    is_done = spark_repair.run(settings, plan, is_dry=not yes, timeout_s=timeout_s, as_json=as_json)
    raise typer.Exit(0 if is_done else EXIT_FINDINGS)


@app.command(
    epilog="Examples: [bold]delayservice spark report -b localhost:9092 --since 1d[/]"
    "\n\n[bold]delayservice spark report -c delayservice.toml --horizon 7d --out s3a://ops/delay[/]"
)
def report(
    *,
    output: _Out = "delay-report",
    targets: _Targets = None,
    since: _Since = None,
    until: _Until = None,
    horizon: Annotated[str, typer.Option(help="How far ahead load is foretold: 6h, 7d.")] = "1d",
    top: Annotated[int, typer.Option(min=1, max=200, help="Targets that are shown.")] = 20,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how late records were, what load is to come, and what became of the others.

    Writes report.html, which needs nothing else, report.json and Parquet.
    """
    require_extra()
    from connectors.spark.report.run import ReportOptions
    from connectors.spark.report.run import report as run
    from delayservice.commands.send import delay_ms

    settings = load_settings(config, sets, bootstrap)
    options = ReportOptions(
        client=settings.kafka.client_config("consumer"),
        out=output,
        checkpoint=settings.topics.checkpoint,
        dead_letter=settings.topics.dead_letter,
        outcomes=settings.topics.outcomes,
        targets=tuple(targets or ()),
        allow=allowed_patterns(settings),
        secrets=_secrets(settings),
        since_ms=moment_ms("--since", since),
        until_ms=moment_ms("--until", until),
        horizon_ms=delay_ms("--horizon", horizon),
        top=top,
    )
    with running("report", master, conf, as_json=as_json) as job:
        found = run(job.spark, options, job.say)
    if as_json:
        print_json({**found.to_json(), "path": options.path("report.html")})
        return
    whole, waiting = found.whole, found.waiting
    out.print(f"{whole.records:,} delivered, lateness ", end="")
    out.print(f"p50 {whole.p50_ms} ms, p99 {whole.p99_ms} ms, max {whole.max_ms} ms")
    out.print(f"{waiting.records:,} pending, {waiting.overdue:,} of them overdue")
    out.print(options.path("report.html"), style="bold green", markup=False)


app.command(epilog=spark_schedule.EPILOG)(spark_schedule.schedule)


@app.command(epilog="Example: [bold]delayservice spark export delayservice-state --out exported[/]")
def export(
    state: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A node's state folder, or a copy.")
    ],
    *,
    output: Annotated[
        Path, typer.Option("--out", help="Folder for a Parquet file of each shard.")
    ] = Path("delay-export"),
    content: Annotated[
        bool, typer.Option("--content/--no-content", help="With keys, values and headers.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write a node's RocksDB stores as Parquet, to be read by Spark. Nothing is locked."""
    require_extra()
    from connectors.spark.reconcile.rocks_export import export_rocks
    from delayservice.store.shards import find_shards

    if not (state / "rocksdb").is_dir():
        raise DelayServiceError(
            f"{state} holds no RocksDB store: give the folder that node.state_dir names; a wheel "
            "needs no export"
        )
    output.mkdir(parents=True, exist_ok=True)
    facts = []
    for shard in find_shards(state, ("rocksdb",)):
        target = output / f"{shard.shard}-{shard.partition}.parquet"
        done = export_rocks(shard, target, content=content)
        said = {"path": str(done.path), "rows": done.rows, "stop_offset": done.stop_offset}
        facts.append(said)
        if not as_json:
            out.print(f"{done.rows:,} records below offset {done.stop_offset} in ", end="")
            out.print(str(done.path), style="bold green", markup=False)
    if as_json:
        print_json({"v": 1, "kind": "export", "shards": facts})


@app.command(
    epilog="Examples: [bold]delayservice spark drill --json[/]"
    "\n\n[bold]delayservice spark drill --records 20000 --defects 64 -b localhost:9092 --keep[/]"
    f"\n\n{STATUS}"
)
def drill(
    *,
    records: Annotated[int, typer.Option(min=1_000, help="That producers write.")] = 1_000_000,
    defects: Annotated[int, typer.Option(min=0, help="Of all kinds together.")] = 300,
    cuts: Annotated[
        int, typer.Option(min=0, help="At so many an audit that follows judges as well.")
    ] = 0,
    partitions: Annotated[int, typer.Option(min=2, help="Of the delay topic.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the history and its defects.")] = 20_260_101,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave topics and folders, and say where they are.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="A cluster, instead of one started for it.")
    ] = "",
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Inject defects into topics and copies, and see whether audit and comparison find them all.

    Exit status 0 only if each was found with its offset, and nothing else.
    """
    require_extra()
    from delayservice.dev.drill.report import show
    from delayservice.dev.drill.run import DrillOptions, judged, prepared

    options = DrillOptions(records, defects, seed, bootstrap, keep, partitions, cuts=cuts)
    is_shown = not as_json or sys.stderr.isatty()
    with ExitStack() as stack:
        if cuts:
            job = stack.enter_context(running("drill", master, conf, as_json=as_json))
        made = stack.enter_context(
            prepared(options, job.spark if cuts else None, is_shown=is_shown)
        )
        if not cuts:
            job = stack.enter_context(running("drill", master, conf, as_json=as_json))
        verdict = judged(made, job.spark, job.say)
        show(verdict, made, as_json=as_json)
    raise typer.Exit(0 if verdict.is_good else EXIT_FINDINGS)


def main() -> None:
    """Run these commands by themselves, as a cluster does, and end with their exit status."""
    try:
        app(prog_name="job.py")
    except DelayServiceError as exc:
        if "--debug" in sys.argv:
            err.print_exception()
        print_error(str(exc))
        sys.exit(EXIT_ERROR)


# --- show ----------------------------------------------------------------------------------------


def _show_judged(found: AuditResult) -> None:
    """The range of the verdict, what could not be judged in it, and what was found."""
    for one in found.judged:
        span = f"offsets {one.start} to {one.stop - 1}" if one.start < one.stop else "no offsets"
        out.print(f"judged: {span} of {one.topic}:{one.partition}", markup=False)
    if found.findings or not found.unjudged:
        _show_findings(found.findings, found.sample, found.findings_path)
    for reason, count in found.unjudged.items():
        out.print(f"{count:,} not judged: {reason}", style="bold yellow", markup=False)
    _show_rows(found.unjudged_sample)
    if found.unjudged_sample:
        out.print(f"all of them are in {found.unjudged_path}", style="dim", markup=False)


def _show_rows(rows: Sequence[Mapping[str, object]]) -> None:
    for row in rows:
        place = f"{row['topic']}:{row['partition']}:{row['offset']}"
        out.print(f"  {row['kind']} {place}  {row['detail']}", markup=False)


def _show_findings(
    findings: Mapping[str, int], sample: Sequence[Mapping[str, object]], path: str
) -> None:
    if not findings:
        out.print("nothing was found", style="bold green")
        return
    for kind, count in findings.items():
        out.print(f"{count:,} {kind}", style="bold red", markup=False)
    _show_rows(sample)
    out.print(f"all of them are in {path}", style="dim", markup=False)


def _follow(
    job: Running, options: AuditOptions, interval_s: float, *, from_start: bool, as_json: bool
) -> int:
    """Judge what comes, each interval, until the process is told to stop; return the exit status.
    The next run with the same ``--out`` goes on where this one ends.
    """
    from connectors.spark.audit import Following
    from connectors.spark.audit.result import exit_status

    following = Following(job.spark, options, from_start=from_start)
    with told_to_stop() as stop:
        while not stop.is_set():
            next_s = time.monotonic() + interval_s
            job.say("auditing what has come")
            try:
                found = following.step()
            except KafkaEdgeError as exc:
                print_error(f"{exc}; it is tried again in {interval_s:.0f} s")
            else:
                _show_interval(following.manifest, found, as_json=as_json)
            job.say("waiting for the next interval")
            stop.wait(max(0.0, next_s - time.monotonic()))
    manifest = following.manifest
    return exit_status(len(manifest.findings), len(manifest.unjudged))


def _show_interval(manifest: Manifest, found: AuditResult, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    wrong, unjudged = sum(found.findings.values()), sum(found.unjudged.values())
    out.print(
        f"interval {manifest.number}: {found.records:,} records, {found.outputs:,} outputs, "
        f"{found.counts.get('pending', 0):,} pending, {wrong:,} findings, {unjudged:,} not judged, "
        f"{found.seconds:.1f} s"
    )
    _show_rows(found.sample)
    _show_rows(found.unjudged_sample)


def _audit_options(settings: Settings, output: str, targets: Sequence[str] | None) -> AuditOptions:
    """Return the options of an audit that settings give."""
    from connectors.spark.audit import AuditOptions

    topics = settings.topics
    return AuditOptions(
        client=settings.kafka.client_config("consumer"),
        out=output,
        checkpoint=topics.checkpoint,
        dead_letter=topics.dead_letter,
        outcomes=topics.outcomes,
        targets=tuple(targets or ()),
        allow=allowed_patterns(settings),
        never=topics.own,
        secrets=_secrets(settings),
        delay_topics=(*topics.delay, *settings.levels.by_topic),
    )


def _usual_grace(settings: Settings) -> str:
    """Return how far outputs may be ahead of their checkpoint by default."""
    return "1m" if settings.delivery.mode == "at_least_once" else "0"


def _secrets(settings: Settings) -> tuple[bytes, ...]:
    secret = settings.node.secret_bytes()
    return () if secret is None else (secret, *settings.node.accepted_secrets())
