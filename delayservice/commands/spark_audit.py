"""``delayservice spark audit``, and ``spark archive``, which copies topics for later audits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.commands.console import err, out, print_json
from delayservice.commands.options import KafkaOptions, with_options
from delayservice.commands.spark_session import (
    STATUS_JUDGED,
    OutOption,
    PublishOption,
    Running,
    SessionOptions,
    TargetsOption,
    repeat,
    require_extra,
)
from delayservice.config.contract import allowed_patterns

if TYPE_CHECKING:
    from connectors.spark.audit import AuditOptions, AuditResult
    from connectors.spark.audit.state import AuditManifest
    from delayservice.config.settings import Settings

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_UNJUDGED_SHOWN: Final = 5

AUDIT_EPILOG: Final = (
    "Examples: [bold]delayservice spark audit -b localhost:9092 --late 5s[/]"
    "\n\n[bold]delayservice spark audit -c delayservice.toml --all-topics --publish[/]"
    "\n\n[bold]delayservice spark audit -c delayservice.toml --follow[/]"
    f"\n\n{STATUS_JUDGED}"
)
ARCHIVE_EPILOG: Final = (
    "Examples: [bold]delayservice spark archive -c delayservice.toml --out s3a://ops/delay[/]"
    "\n\n[bold]delayservice spark archive -b localhost:9092 --once[/]"
)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Command-line options of an audit: largest lateness and tolerances, as texts with units."""

    late: Annotated[str | None, typer.Option(help="Longest allowed lateness: 500ms, 5s.")] = None
    early: Annotated[str, typer.Option(help="Tolerance for early delivery.")] = "0"
    overdue: Annotated[str, typer.Option(help="Longest time from due time to outcome.")] = "10m"
    lag: Annotated[
        str, typer.Option(help="A cancel written this long before the due time must take effect.")
    ] = "30s"
    grace: Annotated[
        str | None,
        typer.Option(
            help="At least once: age up to which outputs may be ahead of the checkpoint, and time "
            "within which deliveries may repeat.",
            show_default="1m under at_least_once, else 0",
        ),
    ] = None

    def applied(self, options: AuditOptions, settings: Settings) -> AuditOptions:
        from delayservice.commands.send import delay_ms

        # At least once, outputs may be ahead of their checkpoint.
        usual_grace = "1m" if settings.delivery.mode == "at_least_once" else "0"
        return replace(
            options,
            late_ms=None if self.late is None else delay_ms("--late", self.late),
            early_ms=delay_ms("--early", self.early),
            grace_ms=delay_ms("--grace", self.grace or usual_grace),
            overdue_ms=delay_ms("--overdue", self.overdue),
            lag_ms=delay_ms("--lag", self.lag),
        )


@with_options
def audit(
    *,
    output: OutOption = "delay-audit",
    targets: TargetsOption = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Read every topic, not only allowed targets.")
    ] = False,
    limits: LimitOptions,
    publish: PublishOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new records, until Ctrl-C.")
    ] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="With --follow: begin at the start of the topics.")
    ] = False,
    interval: Annotated[str, typer.Option(help="With --follow: interval of audits.")] = "1m",
    archived: Annotated[
        str | None,
        typer.Option("--archive", help="Audit an archive (folder or URL) instead of a cluster."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", help="Write findings to OUT/findings.FORMAT too: csv, json, orc, delta."
        ),
    ] = None,
    session: SessionOptions,
    common: KafkaOptions,
) -> None:
    """Check in the topics that every settled record has exactly one, correct outcome.

    Findings are written as Parquet, each with its offset.
    """
    require_extra()
    from connectors.spark.archive import audit_archive
    from connectors.spark.audit import audit_at, cut_of
    from delayservice.commands.send import delay_ms

    if follow and (archived or kind):
        raise typer.BadParameter("--archive and --format are for one audit, without --follow")
    settings = common.settings()
    options = replace(
        limits.applied(_audit_options(settings, output, targets), settings),
        all_topics=all_topics,
        topic=settings.topics.audit if publish else None,
    )
    with session.running("audit", as_json=common.as_json) as job:
        if follow:
            interval_s = delay_ms("--interval", interval) / 1_000
            status = _follow(
                job, options, interval_s, from_start=from_start, as_json=common.as_json
            )
            raise typer.Exit(status)
        if archived is not None:
            job.say(f"judging the archive in {archived}")
            found = audit_archive(job.spark, options, archived)
        else:
            began_s = time.monotonic()
            job.say("taking a cut of all logs")
            cut = cut_of(options)
            offsets = sum(span.end - span.start for span in cut.spans.values())
            job.say(f"judging {offsets:,} offsets of {len(cut.spans):,} logs")
            found = audit_at(job.spark, options, cut, began_s)
        if kind is not None:
            job.say(f"writing the findings as {kind}")
            rows = job.spark.read.parquet(found.findings_path)
            rows.write.format(kind).mode("overwrite").save(options.path(f"findings.{kind}"))
    if common.as_json:
        print_json(found.to_json())
    else:
        show_result(found)
    raise typer.Exit(found.status)


