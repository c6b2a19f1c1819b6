"""``delayservice spark``: Spark jobs that audit, compare, report and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delayservice.commands import spark_audit, spark_schedule
from delayservice.commands.console import EXIT_FINDINGS, CommandLine, out
from delayservice.commands.options import KafkaOptions, duration, flag, moment, pairs, with_options
from delayservice.commands.spark_audit import read_options, secrets_of
from delayservice.commands.spark_session import (
    STATUS,
    STATUS_JUDGED,
    FollowOptions,
    OutOption,
    SessionOptions,
    TargetsOption,
    require_extra,
)

if TYPE_CHECKING:
    from connectors.spark.report.page import ReportFacts

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

app = typer.Typer(
    cls=CommandLine,
    help="Audit, compare, report and schedule with Spark, locally or on a cluster.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    deep: Annotated[bool, flag("--deep", "Compare hours with the delay topics, too.")] = False
    details: Annotated[bool, flag("--details/--no-details", "Query nodes for differences.")] = True
    behind_ms: Annotated[int, duration("--behind", "A copy so old is a finding.", "10m")] = 600_000


app.command(epilog=spark_audit.AUDIT_EPILOG)(spark_audit.audit)
app.command(epilog=spark_audit.ARCHIVE_EPILOG)(spark_audit.archive)
app.command(epilog=spark_schedule.EPILOG)(spark_schedule.schedule)


@app.command(
    epilog="Example: [bold]delayservice spark reconcile -c FILE --follow --repair 9[/]"
    f"\n\n{STATUS_JUDGED}"
)
@with_options
def reconcile(
    *,
    output: OutOption = "delay-reconcile",
    compared: ComparedOptions,
    following: FollowOptions,
    repairs: Annotated[
        int,
        typer.Option(
            "--repair",
            min=0,
            metavar="N",
            help="With --follow: rebuild up to N wrong copies; 0: only plan.",
        ),
    ] = 0,
    session: SessionOptions,
    common: KafkaOptions,
) -> None:
    """Compare the nodes' copies; write findings, an HTML page and a repair plan.

    With --follow, each comparison is published.
    """
    require_extra()
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.options import ReconcileOptions
    from connectors.spark.reconcile.run import reconcile as run
    from delayservice.commands.spark_reconcile import follow_copies, show_result

    if repairs and (compared.folders or not following.follow):
        raise typer.BadParameter("it needs --follow, and no --folder", param_hint="--repair")
    settings = common.settings()
    topics = settings.topics
    options = ReconcileOptions(
        client=settings.kafka.client_config("consumer"),
        out=output,
        checkpoint=topics.checkpoint,
        digests=topics.digests,
        repairs=topics.repairs,
        folders=dict(pairs("--folder", compared.folders)),
        expected=Expected(tuple(compared.nodes or ()), compared.replicas, compared.behind_ms),
        deep=compared.deep,
        details=compared.details,
        secrets=secrets_of(settings),
        topic=topics.audit if following.publish or following.follow else None,
    )
    with session.running("reconcile", as_json=common.as_json) as job:
        if following.follow:
            raise typer.Exit(follow_copies(job, options, following.interval_ms, repairs))
        found = run(job.spark, options, job.say)
    job.emit(found.to_json(), partial(show_result, found))
    raise typer.Exit(found.status)


@app.command(
    epilog="Example: [bold]delayservice spark repair delay-reconcile/plan.json --yes[/]"
    f"\n\n{STATUS}"
)
@with_options
def repair(
    plan: Annotated[Path, typer.Argument(help="The plan.json that reconcile wrote.")],
    *,
    yes: Annotated[bool, flag("--yes", "Carry it out; else it is shown.", "-y")] = False,
    timeout_ms: Annotated[int, duration("--timeout", "Longest wait for a step.", "10m")] = 600_000,
    common: KafkaOptions,
) -> None:
    """Let nodes rebuild the copies of a repair plan; without --yes, only show the plan."""
    require_extra()
    from delayservice.commands.spark_reconcile import repair_copies

    timeout_s = timeout_ms / 1_000
    is_done = repair_copies(
        common.settings(), plan, is_dry=not yes, timeout_s=timeout_s, as_json=common.as_json
    )
    raise typer.Exit(0 if is_done else EXIT_FINDINGS)


@app.command(
    epilog="Example: [bold]delayservice spark report -b localhost:9092 --from -1d --horizon 7d[/]"
)
@with_options
def report(
    *,
    output: OutOption = "delay-report",
    targets: TargetsOption = None,
    from_ms: Annotated[int | None, moment("--from", "Written at or after")] = None,
    to_ms: Annotated[int | None, moment("--to", "Written before")] = None,
    horizon_ms: Annotated[int, duration("--horizon", "Forecast for: 6h, 7d.", "1d")] = 86_400_000,
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

    options = ReportOptions(
        audit=read_options(common.settings(), output, targets),
        since_ms=from_ms,
        until_ms=to_ms,
        horizon_ms=horizon_ms,
        top=top,
    )
    with session.running("report", as_json=common.as_json) as job:
        found = run(job.spark, options, job.say)
    path = options.audit.path("report.html")
    job.emit({**found.to_json(), "path": path}, partial(_show_report, found, path))


def _show_report(found: ReportFacts, path: str) -> None:
    whole, waiting = found.whole, found.waiting
    out.print(f"{whole.records:,} delivered, lateness ", end="")
    out.print(f"p50 {whole.p50_ms} ms, p99 {whole.p99_ms} ms, max {whole.max_ms} ms")
    out.print(f"{waiting.records:,} pending, {waiting.overdue:,} of them overdue")
    out.print(path, style="bold green", markup=False)
