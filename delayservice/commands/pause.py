"""``delayservice pause``, ``resume`` and ``pauses``: stop deliveries on every node for a while."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer
from rich.table import Table

from delayservice.commands.api import ApiOptions, NothingThereError, add_row, tell_nothing
from delayservice.commands.console import instant, out, print_json, say
from delayservice.commands.options import with_options

EPILOG: Final = "Example: [bold]delayservice pause target 'orders*' --reason 'database move'[/]"

_Kind = Annotated[
    Literal["target", "topic"],
    typer.Argument(help="target: deliveries to a target topic. topic: a whole delay topic."),
]
_Name = Annotated[str, typer.Argument(help="The topic; of targets, * and ? stand for any.")]


@with_options
def pause(
    kind: _Kind,
    name: _Name,
    *,
    reason: Annotated[str, typer.Option(help="The reason, shown in status and on the page.")] = "",
    common: ApiOptions,
) -> None:
    """Stop deliveries to a target, or a delay topic, on every node, until it is resumed."""
    asked = common.connect()
    paused = asked.send("PUT", f"/v1/pauses/{kind}/{name}", {"reason": reason})
    if common.as_json:
        print_json(paused)
    else:
        say(out, f"{kind} {name} is paused", "yellow")


@with_options
def resume(kind: _Kind, name: _Name, *, common: ApiOptions) -> None:
    """Go on with what was paused."""
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
    """Show what is paused."""
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
