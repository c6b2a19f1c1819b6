"""``delayservice zookeeper``: what an operator does there by hand."""

from __future__ import annotations

import getpass
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.options import ConfigOption, JsonOption, SetOption, load_settings
from delayservice.config.cluster import ZooKeeper

if TYPE_CHECKING:
    from ha.notes import PinNote

_EPILOG: Final = (
    "Example: [bold]delayservice zookeeper rights -c delayservice.toml[/]"
    "\n\nThe run-book: docs/operations.md, Replacing ZooKeeper's password."
)

_PIN_EPILOG: Final = (
    'Example: [bold]delayservice zookeeper pin --why "upgrade to 2.1"[/]'
    "\n\nThe run-book: docs/operations.md, Upgrade and rollback."
)

app = typer.Typer(help="What an operator does in ZooKeeper.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command(epilog=_EPILOG)
def rights(
    *, config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False
) -> None:
    """Let those write what nodes keep in ZooKeeper whom the settings name, and no others.

    They are zookeeper.username and zookeeper.accepted. May be repeated; nodes go on meanwhile.
    """
    from ha.rights import set_rights  # noqa: PLC0415  # kazoo is not needed for a help text

    options = _options(config, sets)
    with err.status(f"setting rights below {options.root}") as shown:
        count = set_rights(
            options, lambda done: shown.update(f"setting rights below {options.root}: {done:,}")
        )
    if as_json:
        print_json({"root": options.root, "nodes": count})
    else:
        out.print(f"{count:,} ZooKeeper nodes below {options.root} are set", style="green")


@app.command(epilog=_PIN_EPILOG)
def pin(
    *,
    why: Annotated[str, typer.Option(help="The reason, shown in status.")],
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let every slice stay with its owner, until unpin.

    A slice whose owner is gone or not electable is taken over as always; it does not go back.
    """
    from ha.notes import PinNote  # noqa: PLC0415  # kazoo is not needed for a help text

    by = f"{getpass.getuser()}@{socket.gethostname()}"
    note = PinNote(time.time_ns() // 1_000_000, by, why)
    _say(config, sets, note, f"owners are pinned {note}", as_json=as_json)


@app.command(epilog=_PIN_EPILOG)
def unpin(
    *, config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False
) -> None:
    """Let slices go to the nodes that are preferred again."""
    _say(config, sets, None, "owners are not pinned", as_json=as_json)


def _say(
    config: Path | None, sets: list[str] | None, note: PinNote | None, text: str, *, as_json: bool
) -> None:
    from ha.pinning import set_pin  # noqa: PLC0415  # as above

    was_pinned = set_pin(_options(config, sets), note)
    if as_json:
        print_json({"pinned": note is not None, "was_pinned": was_pinned})
    else:
        out.print(text, style="green", markup=False)


def _options(config: Path | None, sets: list[str] | None) -> ZooKeeper:
    options = load_settings(config, sets).zookeeper
    if not options.hosts:
        raise DelayServiceError("zookeeper.hosts is empty: there is only this node")
    return options