@with_options
def archive(
    *,
    output: Annotated[str, typer.Option("--out", help="Folder or URL of the archive.")] = (
        "delay-archive"
    ),
    targets: TargetsOption = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Stop at the current end of the topics instead of at Ctrl-C."),
    ] = False,
    interval: Annotated[str, typer.Option(help="Interval of batches.")] = "1m",
    values: Annotated[
        bool, typer.Option("--values", help="Store values; default: only their hashes.")
    ] = False,
    session: SessionOptions,
    common: KafkaOptions,
) -> None:
    """Archive source records, deliveries, outcomes and dead letters as Parquet for later audits.

    Restarted with the same --out, it continues where it stopped.
    """
    require_extra()
    from connectors.spark.archive import ArchiveOptions, capture
    from delayservice.commands.send import delay_ms

    settings = common.settings()
    interval_s = delay_ms("--interval", interval) / 1_000
    options = ArchiveOptions(_audit_options(settings, output, targets), values)
    batches, failed = 0, False
    with session.running("archive", as_json=common.as_json) as job:

        def step() -> None:
            nonlocal batches
            job.say(f"writing to {output}")
            batches = capture(job.spark, options).number + 1

        if once:
            step()
        else:
            failed = repeat(job, interval_s, step)
    if common.as_json:
        print_json({"v": 1, "kind": "archive", "batches": batches, "path": output})
    else:
        out.print(f"{batches:,} batches in {output}", style="bold green", markup=False)
    raise typer.Exit(int(failed))


def show_result(found: AuditResult) -> None:
    for note in found.cut.notes:
        err.print(f"not audited: {note}", style="yellow", markup=False)
    offsets = sum(one.stop - one.start for one in found.judged)
    shards = sum(one.start < one.stop for one in found.judged)
    out.print(
        f"{offsets:,} offsets judged in {shards:,} of {len(found.judged):,} shards, "
        f"{found.seconds:,.0f} s, {found.rows_per_s:,.0f} records/s"
    )
    _show_counts("counts", found.counts, "bold")
    _show_counts("not judged", found.unjudged, "bold yellow")
    _show_rows(found.unjudged_sample[:_UNJUDGED_SHOWN])
    if found.unjudged:
        out.print(f"all of them are in {found.unjudged_path}", style="dim", markup=False)
    if found.findings or not found.unjudged:
        show_findings(found.findings, found.sample, found.findings_path)


def _show_counts(title: str, counts: Mapping[str, int], style: str) -> None:
    if counts:
        out.print(title, style=style)
    for name, count in counts.items():
        out.print(f"{count:>14,}  {name}", markup=False)


def _show_rows(rows: Sequence[Mapping[str, object]]) -> None:
    for row in rows:
        place = f"{row['topic']}:{row['partition']}:{row['offset']}"
        out.print(f"  {row['kind']} {place}  {row['detail']}", markup=False)


def show_findings(
    findings: Mapping[str, int], sample: Sequence[Mapping[str, object]], path: str
) -> None:
    """Print the number of findings of each kind, the rows of a sample of them, and the path of all
    findings.
    """
    if not findings:
        out.print("nothing was found", style="bold green")
        return
    _show_counts("findings", findings, "bold red")
    _show_rows(sample)
    out.print(f"all of them are in {path}", style="dim", markup=False)


def _follow(
    job: Running, options: AuditOptions, interval_s: float, *, from_start: bool, as_json: bool
) -> int:
    """Audit the new records every ``interval_s`` seconds until Ctrl-C or SIGTERM; return the exit
    status: that of all findings so far, or 1 if there are none and the last attempt failed.
    """
    from connectors.spark.audit import Following
    from connectors.spark.common.session import exit_status

    following = Following(job.spark, options, from_start=from_start)

    def step() -> None:
        job.say("auditing what has come")
        found = following.step()
        _show_interval(following.manifest, found, as_json=as_json)

    failed = repeat(job, interval_s, step)
    manifest = following.manifest
    return exit_status(len(manifest.findings), len(manifest.unjudged)) or int(failed)


def _show_interval(manifest: AuditManifest, found: AuditResult, *, as_json: bool) -> None:
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
    # The names of the service's own topics and of the delay topics are added to ``read_options``.
    topics = settings.topics
    delayed = (*topics.delay, *settings.levels.by_topic)
    read = read_options(settings, output, targets)
    return replace(read, never=topics.own, delay_topics=delayed)


def read_options(settings: Settings, output: str, targets: Sequence[str] | None) -> AuditOptions:
    """Return the options of a job that reads the service's topics and target topics. ``output``:
    folder or URL of the results; ``targets`` None: all.
    """
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
        secrets=secrets_of(settings),
    )


def secrets_of(settings: Settings) -> tuple[bytes, ...]:
    # The current one first.
    secret = settings.node.secret_bytes()
    return () if secret is None else (secret, *settings.node.accepted_secrets())
