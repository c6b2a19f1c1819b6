"""``delayservice cluster``: nodes, owners and copies; and an operator's changes in ZooKeeper."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.api import ApiOptions
from delayservice.commands.console import emit, err, out, say, show_table
from delayservice.commands.options import CommonOptions, now_ms, with_options
from delayservice.config.cluster import ZooKeeper

if TYPE_CHECKING:
    from ha.notes import PinNote

_EPILOG: Final = (
    "Example: [bold]delayservice cluster rights -c delayservice.toml[/]"
    "\n\nThe run-book: docs/internals/procedures.md, Replacing ZooKeeper's password."
)
_PIN_EPILOG: Final = (
    'Example: [bold]delayservice cluster pin --reason "upgrade to 2.1"[/]'
    "\n\nThe run-book: docs/operations.md, Rolling update."
)

app = typer.Typer(help="Nodes, owners and copies of slices.", no_args_is_help=True)


@app.command()
@with_options
def show(*, common: ApiOptions) -> None:
    """Show all nodes, the owner of each slice, and how far its copies are behind."""
    found = common.connect().get("/v1/cluster")
    emit(found, lambda: _show(found), as_json=common.as_json)


def _show(found: dict[str, Any]) -> None:
    facts = ("node_id", "address", "rack", "broker_id")
    nodes = [
        [*map(one.get, facts), f"{len(one['alive'])} of {one['workers']}"] for one in found["nodes"]
    ]
    show_table(("node", "host", "rack", "broker", "workers alive"), nodes)
    out.print()
    slices = [
        (one["slice"], one["owner"] or "none", one["heir"], one["epoch"], _copies(one["copies"]))
        for one in found["slices"]
    ]
    names = ("slice", "owner", "moves to", "epoch", "copies")
    show_table(names, slices, "no slice is known yet")


def _copies(copies: list[dict[str, Any]]) -> str:
    return ", ".join(
        one["node"]
        + (f" {one['behind']:,} behind" if one["behind"] else "")
        + ("" if one["caught_up"] else " (may not take over)")
        for one in copies
    )


@app.command(epilog=_EPILOG)
@with_options
def rights(*, common: CommonOptions) -> None:
    """Restrict ZooKeeper write access to the configured users.

    The users are zookeeper.username and zookeeper.accepted. Safe to repeat while nodes run.
    """
    from ha.operator_commands import set_rights  # noqa: PLC0415  # kazoo is not needed for a help text

    options = _options(common)
    with err.status(f"setting rights below {options.root}") as shown:
        count = set_rights(
            options, lambda done: shown.update(f"setting rights below {options.root}: {done:,}")
        )
    text = f"{count:,} ZooKeeper nodes below {options.root} are set"
    told = {"root": options.root, "nodes": count}
    emit(told, lambda: say(out, text, "green"), as_json=common.as_json)


@app.command(epilog=_PIN_EPILOG)
@with_options
def pin(
    *,
    reason: Annotated[str, typer.Option(help="Reason, shown by status.")],
    common: CommonOptions,
) -> None:
    """Keep every slice with its owner, until unpin.

    A slice whose owner fails is still taken over, but does not move back.
    """
    from ha.notes import PinNote  # noqa: PLC0415  # kazoo is not needed for a help text

    note = PinNote(now_ms(), f"{getpass.getuser()}@{socket.gethostname()}", reason)
    _pin(common, note, f"owners are pinned {note}")


@app.command(epilog=_PIN_EPILOG)
@with_options
def unpin(*, common: CommonOptions) -> None:
    """Allow slices to move to their preferred nodes again."""
    _pin(common, None, "owners are not pinned")


def _pin(common: CommonOptions, note: PinNote | None, text: str) -> None:
    from ha.operator_commands import set_pin  # noqa: PLC0415  # as above

    was_pinned = set_pin(_options(common), note)
    told = {"pinned": note is not None, "was_pinned": was_pinned}
    emit(told, lambda: say(out, text, "green"), as_json=common.as_json)


def _options(common: CommonOptions) -> ZooKeeper:
    options = common.settings().zookeeper
    if not options.hosts:
        raise DelayServiceError("zookeeper.hosts is empty: there is only this node")
    return options
