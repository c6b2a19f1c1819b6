"""``delayservice store``: content and check of a node's store folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from delayservice.commands.options import JsonOption, Moment, with_options
from delayservice.contract.times import DUE_STOP_MS

# The stores' packages are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_INSPECT_EPILOG: Final = (
    "Example: [bold]delayservice store inspect STATE_DIR --from now --to +1h --values[/]"
    "\n\nExit status: 0 sound, 1 a store can't be read or is of another format, 2 wrong usage, "
    "3 damaged."
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


@dataclass(frozen=True, slots=True)
class InspectOptions:
    records: bool = False
    """List records; implied by the others."""
    from_ms: Moment | None = None
    """Due at or after"""
    to_ms: Moment | None = None
    """Due before"""
    record_id: Annotated[str | None, typer.Option("--id")] = None
    """With this delay-id."""
    target: Annotated[str | None, typer.Option("--target", "-t")] = None
    """For this target topic."""
    limit: Annotated[int | None, typer.Option(min=1)] = None
    """Maximum number of each shard. Default: 100."""
    values: bool = False
    """Show values and headers."""
    as_json: JsonOption = False


app = typer.Typer(help="Inspect and check store folders.", no_args_is_help=True)


@app.command(epilog=_INSPECT_EPILOG)
@with_options
def inspect(path: _StorePath, *, options: InspectOptions) -> None:
    """Show the content of a store folder, read-only and without a lock: a node may be running.

    With --json, facts are one object, and records one object on a line each.
    """
    from delayservice.commands.store_view import RecordFilter, show_records, show_stores
    from delayservice.store.offline import ReadBounds

    record_id, until_ms = options.record_id, options.to_ms
    asked = (options.from_ms, until_ms, record_id, options.target, options.limit)
    if not (options.records or options.values or any(one is not None for one in asked)):
        raise typer.Exit(show_stores(path, checked=False, as_json=options.as_json))
    bounds = ReadBounds(options.from_ms or 0, DUE_STOP_MS if until_ms is None else until_ms)
    wanted = RecordFilter(bounds, record_id.encode() if record_id else None, options.target)
    limit, values = options.limit or _LIMIT, options.values
    raise typer.Exit(show_records(path, wanted, limit, values=values, as_json=options.as_json))


@app.command(epilog=_VERIFY_EPILOG)
def verify(path: _StorePath, *, as_json: JsonOption = False) -> None:
    """Check a whole store folder, read-only and without a lock: a node may be running.

    Opens a snapshot as a node would, reads all records, and counts the rows of databases.
    Explains each damage: what, where, due times and offsets, what a node does, what to do.
    """
    from delayservice.commands.store_view import show_stores

    raise typer.Exit(show_stores(path, checked=True, as_json=as_json))
