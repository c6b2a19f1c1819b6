"""``delayservice spark schedule``: delayed records from rows, or from a Kafka topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from xxhash import xxh3_64_hexdigest

from delayservice.base.errors import InvalidRequestError
from delayservice.commands.console import EXIT_FINDINGS, err, out
from delayservice.commands.options import Duration, KafkaOptions, pairs, with_options
from delayservice.commands.spark_session import (
    STATUS,
    Running,
    SessionOptions,
    require_extra,
    told_to_stop,
)

if TYPE_CHECKING:
    from connectors.spark.schedule.mapping import Fields
    from connectors.spark.schedule.run import Scheduled, ScheduleOptions
    from connectors.spark.schedule.stream import Stream, StreamOptions
    from delayservice.config.settings import Settings
    from delayservice.contract.contracts import Contract

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_LOOK_EVERY_S: Final = 0.5

EPILOG: Final = (
    "Examples: [bold]delayservice spark schedule reminders.parquet -t mails --at due_at "
    "--value body --key user --id reminder_id --dry-run[/]"
    "\n\n[bold]delayservice spark schedule calls.csv -t calls --after 2h -H priority=level[/]"
    "\n\n[bold]delayservice spark schedule --stream --from-topic signups --schema infer "
    "--checkpoint signups-state -t mails --at trial_ends[/]"
    f"\n\n{STATUS}"
)


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Options that name the input: a file, folder, URL, table or topic."""

    source: Annotated[str | None, typer.Argument(metavar="INPUT", show_default=False)] = None
    """A file, folder, pattern, URL or table."""
    from_topic: str | None = None
    """Read this topic instead."""
    from_config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None
    """Configuration file whose \\[kafka] names the cluster of that topic. Default: the cluster of
    the delay topic.
    """
    schema: str | None = None
    """Columns of JSON values: DDL, or infer."""
    checkpoint: str | None = None
    """Folder or URL with the state of --from-topic."""
    stream: bool = False
    """Continue until Ctrl-C."""
    interval_ms: Duration = 5_000
    """Interval of --stream."""
    max_records: Annotated[int, typer.Option(min=1)] = 100_000
    """Batch size of --from-topic, in records."""
    kind: Annotated[str | None, typer.Option("--format")] = None
    """Of INPUT: parquet, csv, json, orc, table."""

    def check(self, *, is_dry: bool) -> None:
        if (self.source is None) == (self.from_topic is None):
            raise typer.BadParameter("give one input: INPUT, or --from-topic")
        for_topic = self.stream or any((self.checkpoint, self.schema, self.from_config))
        if self.source is not None and for_topic:
            raise typer.BadParameter(
                "--stream, --schema, --checkpoint and --from-config are for --from-topic"
            )
        if self.from_topic is not None and (is_dry or self.kind is not None):
            raise typer.BadParameter("--dry-run and --format are for INPUT, not for --from-topic")
        if self.from_topic is not None and self.checkpoint is None:
            raise typer.BadParameter("--from-topic needs --checkpoint, where its state is kept")

    def streamed(self, settings: Settings) -> StreamOptions:
        from connectors.spark.schedule.stream import StreamOptions
        from delayservice.config.settings import load

        origin = load(self.from_config, [], {}) if self.from_config else settings
        return StreamOptions(
            source=origin.kafka.client_config("consumer"),
            from_topic=self.from_topic or "",
            checkpoint=self.checkpoint or "",
            schema=self.schema,
            every_ms=self.interval_ms if self.stream else None,
            records_max=self.max_records,
        )


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """Options that map columns of a row to parts of a record."""

    target: Annotated[str | None, typer.Option("--target", "-t")] = None
    """Target topic: a column, or fixed; =NAME: fixed."""
    at: str | None = None
    """Due time: a column, or fixed."""
    after: str | None = None
    """Delay: a column, or fixed: 2h."""
    value: str | None = None
    """Column of the value. Default: the row as JSON."""
    key: Annotated[str | None, typer.Option("--key", "-k")] = None
    """Column of the key. Default: no key."""
    id: str | None = None
    """Column of the id. Default: made of the row."""
    headers: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=COLUMN")] = (
        None
    )
    """Header, NAME==TEXT fixed; repeatable."""
    job: str | None = None
    """Prefix of generated ids."""

    def fields(self, given: InputOptions) -> Fields:
        # Without ``--job``, ids that are made begin with the input's name.
        from connectors.spark.schedule.mapping import Fields

        job = self.job or given.from_topic or Path((given.source or "").rstrip("/*")).name
        made = {"headers": pairs("--header", self.headers), "job": job}
        return Fields(**(asdict(self) | made))


