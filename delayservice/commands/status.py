"""``delayservice status``: the state that a running node reports."""

from __future__ import annotations

import http.client
import time

import pydantic
from rich.table import Table

from delayservice.base.errors import DelayServiceError
from delayservice.commands.api import reachable
from delayservice.commands.console import instant, out
from delayservice.contract.codes import printable
from delayservice.metrics.status import NodeState, Pause, SliceState, TargetState

TIMEOUT_S = 5.0


def fetch(address: str) -> NodeState:
    """Return the state of the node that listens on ``host:port``."""
    host, _, port = reachable(address).rpartition(":")
    if not host or not port.isdecimal():
        raise DelayServiceError(f"{address!r} is no address: write host:port")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/status")
        body = connection.getresponse().read()
    except (OSError, http.client.HTTPException) as exc:
        raise DelayServiceError(
            f"no node answers on {address}: {exc}; is it running, and is that its metrics.listen?"
        ) from exc
    finally:
        connection.close()
    try:
        return NodeState.model_validate_json(body)
    except pydantic.ValidationError as exc:
        raise DelayServiceError(f"what answers on {address} is no node of this version") from exc


def show(status: NodeState) -> None:
    health = "[green]healthy[/]" if status.healthy else "[bold red]not healthy[/]"
    out.print(
        f"node [bold]{status.node_id}[/]  version {status.version}  "
        f"up {_seconds(status.uptime_s)}  workers {len(status.workers)}  {health}"
    )
    for problem in status.problems:
        out.print(f"  {problem}", style="red", markup=False)
    if status.pinned:
        out.print(f"  owners are pinned {status.pinned}", style="yellow", markup=False)
    for pause in status.paused:
        out.print(f"  {_paused(pause)}", style="yellow", markup=False)
    if status.paused_others:
        out.print(
            f"  {status.paused_others:,} more pauses: see delayservice pauses", style="yellow"
        )
    for target in [one for one in status.targets if one.parked]:
        out.print(f"  {_parked(target)}", style="yellow", markup=False)
    out.print(f"  {_counted(status)}", markup=False)
    if status.slices:
        out.print(_table(status.slices))


def _counted(status: NodeState) -> str:
    settled = ", ".join(f"{count:,} {name}" for name, count in sorted(status.settled.items()))
    late = [_milliseconds(ms) for ms in (status.lateness_ms_p50, status.lateness_ms_p99)]
    return (
        f"since its start: {status.ingested:,} stored; {settled or 'nothing settled'}; "
        f"lateness p50 {late[0]}, p99 {late[1]}"
    )


def _paused(pause: Pause) -> str:
    reason = f": {pause.reason}" if pause.reason else ""
    since = instant(pause.at_ms, to="minutes")
    return printable(f"{pause.kind} {pause.name} is paused since {since}{reason}")


def _parked(target: TargetState) -> str:
    return f"{target.parked:,} records of {target.topic} for target {target.target} are parked"


def _table(slices: list[SliceState]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("slice", "worker"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("epoch", justify="right")
    for name in ("pending", "stored", "lag", "next due"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in slices:
        table.add_row(
            str(row.slice),
            str(row.worker),
            row.state if not row.alarm else f"{row.state} !",
            str(row.epoch or "-"),
            f"{row.pending:,}",
            f"{row.stored:,}",
            f"{row.source_lag:,}",
            _due(row.oldest_due_ms),
        )
    return table


def _due(due_ms: int | None) -> str:
    if due_ms is None:
        return "-"
    ahead_s = due_ms / 1_000 - time.time()
    if abs(ahead_s) < 86_400:  # noqa: PLR2004 (within a day a person thinks in "in how long")
        return f"in {_seconds(ahead_s)}" if ahead_s >= 0 else f"{_seconds(-ahead_s)} ago"
    return instant(due_ms, to="minutes")


def _seconds(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _milliseconds(value: int | None) -> str:
    return "-" if value is None else f"≤{value} ms"
