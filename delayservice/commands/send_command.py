"""Command ``delayservice send`` with its options; ``commands.send`` does the work."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.api import EXIT_NOTHING
from delayservice.commands.change import EXIT_NOT_KNOWN
from delayservice.commands.console import err, out, print_json, say
from delayservice.commands.options import KafkaOptions, pairs, with_options

if TYPE_CHECKING:
    from delayservice.commands.send import Outgoing

# librdkafka is imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EPILOG: Final = (
    "Examples: [bold]delayservice send delay_topic_any hello --after 30s --target orders[/]"
    "\n\n[bold]echo hello | delayservice send --at 2030-01-31T08:00:00Z -t orders -k order-7[/]"
    "\n\n[bold]delayservice send --id reminder-17 --cancel --wait 5s[/]"
    "\n\nExit status with --wait: 4 nothing was pending under --id, 5 outcome unknown."
)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Command-line options that describe the record to send."""

    value_file: Annotated[Path | None, typer.Option(help="File with the value.")] = None
    null: Annotated[bool, typer.Option("--null", help="Send a null value.")] = False
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key.")] = None
    at: Annotated[str | None, typer.Option(help="Due time: RFC 3339 or epoch milliseconds.")] = None
    after: Annotated[
        str | None, typer.Option(help="Delay: 500ms, 30s, 2h, PT30S or milliseconds.")
    ] = None
    target: Annotated[str | None, typer.Option("--target", "-t", help="Target topic.")] = None
    target_partition: Annotated[int | None, typer.Option(min=0, help="Target partition.")] = None
    record_id: Annotated[str | None, typer.Option("--id", help="The delay-id.")] = None
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the record of --id.")] = False
    fire: Annotated[bool, typer.Option("--fire", help="Deliver the record of --id now.")] = False
    window: Annotated[str | None, typer.Option(help="Spread the due time over: 10s, 5m.")] = None
    every: Annotated[str | None, typer.Option(help="Recurring: period, such as 1h or PT1H.")] = None
    cron: Annotated[
        str | None, typer.Option(help="Recurring: cron expression, such as '0 9 * * MON-FRI'.")
    ] = None
    timezone: Annotated[str | None, typer.Option(help="Time zone of --cron: Europe/Berlin.")] = None
    times: Annotated[int | None, typer.Option(min=1, help="Maximum number of occurrences.")] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Delivered header; repeatable."),
    ] = None
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition of the delay topic.")
    ] = None

    @property
    def is_control(self) -> bool:
        return self.cancel or self.fire


@with_options
def send(
    topic: Annotated[str, typer.Argument(help="Delay topic.")] = "delay_topic_any",
    value: Annotated[str | None, typer.Argument(help="Value; '-' or none: standard input.")] = None,
    *,
    asked: RecordOptions,
    wait: Annotated[
        str | None,
        typer.Option(help="With --cancel and --fire: how long to wait for the outcome: 5s."),
    ] = None,
    common: KafkaOptions,
) -> None:
    """Write one record to a delay topic and show its offset.

    The partition is chosen as by a Java producer: by key, or by the id if it has one.
    """
    from delayservice.commands import send as sending

    settings = common.settings()
    record = _outgoing(topic, value, asked)
    if wait is not None and not asked.is_control:
        raise DelayServiceError("--wait needs --cancel or --fire")

    def warn() -> None:
        if (why := sending.doubt(settings, record, round(time.time() * 1_000))) is not None:
            say(err, f"warning: {why}", "yellow")

    wait_s = None if wait is None else sending.delay_ms("--wait", wait) / 1_000
    with sending.hearing(settings, wait_s) as outcome_of:
        report = sending.send(settings.kafka.client_config("producer"), record, warn)
        outcome = outcome_of(report)
    due = sending.due_text(record.headers, report.timestamp_ms)
    if common.as_json:
        said = {"outcome": outcome} if asked.is_control else {}
        print_json({**asdict(report), "due_at": due, **said})
    else:
        place = f"{report.topic}:{report.partition}:{report.offset}"
        out.print(place, style="bold green", end="")
        out.print(f"  {_said(due, outcome, is_control=asked.is_control)}")
    if wait is not None and outcome in (None, "not_pending"):
        raise typer.Exit(EXIT_NOT_KNOWN if outcome is None else EXIT_NOTHING)


def _outgoing(topic: str, value: str | None, asked: RecordOptions) -> Outgoing:
    from delayservice.commands import send as sending
    from delayservice.contract import names

    partition, record_id = asked.target_partition, asked.record_id
    named = {
        names.DELAY_TARGET_TOPIC: asked.target,
        names.DELAY_TARGET_PARTITION: None if partition is None else str(partition),
        names.DELAY_ID: record_id,
        names.DELAY_OP: sending.operation(record_id, cancel=asked.cancel, fire=asked.fire),
        names.DELAY_WINDOW_MS: sending.milliseconds("--window", asked.window),
        names.DELAY_EVERY: sending.milliseconds("--every", asked.every),
        names.DELAY_CRON: asked.cron,
        names.DELAY_TIMEZONE: asked.timezone,
        names.DELAY_TIMES: None if asked.times is None else str(asked.times),
    }
    headers = [
        *sending.time_header(asked.at, asked.after),
        *((name, text.encode()) for name, text in named.items() if text is not None),
        *((name, text.encode()) for name, text in pairs("--header", asked.header)),
    ]
    is_null = asked.null or asked.is_control
    return sending.Outgoing(
        topic=topic,
        key=None if asked.key is None else asked.key.encode(),
        value=sending.read_value(value, asked.value_file, null=is_null),
        headers=headers,
        partition=asked.partition,
        record_id=None if record_id is None else record_id.encode(),
    )


def _said(due: str | None, outcome: str | None, *, is_control: bool) -> str:
    if not is_control:
        return f"due {due}" if due else "written"
    return outcome or "written, outcome unknown (--wait 5s waits for it)"
