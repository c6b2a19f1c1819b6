"""``delayservice smoke``: send delayed records to a running service, and check arrivals."""

from __future__ import annotations

import secrets
from typing import Annotated, Final

import typer
from rich.console import Console

from delayservice.commands.console import print_json
from delayservice.commands.options import Duration, KafkaOptions, with_options

_SIZE: Final = 200

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
    # Help is read more often.
    from delayservice.process.option_check import check_options  # noqa: PLC0415
    from delayservice.smoke.judge import JudgePlan, counts, lateness  # noqa: PLC0415
    from delayservice.smoke.load import Batch, LoadPlan  # noqa: PLC0415
    from delayservice.smoke.progress import steps, stop_signals  # noqa: PLC0415
    from delayservice.smoke.run import await_topics, send_and_judge  # noqa: PLC0415

    settings = common.settings()
    check_options(settings)
    kafka = settings.kafka
    console = Console(stderr=common.as_json, emoji=False)
    # A new tag and seed for every run, so that no record is mistaken for one of an earlier run.
    tag, seed = secrets.token_hex(4).encode(), secrets.randbits(48)
    batch, targets = Batch(tag, records, _SIZE, seed, is_mixed=True), (target,)
    loading = LoadPlan(
        kafka.client_config("producer"), topic, targets, batch, span_ms=delay_max_ms, per_s=rate
    )
    judging = JudgePlan(kafka.client_config("consumer"), targets, batch, from_end=True)
    with stop_signals(), steps(console, is_shown=console.is_terminal) as shown:
        with shown.doing(f"Waiting for {topic}"):
            await_topics(kafka.client_config("admin"), topic, target, wait_ms)
        _, verdict = send_and_judge(loading, judging, shown)
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
