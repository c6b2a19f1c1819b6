"""``delayservice spark``: Spark jobs that audit, compare, report and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from delayservice.commands import spark_audit, spark_schedule
from delayservice.commands.console import CommandLine, out
from delayservice.commands.options import Duration, KafkaOptions, Moment, pairs, with_options
from delayservice.commands.spark_audit import read_options, secrets_of
from delayservice.commands.spark_session import (
    STATUS_JUDGED,
    FollowOptions,
    OutOption,
    SessionOptions,
    TopicOptions,
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
class ReconcileCommand(KafkaOptions):
    output: OutOption = "delay-reconcile"
    folders: Annotated[list[str] | None, typer.Option("--folder", metavar="NODE=FOLDER")] = None
    """Compare state folders on disk instead of running nodes; repeatable."""
    nodes: Annotated[list[str] | None, typer.Option("--node", metavar="NODE")] = None
    """Node to compare; repeatable. Default: all."""
    replicas: Annotated[int, typer.Option(min=0)] = 0
    """Expected copies of each shard; 0: one on every --node, or at least one without --node."""
    deep: bool = False
    """Compare hours with the delay topics, too."""
    details: Annotated[bool, typer.Option("--details/--no-details")] = True
    """Query nodes for differences."""
    behind_ms: Duration = 600_000
    """A copy so old is a finding."""
    repairs: Annotated[int, typer.Option("--repair", min=0, metavar="N")] = 0
    """Have nodes rebuild up to N wrong copies; 0: only write the plan."""


@dataclass(frozen=True, slots=True)
class ReportCommand(TopicOptions):
    output: OutOption = "delay-report"
    from_ms: Moment | None = None
    """Written at or after"""
    to_ms: Moment | None = None
    """Written before"""
    horizon_ms: Duration = 86_400_000
    """Forecast for: 6h, 7d."""
    top: Annotated[int, typer.Option(min=1, max=200)] = 20
    """Number of targets to show."""


app.command(epilog=spark_audit.AUDIT_EPILOG)(spark_audit.audit)
app.command(epilog=spark_audit.ARCHIVE_EPILOG)(spark_audit.archive)
app.command(epilog=spark_schedule.EPILOG)(spark_schedule.schedule)


@app.command(
    epilog="Example: [bold]delayservice spark reconcile -c FILE --follow --repair 9[/]"
    f"\n\n{STATUS_JUDGED}"
)
@with_options
def reconcile(
    *, asked: ReconcileCommand, following: FollowOptions, session: SessionOptions
) -> None:
    """Compare the nodes' copies; write findings, an HTML page and a repair plan.

    With --repair, the nodes then carry out the plan. With --follow, each comparison is published.
    """
    require_extra()
    from connectors.spark.reconcile.digests import Expected
    from connectors.spark.reconcile.options import ReconcileOptions
    from connectors.spark.reconcile.run import reconcile as run
    from delayservice.commands.spark_reconcile import follow_copies, repair_copies, show_result

    if asked.repairs and asked.folders:
        raise typer.BadParameter("it needs running nodes, so no --folder", param_hint="--repair")
    settings = asked.settings()
    topics = settings.topics
    options = ReconcileOptions(
        client=settings.kafka.client_config("consumer"),
        out=asked.output,
        checkpoint=topics.checkpoint,
        digests=topics.digests,
        repairs=topics.repairs,
        folders=dict(pairs("--folder", asked.folders)),
        expected=Expected(tuple(asked.nodes or ()), asked.replicas, asked.behind_ms),
        deep=asked.deep,
        details=asked.details,
        secrets=secrets_of(settings),
        topic=topics.audit if following.publish or following.follow else None,
    )
    with session.running("reconcile", as_json=asked.as_json) as job:
        if following.follow:
            raise typer.Exit(follow_copies(job, options, following.interval_ms, asked.repairs))
        found = run(job.spark, options, job.say)
        repairs = repair_copies(job, options, found.plan, asked.repairs)
    job.emit(
        {**found.to_json(), "repairs": repairs.to_json()}, partial(show_result, found, repairs)
    )
    raise typer.Exit(found.status)


@app.command(
    epilog="Example: [bold]delayservice spark report -b localhost:9092 --from -1d --horizon 7d[/]"
)
@with_options
def report(*, asked: ReportCommand, session: SessionOptions) -> None:
    """Report lateness, expected load, and the outcomes of all records.

    Writes report.html (self-contained), report.json and Parquet.
    """
    require_extra()
    from connectors.spark.report.run import ReportOptions
    from connectors.spark.report.run import report as run

    options = ReportOptions(
        audit=read_options(asked.settings(), asked.output, asked.targets),
        since_ms=asked.from_ms,
        until_ms=asked.to_ms,
        horizon_ms=asked.horizon_ms,
        top=asked.top,
    )
    with session.running("report", as_json=asked.as_json) as job:
        found = run(job.spark, options, job.say)
    path = options.audit.path("report.html")
    job.emit({**found.to_json(), "path": path}, partial(_show_report, found, path))


def _show_report(found: ReportFacts, path: str) -> None:
    whole, waiting = found.whole, found.waiting
    out.print(f"{whole.records:,} delivered, lateness ", end="")
    out.print(f"p50 {whole.p50_ms} ms, p99 {whole.p99_ms} ms, max {whole.max_ms} ms")
    out.print(f"{waiting.records:,} pending, {waiting.overdue:,} of them overdue")
    out.print(path, style="bold green", markup=False)
