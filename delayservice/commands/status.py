"""``delayservice status``: the state that a running node reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pydantic

from delayservice.base.errors import DelayServiceError
from delayservice.commands.api import Api, ApiOptions
from delayservice.commands.console import (
    EXIT_FINDINGS,
    emit,
    from_now,
    instant,
    out,
    say,
    show_table,
    span,
)
from delayservice.commands.options import now_ms
from delayservice.metrics.status import NodeState, Pause, SliceState

_COLUMNS: Final = ("slice", "worker", "state", "epoch", "pending", "stored", "lag", "next due")
# A node counts its records once a second: what has come due since then may be delivered.
_COUNTED_MS: Final = 2_000


def run(common: ApiOptions) -> int:
    found = fetch(common.connect())
    emit(found.model_dump(), lambda: show(found), as_json=common.as_json)
    return 0 if found.healthy else EXIT_FINDINGS


def fetch(api: Api) -> NodeState:
    try:
        return NodeState.model_validate(api.get("/v1/node"))
    except pydantic.ValidationError as exc:
        raise DelayServiceError(f"{api.address} is no node of this version") from exc


def show(status: NodeState) -> None:
    health = "[green]healthy[/]" if status.healthy else "[bold red]not healthy[/]"
    out.print(
        f"node [bold]{status.node_id}[/]  version {status.version}  "
        f"up {span(1_000 * status.uptime_s)}  workers {len(status.workers)}  {health}"
    )
    for problem in status.problems:
        say(out, f"  {problem}", "red")
    for notice in _notices(status):
        say(out, f"  {notice}", "yellow")
    out.print(f"  {_counted(status)}", markup=False)
    if status.slices:
        show_table(_COLUMNS, map(_cells, status.slices))


def _notices(status: NodeState) -> Iterator[str]:
    if status.pinned:
        yield f"owners are pinned {status.pinned}"
    yield from map(_paused, status.paused)
    if status.paused_others:
        yield f"{status.paused_others:,} more pauses: see delayservice pause list"
    for one in status.targets:
        if one.parked:
            yield f"{one.parked:,} records of {one.topic} for target {one.target} are parked"


def _counted(status: NodeState) -> str:
    settled = ", ".join(f"{count:,} {name}" for name, count in sorted(status.settled.items()))
    p50, p99 = (_lateness(ms) for ms in (status.lateness_ms_p50, status.lateness_ms_p99))
    settled = settled or "nothing settled"
    return f"since its start: {status.ingested:,} stored; {settled}; lateness p50 {p50}, p99 {p99}"


def _paused(pause: Pause) -> str:
    reason = f": {pause.reason}" if pause.reason else ""
    since = instant(pause.at_ms, to="minutes") + (f" by {pause.by}" if pause.by else "")
    return f"{pause.kind} {pause.name} is paused since {since}{reason}"


def _cells(row: SliceState) -> list[object]:
    state = f"{row.state} !" if row.alarm else row.state
    counts = (row.epoch or None, row.pending, row.stored, row.source_lag)
    return [row.slice, row.worker, state, *counts, _next_due(row.oldest_due_ms)]


def _next_due(due_ms: int | None) -> str | None:
    if due_ms is None:
        return None
    return "now" if 0 <= now_ms() - due_ms <= _COUNTED_MS else from_now(due_ms)


def _lateness(ms: int | None) -> str:
    return "-" if ms is None else f"≤ {span(ms)}"
