"""``delayservice send``: writes one record into a delay topic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import typer

from delayservice.commands.console import (
    EXIT_NOT_KNOWN,
    EXIT_NOTHING,
    emit,
    err,
    instant,
    out,
    plain,
    say,
)
from delayservice.commands.options import (
    Duration,
    KafkaOptions,
    Moment,
    now_ms,
    pairs,
    with_options,
)
from delayservice.contract import names

if TYPE_CHECKING:
    from delayservice.commands.sending import Outgoing
    from delayservice.contract.entry import Headers

# librdkafka is imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_TIMES: Final = {names.DELAY_AFTER, names.DELAY_AT, names.DELAY_EVERY, names.DELAY_CRON}
EPILOG: Final = (
    "Examples: [bold]delayservice send hello --after 30s --target orders[/]"
    "\n\n[bold]echo hello | delayservice send --at 2030-01-31T08:00:00Z -t orders -k order-7[/]"
    "\n\n[bold]delayservice send --id reminder-17 --cancel --wait 5s[/]"
    "\n\nExit status: 0 written, 1 an error, 2 wrong usage, 4 (with --wait) nothing was pending, "
    "5 (with --wait) outcome unknown."
)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options that describe the record to send."""

    value_file: Path | None = None
    """File with the value."""
    null: bool = False
    """Send a null value."""
    key: Annotated[str | None, typer.Option("--key", "-k")] = None
    """Key."""
    at_ms: Moment | None = None
    """Due time"""
    after_ms: Duration | None = None
    """Delay: 500ms, 30s, 2h, PT30S."""
    expires_at_ms: Moment | None = None
    """Not delivered after"""
    target: Annotated[str | None, typer.Option("--target", "-t")] = None
    """Target topic."""
    target_partition: Annotated[int | None, typer.Option(min=0)] = None
    """Target partition."""
    target_key: str | None = None
    """Key of the output, if not --key."""
    record_id: Annotated[str | None, typer.Option("--id")] = None
    """The delay-id. Default: a new one."""
    no_id: bool = False
    """Without an id: it can't be cancelled."""
    if_absent: bool = False
    """Only if none of --id is pending then."""
    cancel: bool = False
    """Cancel the record of --id."""
    fire: bool = False
    """Deliver the record of --id now."""
    window_ms: Duration | None = None
    """Spread over: 10s, 5m."""
    every_ms: Duration | None = None
    """Recurring: period, such as 1h."""
    cron: str | None = None
    """Recurring: '0 9 * * MON-FRI'."""
    timezone: str | None = None
    """Time zone of --cron: Europe/Berlin."""
    times: Annotated[int | None, typer.Option(min=1)] = None
    """Maximum number of occurrences."""
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE")] = None
    """Delivered header; repeatable."""
    topic: Annotated[str | None, typer.Option(show_default="the first configured one")] = None
    """Delay topic."""
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None
    """Of the delay topic."""
    force: bool = False
    """Write it even if it will be dead-lettered."""
    wait_ms: Duration | None = None
    """Longest wait for the outcome of a cancel or fire."""

    def headers(self) -> Headers:
        from delayservice.base.errors import InvalidRequestError
        from delayservice.contract.request import when_headers

        if self.cancel and self.fire:
            raise typer.BadParameter("give --cancel or --fire, not both")
        if self.record_id and self.no_id:
            raise typer.BadParameter("give --id or --no-id, not both")
        if (self.cancel or self.fire) and not self.record_id:
            raise typer.BadParameter("--cancel and --fire need --id: it says which record")
        if self.if_absent and (not self.record_id or self.cancel or self.fire):
            raise typer.BadParameter("--if-absent is for a record with --id that is delivered")
        partition = self.target_partition
        named = {
            names.DELAY_TARGET_TOPIC: self.target,
            names.DELAY_TARGET_PARTITION: None if partition is None else str(partition),
            names.DELAY_TARGET_KEY: self.target_key,
            names.DELAY_ID: self.record_id,
            names.DELAY_IF: "absent" if self.if_absent else None,
            names.DELAY_OP: "cancel" if self.cancel else "fire" if self.fire else None,
        }
        try:
            when = when_headers(
                delay=self.after_ms,
                at=self.at_ms,
                expires_at=self.expires_at_ms,
                window=self.window_ms,
                every=self.every_ms,
                cron=self.cron,
                timezone=self.timezone,
                times=self.times,
            )
        except InvalidRequestError as exc:
            raise typer.BadParameter(str(exc)) from exc
        return [
            *when,
            *((name, text.encode()) for name, text in named.items() if text is not None),
            *((name, text.encode()) for name, text in pairs("--header", self.header)),
        ]

    def record(self, topic: str, value: str | None) -> Outgoing:
        from delayservice.commands import sending

        is_null = self.null or self.cancel or self.fire
        headers, record_id = self.headers(), self.record_id
        said = {name for name, _ in headers}
        # Without a time, a null value with an id would be a cancel, and a level topic takes no id.
        if not (self.no_id or names.DELAY_ID in said or said.isdisjoint(_TIMES)):
            record_id = str(uuid4())
            headers.append((names.DELAY_ID, record_id.encode()))
        return sending.Outgoing(
            topic=topic,
            key=None if self.key is None else self.key.encode(),
            headers=headers,
            value=sending.read_value(value, self.value_file, null=is_null),
            partition=self.partition,
            record_id=None if record_id is None else record_id.encode(),
        )


@with_options
def send(
    value: Annotated[str | None, typer.Argument(help="Value; '-' or none: standard input.")] = None,
    *,
    asked: RecordOptions,
    common: KafkaOptions,
) -> None:
    """Write one record to a delay topic and show its offset.

    A record that will be dead-lettered is refused. Without --id it gets a random id, by which it
    can be cancelled. The partition is chosen by the id, or else by the key as by a Java producer.
    """
    from delayservice.commands import sending

    settings, wait_ms = common.settings(), asked.wait_ms
    record = asked.record(asked.topic or settings.topics.first_delay, value)
    forecast = sending.Forecast(settings, record)
    if wait_ms is not None and not forecast.is_control:
        raise typer.BadParameter("--wait is for a cancel or fire of --id")
    partition = sending.choose_partition(settings, record)  # fails early if no broker answers
    if (doubt := forecast.doubt(now_ms())) is not None:
        if doubt.is_certain and not asked.force:
            raise typer.BadParameter(f"{doubt.why}; --force writes it all the same")
        say(err, f"warning: {doubt.why}", "yellow")
    (place, written_ms), outcome = sending.write(settings, record, partition, wait_ms)
    due_ms = forecast.due_ms(place.offset, written_ms)
    due = None if due_ms is None else instant(due_ms, "T", zone="+00:00")
    result = {"outcome": outcome} if forecast.is_control else {"due_at": due}
    record_id = None if record.record_id is None else record.record_id.decode()

    def show() -> None:
        out.print(plain(str(place)), style="bold green", end="", markup=False)
        unheard = "written, outcome unknown (--wait 5s waits for it)"
        done = outcome or unheard if forecast.is_control else f"due {due}" if due else "written"
        if asked.if_absent:
            done += " unless a record of its id is pending"
        name = "" if record_id is None or forecast.is_control else f"  id {record_id}"
        say(out, f"  {done}{name}")

    told = {**place._asdict(), "timestamp_ms": written_ms, "id": record_id, **result}
    emit(told, show, as_json=common.as_json)
    if wait_ms is not None and outcome in (None, "not_pending"):
        raise typer.Exit(EXIT_NOT_KNOWN if outcome is None else EXIT_NOTHING)
