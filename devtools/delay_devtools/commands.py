from pathlib import Path
from typing import Annotated

import typer

from delay_devtools.bench_command import EPILOG as BENCH_EPILOG
from delay_devtools.bench_command import bench
from delay_devtools.demo_command import demo
from delay_devtools.drill_command import DRILL_EPILOG, drill
from delayservice.commands import smoke, spark
from delayservice.commands.options import JsonOption


def up(
    brokers: Annotated[int, typer.Option(min=1, help="How many Kafka brokers.")] = 1,
    zookeepers: Annotated[int, typer.Option(min=0, help="How many ZooKeeper servers.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Keep everything in this folder, and find it again later.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            envvar="DELAY_DEV_KAFKA", help="Version of Kafka: 4.3 or 3.9.", show_default="4.3"
        ),
    ] = None,
    keep: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--keep", help="Keep the temporary folder at the end.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--json", help="Print one JSON object instead of a panel.")
    ] = False,
) -> None:
    """Start Kafka and ZooKeeper, say how to reach them, and stop them at Ctrl-C."""
    from delay_devtools.up import run  # noqa: PLC0415

    run(brokers, zookeepers, folder, kafka=kafka, keep=keep, as_json=as_json)


def first_record(
    *,
    after: Annotated[str, typer.Option(help="Delay of the first record: 5s, 1m, PT30S.")] = "5s",
    once: Annotated[
        bool, typer.Option("--once", help="End when it has arrived, not at Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and a node, and show one delayed record arriving; then stay, to be tried."""
    from delay_devtools.trying import run  # noqa: PLC0415

    raise typer.Exit(run(after, once=once, as_json=as_json))


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Exit status 0 only when nothing was lost, doubled or early.")(demo)
    app.command(epilog=BENCH_EPILOG)(bench)
    spark.app.command(epilog=DRILL_EPILOG)(drill)
    smoke.dev.command()(up)
    smoke.dev.command("try", epilog="Exit status 0 only when the record arrived.")(first_record)
