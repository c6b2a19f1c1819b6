"""``delayservice record``: lists, shows and changes pending records, by a node's API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import typer

from delayservice.commands.api import Api, ApiOptions
from delayservice.commands.bulk import ChangeOptions, Selection, change_matching, warn_of_gaps
from delayservice.commands.console import (
    EXIT_NOT_KNOWN,
    EXIT_NOTHING,
    NothingThereError,
    emit,
    err,
    from_now,
    instant,
    out,
    say,
    show_facts,
    show_table,
    span,
)
from delayservice.commands.options import Duration, Moment, with_options
from delayservice.contract.entry import read_place

_PAGE: Final = 1_000
_CHANGED: Final = (
    "Example: [bold]delayservice record {} --id 'tenant7-*' --to +1d --dry-run[/]"
    "\n\nWithout RECORD_ID, all records that match are changed, after a question. What is changed "
    "does not match again, so a run that was stopped may be repeated."
    "\n\nExit status: 0 done, 1 an error, 2 wrong usage, 4 nothing is pending, "
    "5 written, outcome unknown, 6 some records were not reached."
)
_COLUMNS: Final = ("due", "in", "target", "id", "record", "bytes", "")

Id = Annotated[str | None, typer.Argument(help="The record's delay-id.")]

app = typer.Typer(help="List, show and change pending records.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class ListOptions(Selection):
    PANEL: ClassVar = "List"

    limit: Annotated[int, typer.Option(min=1)] = 50
    """Maximum number, earliest first."""
    beyond_window: bool = False
    """Also beyond the roll window; slower."""
    counts: bool = False
    """Show counts by due time only."""


@dataclass(frozen=True, slots=True)
class RescheduleOptions(ChangeOptions):
    PANEL: ClassVar = "Change"

    at_ms: Moment | None = None
    """New due time"""
    after_ms: Duration | None = None
    """New delay from now: 30s, 2h."""


@app.command(
    "list", epilog="Example: [bold]delayservice record list --target 'orders*' --to +1h[/]"
)
@with_options
def list_records(*, options: ListOptions) -> None:
    """List pending records stored on a node."""
    api = options.connect()
    if options.counts:
        backlog = api.get("/v1/pending/horizon")
        emit(backlog, lambda: _show_backlog(backlog), as_json=options.as_json)
        return
    query = options.asked() | {"beyond_window": options.beyond_window or None}
    records = _records(api, query, options.limit)
    emit(records, partial(show_pending, records), as_json=options.as_json)


def show_pending(records: Iterable[dict[str, Any]], *, whole: bool = False) -> None:
    """Print pending records: a table, or the ``whole`` of each."""
    if not whole:
        show_table(_COLUMNS, map(_cells, records), "no pending record matches")
        return
    for number, one in enumerate(records):
        if number:
            out.print()
        show_facts(_lines(one))


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
    warn_of_gaps(damaged, page["slices_elsewhere"])
    if cursor is not None:
        err.print(f"there may be more than {found:,}: raise --limit", style="dim")


def _cells(record: dict[str, Any]) -> list[object]:
    notes = [
        f"try {record['attempt']}" if record["attempt"] > 1 else "",
        "recurs" if record["recurs"] else "",
        "forwarded to its home partition" if record["target"] == record["topic"] else "",
        "cancel or replacement pending" if record["marked_by"] is not None else "",
    ]
    size = record["value_bytes"]
    return [
        instant(record["due_ms"]),
        from_now(record["due_ms"]),
        _target(record),
        _text(record["id"]),
        f"{record['topic']}:{record['partition']}:{record['offset']}",
        "null" if size is None else size,
        ", ".join(filter(None, notes)),
    ]


def _show_backlog(backlog: dict[str, Any]) -> None:
    rows = [
        ("already", backlog["overdue"]),
        *((f"within {span(one['within_ms'])}", one["count"]) for one in backlog["within"]),
        ("later", backlog["beyond"]),
        ("in level topics", backlog["levels"]),
        ("all", backlog["total"]),
    ]
    show_table(("due", "records"), rows)


@app.command(epilog="Exit status: 0 done, 1 an error, 2 wrong usage, 4 it does not exist.")
@with_options
def show(
    record: Annotated[
        str, typer.Argument(metavar="ID|TOPIC:PARTITION:OFFSET", help="Which record.")
    ],
    *,
    is_id: Annotated[
        bool, typer.Option("--id", help="It is an id, even if it has colons.")
    ] = False,
    common: ApiOptions,
) -> None:
    """Show one record and its state, by id or by source offset."""
    found = _found(common.connect(), record, is_id=is_id)

    emit(found, partial(show_pending, found, whole=True), as_json=common.as_json)


def _found(api: Api, record: str, *, is_id: bool) -> list[dict[str, Any]]:
    # An id may look like a place.
    place = None if is_id else read_place(record)
    try:
        found: list[dict[str, Any]] = api.get("/v1/records", id=record)
    except NothingThereError:
        if place is None:
            raise
        return [api.get("/v1/records/{}/{}/{}".format(*place))]
    return found


def _lines(record: dict[str, Any]) -> Iterator[tuple[str, object]]:
    waits = record if "due_ms" in record else record["pending"]
    yield "record", f"{record['topic']}:{record['partition']}:{record['offset']}"
    if "state" in record:
        yield "state", f"{record['state']}: {record['detail']}"
        yield "written", instant(record["timestamp_ms"])
    if waits is not None:
        yield "due", f"{instant(waits['due_ms'])}  {from_now(waits['due_ms'])}"
        if waits["next_ms"] != waits["due_ms"]:
            yield "next processed", f"{instant(waits['next_ms'])}  {from_now(waits['next_ms'])}"
        is_home = waits["target"] == record["topic"]
        yield "forwarded to its home partition" if is_home else "target", _target(waits)
        yield "id", _text(waits["id"])
        yield "attempt", waits["attempt"]
        if waits["marked_by"] is not None:
            yield "cancelled or replaced by", f"offset {waits['marked_by']}"
        if waits["expires_ms"] is not None:
            yield "expires", instant(waits["expires_ms"])
        for number, fire in enumerate(waits["fires"]):
            note = f"  {fire['note']}" if fire["note"] else ""
            yield (
                "" if number else "next fires",
                f"{fire['local']}  {from_now(fire['due_ms'])}{note}",
            )
    yield "key", _text(record["key"], null="null")
    yield "value", _text(record["value"], null="null")
    for header in record["headers"]:
        yield "header", f"{header['name']}: {_text(header['value'], null='null')}"


def _target(record: dict[str, Any]) -> str:
    partition = record["target_partition"]
    return f"{record['target']}" + ("" if partition is None else f":{partition}")


def _text(content: dict[str, str] | None, null: str = "") -> str:
    # Labelled if it is base64.
    if content is None:
        return null
    return content["data"] if content["encoding"] == "utf-8" else f"base64 {content['data']}"


@app.command(epilog=_CHANGED.format("cancel"))
@with_options
def cancel(record_id: Id = None, *, options: ChangeOptions) -> None:
    """Cancel the pending record of an id, or all that match, and show the outcome."""
    _change(options, "cancel", record_id)


@app.command(epilog=_CHANGED.format("fire"))
@with_options
def fire(record_id: Id = None, *, options: ChangeOptions) -> None:
    """Deliver the pending record of an id, or all that match, now, and show the outcome."""
    _change(options, "fire", record_id)


@app.command(epilog=_CHANGED.format("reschedule --at +2d"))
@with_options
def reschedule(record_id: Id = None, *, options: RescheduleOptions) -> None:
    """Change the due time of the pending record of an id, or of all that match."""
    if (options.at_ms is None) == (options.after_ms is None):
        raise typer.BadParameter("give one of --at and --after")
    _change(options, "reschedule", record_id, at_ms=options.at_ms, after_ms=options.after_ms)


def _change(
    options: ChangeOptions, verb: str, record_id: str | None, **new_time: int | None
) -> None:
    if record_id is None:
        change_matching(options, verb, **new_time)
        return
    if options.is_for_many:
        raise typer.BadParameter("give the id of one record, or a selection and its options")
    api = options.connect()
    body = {"id": record_id, "wait_ms": options.wait_ms, **new_time}
    with err.status("waiting for the outcome"):
        done = api.send("POST", f"/v1/records/{verb}", body)
    outcome = done["outcome"]

    def show() -> None:
        style = "green" if outcome not in (None, "not_pending") else "yellow"
        say(out, f"{outcome or 'not known yet'}: {done['detail']}", style)
        say(out, f"written at {', '.join(done['written'])}", "dim")

    emit(done, show, as_json=options.as_json)
    if outcome in (None, "not_pending"):
        raise typer.Exit(EXIT_NOT_KNOWN if outcome is None else EXIT_NOTHING)
