"""The commands below ``delayservice dev``."""

from pathlib import Path
from typing import Annotated

import typer

from delayservice.commands.extras import development_extra
from delayservice.commands.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    SetOption,
    load_settings,
)
from delayservice.errors import ClusterError

app = typer.Typer(help="Real Kafka and ZooKeeper on this machine, for development.")


@app.command()
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
    with development_extra():
        from delayservice.dev.up import run  # noqa: PLC0415
    try:
        run(brokers, zookeepers, folder, kafka=kafka, keep=keep, as_json=as_json)
    except ClusterError as exc:
        typer.echo(str(exc), err=True)
        raise typer.Exit(1) from exc


@app.command("try", epilog="Exit status 0 only when the record arrived.")
def first_record(
    *,
    after: Annotated[str, typer.Option(help="Delay of the first record: 5s, 1m, PT30S.")] = "5s",
    once: Annotated[
        bool, typer.Option("--once", help="End when it has arrived, not at Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and a node, and show one delayed record arriving; then stay, to be tried."""
    with development_extra():
        from delayservice.dev.trying import run  # noqa: PLC0415
    raise typer.Exit(run(after, once=once, as_json=as_json))


@app.command()
def load(
    topic: Annotated[str, typer.Argument(help="Delay topic.")] = "delay_topic_any",
    *,
    target: Annotated[
        str, typer.Option("--target", "-t", help="Target topic, made if it is missing.")
    ] = "orders",
    records: Annotated[int, typer.Option(min=1, help="Records to send.")] = 1_000,
    per_s: Annotated[float, typer.Option(min=0.1, help="Records per second.")] = 200.0,
    delay_ms_max: Annotated[
        int, typer.Option(min=0, help="Delays are from 0 to this, milliseconds.")
    ] = 10_000,
    wait_s: Annotated[
        float, typer.Option(min=0, help="How long brokers and topic may take to be there, seconds.")
    ] = 120.0,
    bootstrap: BootstrapOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send delayed records to a running service, and judge what arrives.

    Exit status 0 only when nothing was lost, doubled or early.
    """
    from delayservice.dev.loading import Load, run  # noqa: PLC0415

    brokers = load_settings(config, sets, bootstrap).kafka.bootstrap
    raise typer.Exit(
        run(
            Load(brokers, records, per_s, delay_ms_max, topic, target, wait_s),
            as_json=as_json,
        )
    )
