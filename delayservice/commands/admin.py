"""Commands that ask a running node through its admin API."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from delayservice.commands.console import err, out, plain, print_json, say
from delayservice.commands.options import ConfigOption, JsonOption, SetOption, load_settings
from delayservice.errors import DelayServiceError

if TYPE_CHECKING:
    from httpx import Client, Response

    from delayservice.settings import Settings

# Help is read more often than anything runs: what is heavy is imported when it does.
# ruff: noqa: PLC0415

EXIT_NOTHING: Final = 4
EXIT_NOT_KNOWN: Final = 5
_FOUND: Final = "Exit status: 0 done, 1 an error, 2 wrong usage, 4 there is no such thing."
_CHANGED: Final = (
    "Exit status: 0 done, 1 an error, 2 wrong usage, 4 nothing is pending there, "
    "5 written, and nothing heard of it yet."
)
_TIMEOUT_S: Final = 45.0
_SOURCE: Final = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10}):(\d{1,19})")
_PAGE: Final = 1_000

ApiOption = Annotated[
    str | None,
    typer.Option(
        "--api", metavar="HOST:PORT", help="The node's admin API; admin.listen by default."
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        dir_okay=False,
        help="File with the token. Default: the configured one, or the node's own.",
    ),
]
WaitOption = Annotated[
    str, typer.Option("--wait", help="How long to wait for what the log says: 5s, 0.")
]
Id = Annotated[str, typer.Argument(help="The record's delay-id.")]


@dataclass(frozen=True, slots=True)
class Api:
    """A node's API."""

    client: Client
    address: str
    no_token: str = ""
    """Why no token is sent; empty: one is."""

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Ask.

        Raises:
            DelayServiceError: nobody answers, or refuses.
        """
        asked = {name: value for name, value in query.items() if value is not None}
        return self._answer("GET", path, params=asked)

    def send(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  # JSON
        """Have something changed.

        Raises:
            DelayServiceError: as ``get``.
        """
        return self._answer(method, path, json=body)

    def _answer(self, method: str, path: str, **sent: Any) -> Any:  # noqa: ANN401  # JSON
        from httpx import HTTPError

        try:
            response = self.client.request(method, path, **sent)
        except HTTPError as exc:
            raise DelayServiceError(
                f"no node answers on {self.address}: {exc}; is it running, and is that its "
                "admin.listen?"
            ) from exc
        if response.is_error:
            raise _refusal(response, self)
        return response.json() if response.content else None


class NothingThereError(DelayServiceError):
    """The API knows of no such thing."""


def _refusal(response: Response, api: Api) -> DelayServiceError:
    try:
        problem = response.json()
        told = "; ".join([problem["detail"], *problem["errors"]])
    except (ValueError, KeyError, TypeError):
        told = f"status {response.status_code}: what answers there is no node of this version"
    if response.status_code == HTTPStatus.UNAUTHORIZED and api.no_token:
        told += f"; none was sent: {api.no_token}"
    is_nothing = response.status_code == HTTPStatus.NOT_FOUND
    return (NothingThereError if is_nothing else DelayServiceError)(f"{api.address}: {told}")


def connect(settings: Settings, address: str | None, token_file: Path | None) -> Api:
    """The API of a node.

    Raises:
        DelayServiceError: it is not known where it listens.
    """
    from httpx import URL, Client, InvalidURL

    where = address or settings.admin.listen
    if not where:
        raise DelayServiceError("admin.listen is empty: this node serves no API; name one by --api")
    # A node that listens on every address is asked on this machine.
    where = where.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
    try:
        url = URL(f"http://{where}")
    except InvalidURL as exc:
        raise DelayServiceError(f"{where!r} is no HOST:PORT: {exc}") from exc
    token, no_token = _token(settings, token_file, url.host)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = Client(base_url=url, headers=headers, timeout=_TIMEOUT_S)
    return Api(client, where, no_token)


def _token(settings: Settings, token_file: Path | None, host: str) -> tuple[str | None, str]:
    """The token to send, or why there is none: who only reads may need none.

    Raises:
        DelayServiceError: the file that ``--token-file`` names can't be read.
    """
    from delayservice.admin_options import made_token_path

    if token_file is not None:
        return _read_token(token_file), ""
    path = made_token_path(settings.node.state_dir)
    try:
        configured = settings.admin.configured_token()
        if configured is not None:
            return configured, ""
        if not _is_loopback(host):
            return None, f"{path} is for loopback addresses only; --token-file names one for others"
        return _read_token(path), ""
    except DelayServiceError as exc:
        return None, str(exc)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise DelayServiceError(f"the token in {path} can't be read: {exc}") from exc
    if not token.isascii() or not token.isprintable() or not token:
        raise DelayServiceError(f"{path} holds no token: printable ASCII characters are expected")
    return token


# --- look ----------------------------------------------------------------------------------------


def pending(
    *,
    since: Annotated[
        str | None, typer.Option("--from", help="Due from: RFC 3339 or epoch milliseconds.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Due before; as --from.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Target topic; * and ? stand for any.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Delay topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="As many at most, first due first.")] = 50,
    beyond_window: Annotated[
        bool,
        typer.Option("--beyond-window", help="Also what is rolled before it is due; slower."),
    ] = False,
    counts: Annotated[
        bool, typer.Option("--counts", help="Only how many are due, and how soon.")
    ] = False,
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show what waits on a node's copies."""
    asked = connect(load_settings(config, sets), api, token_file)
    if counts:
        backlog = asked.get("/v1/pending/horizon")
        if as_json:
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
        if as_json:
            print_json(record)
        else:
            _add(table, *_cells(record))
    if not as_json and shown:
        out.print(table)
    elif not as_json:
        out.print("nothing is pending there", style="dim")


