"""``delayservice pending`` and ``show``: pending records, and what became of one record."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from delayservice.commands.api import (
    Api,
    ApiOptions,
    NothingThereError,
    add_row,
    tell_nothing,
)
from delayservice.commands.console import err, instant, out, print_json
from delayservice.commands.options import with_options

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EPILOG: Final = "Example: [bold]delayservice pending --target 'orders*' --counts[/]"
FOUND: Final = "Exit status: 0 done, 1 an error, 2 wrong usage, 4 it does not exist."
_SOURCE: Final = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})")
_PAGE: Final = 1_000


@with_options
def pending(
    *,
    since: Annotated[
        str | None, typer.Option("--from", help="First due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Exclusive end; as --from.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Target topic; * and ? stand for any.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Delay topic.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of records, earliest first.")
    ] = 50,
    beyond_window: Annotated[
        bool,
        typer.Option("--beyond-window", help="Include those beyond the roll window; slower."),
    ] = False,
    counts: Annotated[bool, typer.Option("--counts", help="Show counts by due time only.")] = False,
    common: ApiOptions,
) -> None:
    """List pending records stored on a node."""
    asked = common.connect()
    if counts:
        backlog = asked.get("/v1/pending/horizon")
        if common.as_json:
            print_json(backlog)
        else:
            _show_backlog(backlog)
        return
    from delayservice.commands.send import instant_ms

    query = {
        "from": None if since is None else instant_ms("--from", since),
        "to": None if until is None else instant_ms("--to", until),
        "target": target,
        "topic": topic,
        "beyond_window": beyond_window or None,
    }
    table = _records_table()
    shown = 0
    for record in _records(asked, query, limit):
        shown += 1
        if common.as_json:
            print_json(record)
        else:
            add_row(table, *_cells(record))
    if common.as_json:
        return
    if shown:
        out.print(table)
    else:
        out.print("no pending record matches", style="dim")


def _records(api: Api, query: Mapping[str, object], limit: int) -> Iterator[dict[str, Any]]:
    """Yield up to ``limit`` pending records, read from the API in pages. On standard error, show
    the number of scanned records meanwhile, and in the end whether records may be missing.
    """
    cursor: str | None = None
    found = scanned = damaged = 0
    with err.status("looking") as status:
        while found < limit:
            wanted = min(limit - found, _PAGE)
            page = api.get("/v1/pending", **query, cursor=cursor, limit=wanted)
            scanned += page["scanned"]
            damaged += page["damaged"]
            found += len(page["records"])
            status.update(f"looked at {scanned:,} records, {found:,} match")
            yield from page["records"]
            cursor = page["next"]
            if cursor is None:
                break
    if damaged:
        err.print(
            f"{damaged:,} ranges of due times can't be read now, so their records are missing: "
            "ask another node, or rebuild them (delayservice spark reconcile)",
            style="yellow",
        )
    if page["slices_elsewhere"]:
        numbers = ", ".join(map(str, page["slices_elsewhere"]))
        err.print(f"this node keeps no copy of slices {numbers}: ask another", style="yellow")
    if cursor is not None:
        err.print(f"there may be more than {found:,}: raise --limit", style="dim")


def _records_table() -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("due", "in", "target", "id", "record"):
        table.add_column(name, no_wrap=name != "id", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("")
    return table


def _cells(record: dict[str, Any]) -> list[str]:
    partition = record["target_partition"]
    notes = [
        f"try {record['attempt']}" if record["attempt"] > 1 else "",
        "recurs" if record["recurs"] else "",
        "forwarded to its home partition" if record["target"] == record["topic"] else "",
        "cancel or replacement pending" if record["marked_by"] is not None else "",
    ]
    size = record["value_bytes"]
    return [
        instant(record["due_ms"]),
        _from_now(record["due_ms"]),
        record["target"] + ("" if partition is None else f":{partition}"),
        _text(record["id"]),
        f"{record['topic']}:{record['partition']}:{record['offset']}",
        "null" if size is None else f"{size:,}",
        ", ".join(note for note in notes if note),
    ]


def _show_backlog(backlog: dict[str, Any]) -> None:
    from delayservice.config.units import format_duration

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("due")
    table.add_column("records", justify="right")
    table.add_row("already", f"{backlog['overdue']:,}")
    for horizon in backlog["within"]:
        within = format_duration(horizon["within_ms"])
        table.add_row(f"within {within}", f"{horizon['count']:,}")
    table.add_row("later", f"{backlog['beyond']:,}")
    table.add_row("in level topics", f"{backlog['levels']:,}")
    table.add_row("all", f"{backlog['total']:,}", style="bold")
    out.print(table)


@with_options
def show(
    record: Annotated[
        str, typer.Argument(metavar="ID|TOPIC:PARTITION:OFFSET", help="Which record.")
    ],
    *,
    common: ApiOptions,
) -> None:
    """Show one record and its state, by id or by source offset."""
    asked = common.connect()
    source = _SOURCE.fullmatch(record)
    try:
        if source is not None:
            found = asked.get(f"/v1/records/{source[1]}/{source[2]}/{source[3]}")
        else:
            found = asked.get("/v1/records", id=record)
    except NothingThereError as exc:
        tell_nothing(str(exc), as_json=common.as_json)
    if common.as_json:
        print_json(found)
        return
    for one in found if isinstance(found, list) else [found]:
        _show_record(one)


def _show_record(record: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(record):
        add_row(table, name, text)
    out.print(table)


def _lines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    waits = record if "due_ms" in record else record["pending"]
    yield "record", f"{record['topic']}:{record['partition']}:{record['offset']}"
    if "state" in record:
        yield "state", f"{record['state']}: {record['detail']}"
        yield "written", instant(record["timestamp_ms"])
    if waits is not None:
        yield "due", f"{instant(waits['due_ms'])}  {_from_now(waits['due_ms'])}"
        if waits["next_ms"] != waits["due_ms"]:
            yield "next processed", f"{instant(waits['next_ms'])}  {_from_now(waits['next_ms'])}"
        partition = waits["target_partition"]
        is_home = waits["target"] == record["topic"]
        yield (
            "forwarded to its home partition" if is_home else "target",
            waits["target"] + ("" if partition is None else f":{partition}"),
        )
        yield "id", _text(waits["id"])
        yield "attempt", str(waits["attempt"])
        if waits["expires_ms"] is not None:
            yield "expires", instant(waits["expires_ms"])
    yield "key", _text(record["key"], null="null")
    yield "value", _text(record["value"], null="null")
    for header in record["headers"]:
        yield "header", f"{header['name']}: {_text(header['value'], null='null')}"


def _text(content: dict[str, str] | None, null: str = "") -> str:
    # Labelled if it is base64.
    if content is None:
        return null
    return content["data"] if content["encoding"] == "utf-8" else f"base64 {content['data']}"


def _from_now(epoch_ms: int) -> str:
    from delayservice.config.units import format_duration

    ahead_ms = epoch_ms - time.time_ns() // 1_000_000
    rounded_ms = round(abs(ahead_ms), -3)
    return (
        f"in {format_duration(rounded_ms)}"
        if ahead_ms >= 0
        else (f"{format_duration(rounded_ms)} ago")
    )
