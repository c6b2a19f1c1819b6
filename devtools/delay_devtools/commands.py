"""``delayservice dev``: commands for development, which a clone has and no wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from delay_devtools.bench.options import Options
from delay_devtools.demo.options import DemoOptions
from delay_devtools.drill.options import DrillOptions
from delayservice.commands.console import EXIT_FINDINGS
from delayservice.commands.options import Duration, JsonOption, with_options
from delayservice.commands.spark_session import STATUS, SessionOptions, require_extra

# Heavy modules are imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

BENCH_EPILOG = (
    "Examples: [bold]delayservice dev bench whole --json[/]\n\n"
    "[bold]delayservice dev bench steady --rate 5000 --set node.store=rocksdb[/]\n\n"
    "[bold]delayservice dev bench peers[/] (the same load on RocketMQ and NATS as "
    "well; fetches 90 MB of jars and builds NATS the first time; needs a JDK and Go)\n\n"
    "Exit status 0 only if no record was lost, duplicated, early or altered (peers: by this "
    "service)."
)


@with_options
def bench(*, options: Options) -> None:
    """Measure rate, CPU, memory, lateness and failover of the service, and check every record.

    It starts a Kafka cluster, or uses the one that --bootstrap names.
    """
    from delay_devtools.bench.run import run

    raise typer.Exit(run(options))


@with_options
def demo(*, options: DemoOptions) -> None:
    """Start Kafka and the service, kill and freeze nodes, and check every record.

    The last line is one JSON object with the result; with --json it is the only one.
    """
    from delay_devtools.demo.story import run

    raise typer.Exit(run(options))


DRILL_EPILOG: Final = (
    "Examples: [bold]delayservice dev drill --json[/]"
    "\n\n[bold]delayservice dev drill --records 1000 --defects 138 --follow --keep[/]"
    f"\n\n{STATUS}"
)


@with_options
def drill(*, options: DrillOptions, session: SessionOptions, as_json: JsonOption = False) -> None:
    """Spoil what the service did and its stores, and check that audit and comparison find it.

    Exit status 0 only if each defect was found at its place, and nothing else.
    """
    require_extra()
    from delay_devtools.drill.run import judged, prepared, show

    with (
        session.running("drill", as_json=as_json) as job,
        prepared(options, job.spark, job.say) as made,
    ):
        verdict = judged(made, job.spark, job.say)
        show(verdict, made, as_json=as_json)
    raise typer.Exit(0 if verdict.is_good else EXIT_FINDINGS)


def up(
    *,
    brokers: Annotated[int, typer.Option(min=1, help="Number of Kafka brokers.")] = 1,
    zookeepers: Annotated[int, typer.Option(min=0, help="Number of ZooKeeper servers.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of all files, which is kept and can be used again.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            envvar="DELAY_DEV_KAFKA", help="Version of Kafka: 4.3 or 3.9.", show_default="4.3"
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary folder at the end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and ZooKeeper, print their addresses, and stop them at Ctrl-C."""
    from delay_devtools.dev import keep_up

    keep_up(brokers, zookeepers, folder, kafka=kafka, keep=keep, as_json=as_json)


@with_options
def first_record(
    *,
    after_ms: Annotated[Duration, typer.Option(help="Delay of the first record.")] = 5_000,
    once: Annotated[
        bool, typer.Option("--once", help="End when the first record has arrived.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and a node, show that a delayed record arrives, and run until Ctrl-C."""
    from delay_devtools.dev import show_first

    raise typer.Exit(show_first(after_ms, once=once, as_json=as_json))


def add_to(app: typer.Typer) -> None:
    dev = typer.Typer(
        help="Local clusters, demo, measurements: from a clone.", no_args_is_help=True
    )
    dev.command()(up)
    dev.command("try", epilog="Exit status 0 only if the record arrived.")(first_record)
    dev.command(epilog="Exit status 0 only if no record was lost, duplicated or early.")(demo)
    dev.command(epilog=BENCH_EPILOG)(bench)
    dev.command(epilog=DRILL_EPILOG)(drill)
    app.add_typer(dev, name="dev")