def _records(api: Api, query: Mapping[str, object], limit: int) -> Iterator[dict[str, Any]]:
    """Page by page, with what was looked at shown meanwhile."""
    cursor: str | None = None
    found = scanned = 0
    with err.status("looking") as status:
        while found < limit:
            wanted = min(limit - found, _PAGE)
            page = api.get("/v1/pending", **query, cursor=cursor, limit=wanted)
            scanned += page["scanned"]
            found += len(page["records"])
            status.update(f"looked at {scanned:,} records, {found:,} match")
            yield from page["records"]
            cursor = page["next"]
            if cursor is None:
                break
    if page["slices_elsewhere"]:
        numbers = ", ".join(map(str, page["slices_elsewhere"]))
        err.print(f"this node keeps no copy of slices {numbers}: ask another", style="yellow")
    if cursor is not None:
        err.print(f"there may be more than these {found:,}: raise --limit", style="dim")


def _records_table() -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("due", "in", "target", "id", "record"):
        table.add_column(name, no_wrap=name != "id", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("")
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of what others have written: neither markup nor anything that steers the terminal."""
    table.add_row(*(Text(plain(cell)) for cell in cells))


def _cells(record: dict[str, Any]) -> list[str]:
    partition = record["target_partition"]
    notes = [
        f"try {record['attempt']}" if record["attempt"] > 1 else "",
        "recurs" if record["recurs"] else "",
        "is being cancelled or replaced" if record["marked_by"] is not None else "",
    ]
    size = record["value_bytes"]
    return [
        _instant(record["due_ms"]),
        _from_now(record["due_ms"]),
        record["target"] + ("" if partition is None else f":{partition}"),
        _text(record["id"]),
        f"{record['topic']}:{record['partition']}:{record['offset']}",
        "null" if size is None else f"{size:,}",
        ", ".join(note for note in notes if note),
    ]


def _show_backlog(backlog: dict[str, Any]) -> None:
    from delayservice.units import format_duration

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


def show(
    record: Annotated[
        str, typer.Argument(metavar="ID|TOPIC:PARTITION:OFFSET", help="Which record.")
    ],
    *,
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one record, by its id or by where it was written, and what has become of it."""
    asked = connect(load_settings(config, sets), api, token_file)
    source = _SOURCE.fullmatch(record)
    try:
        if source is not None:
            found = asked.get(f"/v1/records/{source[1]}/{source[2]}/{source[3]}")
        else:
            found = asked.get("/v1/records", id=record)
    except NothingThereError as exc:
        _tell_nothing(str(exc), as_json=as_json)
    if as_json:
        print_json(found)
        return
    for one in found if isinstance(found, list) else [found]:
        _show_record(one)


def _tell_nothing(why: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"detail": why})
    else:
        say(err, why, "yellow")
    raise typer.Exit(EXIT_NOTHING)


