"""Report of a drill."""

from __future__ import annotations

from rich.table import Table

from delay_devtools.drill.judge import DrillVerdict
from delay_devtools.drill.run import Drill
from delayservice.commands.console import err, out, print_json


def show(verdict: DrillVerdict, drill: Drill, *, as_json: bool) -> None:
    """Print a table for people or one JSON object, and the place of kept files."""
    if drill.options.keep:
        err.print(f"kept: {drill.folder}, topics *_drill_{drill.life.names.run}*", markup=False)
    if as_json:
        print_json({**verdict.to_json(), "seed": drill.options.seed})
        return
    table = Table("defect", "injected", "found")
    for kind, count in sorted(verdict.injected.items()):
        style = None if verdict.found[kind] == count else "bold red"
        table.add_row(kind, f"{count:,}", f"{verdict.found[kind]:,}", style=style)
    out.print(table)
    for what, findings in (("missed", verdict.missed), ("invented", verdict.inventions)):
        for finding in findings:
            out.print(f"{what}: {finding}", style="red", markup=False)
    injected, found = verdict.injected.values(), verdict.found.values()
    seconds = sum(verdict.seconds.values())
    out.print(
        f"{sum(found):,} of {sum(injected):,} found, {verdict.invented:,} invented, "
        f"{verdict.records:,} records in {seconds:,.0f} s",
        style="bold green" if verdict.is_good else "bold red",
    )
