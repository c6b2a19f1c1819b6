"""``delayservice spark schedule``: delayed records from rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.commands.console import err, out, print_json
from delayservice.commands.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    SetOption,
    load_settings,
)
from delayservice.commands.spark_session import (
    EXIT_FINDINGS,
    STATUS,
    ConfOption,
    MasterOption,
    pairs,
    require_extra,
    running,
)
from delayservice.errors import InvalidRequestError

if TYPE_CHECKING:
    from connectors.spark.schedule.run import Scheduled

# Help is read more often than anything runs: what is heavy is imported when it does.
# ruff: noqa: PLC0415

EPILOG: Final = (
    "Examples: [bold]delayservice spark schedule reminders.parquet -t mails --at due_at "
    "--value body --key user --id reminder_id --dry-run[/]"
    "\n\n[bold]delayservice spark schedule calls.csv -t calls --after 2h -H priority=level[/]"
    f"\n\n{STATUS}"
)


def schedule(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file, folder, pattern, URL or table.")
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option("--format", help="parquet, csv, json, orc or table. Default: by its name."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Delay topic.", show_default="the first configured one")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Target topic: a column, or else fixed; =NAME is always fixed."
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Due time: a column, or fixed: RFC 3339, epoch milliseconds.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Delay: a column (milliseconds, PT30S), or fixed, as 2h.")
    ] = None,
    value: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Value. Default: the row as JSON.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="COLUMN", help="Key. Default: no key.")
    ] = None,
    record_id: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="Id. Default: job and a hash of the row."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=COLUMN", help="Header, NAME==TEXT fixed; repeatable."
        ),
    ] = None,
    job_name: Annotated[
        str | None, typer.Option("--job", help="Begins ids that are made.", show_default="INPUT")
    ] = None,
    rejected: Annotated[
        str, typer.Option(help="Folder or URL for rejected rows.")
    ] = "delay-rejected",
    skip_rejected: Annotated[
        bool, typer.Option("--skip-rejected", help="Write the good rows although some are bad.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, count and show only.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a delayed record for each row; all rows are checked before any is written.

    Run it again after a failure, or with more rows: what the delay topic holds already, with the
    same id and content, is not written again.
    """
    require_extra()
    from connectors.spark.schedule.mapping import Fields
    from connectors.spark.schedule.run import (
        CONF,
        ScheduleOptions,
        read_rows,
        served_contracts,
    )
    from connectors.spark.schedule.run import schedule as run
    from delayservice.contracts import allowlist_for, contract_for

    settings = load_settings(config, sets, bootstrap)
    delay_topic = topic or settings.topics.delay[0]
    client = settings.kafka.client_config("consumer")
    writer = settings.kafka.client_config("producer")
    fields = Fields(
        target=target,
        at=at,
        after=after,
        value=value,
        key=key,
        id=record_id,
        headers=pairs("--header", headers),
        job=job_name or Path(source.rstrip("/*")).name,
    )
    options = ScheduleOptions(
        topic=delay_topic,
        fields=fields,
        rejected_path=rejected,
        allowlist=allowlist_for(settings, delay_topic) if settings.targets else None,
        skip_rejected=skip_rejected,
        dry_run=dry_run,
    )
    contracts = served_contracts(client, settings.topics.checkpoint, delay_topic)
    contracts = contracts or (contract_for(settings, delay_topic),)
    with running("schedule", master, conf, as_json=as_json, usual=CONF) as job:
        try:
            rows = read_rows(job.spark, source, kind)
            done = run(rows, client, contracts, options, job.say, writer=writer)
        except InvalidRequestError as exc:
            raise typer.BadParameter(str(exc)) from exc
    _tell(done, delay_topic, as_json=as_json, is_dry=dry_run)
    raise typer.Exit(EXIT_FINDINGS if done.is_refused else 0)


def _tell(done: Scheduled, topic: str, *, as_json: bool, is_dry: bool) -> None:
    if as_json:
        print_json(done.to_json())
        return
    for code, count in sorted(done.rejected.items()):
        err.print(f"{count:,} rows rejected: {code}", style="red", markup=False)
    if done.rejected_path is not None:
        err.print(f"they are in {done.rejected_path}", style="red", markup=False)
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