def _show_record(record: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(record):
        _add(table, name, text)
    out.print(table)


def _lines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    waits = record if "due_ms" in record else record["pending"]
    yield "record", f"{record['topic']}:{record['partition']}:{record['offset']}"
    if "state" in record:
        yield "state", f"{record['state']}: {record['detail']}"
        yield "written", _instant(record["timestamp_ms"])
    if waits is not None:
        yield "due", f"{_instant(waits['due_ms'])}  {_from_now(waits['due_ms'])}"
        if waits["next_ms"] != waits["due_ms"]:
            yield "looked at next", f"{_instant(waits['next_ms'])}  {_from_now(waits['next_ms'])}"
        partition = waits["target_partition"]
        yield "target", waits["target"] + ("" if partition is None else f":{partition}")
        yield "id", _text(waits["id"])
        yield "attempt", str(waits["attempt"])
        if waits["expires_ms"] is not None:
            yield "expires", _instant(waits["expires_ms"])
    yield "key", _text(record["key"], null="null")
    yield "value", _text(record["value"], null="null")
    for header in record["headers"]:
        yield "header", f"{header['name']}: {_text(header['value'], null='null')}"


def _text(content: dict[str, str] | None, null: str = "") -> str:
    """Bytes as a person reads them."""
    if content is None:
        return null
    return content["data"] if content["encoding"] == "utf-8" else f"base64 {content['data']}"


def _instant(epoch_ms: int) -> str:
    try:
        instant = datetime.fromtimestamp(epoch_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return f"{instant:%Y-%m-%d %H:%M:%S}.{epoch_ms % 1_000:03d}Z"


def _from_now(epoch_ms: int) -> str:
    from delayservice.units import format_duration

    ahead_ms = epoch_ms - time.time_ns() // 1_000_000
    rounded_ms = round(abs(ahead_ms), -3)
    return (
        f"in {format_duration(rounded_ms)}"
        if ahead_ms >= 0
        else (f"{format_duration(rounded_ms)} ago")
    )


# --- change --------------------------------------------------------------------------------------


def cancel(
    record_id: Id,
    *,
    wait: WaitOption = "5s",
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel the pending record of an id, and say what that did."""
    asked = connect(load_settings(config, sets), api, token_file)
    _change(asked, "cancel", {"id": record_id}, wait, as_json=as_json)


def fire(
    record_id: Id,
    *,
    wait: WaitOption = "5s",
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver the pending record of an id now, and say whether there was one."""
    asked = connect(load_settings(config, sets), api, token_file)
    _change(asked, "fire", {"id": record_id}, wait, as_json=as_json)


def reschedule(
    record_id: Id,
    *,
    at: Annotated[
        str | None, typer.Option(help="Due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Due so long from now: 30s, 2h.")] = None,
    wait: WaitOption = "5s",
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the pending record of an id another due time."""
    from delayservice.commands.send import delay_ms, instant_ms

    body: dict[str, object] = {
        "id": record_id,
        "at_ms": None if at is None else instant_ms("--at", at),
        "after_ms": None if after is None else delay_ms("--after", after),
    }
    asked = connect(load_settings(config, sets), api, token_file)
    _change(asked, "reschedule", body, wait, as_json=as_json)


def _change(api: Api, verb: str, body: dict[str, object], wait: str, *, as_json: bool) -> None:
    from delayservice.commands.send import delay_ms

    try:
        with err.status("waiting for what the log says"):
            done = api.send(
                "POST", f"/v1/records/{verb}", {**body, "wait_ms": delay_ms("--wait", wait)}
            )
    except NothingThereError as exc:
        _tell_nothing(str(exc), as_json=as_json)
    if as_json:
        print_json(done)
    else:
        style = "green" if done["outcome"] not in (None, "not_pending") else "yellow"
        say(out, f"{done['outcome'] or 'not known yet'}: {done['detail']}", style)
        say(out, f"written at {', '.join(done['written'])}", "dim")
    if done["outcome"] is None:
        raise typer.Exit(EXIT_NOT_KNOWN)
    if done["outcome"] == "not_pending":
        raise typer.Exit(EXIT_NOTHING)


# --- pause ---------------------------------------------------------------------------------------

_Kind = Annotated[
    Literal["target", "topic"],
    typer.Argument(help="target: deliveries to a target topic. topic: a whole delay topic."),
]
_Name = Annotated[str, typer.Argument(help="The topic; of targets, * and ? stand for any.")]


def pause(
    kind: _Kind,
    name: _Name,
    *,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks.")] = "",
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop deliveries to a target, or a delay topic, on every node, until it is resumed."""
    asked = connect(load_settings(config, sets), api, token_file)
    paused = asked.send("PUT", f"/v1/pauses/{kind}/{name}", {"reason": reason})
    if as_json:
        print_json(paused)
    else:
        say(out, f"{kind} {name} is paused", "yellow")


def resume(
    kind: _Kind,
    name: _Name,
    *,
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with what was paused."""
    asked = connect(load_settings(config, sets), api, token_file)
    try:
        asked.send("DELETE", f"/v1/pauses/{kind}/{name}")
    except NothingThereError as exc:
        _tell_nothing(str(exc), as_json=as_json)
    if as_json:
        print_json({"kind": kind, "name": name})
    else:
        say(out, f"{kind} {name} goes on", "green")


def pauses(
    *,
    api: ApiOption = None,
    token_file: TokenOption = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is paused."""
    found = connect(load_settings(config, sets), api, token_file).get("/v1/pauses")
    if as_json:
        print_json({"pauses": found})
        return
    if not found:
        out.print("nothing is paused", style="dim")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("what", "name", "since", "reason"):
        table.add_column(column, overflow="fold")
    for one in found:
        _add(table, one["kind"], one["name"], _instant(one["at_ms"]), one["reason"])
    out.print(table)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example: [bold]delayservice pending --target 'orders*' --counts[/]")(
        pending
    )
    app.command(epilog=_FOUND)(show)
    app.command(epilog=_CHANGED)(cancel)
    app.command(epilog=_CHANGED)(fire)
    app.command(epilog=_CHANGED)(reschedule)
    app.command(
        epilog="Example: [bold]delayservice pause target 'orders*' --reason 'database move'[/]"
    )(pause)
    app.command(epilog=_FOUND)(resume)
    app.command()(pauses)
