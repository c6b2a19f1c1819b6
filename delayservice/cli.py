"""Commands of ``delayservice``. Each reads its options, calls one function and prints the result.

Exit statuses:

- 0: done.
- 1: an error, printed in one line.
- 2: wrong usage.
- 3: ``status``: the node is not healthy; ``verify``: a store is damaged; ``spark``: findings.
- 4: nothing is pending under the id, or the object does not exist.
- 5: the control record is written, and its outcome is not known yet.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from delayservice import __version__
from delayservice.base.errors import DelayServiceError
from delayservice.commands import (
    change,
    dlq,
    pending,
    send_command,
    smoke,
    spark,
    zookeeper,
)
from delayservice.commands.console import err, out, print_error, print_json
from delayservice.commands.options import (
    CommonOptions,
    ConfigOption,
    JsonOption,
    SetOption,
    load,
    with_options,
)

EXIT_ERROR = 1
EXIT_UNHEALTHY = 3

_INSPECT_EPILOG: Final = (
    "Examples: [bold]delayservice inspect /var/lib/delayservice[/]"
    "\n\n[bold]delayservice inspect STATE_DIR --from 2030-01-31T08:00:00Z --to 2030-01-31T09:00:00Z"
    " --values[/]\n\n[bold]delayservice inspect STATE_DIR --id reminder-17 --json[/]"
    "\n\nExit status: 0 done, 1 a store can't be read or is of another format, 2 wrong usage."
)
_VERIFY_EPILOG: Final = (
    "Examples: [bold]delayservice verify /var/lib/delayservice[/]"
    "\n\n[bold]delayservice verify STATE_DIR/wheel/0 --json[/]"
    "\n\nExit status: 0 sound, 1 a store can't be read or is of another "
    "format, 2 wrong usage, 3 damaged."
)
_LIMIT: Final = 100

_StorePath = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="A node's state folder, or one shard's store in it."
    ),
]

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
        typer.Option(metavar="SECTION.KEY", help="Fail if this setting has no value; repeatable."),
    ] = None,
) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    from delayservice.process import fork_server

    fork_server.start_server()  # its imports take as long as those below
    from delayservice.config.reference import effective, require_values

    loaded = load(config, sets, is_node=True)
    require_values(effective(loaded), require or ())
    settings = loaded.settings
    settings.kafka.client_config("admin")  # fails early when no broker is named
    from delayservice.process.node import run as run_node

    raise typer.Exit(run_node(settings))


app.command(epilog=send_command.EPILOG)(send_command.send)


@app.command(
    epilog="Exit status: 0 healthy, 1 no node answers, 2 wrong usage, 3 the node is not healthy."
)
@with_options
def status(
    address: Annotated[
        str | None, typer.Argument(help="host:port; metrics.listen by default.")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Show the state of a running node."""
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
@with_options
def show_config(
    *,
    common: CommonOptions,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print all settings as Markdown.")
    ] = False,
) -> None:
    """Print the effective configuration and the origin of each value. Secrets are hidden."""
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
        value = settings_report.as_text(row.name, row.value)
        table.add_row(row.name, value, row.origin, style="bold" if changed else "dim")
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


@app.command(epilog=_INSPECT_EPILOG)
def inspect(
    path: _StorePath,
    *,
    records: Annotated[
        bool, typer.Option("--records", help="List records; implied by the options below.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--from", help="First due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Exclusive end; as --from.")] = None,
    record_id: Annotated[str | None, typer.Option("--id", help="With this delay-id.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="For this target topic.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number per shard.", show_default=str(_LIMIT)),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Show values and headers.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the content of a store folder, read-only and without a lock: a node may be running.

    With --json, facts are one object, and records one object on a line each.
    """
    from delayservice.commands import stored

    asked = (since, until, record_id, target, limit)
    if not (records or values or any(option is not None for option in asked)):
        is_whole = stored.show_facts(path, as_json=as_json)
    else:
        wanted = stored.wanted(since, until, record_id, target)
        is_whole = stored.show_records(
            path, wanted, limit or _LIMIT, values=values, as_json=as_json
        )
    raise typer.Exit(0 if is_whole else 1)


@app.command(epilog=_VERIFY_EPILOG)
def verify(path: _StorePath, *, as_json: JsonOption = False) -> None:
    """Check a whole store folder, read-only and without a lock: a node may be running.

    Opens a snapshot as a node would, reads all records, and counts the rows of databases.
    Explains each damage: what, where, due times and offsets, what a node does, what to do.
    """
    from delayservice.commands import verify as verifying

    raise typer.Exit(verifying.run(path, as_json=as_json))


app.command(epilog=pending.EPILOG)(pending.pending)
app.command(epilog=pending.FOUND)(pending.show)
for _change in (change.cancel, change.fire, change.reschedule):
    app.command(epilog=change.CHANGED)(_change)
app.command(epilog=change.PAUSE_EPILOG)(change.pause)
app.command(epilog=pending.FOUND)(change.resume)
app.command()(change.pauses)
app.add_typer(dlq.app, name="dlq")
app.add_typer(spark.app, name="spark")
app.add_typer(zookeeper.app, name="zookeeper")
app.add_typer(smoke.dev, name="dev")

# A clone has the development tools beside the package, and no wheel has them. They import the
# service, so it names them only here.
if find_spec("delay_devtools") is not None:
    import_module("delay_devtools.commands").add_to(app)


def main() -> None:
    """Run the command line and end the process with its exit status."""
    try:
        app()
    except DelayServiceError as exc:
        if "--debug" in sys.argv:
            err.print_exception()
        print_error(str(exc))
        sys.exit(EXIT_ERROR)