@dataclass(frozen=True, slots=True)
class ScheduleCommand(KafkaOptions):
    topic: Annotated[str | None, typer.Option(show_default="the first configured one")] = None
    """Delay topic."""
    rejected: str = "delay-rejected"
    """Folder or URL of rejected rows."""
    skip_rejected: bool = False
    """Write the valid rows."""
    dry_run: bool = False
    """Check, count and show rows."""


@with_options
def schedule(
    *, given: InputOptions, row: FieldOptions, asked: ScheduleCommand, session: SessionOptions
) -> None:
    """Write a delayed record for each row; all rows are checked before any is written.

    Safe to repeat after a failure, or with more rows: a record that the delay topic already has,
    with the same id and content, is not written again. With --from-topic, the rows are the records
    of a topic, each exactly once; the next run with the same --checkpoint continues from there.
    """
    require_extra()
    from connectors.spark.schedule import run
    from delayservice.config.contract import allowlist_for

    given.check(is_dry=asked.dry_run)
    settings = asked.settings()
    client = settings.kafka.client_config("consumer")
    delay_topic = asked.topic or settings.topics.first_delay
    options = run.ScheduleOptions(
        client=client,
        writer=settings.kafka.client_config("producer"),
        topic=delay_topic,
        name=_name(settings, given.source, delay_topic, row.job),
        fields=row.fields(given),
        rejected_path=asked.rejected,
        allowlist=allowlist_for(settings, delay_topic) if settings.targets else None,
        skip_rejected=asked.skip_rejected,
        dry_run=asked.dry_run,
    )
    contracts = partial(_contracts, settings, client, delay_topic)
    streamed = given.streamed(settings)
    with session.running("schedule", as_json=asked.as_json, usual=run.CONF) as job:
        try:
            done: Scheduled | Stream
            if given.source is None:
                done = _follow(job, contracts, options, streamed)
            else:
                rows = run.read_rows(job.spark, given.source, given.kind)
                done = run.schedule(rows, contracts(), options, job.say)
        except InvalidRequestError as exc:
            raise typer.BadParameter(str(exc)) from exc
    job.emit(done.to_json(), partial(_show, done, delay_topic, is_dry=asked.dry_run))
    raise typer.Exit(EXIT_FINDINGS if done.rejected else 0)


def _follow(
    job: Running,
    contracts: Callable[[], Sequence[Contract]],
    options: ScheduleOptions,
    streamed: StreamOptions,
) -> Stream:
    from connectors.spark.schedule.stream import start_stream

    say = partial(err.print, markup=False)
    begun = start_stream(job.spark, contracts, options, streamed, say)
    with told_to_stop() as stop:
        while begun.is_active and not stop.wait(_LOOK_EVERY_S):
            pass
        begun.stop()
    return begun


def _name(settings: Settings, source: str | None, topic: str, job: str | None) -> str:
    # The same whenever the same input is scheduled: consumer group, and prefix of transactional
    # ids.
    name = f"{settings.kafka.transactional_id_prefix}-schedule"
    if source is None:
        return name
    return f"{name}-{xxh3_64_hexdigest(chr(0).join((topic, source, job or '')).encode())}"


def _contracts(settings: Settings, client: Mapping[str, str], topic: str) -> Sequence[Contract]:
    # Those in the newest checkpoints, or before the first checkpoint the one of the settings.
    from connectors.spark.schedule.run import served_contracts
    from delayservice.config.contract import contract_for

    found = served_contracts(client, settings.topics.checkpoint, topic)
    return found or (contract_for(settings, topic),)


def _show(done: Scheduled | Stream, topic: str, *, is_dry: bool) -> None:
    from connectors.spark.schedule.run import Scheduled

    for code, count in sorted(done.rejected.items()):
        err.print(f"{count:,} rows rejected: {code}", style="red", markup=False)
    if done.rejected:
        err.print(f"they are in {done.rejected_path}", style="red", markup=False)
    if not isinstance(done, Scheduled):
        out.print(f"{done.written:,} written in {done.batches:,} batches", style="bold green")
        return
    out.print(f"{done.rows:,} rows, {done.there:,} of them in {topic} already", markup=False)
    if done.replacing:
        out.print(
            f"{done.replacing:,} have the id of a record with another content: they replace it"
        )
    if is_dry:
        out.print(f"{done.fresh:,} would be written", style="bold green")
        for record in done.sample:
            out.print(f"  {record}", markup=False)
    else:
        out.print(f"{done.written:,} written", style="bold green" if done.written else "bold")
