"""``delayservice zookeeper``: what an operator does there by hand."""

from __future__ import annotations

from typing import Final

import typer

from delayservice.commands.console import err, out, print_json
from delayservice.commands.options import ConfigOption, JsonOption, SetOption, load_settings
from delayservice.errors import DelayServiceError

_EPILOG: Final = (
    "Example: [bold]delayservice zookeeper rights -c delayservice.toml[/]"
    "\n\nThe run-book: docs/operations.md, Replacing ZooKeeper's password."
)

app = typer.Typer(help="What an operator does in ZooKeeper.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command(epilog=_EPILOG)
def rights(
    *, config: ConfigOption = None, sets: SetOption = None, as_json: JsonOption = False
) -> None:
    """Let those write what nodes keep in ZooKeeper whom the settings name, and nobody else.

    They are zookeeper.username and zookeeper.accepted. May be repeated; nodes go on meanwhile.
    """
    from ha.rights import set_rights  # noqa: PLC0415  # kazoo is not needed for a help text

    options = load_settings(config, sets).zookeeper
    if not options.hosts:
        raise DelayServiceError("zookeeper.hosts is empty: there is nothing to set rights in")
    with err.status(f"setting rights below {options.root}") as shown:
        count = set_rights(
            options, lambda done: shown.update(f"setting rights below {options.root}: {done:,}")
        )
    if as_json:
        print_json({"root": options.root, "nodes": count})
    else:
        out.print(f"{count:,} ZooKeeper nodes below {options.root} are set", style="green")
