"""``delayservice store``: content and check of a node's store folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from delayservice.commands.options import JsonOption, flag, moment
from delayservice.contract.times import DUE_STOP_MS

# The stores' packages are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_INSPECT_EPILOG: Final = (
    "Example: [bold]delayservice store inspect STATE_DIR --from now --to +1h --values[/]"
    "\n\nExit status: 0 done, 1 a store can't be read or is of another format, 2 wrong usage."
)
_VERIFY_EPILOG: Final = (
    "Example: [bold]delayservice store verify STATE_DIR[/]"
    "\n\nExit status: 0 sound, 1 a store can't be read or is of another "
    "format, 2 wrong usage, 3 damaged."
)
_LIMIT: Final = 100

_StorePath = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="A node's state folder, or one shard's store in it."
    ),
]

app = typer.Typer(help="Inspect and check store folders.", no_args_is_help=True)


@app.command(epilog=_INSPECT_EPILOG)
def inspect(
    path: _StorePath,
    *,
    records: Annotated[bool, flag("--records", "List records; implied by the others.")] = False,
    from_ms: Annotated[int | None, moment("--from", "Due at or after")] = None,
    to_ms: Annotated[int | None, moment("--to", "Due before")] = None,
    record_id: Annotated[str | None, typer.Option("--id", help="With this delay-id.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="For this target topic.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Of each shard. Default: 100.")] = None,
    values: Annotated[bool, flag("--values", "Show values and headers.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the content of a store folder, read-only and without a lock: a node may be running.

    With --json, facts are one object, and records one object on a line each.
    """
    from delayservice.commands import stored
    from delayservice.store.offline import ReadBounds

    asked = (from_ms, to_ms, record_id, target, limit)
    if not (records or values or any(option is not None for option in asked)):
        raise typer.Exit(stored.inspect(path, as_json=as_json))
    bounds = ReadBounds(from_ms or 0, DUE_STOP_MS if to_ms is None else to_ms)
    wanted = stored.RecordFilter(bounds, record_id.encode() if record_id else None, target)
    limit = limit or _LIMIT
    raise typer.Exit(stored.show_records(path, wanted, limit, values=values, as_json=as_json))


@app.command(epilog=_VERIFY_EPILOG)
def verify(path: _StorePath, *, as_json: JsonOption = False) -> None:
    """Check a whole store folder, read-only and without a lock: a node may be running.

    Opens a snapshot as a node would, reads all records, and counts the rows of databases.
    Explains each damage: what, where, due times and offsets, what a node does, what to do.
    """
    from delayservice.commands import stored

    raise typer.Exit(stored.verify(path, as_json=as_json))
