"""``delayservice smoke``: send delayed records to a running service, and check arrivals."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from delayservice.commands.console import print_json
from delayservice.commands.options import Duration, KafkaOptions, with_options

EPILOG = (
    "Every kind of record is sent: without key or value, with headers, with a window, with ids "
    "that are cancelled or replaced. Exit status 0 only if no record was lost, duplicated, early "
    "or altered, and none arrived that had been cancelled or replaced (unwanted). Records of other "
    "producers in the target (strangers) don't count."
)


@with_options
def smoke(
    *,
    topic: Annotated[str, typer.Option(help="Delay topic.")] = "delay_topic_any",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            help="Target topic, which the records are written to; created if missing.",
        ),
    ],
    records: Annotated[int, typer.Option(min=1, help="Records to send.")] = 1_000,
    rate: Annotated[float, typer.Option(min=0.1, help="Records per second.")] = 200.0,
    delay_max_ms: Annotated[Duration, typer.Option(help="Longest delay.")] = 10_000,
    wait_ms: Annotated[
        Duration, typer.Option(help="Longest wait for brokers and delay topic.")
    ] = 120_000,
    common: KafkaOptions,
) -> None:
    """Send delayed records to a running service, and check what arrives."""
    from delayservice.smoke.judge import counts, lateness  # noqa: PLC0415  # help is read more often
    from delayservice.smoke.run import Smoke, run  # noqa: PLC0415  # as above

    kafka = common.settings().kafka
    console = Console(stderr=common.as_json)
    verdict = run(
        Smoke(
            admin=kafka.client_config("admin"),
            producer=kafka.client_config("producer"),
            consumer=kafka.client_config("consumer"),
            records=records,
            per_s=rate,
            delay_ms_max=delay_max_ms,
            delay_topic=topic,
            target=target,
            wait_ms=wait_ms,
        ),
        console,
    )
    found = counts(verdict) | lateness(verdict.lateness_ms)
    if common.as_json:
        print_json(found)
    else:
        how = "each once and none early" if verdict.is_good else "and not as they should"
        console.print(
            f"{verdict.delivered:,} of {verdict.n - verdict.withdrawn:,} records arrived in "
            f"{target}, {how}",
            style="bold green" if verdict.is_good else "bold red",
            highlight=False,
        )
        for name, value in found.items():
            examples = verdict.examples.get(name, [])
            console.print(f"{name:16} {value}", *examples, sep="\n  ", highlight=False)
    raise typer.Exit(0 if verdict.is_good else 1)
