"""Options of the commands ``delayservice inspect`` and ``verify``, which read a store folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from delayservice.commands.options import JsonOption

# RocksDB is imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

INSPECT_EPILOG: Final = (
    "Examples: [bold]delayservice inspect /var/lib/delayservice[/]"
    "\n\n[bold]delayservice inspect STATE_DIR --from 2030-01-31T08:00:00Z --to 2030-01-31T09:00:00Z"
    " --values[/]\n\n[bold]delayservice inspect STATE_DIR --id reminder-17 --json[/]"
    "\n\nExit status: 0 done, 1 a store can't be read or is of another format, 2 wrong usage."
)
VERIFY_EPILOG: Final = (
    "Examples: [bold]delayservice verify /var/lib/delayservice[/]"
    "\n\n[bold]delayservice verify STATE_DIR/wheel/0 --json[/]"
    "\n\nExit status: 0 sound (remarks are no damage), 1 a store can't be read or is of another "
    "format, 2 wrong usage, 3 damaged."
)
LIMIT: Final = 100

PathArgument = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="A node's state folder, or one shard's store in it."
    ),
]


def inspect(
    path: PathArgument,
    *,
    records: Annotated[
        bool, typer.Option("--records", help="List records; any option below does so as well.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--from", help="Due from then on: RFC 3339 or epoch milliseconds.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Due before then.")] = None,
    record_id: Annotated[str | None, typer.Option("--id", help="With this delay-id.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="For this target topic.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many of each shard.", show_default=str(LIMIT))
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Show values and headers.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a store folder holds. It is only read: a node may run on it, nothing is locked.

    With --json, facts are one object, and records one object on a line each.
    """
    from delayservice.commands import stored

    asked = (since, until, record_id, target, limit)
    if not (records or values or any(option is not None for option in asked)):
        is_whole = stored.show_facts(path, as_json=as_json)
    else:
        wanted = stored.wanted(since, until, record_id, target)
        is_whole = stored.show_records(path, wanted, limit or LIMIT, values=values, as_json=as_json)
    raise typer.Exit(0 if is_whole else 1)


def verify(path: PathArgument, *, as_json: JsonOption = False) -> None:
    """Check a store folder as a whole. It is only read: a node may run on it, nothing is locked.

    Every block's checksum, counts and order, the horizon, ids against records, and names. Each
    damage is explained: what, where, which due times and offsets, what a node does and what to do.
    """
    from delayservice.commands import verify as verifying

    raise typer.Exit(verifying.run(path, as_json=as_json))
