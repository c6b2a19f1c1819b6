"""``delayservice smoke``: send delayed records to a running service, and check arrivals."""

from __future__ import annotations

from typing import Annotated

import typer

from delayservice.commands.options import KafkaOptions, with_options

EPILOG = "Exit status 0 only if no record was lost, duplicated, early or altered."


@with_options
def smoke(
    topic: Annotated[str, typer.Argument(help="Delay topic.")] = "delay_topic_any",
    *,
    target: Annotated[
        str, typer.Option("--target", "-t", help="Target topic; created if missing.")
    ] = "orders",
    records: Annotated[int, typer.Option(min=1, help="Records to send.")] = 1_000,
    per_s: Annotated[float, typer.Option(min=0.1, help="Records per second.")] = 200.0,
    delay_ms_max: Annotated[
        int, typer.Option(min=0, help="Longest delay in milliseconds; the shortest is 0.")
    ] = 10_000,
    wait_s: Annotated[
        float, typer.Option(min=0, help="Longest wait for brokers and delay topic, seconds.")
    ] = 120.0,
    common: KafkaOptions,
) -> None:
    """Send delayed records to a running service, and check what arrives."""
    from delayservice.smoke.run import Load, run  # noqa: PLC0415

    brokers = common.settings().kafka.bootstrap
    raise typer.Exit(
        run(
            Load(brokers, records, per_s, delay_ms_max, topic, target, wait_s),
            as_json=common.as_json,
        )
    )
