"""Results of the bench ``peers``: JSON for programs; a table and a plot for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one round (one load) of one system.

    Attributes:
        system: name and version of the system.
        setup: running servers and settings other than defaults.
        round: ``undisturbed`` or ``killed`` (the servers were killed while messages were sent).
        n: messages that were sent and acknowledged.
        lost: messages that never arrived.
        duplicated: messages that arrived more than once.
        early: messages that arrived before their due time.
        early_ms_max: largest time before the due time, in ms.
        altered: messages that arrived with another key or value.
        strangers: messages that arrived and were not sent.
        resent: number of repeated attempts to send; None: the client does not count them.
        restart_s: time from the kill until the servers listened again; None: no kill.
        lateness_ms_p50: median of the lateness in ms; this and the next two: None if no message
            arrived.
        lateness_ms_p99: 99 % quantile of the lateness in ms.
        lateness_ms_max: largest lateness in ms.
        lateness_ms: number of messages by lateness in ms.
    """

    system: str
    setup: str
    round: str
    n: int
    lost: int
    duplicated: int
    early: int
    early_ms_max: int
    altered: int
    strangers: int
    resent: int | None
    restart_s: float | None
    lateness_ms_p50: int | None
    lateness_ms_p99: int | None
    lateness_ms_max: int | None
    lateness_ms: Mapping[int, int]

    @property
    def is_good(self) -> bool:
        """Return whether each message arrived once, not early, and unchanged, and no others
        arrived.
        """
        return not any(getattr(self, name) for name in WRONG)


def result(
    system: str,
    setup: str,
    round_: str,
    verdict: BenchVerdict,
    *,
    resent: int | None = None,
    restart_s: float | None = None,
) -> Result:
    """Return the result of one round of one system, with counts and lateness from ``verdict``; the
    other arguments are the fields of ``Result``.
    """
    late = verdict.lateness_ms
    return Result(
        system=system,
        setup=setup,
        round=round_,
        early_ms_max=max(0, -min(late, default=0)),
        resent=resent,
        restart_s=restart_s,
        lateness_ms_p50=quantile(late, 0.5),
        lateness_ms_p99=quantile(late, 0.99),
        lateness_ms_max=quantile(late, 1.0),
        lateness_ms=late,
        n=verdict.n,
        **{name: getattr(verdict, name) for name in WRONG},
    )


def as_object(found: Result) -> dict[str, object]:
    """Return the JSON object of a result, without ``lateness_ms``."""
    return {name: value for name, value in asdict(found).items() if name != "lateness_ms"}


def table(results: Sequence[Result]) -> Table:
    """Return a table with a row for each result; counts of errors above 0 are red."""
    made = Table(title="One schedule, one judge, one system after the other")
    for name in _COLUMNS:
        made.add_column(
            name.removeprefix("lateness_"), justify="left" if name in _COLUMNS[:2] else "right"
        )
    for found in results:
        made.add_row(*(_cell(name, getattr(found, name)) for name in _COLUMNS))
    return made


def _cell(name: str, value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value if value is not None else "—")
    return f"[bold red]{text}[/]" if name in WRONG and value else text


def show(results: Sequence[Result]) -> None:
    """Print to standard output the table of results, and the setup of each system."""
    out.print(table(results))
    for system, setup in {found.system: found.setup for found in results}.items():
        out.print(f"{system}: {setup}", highlight=False)


def share_by_lateness(late: Mapping[int, int]) -> tuple[list[int], list[float]]:
    """Return the lateness values of ``late`` (number of messages by lateness in ms), ascending, and
    for each the percentage of messages that were no later.
    """
    times = sorted(late)
    total = sum(late.values())
    return times, [100 * below / total for below in accumulate(late[time] for time in times)]


def plot(results: Sequence[Result], path: Path) -> None:
    """Write a picture with a panel for each round to ``path``: share of delivered messages over
    lateness, a line for each system. The suffix of ``path`` selects the format.

    Raises:
        DelayServiceError: the file can't be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 (comes with the extra `spark` only)

    rounds = list(dict.fromkeys(found.round for found in results))
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    panels = figure.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
    for name, panel in zip(rounds, panels, strict=True):
        for found in results:
            if found.round == name and found.lateness_ms:
                panel.step(*share_by_lateness(found.lateness_ms), label=found.system, where="post")
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
