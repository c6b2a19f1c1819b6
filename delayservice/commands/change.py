"""``delayservice cancel``, ``fire`` and ``reschedule``, which print the outcome; and ``pause``,
``resume`` and ``pauses``, which stop deliveries on every node for a while.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer
from rich.table import Table

from delayservice.commands.api import (
    EXIT_NOTHING,
    ApiOptions,
    NothingThereError,
    add_row,
    tell_nothing,
)
from delayservice.commands.console import err, instant, out, print_json, say
from delayservice.commands.options import with_options

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EXIT_NOT_KNOWN: Final = 5
CHANGED: Final = (
    "Exit status: 0 done, 1 an error, 2 wrong usage, 4 nothing is pending under the id, "
    "5 written, outcome unknown."
)

WaitOption = Annotated[str, typer.Option("--wait", help="How long to wait for the outcome: 5s, 0.")]
Id = Annotated[str, typer.Argument(help="The record's delay-id.")]


@with_options
def cancel(record_id: Id, *, wait: WaitOption = "5s", common: ApiOptions) -> None:
    """Cancel the pending record of an id, and show the outcome."""
    _change(common, "cancel", {"id": record_id}, wait)


@with_options
def fire(record_id: Id, *, wait: WaitOption = "5s", common: ApiOptions) -> None:
    """Deliver the pending record of an id now, and show the outcome."""
    _change(common, "fire", {"id": record_id}, wait)


@with_options
def reschedule(
    record_id: Id,
    *,
    at: Annotated[
        str | None, typer.Option(help="Due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Delay from now: 30s, 2h.")] = None,
    wait: WaitOption = "5s",
    common: ApiOptions,
) -> None:
    """Change the due time of the pending record of an id."""
    from delayservice.commands.send import delay_ms, instant_ms

    body: dict[str, object] = {
        "id": record_id,
        "at_ms": None if at is None else instant_ms("--at", at),
        "after_ms": None if after is None else delay_ms("--after", after),
    }
    _change(common, "reschedule", body, wait)


def _change(common: ApiOptions, verb: str, body: dict[str, object], wait: str) -> None:
    from delayservice.commands.send import delay_ms

    api = common.connect()
    try:
        with err.status("waiting for the outcome"):
            done = api.send(
                "POST", f"/v1/records/{verb}", {**body, "wait_ms": delay_ms("--wait", wait)}
            )
    except NothingThereError as exc:
        tell_nothing(str(exc), as_json=common.as_json)
    if common.as_json:
        print_json(done)
    else:
        style = "green" if done["outcome"] not in (None, "not_pending") else "yellow"
        say(out, f"{done['outcome'] or 'not known yet'}: {done['detail']}", style)
        say(out, f"written at {', '.join(done['written'])}", "dim")
    if done["outcome"] is None:
        raise typer.Exit(EXIT_NOT_KNOWN)
    if done["outcome"] == "not_pending":
        raise typer.Exit(EXIT_NOTHING)


PAUSE_EPILOG: Final = (
    "Example: [bold]delayservice pause target 'orders*' --reason 'database move'[/]"
)

_Kind = Annotated[
    Literal["target", "topic"],
    typer.Argument(
        help="target: deliveries to a target topic; topic: all deliveries from a delay topic."
    ),
]
_Name = Annotated[str, typer.Argument(help="Name of the topic; * and ? are wildcards for targets.")]


@with_options
def pause(
    kind: _Kind,
    name: _Name,
    *,
    reason: Annotated[str, typer.Option(help="Reason, shown by status and on the page.")] = "",
    common: ApiOptions,
) -> None:
    """Stop deliveries to a target or from a delay topic, on every node, until resume."""
    asked = common.connect()
    paused = asked.send("PUT", f"/v1/pauses/{kind}/{name}", {"reason": reason})
    if common.as_json:
        print_json(paused)
    else:
        say(out, f"{kind} {name} is paused", "yellow")


@with_options
def resume(kind: _Kind, name: _Name, *, common: ApiOptions) -> None:
    """End a pause."""
    asked = common.connect()
    try:
        asked.send("DELETE", f"/v1/pauses/{kind}/{name}")
    except NothingThereError as exc:
        tell_nothing(str(exc), as_json=common.as_json)
    if common.as_json:
        print_json({"kind": kind, "name": name})
    else:
        say(out, f"{kind} {name} goes on", "green")


@with_options
def pauses(*, common: ApiOptions) -> None:
    """List the pauses."""
    found = common.connect().get("/v1/pauses")
    if common.as_json:
        print_json({"pauses": found})
        return
    if not found:
        out.print("nothing is paused", style="dim")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("what", "name", "since", "reason"):
        table.add_column(column, overflow="fold")
    for one in found:
        add_row(table, one["kind"], one["name"], instant(one["at_ms"]), one["reason"])
    out.print(table)
