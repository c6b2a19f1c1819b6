from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from delay_devtools.demo.options import DemoOptions
from delay_devtools.demo.timeline import (
    INSIDE,
    Act,
    Deed,
    Ending,
    ending,
    fences,
    strip,
)
from delay_devtools.nodes import SliceEvent, ownerships
from delay_devtools.shown import show_lateness, show_numbers
from delayservice.smoke.judge import Verdict, counts, lateness

_BUCKETS_MS: Final = (5, 10, 20, 30, 50, 80, 120, 150, 250, 500, 1_000, 2_500, 5_000, 60_000)
_BUCKETS: Final = ("early", *(f"≤ {ms} ms" for ms in _BUCKETS_MS), f"> {_BUCKETS_MS[-1]} ms")
_STRIP_WIDTH: Final = 68
_COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
AROUND_FAILOVER_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class DemoReport:
    options: DemoOptions
    verdict: Verdict
    started_ms: float
    acts: Sequence[Act]
    missed: Sequence[str]
    events: Sequence[SliceEvent]

    @property
    def is_good(self) -> bool:
        return (
            self.verdict.is_good
            and not self.verdict.strangers
            and Ending.SILENT not in self.endings()
        )

    def endings(self) -> list[Ending]:
        return [ending(self.events, act) for act in self.acts if act.deed is Deed.FREEZE]

    def lateness_ms(self, *, around_failovers: bool) -> Counter[int]:
        # A record belongs to a failover (or to a kill of a single node) if its time from due to
        # received overlaps a span: from half a second before a node was killed or frozen until one
        # and a half seconds after all of its slices were served again.
        spans = [
            (act.at_ms - AROUND_FAILOVER_MS / 4, act.served_ms + AROUND_FAILOVER_MS * 3 / 4)
            for act in self.acts
            if act.is_failover
        ]
        return Counter(
            arrival.seen_ms - arrival.due_ms
            for arrival in self.verdict.arrivals
            if any(a <= arrival.seen_ms and arrival.due_ms <= b for a, b in spans)
            == around_failovers
        )

    def numbers(self) -> dict[str, float | None]:
        verdict, acts = self.verdict, self.acts
        late = self.lateness_ms(around_failovers=False)
        around = self.lateness_ms(around_failovers=True)
        kills = [act for act in acts if act.deed is Deed.KILL]
        return {
            **counts(verdict),
            "nodes": self.options.nodes,
            "kills": len(kills),
            "kills_in_open_transaction": sum(act.how == INSIDE for act in kills),
            "freezes": sum(act.deed is Deed.FREEZE for act in acts),
            "fenced": sum(fences(self.events, act) for act in acts),
            "stepped_down": self.endings().count(Ending.STEPPED_DOWN),
            "restarts": sum(act.deed is Deed.RESTART for act in acts),
            "missed": len(self.missed),
            **lateness(late),
            **lateness(around, "lateness_ms_around_restarts"),
        }

    def seconds_in(self, at_ms: float) -> float:
        return round((at_ms - self.started_ms) / 1_000, 1)

    def summary(self, seconds: float) -> dict[str, object]:
        owners = [
            {
                "slice": one.slice_no,
                "at_s": self.seconds_in(one.from_ms),
                "node": one.node_id,
                "epoch": one.epoch,
            }
            for one in ownerships(self.events)
        ]
        return {**self.numbers(), "seconds": round(seconds, 1), "owners": owners}


def show(console: Console, report: DemoReport, seconds: float) -> None:
    _show_histogram(console, report)
    if report.options.has_several:
        _show_strips(console, report)
    _show_acts(console, report)
    for what in report.missed:
        console.print(f"[yellow]did not come off:[/] {escape(what)}", highlight=False)
    found = {**report.numbers(), "seconds": round(seconds, 1)}
    show_numbers(console, f"{report.options.delivery}, {report.options.store} store", found)
    for what, examples in report.verdict.examples.items():
        console.print(f"[bold red]{what}:[/] {'; '.join(examples)}", highlight=False)


# --- lateness ------------------------------------------------------------------------------------


def _show_histogram(console: Console, report: DemoReport) -> None:
    steady = _counts(report.lateness_ms(around_failovers=False))
    around = _counts(report.lateness_ms(around_failovers=True))
    bars = [
        (label, [(at_work, "green"), (late, "yellow")])
        for label, at_work, late in zip(_BUCKETS, steady, around, strict=True)
        if at_work or late
    ]
    show_lateness(console, bars)
    what = "failover" if report.options.has_several else "restart"
    console.print(f"[green]█[/] at work   [yellow]█[/] due around a {what}\n", highlight=False)


def _counts(lateness_ms: Counter[int]) -> list[int]:
    found = [0] * len(_BUCKETS)
    for late_ms, count in lateness_ms.items():
        found[0 if late_ms < 0 else bisect_left(_BUCKETS_MS, late_ms) + 1] += count
    return found


# --- owners --------------------------------------------------------------------------------------


def _show_strips(console: Console, report: DemoReport) -> None:
    found = ownerships(report.events)
    end_ms = max([one.from_ms for one in found], default=report.started_ms) + 1_000
    cell_ms = (end_ms - report.started_ms) / _STRIP_WIDTH
    console.print(
        f"[bold]Owners over time[/]: the number of the node that delivers, · when none does; a "
        f"character is {cell_ms / 1_000:.1f} s",
        highlight=False,
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for slice_no in sorted({one.slice_no for one in found}):
        mine = [one for one in found if one.slice_no == slice_no]
        line = Text()
        for cell in strip(mine, report.acts, (report.started_ms, end_ms), _STRIP_WIDTH):
            line.append(cell, style=_style(cell))
        table.add_row(f"slice {slice_no}", line)
    table.add_row("", Text(_marks(report, cell_ms)))
    console.print(table)
    console.print("K killed  F frozen  W woken  R restarted\n", highlight=False)


def _style(cell: str) -> str:
    return f"bold {_COLOURS[int(cell) % len(_COLOURS)]}" if cell.isdecimal() else "dim"


def _marks(report: DemoReport, cell_ms: float) -> str:
    marks = [" "] * _STRIP_WIDTH
    letters = {Deed.KILL: "K", Deed.FREEZE: "F", Deed.RESTART: "R"}
    moments = [(act.at_ms, letters[act.deed]) for act in report.acts]
    moments += [(act.woken_ms, "W") for act in report.acts if act.woken_ms is not None]
    for at_ms, letter in moments:
        cell = int((at_ms - report.started_ms) / cell_ms)
        marks[min(max(cell, 0), _STRIP_WIDTH - 1)] = letter
    return "".join(marks)


def _show_acts(console: Console, report: DemoReport) -> None:
    if not report.acts:
        return
    table = Table("at", "node", "what", "when", "served in", "woken")
    for act in report.acts:
        table.add_row(
            f"{report.seconds_in(act.at_ms):.1f} s",
            act.node_id,
            act.deed.value,
            act.how,
            f"{(act.served_ms - act.at_ms) / 1_000:.1f} s",
            ending(report.events, act).value if act.deed is Deed.FREEZE else "",
        )
    console.print(table)
