"""``delayservice zookeeper``: an operator's changes in ZooKeeper."""

from __future__ import annotations

import getpass
import socket
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.options import CommonOptions, with_options
from delayservice.config.cluster import ZooKeeper

if TYPE_CHECKING:
    from ha.notes import PinNote

_EPILOG: Final = (
    "Example: [bold]delayservice zookeeper rights -c delayservice.toml[/]"
    "\n\nThe run-book: docs/internals/procedures.md, Replacing ZooKeeper's password."
)

_PIN_EPILOG: Final = (
    'Example: [bold]delayservice zookeeper pin --why "upgrade to 2.1"[/]'
    "\n\nThe run-book: docs/operations.md, Rolling update."
)

app = typer.Typer(help="Operator commands for ZooKeeper.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


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
    if common.as_json:
        print_json({"root": options.root, "nodes": count})
    else:
        out.print(f"{count:,} ZooKeeper nodes below {options.root} are set", style="green")


@app.command(epilog=_PIN_EPILOG)
@with_options
def pin(
    *, why: Annotated[str, typer.Option(help="Reason, shown by status.")], common: CommonOptions
) -> None:
    """Keep every slice with its owner, until unpin.

    A slice whose owner fails is still taken over, but does not move back.
    """
    from ha.notes import PinNote  # noqa: PLC0415  # kazoo is not needed for a help text

    by = f"{getpass.getuser()}@{socket.gethostname()}"
    note = PinNote(time.time_ns() // 1_000_000, by, why)
    _say(common, note, f"owners are pinned {note}")


@app.command(epilog=_PIN_EPILOG)
@with_options
def unpin(*, common: CommonOptions) -> None:
    """Allow slices to move to their preferred nodes again."""
    _say(common, None, "owners are not pinned")


def _say(common: CommonOptions, note: PinNote | None, text: str) -> None:
    from ha.operator_commands import set_pin  # noqa: PLC0415  # as above

    was_pinned = set_pin(_options(common), note)
    if common.as_json:
        print_json({"pinned": note is not None, "was_pinned": was_pinned})
    else:
        out.print(text, style="green", markup=False)


def _options(common: CommonOptions) -> ZooKeeper:
    options = common.settings().zookeeper
    if not options.hosts:
        raise DelayServiceError("zookeeper.hosts is empty: there is only this node")
    return options
