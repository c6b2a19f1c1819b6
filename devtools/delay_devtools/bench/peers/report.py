from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from rich.table import Table

from delay_devtools.bench.figures import quantile
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.shown import WRONG
from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import out

_COLUMNS: Final = (
    *("system", "round", "n", "lost", "duplicated", "early", "altered", "resent"),
    *("lateness_ms_p50", "lateness_ms_p99", "lateness_ms_max"),
)
_SIZE_INCHES: Final = (9, 4)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one round, ``undisturbed`` or ``killed`` (while messages were sent). ``resent``:
    repeated attempts to send; ``restart_s``: time from the kill until the servers listened again.
    """

    system: str
    setup: str
    round: str
    verdict: BenchVerdict
    resent: int | None = None
    restart_s: float | None = None

    @property
    def is_good(self) -> bool:
        return not any(getattr(self.verdict, name) for name in WRONG)


def as_object(found: Result) -> dict[str, object]:
    verdict = found.verdict
    late = verdict.lateness_ms
    return {
        "system": found.system,
        "setup": found.setup,
        "round": found.round,
        "n": verdict.n,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "early": verdict.early,
        "early_ms_max": max(0, -min(late, default=0)),
        "altered": verdict.altered,
        "strangers": verdict.strangers,
        "resent": found.resent,
        "restart_s": found.restart_s,
        "lateness_ms_p50": quantile(late, 0.5),
        "lateness_ms_p99": quantile(late, 0.99),
        "lateness_ms_max": quantile(late, 1.0),
    }


def table(results: Sequence[Result]) -> Table:
    made = Table(title="One schedule, one judge, one system after the other")
    for name in _COLUMNS:
        made.add_column(
            name.removeprefix("lateness_"), justify="left" if name in _COLUMNS[:2] else "right"
        )
    for found in results:
        row = as_object(found)
        made.add_row(*(_cell(name, row[name]) for name in _COLUMNS))
    return made


def _cell(name: str, value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value if value is not None else "—")
    return f"[bold red]{text}[/]" if name in WRONG and value else text


def show(results: Sequence[Result]) -> None:
    out.print(table(results))
    for system, setup in {found.system: found.setup for found in results}.items():
        out.print(f"{system}: {setup}", highlight=False)


def share_by_lateness(late: Mapping[int, int]) -> tuple[list[int], list[float]]:
    times = sorted(late)
    total = sum(late.values())
    return times, [100 * below / total for below in accumulate(late[time] for time in times)]


def plot(results: Sequence[Result], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 (comes with the extra `spark` only)

    rounds = list(dict.fromkeys(found.round for found in results))
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    panels = figure.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
    for name, panel in zip(rounds, panels, strict=True):
        for found in results:
            late = found.verdict.lateness_ms
            if found.round == name and late:
                panel.step(*share_by_lateness(late), label=found.system, where="post")
        panel.set_xscale("symlog", linthresh=10)
        panel.set(title=name, xlabel="lateness in ms, negative: early", ylim=(0, 101))
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("messages delivered by then, %")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper center", ncols=len(labels))
    try:
        figure.savefig(path)
    except (OSError, ValueError) as exc:
        raise DelayServiceError(f"the plot was not written to {path}: {exc}") from exc
