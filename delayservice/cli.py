"""The command line. Commands are thin: they read options, call one function and print.

Exit statuses: 0 done; 1 an error, told in one line; 2 the command was used wrongly; 3 (``status``)
the node answers and is not healthy, (``verify``) a store is damaged; 4
nothing is pending there; 5 written to the log, and nothing heard of it yet.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from delayservice import __version__
from delayservice.base.errors import DelayServiceError
from delayservice.commands import admin, dlq, offline, smoke, spark, zookeeper
from delayservice.commands.api import EXIT_NOTHING
from delayservice.commands.change import EXIT_NOT_KNOWN
from delayservice.commands.console import err, out, print_error, print_json, say
from delayservice.commands.extras import add_placeholders
from delayservice.commands.options import (
    CommonOptions,
    ConfigOption,
    JsonOption,
    KafkaOptions,
    SetOption,
    load,
    with_options,
)

EXIT_ERROR = 1
EXIT_UNHEALTHY = 3

# Help is read far more often than anything runs from it: what is heavy (librdkafka, RocksDB,
# pydantic) is imported by the command that needs it.
# ruff: noqa: PLC0415

app = typer.Typer(
    name="delayservice",
    help="Delayed delivery for Apache Kafka: exact to the millisecond, exactly once.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,  # noqa: FBT002 (main looks for it; typer wants a default)
) -> None:
    pass


@app.command(epilog="Example: [bold]delayservice run -c delayservice.toml --set node.workers=2[/]")
def run(
    config: ConfigOption = None,
    sets: SetOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY", help="Fail if this has no value; repeatable."),
    ] = None,
) -> None:
    """Run a node until it is told to stop (SIGTERM or Ctrl-C)."""
    from delayservice.config.reference import effective, require_values

    loaded = load(config, sets, is_node=True)
    require_values(effective(loaded), require or ())
    settings = loaded.settings
    settings.kafka.client_config("admin")  # fails early when no broker is named
    from delayservice.process.node import run as run_node

    raise typer.Exit(run_node(settings))


@app.command(
    epilog="Examples: [bold]delayservice send delay_topic_any hello --after 30s --target orders[/]"
    "\n\n[bold]echo hello | delayservice send --at 2030-01-31T08:00:00Z -t orders -k order-7[/]"
    "\n\n[bold]delayservice send --id reminder-17 --cancel --wait 5s[/]"
    "\n\nExit status with --wait: 4 nothing was pending under --id, 5 nothing was heard in time."
)
@with_options(KafkaOptions)
def send(
    topic: Annotated[str, typer.Argument(help="Delay topic.")] = "delay_topic_any",
    value: Annotated[
        str | None, typer.Argument(help="Value; '-' or nothing reads standard input.")
    ] = None,
    *,
    value_file: Annotated[Path | None, typer.Option(help="Read the value, as it is.")] = None,
    null: Annotated[bool, typer.Option("--null", help="A null value.")] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Delay: 500ms, 30s, 2h, PT30S or milliseconds.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="Target topic.")] = None,
    target_partition: Annotated[
        int | None, typer.Option(min=0, help="Partition of the target.")
    ] = None,
    record_id: Annotated[
        str | None, typer.Option("--id", help="Name for cancel and look-up (delay-id).")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel what is pending under --id.")
    ] = False,
    fire: Annotated[
        bool, typer.Option("--fire", help="Deliver what is pending under --id now.")
    ] = False,
    window: Annotated[
        str | None, typer.Option(help="Spread the due time over so long: 10s, 5m.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="Recurring: a period, as 1h or PT1H.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Recurring: a cron expression, as '0 9 * * MON-FRI'.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of --cron, as Europe/Berlin.")
    ] = None,
    times: Annotated[int | None, typer.Option(min=1, help="Recurring: so often at most.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Own header; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition of the delay topic.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="With --cancel and --fire: how long to wait for what it did: 5s."),
    ] = None,
    common: KafkaOptions,
) -> None:
    """Write one record into a delay topic and show where it went.

    It is partitioned as a Java producer would: by key, or by its id when it has one.
    """
    from delayservice.commands import send as sending
    from delayservice.contract import names

    settings = common.settings()
    named = {
        names.DELAY_TARGET_TOPIC: target,
        names.DELAY_TARGET_PARTITION: None if target_partition is None else str(target_partition),
        names.DELAY_ID: record_id,
        names.DELAY_OP: sending.operation(record_id, cancel=cancel, fire=fire),
        names.DELAY_WINDOW_MS: sending.milliseconds("--window", window),
        names.DELAY_EVERY: sending.milliseconds("--every", every),
        names.DELAY_CRON: cron,
        names.DELAY_TIMEZONE: timezone,
        names.DELAY_TIMES: None if times is None else str(times),
    }
    headers = [
        *sending.time_header(at, after),
        *((name, text.encode()) for name, text in named.items() if text is not None),
        *sending.own_headers(header or []),
    ]
    record = sending.Outgoing(
        topic=topic,
        key=None if key is None else key.encode(),
        value=sending.read_value(value, value_file, null=null or cancel or fire),
        headers=headers,
        partition=partition,
        record_id=None if record_id is None else record_id.encode(),
    )
    is_control = cancel or fire
    if wait is not None and not is_control:
        raise DelayServiceError("--wait is for --cancel and --fire: nothing else is answered")

    def warn() -> None:
        if (why := sending.doubt(settings, record, round(time.time() * 1_000))) is not None:
            say(err, f"warning: {why}", "yellow")

    wait_s = None if wait is None else sending.delay_ms("--wait", wait) / 1_000
    with sending.hearing(settings, wait_s) as outcome_of:
        report = sending.send(settings.kafka.client_config("producer"), record, warn)
        outcome = outcome_of(report)
    due = sending.due_text(headers, report.timestamp_ms)
    if common.as_json:
        said = {"outcome": outcome} if is_control else {}
        print_json({**asdict(report), "due_at": due, **said})
    else:
        place = f"{report.topic}:{report.partition}:{report.offset}"
        out.print(place, style="bold green", end="")
        out.print(f"  {_said(due, outcome, is_control=is_control)}")
    if wait is not None and outcome in (None, "not_pending"):
        raise typer.Exit(EXIT_NOT_KNOWN if outcome is None else EXIT_NOTHING)


def _said(due: str | None, outcome: str | None, *, is_control: bool) -> str:
    """Return what has become of a record that was sent."""
    if not is_control:
        return f"due {due}" if due else "written"
    return outcome or "asked for; what it does is not known yet (--wait 5s waits for it)"


@app.command(
    epilog="Exit status: 0 healthy, 1 no node answers, 2 wrong usage, 3 the node is not healthy."
)
@with_options(CommonOptions)
def status(
    address: Annotated[
        str | None, typer.Argument(help="host:port; metrics.listen by default.")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Show what a running node is doing."""
    from delayservice.commands import status as showing

    where = address or common.settings().metrics.listen
    if not where:
        raise DelayServiceError("metrics.listen is empty: this node serves no status")
    found = showing.fetch(where)
    if common.as_json:
        print_json(found.model_dump())
    else:
        showing.show(found)
    raise typer.Exit(0 if found.healthy else EXIT_UNHEALTHY)


