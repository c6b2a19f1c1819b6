"""``delayservice spark``: Spark jobs that audit, compare, report and schedule."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands import spark_audit, spark_schedule
from delayservice.commands.console import err, out, print_error, print_json
from delayservice.commands.options import KafkaOptions, moment_ms, pairs, with_options
from delayservice.commands.spark_audit import read_options, secrets_of, show_findings
from delayservice.commands.spark_session import (
    EXIT_FINDINGS,
    STATUS,
    STATUS_JUDGED,
    OutOption,
    PublishOption,
    SessionOptions,
    TargetsOption,
    require_extra,
)

if TYPE_CHECKING:
    from connectors.spark.reconcile.options import ReconcileOptions
    from delayservice.config.settings import Settings

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EXIT_ERROR: Final = 1

app = typer.Typer(
    help="Audit, compare, report and schedule with Spark, locally or on a cluster.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Since = Annotated[
    str | None, typer.Option(help="Written at or after: RFC 3339, or 2h for two hours ago.")
]
_Until = Annotated[str | None, typer.Option(help="Written before; as --since.")]


@dataclass(frozen=True, slots=True)
class ComparedOptions:
    """Command-line options of a comparison: which copies are expected, and limits."""

    folders: Annotated[
        list[str] | None,
        typer.Option(
            "--folder",
            metavar="NODE=FOLDER",
            help="Compare state folders on disk instead of running nodes; repeatable.",
        ),
    ] = None
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Node to compare; repeatable. Default: all.",
        ),
    ] = None
    replicas: Annotated[
        int,
        typer.Option(
            min=0,
            help="Expected copies of each shard; 0: one on every --node, or at least one without "
            "--node.",
        ),
    ] = 0
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every hour with the delay topics.")
    ] = False
    details: Annotated[
        bool, typer.Option("--details/--no-details", help="Query nodes for records that differ.")
    ] = True
    behind: Annotated[str, typer.Option(help="Age from which a copy is a finding.")] = "10m"


app.command(epilog=spark_audit.AUDIT_EPILOG)(spark_audit.audit)
app.command(epilog=spark_audit.ARCHIVE_EPILOG)(spark_audit.archive)
app.command(epilog=spark_schedule.EPILOG)(spark_schedule.schedule)


@app.command(
    epilog="Examples: [bold]delayservice spark reconcile -c delayservice.toml[/]"
    "\n\n[bold]delayservice spark reconcile -c delayservice.toml --follow --repair 10[/]"
    "\n\n[bold]delayservice spark reconcile --folder n1=/backup/n1 --folder n2=/backup/n2 -b B[/]"
    f"\n\n{STATUS_JUDGED}"
)
@with_options
def reconcile(
    *,
    output: OutOption = "delay-reconcile",
    compared: ComparedOptions,
    publish: PublishOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Repeat and publish comparisons until Ctrl-C.")
    ] = False,
    interval: Annotated[str, typer.Option(help="With --follow: interval of comparisons.")] = "1m",
    repairs: Annotated[
        int,
        typer.Option(
            "--repair",
            min=0,
            metavar="N",
            help="With --follow: maximum number of rebuilds of wrong replica copies; 0: only plan.",
        ),
    ] = 0,
    session: SessionOptions,
    common: KafkaOptions,
) -> None:
    """Compare the nodes' copies; write findings, an HTML page and a repair plan."""
    require_extra()
    from connectors.spark.common.session import EXIT_UNJUDGED
    from connectors.spark.reconcile.run import reconcile as run
    from delayservice.commands.send import delay_ms
    from delayservice.commands.spark_reconcile import follow_copies

    if repairs and (compared.folders or not follow):
        raise typer.BadParameter("it needs --follow, and no --folder", param_hint="--repair")
    settings = common.settings()
    topic = settings.topics.audit if publish or follow else None
    options = _reconcile_options(settings, output, compared, topic)
    with session.running("reconcile", as_json=common.as_json) as job:
        if follow:
            interval_s = delay_ms("--interval", interval) / 1_000
            status = follow_copies(job, options, interval_s, repairs, as_json=common.as_json)
            raise typer.Exit(status)
        found = run(job.spark, options, job.say)
    if common.as_json:
        print_json(found.to_json())
    else:
        out.print(f"{found.extent} in {found.seconds:,.0f} s")
        for note in found.notes:
            err.print(f"not compared: {note}", style="yellow", markup=False)
        if found.status != EXIT_UNJUDGED:
            show_findings(found.findings, found.sample, found.paths["findings"])
        out.print(f"page {found.paths['report']}\nplan {found.paths['plan']}", markup=False)
    raise typer.Exit(found.status)


