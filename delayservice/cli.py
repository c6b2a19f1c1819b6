"""The commands of ``delayservice``. Each reads its options, calls one function and prints the
result.

Exit statuses:

- 0: done.
- 1: an error, printed in one line.
- 2: wrong usage, or settings that are not valid.
- 3: something was found: a node that is not healthy, a damaged store, a finding.
- 4: nothing is pending under the id, or the object does not exist.
- 5: the control record is written, and its outcome is not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from delayservice import __version__
from delayservice.commands import (
    cluster,
    configuration,
    dlq,
    pause,
    record,
    send,
    smoke,
    spark,
    store,
    topics,
)
from delayservice.commands.api import ApiOptions
from delayservice.commands.console import CommandLine, out
from delayservice.commands.options import SettingsOptions, load, with_options

# Help is read far more often than anything runs from it: what is heavy (librdkafka, RocksDB,
# pydantic) is imported by the command that needs it.
# ruff: noqa: PLC0415

app = typer.Typer(
    name="delayservice",
    cls=CommandLine,
    help="Delayed delivery for Apache Kafka: exact to the millisecond, exactly once.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:  # noqa: FBT001  # typer calls it so
    if is_asked:
        import confluent_kafka

        out.print(f"delayservice {__version__} (librdkafka {confluent_kafka.libversion()[0]})")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of the service and of librdkafka.",
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors; also after a command.")
    ] = False,
) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunOptions(SettingsOptions):
    require: Annotated[list[str] | None, typer.Option(metavar="SECTION.KEY")] = None
    """Fail if this setting has no value; repeatable."""


@app.command(epilog="Example: [bold]delayservice run -c delayservice.toml --set node.workers=2[/]")
@with_options
def run(*, options: RunOptions) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    from delayservice.process import fork_server

    fork_server.start_server()  # its imports take as long as those below
    from delayservice.config.reference import effective, require_values

    loaded = load(options.config, options.sets, is_node=True)
    require_values(effective(loaded), options.require or ())
    settings = loaded.settings
    from delayservice.process.node import run as run_node

    raise typer.Exit(run_node(settings))


@app.command(
    epilog="Exit status: 0 healthy, 1 no node answers, 2 wrong usage, 3 the node is not healthy."
)
@with_options
def status(*, common: ApiOptions) -> None:
    """Show the state of a running node."""
    from delayservice.commands import status as showing

    raise typer.Exit(showing.run(common))


app.command(epilog=send.EPILOG)(send.send)
app.command(epilog=smoke.EPILOG)(smoke.smoke)
app.add_typer(configuration.app, name="config")
app.add_typer(record.app, name="record")
app.add_typer(pause.app, name="pause")
app.add_typer(dlq.app, name="dlq")
app.add_typer(store.app, name="store")
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.app, name="topics")
app.add_typer(spark.app, name="spark")

# A clone has the development tools beside the package, and no wheel has them. They import the
# service, so it names them only here.
if find_spec("delay_devtools") is not None:
    import_module("delay_devtools.commands").add_to(app)
