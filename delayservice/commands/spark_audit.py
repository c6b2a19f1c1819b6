"""``delayservice spark audit``, and ``spark archive``, which copies topics for later audits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from delayservice.commands.console import err, out
from delayservice.commands.options import Duration, with_options
from delayservice.commands.spark_session import (
    STATUS_JUDGED,
    FollowOptions,
    OutOption,
    Running,
    SessionOptions,
    TopicOptions,
    followed_status,
    repeat,
    require_extra,
    show_counts,
    show_findings,
    show_rows,
    told_to_stop,
)
from delayservice.config.contract import allowed_patterns

if TYPE_CHECKING:
    from connectors.spark.audit import AuditOptions, AuditResult, Following
    from delayservice.config.settings import Settings

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_UNJUDGED_SHOWN: Final = 5

AUDIT_EPILOG: Final = (
    "Example: [bold]delayservice spark audit -c delayservice.toml --late 5s --publish[/]"
    f"\n\n{STATUS_JUDGED}"
)
ARCHIVE_EPILOG: Final = (
    "Example: [bold]delayservice spark archive -c delayservice.toml --out s3a://ops/delay[/]"
)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Options of an audit: largest lateness and tolerances."""

    late_ms: Duration | None = None
    """Longest lateness. Default: no limit."""
    early_ms: Duration = 0
    """Tolerance for early delivery."""
    overdue_ms: Duration = 600_000
    """Longest time to an outcome."""
    lag_ms: Duration = 30_000
    """A cancel this early must win."""
    grace_ms: Duration | None = None
    """At least once: outputs may be this far ahead of the checkpoint. Default: 1m under
    at_least_once, else 0.
    """

    def known(self, settings: Settings) -> dict[str, Any]:
        # At least once, outputs may be ahead of their checkpoint.
        usual_ms = 60_000 if settings.delivery.mode == "at_least_once" else 0
        return asdict(self) | {"grace_ms": usual_ms if self.grace_ms is None else self.grace_ms}


@dataclass(frozen=True, slots=True)
class AuditCommand(TopicOptions):
    output: OutOption = "delay-audit"
    all_topics: bool = False
    """Also targets that are not allowed."""
    from_start: bool = False
    """With --follow: from the first record."""
    archive: str | None = None
    """Audit this archive."""
    format: str | None = None
    """Findings also as csv, json, orc, delta."""


@dataclass(frozen=True, slots=True)
class ArchiveCommand(TopicOptions):
    out: str = "delay-archive"
    """Folder or URL of the archive."""
    once: bool = False
    """Stop at the end of the topics."""
    interval_ms: Duration = 60_000
    """Interval of batches."""
    values: bool = False
    """Store values, not only hashes."""


@with_options
def audit(
    *, asked: AuditCommand, limits: LimitOptions, following: FollowOptions, session: SessionOptions
) -> None:
    """Check in the topics that every settled record has exactly one, correct outcome.

    Findings are written as Parquet, each with its offset.
    """
    require_extra()
    from connectors.spark.audit import Following

    kind = asked.format
    if following.follow and (asked.archive or kind):
        raise typer.BadParameter("--archive and --format are for one audit, without --follow")
    settings = asked.settings()
    options = replace(
        read_options(settings, asked.output, asked.targets),
        all_topics=asked.all_topics,
        topic=settings.topics.audit if following.publish else None,
        **limits.known(settings),
    )
    with session.running("audit", as_json=asked.as_json) as job:
        if following.follow:
            audits = Following(job.spark, options, from_start=asked.from_start)
            raise typer.Exit(_follow(job, audits, following.interval_ms))
        found = _audit(job, options, asked.archive)
        if kind is not None:
            job.say(f"writing the findings as {kind}")
            rows = job.spark.read.parquet(found.findings_path)
            rows.write.format(kind).mode("overwrite").save(options.path(f"findings.{kind}"))
    job.emit(found.to_json(), partial(show_result, found))
    raise typer.Exit(found.status)


def _audit(job: Running, options: AuditOptions, archived: str | None) -> AuditResult:
    from connectors.spark.archive import audit_archive
    from connectors.spark.audit import audit_at, cut_of

    if archived is not None:
        job.say(f"judging the archive in {archived}")
        return audit_archive(job.spark, options, archived)
    began_s = time.monotonic()
    job.say("taking a cut of all logs")
    cut = cut_of(options)
    offsets = sum(span.end - span.start for span in cut.spans.values())
    job.say(f"judging {offsets:,} offsets of {len(cut.spans):,} logs")
    return audit_at(job.spark, options, cut, began_s)


def _follow(job: Running, audits: Following, interval_ms: int) -> int:
    from connectors.spark.common.session import exit_status

    def step() -> None:
        job.say("auditing what has come")
        found = audits.step()
        job.emit(found.to_json(), partial(_show_interval, audits.manifest.number, found))

    with told_to_stop() as stop:
        failed = repeat(job, interval_ms, step, stop)
    manifest = audits.manifest
    status = exit_status(len(manifest.findings), len(manifest.unjudged))
    return followed_status(status, failed=failed)


@with_options
def archive(*, asked: ArchiveCommand, session: SessionOptions) -> None:
    """Archive source records, deliveries, outcomes and dead letters as Parquet for later audits.

    Restarted with the same --out, it continues where it stopped.
    """
    require_extra()
    from connectors.spark.archive import ArchiveOptions, capture

    output = asked.out
    options = ArchiveOptions(read_options(asked.settings(), output, asked.targets), asked.values)
    batches, failed = 0, False
    with session.running("archive", as_json=asked.as_json) as job:

        def step() -> None:
            nonlocal batches
            job.say(f"writing to {output}")
            batches = capture(job.spark, options).number + 1

        if asked.once:
            step()
        else:
            with told_to_stop() as stop:
                failed = repeat(job, asked.interval_ms, step, stop)
    said = f"{batches:,} batches in {output}"
    job.emit(
        {"v": 1, "kind": "archive", "batches": batches, "path": output},
        partial(out.print, said, style="bold green", markup=False),
    )
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
    show_counts("counts", found.counts, "bold")
    show_counts("not judged", found.unjudged, "bold yellow")
    show_rows(found.unjudged_sample[:_UNJUDGED_SHOWN])
    if found.unjudged_sample:
        out.print(f"all of them are in {found.unjudged_path}", style="dim", markup=False)
    if found.findings or not found.unjudged:
        show_findings(found.findings, found.sample, found.findings_path)


def _show_interval(number: int, found: AuditResult) -> None:
    wrong, unjudged = sum(found.findings.values()), sum(found.unjudged.values())
    out.print(
        f"interval {number}: {found.records:,} records, {found.outputs:,} outputs, "
        f"{found.counts.get('pending', 0):,} pending, {wrong:,} findings, {unjudged:,} not judged, "
        f"{found.seconds:.1f} s"
    )
    show_rows((*found.sample, *found.unjudged_sample))


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
        never=topics.own,
        secrets=secrets_of(settings),
        clock_tolerance_ms=settings.delivery.clock_tolerance_ms,
        delay_topics=(*topics.delay, *settings.levels.by_topic),
    )


def secrets_of(settings: Settings) -> tuple[bytes, ...]:
    # The current one first.
    secret = settings.node.secret_bytes()
    return () if secret is None else (secret, *settings.node.accepted_secrets())