def _reconcile_options(
    settings: Settings, output: str, compared: ComparedOptions, topic: str | None
) -> ReconcileOptions:
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.options import ReconcileOptions
    from delayservice.commands.send import delay_ms

    behind_ms = delay_ms("--behind", compared.behind)
    return ReconcileOptions(
        client=settings.kafka.client_config("consumer"),
        out=output,
        checkpoint=settings.topics.checkpoint,
        digests=settings.topics.digests,
        repairs=settings.topics.repairs,
        folders=dict(pairs("--folder", compared.folders)),
        expected=Expected(tuple(compared.nodes or ()), compared.replicas, behind_ms),
        deep=compared.deep,
        details=compared.details,
        secrets=secrets_of(settings),
        topic=topic,
    )


@app.command(
    epilog="Examples: [bold]delayservice spark repair delay-reconcile/plan.json[/]"
    "\n\n[bold]delayservice spark repair delay-reconcile/plan.json --yes[/]"
    f"\n\n{STATUS}"
)
@with_options
def repair(
    plan: Annotated[Path, typer.Argument(help="The plan.json that reconcile wrote.")],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Carry out the plan instead of showing it.")
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(help="Longest wait for steps that are sent together."),
    ] = "10m",
    common: KafkaOptions,
) -> None:
    """Let nodes rebuild the copies of a repair plan; without --yes, only show the plan."""
    require_extra()
    from delayservice.commands.send import delay_ms
    from delayservice.commands.spark_reconcile import repair_copies

    settings = common.settings()
    timeout_s = delay_ms("--timeout", timeout) / 1_000
    is_done = repair_copies(
        settings, plan, is_dry=not yes, timeout_s=timeout_s, as_json=common.as_json
    )
    raise typer.Exit(0 if is_done else EXIT_FINDINGS)


@app.command(
    epilog="Examples: [bold]delayservice spark report -b localhost:9092 --since 1d[/]"
    "\n\n[bold]delayservice spark report -c delayservice.toml --horizon 7d --out s3a://ops/delay[/]"
)
@with_options
def report(
    *,
    output: OutOption = "delay-report",
    targets: TargetsOption = None,
    since: _Since = None,
    until: _Until = None,
    horizon: Annotated[str, typer.Option(help="Time covered by the load forecast: 6h, 7d.")] = "1d",
    top: Annotated[int, typer.Option(min=1, max=200, help="Number of targets to show.")] = 20,
    session: SessionOptions,
    common: KafkaOptions,
) -> None:
    """Report lateness, expected load, and the outcomes of all records.

    Writes report.html (self-contained), report.json and Parquet.
    """
    require_extra()
    from connectors.spark.report.run import ReportOptions
    from connectors.spark.report.run import report as run
    from delayservice.commands.send import delay_ms

    settings = common.settings()
    options = ReportOptions(
        audit=read_options(settings, output, targets),
        since_ms=moment_ms("--since", since),
        until_ms=moment_ms("--until", until),
        horizon_ms=delay_ms("--horizon", horizon),
        top=top,
    )
    path = options.audit.path("report.html")
    with session.running("report", as_json=common.as_json) as job:
        found = run(job.spark, options, job.say)
    if common.as_json:
        print_json({**found.to_json(), "path": path})
        return
    whole, waiting = found.whole, found.waiting
    out.print(f"{whole.records:,} delivered, lateness ", end="")
    out.print(f"p50 {whole.p50_ms} ms, p99 {whole.p99_ms} ms, max {whole.max_ms} ms")
    out.print(f"{waiting.records:,} pending, {waiting.overdue:,} of them overdue")
    out.print(path, style="bold green", markup=False)


def main() -> None:
    """Run ``delayservice spark`` as a program, and exit with the status of its command."""
    try:
        app(prog_name="job.py")
    except DelayServiceError as exc:
        if "--debug" in sys.argv:
            err.print_exception()
        print_error(str(exc))
        sys.exit(EXIT_ERROR)
