"""``delayservice pause``: stops deliveries on every node for a while."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from delayservice.base.errors import KafkaEdgeError
from delayservice.commands.api import ApiOptions
from delayservice.commands.console import emit, err, instant, out, say, show_table
from delayservice.commands.options import with_options

if TYPE_CHECKING:
    from delayservice.config.settings import Settings

_Kind = Annotated[
    Literal["target", "topic"],
    typer.Argument(
        help="target: deliveries to a target topic; topic: all deliveries from a delay topic."
    ),
]
_Name = Annotated[str, typer.Argument(help="Name of the topic; * and ? are wildcards for targets.")]

app = typer.Typer(help="Stop deliveries for a while.", no_args_is_help=True)


@app.command(
    epilog="Example: [bold]delayservice pause add target 'orders*' --reason 'database move'[/]"
)
@with_options
def add(
    kind: _Kind,
    name: _Name,
    *,
    reason: Annotated[str, typer.Option(help="Reason, shown by status and on the page.")] = "",
    common: ApiOptions,
) -> None:
    """Stop deliveries to a target or from a delay topic, on every node."""
    paused = common.connect().send("PUT", _path(kind, name), {"reason": reason})
    emit(paused, lambda: say(out, f"{kind} {name} is paused", "yellow"), as_json=common.as_json)
    if kind == "target" and not _may_match(common.settings(), name):
        say(err, f"warning: no topic matches {name}: the pause may be misspelt", "yellow")


def _path(kind: str, name: str) -> str:
    return f"/v1/pauses/{kind}/{quote(name, safe='')}"


def _may_match(settings: Settings, pattern: str) -> bool:
    # Whether a topic matches. True also without known brokers, or if they do not answer.
    from connectors.kafka.clients import admin_client  # noqa: PLC0415  # not needed for a help text
    from connectors.kafka.topic_facts import list_topics  # noqa: PLC0415  # as above

    if not settings.kafka.bootstrap:
        return True
    try:
        names = list_topics(admin_client(settings.kafka.client_config("admin"))).topics
    except KafkaEdgeError:
        return True
    return any(fnmatchcase(name, pattern) for name in names)


@app.command(epilog="Exit status: 0 done, 1 an error, 2 wrong usage, 4 it was not paused.")
@with_options
def remove(kind: _Kind, name: _Name, *, common: ApiOptions) -> None:
    """End a pause."""
    common.connect().send("DELETE", _path(kind, name))
    told = {"kind": kind, "name": name}
    emit(told, lambda: say(out, f"{kind} {name} goes on", "green"), as_json=common.as_json)


@app.command("list")
@with_options
def list_pauses(*, common: ApiOptions) -> None:
    """List the pauses."""
    found = common.connect().get("/v1/pauses")

    def show() -> None:
        rows = [
            (one["kind"], one["name"], instant(one["at_ms"]), one["by"], one["reason"])
            for one in found
        ]
        show_table(("what", "name", "since", "by", "reason"), rows, "nothing is paused")

    emit(found, show, as_json=common.as_json)
