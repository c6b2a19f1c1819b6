"""``delayservice smoke``: send delayed records to a running service, and check arrivals."""

from __future__ import annotations

from typing import Annotated

import typer

from delayservice.commands.options import KafkaOptions, with_options

EPILOG = "Exit status 0 only when nothing was lost, doubled, early or altered."

dev = typer.Typer(help="Real Kafka and ZooKeeper on this machine, for development.")


@with_options
def smoke(
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
    common: KafkaOptions,
) -> None:
    """Send delayed records to a running service, and judge what arrives."""
    from delayservice.smoke.run import Load, run  # noqa: PLC0415

    brokers = common.settings().kafka.bootstrap
    raise typer.Exit(
        run(
            Load(brokers, records, per_s, delay_ms_max, topic, target, wait_s),
            as_json=common.as_json,
        )
    )