@app.command("config", epilog="Example: [bold]delayservice config --set log.level=debug[/]")
@with_options(CommonOptions)
def show_config(
    *,
    common: CommonOptions,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print every setting there is, as Markdown.")
    ] = False,
) -> None:
    """Print the effective configuration and where each value comes from. Secrets are hidden."""
    from delayservice.config import reference as settings_report

    if reference:
        print(settings_report.reference(), end="")  # noqa: T201 (Markdown as it is)
        return
    rows = settings_report.effective(load(common.config, common.sets))
    if common.as_json:
        print_json({row.name: {"value": row.value, "origin": row.origin} for row in rows})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for row in rows:
        changed = row.origin != "default"
        table.add_row(
            row.name,
            settings_report.as_text(row),
            row.origin,
            style="bold" if changed else "dim",
        )
    out.print(table)


@app.command()
def version(*, as_json: JsonOption = False) -> None:
    """Print the version of the service and of librdkafka."""
    import confluent_kafka

    if as_json:
        print_json({"version": __version__, "librdkafka": confluent_kafka.libversion()[0]})
    else:
        out.print(f"delayservice {__version__} (librdkafka {confluent_kafka.libversion()[0]})")


app.command(epilog=smoke.EPILOG)(smoke.smoke)
app.command(epilog=offline.INSPECT_EPILOG)(offline.inspect)
app.command(epilog=offline.VERIFY_EPILOG)(offline.verify)
admin.add_to(app)
app.add_typer(dlq.app, name="dlq")
app.add_typer(spark.app, name="spark")
app.add_typer(zookeeper.app, name="zookeeper")
app.add_typer(smoke.dev, name="dev")

# Commands of other distributions, as kafka-delay-devtools, are functions that add them.
_others = entry_points(group="delayservice.commands")
for _added in _others:
    _added.load()(app)
if not _others:
    add_placeholders(app, "demo", "bench")
    add_placeholders(smoke.dev, "up", "try")
    add_placeholders(spark.app, "drill")


def main() -> None:
    """Run the command line and end the process with its exit status."""
    try:
        app()
    except DelayServiceError as exc:
        if "--debug" in sys.argv:
            err.print_exception()
        print_error(str(exc))
        sys.exit(EXIT_ERROR)
