"""The page of a report: its facts as figures, each with a table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connectors.spark.common import plots
from connectors.spark.common.html import BAD, FIRST, SECOND, THIRD, Plot, Table, moment, render
from connectors.spark.common.plots import Series
from connectors.spark.report.facts import (
    HOURS_MAX,
    LATENESS_BOUNDS_MS,
    Count,
    Lateness,
    Load,
    Report,
)
from delayservice.units import format_duration

_LATENESS_COLUMNS: Final = ("records", "early", "p50 ms", "p90 ms", "p99 ms", "max ms")


def page(report: Report) -> str:
    """The report as one HTML file."""
    return render(
        "report.html",
        report=report,
        period=_period(report),
        horizon=format_duration(report.horizon_ms),
        glance=_glance(report),
        lateness_plots=_lateness_plots(report),
        targets=_targets(report),
        load_plots=_load_plots(report),
        count_plots=[
            _counts("Outcomes of records that were not delivered", "outcome", report.outcomes),
            _counts("Dead letters", "code", report.letters, BAD),
        ],
        cursors=_cursors(report),
    )


def _period(report: Report) -> str:
    if report.since_ms is None and report.until_ms is None:
        return "all that the topics hold"
    since = "the beginning" if report.since_ms is None else moment(report.since_ms)
    until = "now" if report.until_ms is None else moment(report.until_ms)
    return f"{since} to {until} (UTC)"


def _glance(report: Report) -> list[tuple[str, object]]:
    whole, waiting = report.whole, report.waiting
    return [
        ("delivered", whole.records),
        ("early", whole.early),
        ("lateness p50, ms", whole.p50_ms),
        ("lateness p99, ms", whole.p99_ms),
        ("lateness max, ms", whole.max_ms),
        ("dead letters", sum(letter.records for letter in report.letters)),
        ("pending", waiting.records),
        ("overdue", waiting.overdue),
    ]


# --- lateness ------------------------------------------------------------------------------------


def _lateness_plots(report: Report) -> list[Plot]:
    return [
        _histogram(report.whole),
        _by_hour(report.hours),
        _by_delay(report.delays),
        _largest(report.targets),
    ]


def _histogram(whole: Lateness) -> Plot:
    names = class_names()
    filled = [number for number, count in enumerate(whole.histogram) if count]
    shown = slice(filled[0], filled[-1] + 1) if filled else slice(1, 2)
    labels, counts = names[shown], whole.histogram[shown]
    caption = "How late deliveries were. Each class ends at its label"
    image = plots.columns(labels, counts, caption, x="lateness", y="records")
    return Plot(f"{caption}.", image, Table(caption, ("lateness", "records"), rows(labels, counts)))


def _by_hour(hours: Sequence[Lateness]) -> Plot:
    caption = "Lateness by the hour in which records were due"
    times_ms = [int(hour.name) for hour in hours]
    series = [
        Series("p50", [hour.p50_ms or 0 for hour in hours], THIRD),
        Series("p99", [hour.p99_ms or 0 for hour in hours], FIRST),
        Series("max", [hour.max_ms or 0 for hour in hours], SECOND),
    ]
    image = plots.lines(times_ms, series, caption, y="ms")
    named = [(moment(int(hour.name)), *_lateness_cells(hour)) for hour in hours]
    note = f"The last {HOURS_MAX} hours." if len(hours) == HOURS_MAX else ""
    table = Table(caption, ("hour (UTC)", *_LATENESS_COLUMNS), named, note)
    return Plot(f"{caption}.", image, table)


def _by_delay(delays: Sequence[Lateness]) -> Plot:
    caption = "Lateness by delay, from a record's writing until it was due"
    labels = [str(delay.name) for delay in delays]
    values = [delay.p99_ms or 0 for delay in delays]
    image = plots.columns(labels, values, caption, x="delay", y="p99, ms")
    table = Table(caption, ("delay", *_LATENESS_COLUMNS), _lateness_rows(delays))
    return Plot(f"{caption}. Unknown: the source record has expired.", image, table)


def _largest(targets: Sequence[Lateness]) -> Plot:
    caption = "Deliveries by target"
    labels = [str(target.name) for target in targets]
    counts = [target.records for target in targets]
    sizes = [target.bytes for target in targets]
    table = Table(caption, ("target", "records", "bytes"), rows(labels, counts, sizes))
    return Plot(f"{caption}.", plots.bars(labels, counts, caption), table)


def _targets(report: Report) -> Table:
    left_out = report.targets_total - len(report.targets)
    return Table(
        "Lateness by target",
        ("target", *_LATENESS_COLUMNS),
        _lateness_rows(report.targets),
        f"{left_out:,} targets with fewer records are in the data set." if left_out > 0 else "",
    )


def _lateness_rows(groups: Sequence[Lateness]) -> list[tuple[object, ...]]:
    return [(group.name, *_lateness_cells(group)) for group in groups]


def _lateness_cells(group: Lateness) -> tuple[object, ...]:
    return (group.records, group.early, group.p50_ms, group.p90_ms, group.p99_ms, group.max_ms)


def class_names() -> list[str]:
    """A name for each class of a histogram of lateness."""
    bounds = [format_duration(bound) if bound else "0" for bound in LATENESS_BOUNDS_MS[1:]]
    return ["early", *bounds, "later"]


# --- load ----------------------------------------------------------------------------------------


def _load_plots(report: Report) -> list[Plot]:
    caption = "Pending records by target"
    labels = [target.name for target in report.pending_targets]
    counts = [target.records for target in report.pending_targets]
    table = Table(caption, ("target", "records"), rows(labels, counts))
    return [
        _forecast(report),
        Plot(f"{caption}.", plots.bars(labels, counts, caption, colour=SECOND), table),
    ]


def _forecast(report: Report) -> Plot:
    step = format_duration(report.step_ms)
    caption = f"Records per second that will be due, in steps of {step}"
    steps = continuous(report.forecast, report.step_ms)
    seconds = report.step_ms / 1_000
    series = [
        Series("fullest second", [load.peak_per_s for load in steps], SECOND),
        Series("mean", [load.records / seconds for load in steps], FIRST, is_filled=True),
    ]
    image = plots.lines([load.start_ms for load in steps], series, caption, y="records/s")
    table = Table(
        caption,
        ("from (UTC)", "records", "bytes", "fullest second"),
        [
            (moment(load.start_ms), load.records, load.bytes, load.peak_per_s)
            for load in report.forecast
        ],
        "Steps without records are left out.",
    )
    return Plot(f"{caption}. What is overdue is in the first one.", image, table)


def continuous(forecast: Sequence[Load], step_ms: int) -> list[Load]:
    """The steps with empty ones between them, so that a line goes to zero there."""
    if not forecast:
        return []
    by_start = {load.start_ms: load for load in forecast}
    starts = range(forecast[0].start_ms, forecast[-1].start_ms + 2 * step_ms, step_ms)
    return [by_start.get(start, Load(start, 0, 0, 0)) for start in starts]


# --- others --------------------------------------------------------------------------------------


def _counts(caption: str, what: str, counts: Sequence[Count], colour: str = FIRST) -> Plot:
    labels = [count.name for count in counts]
    numbers = [count.records for count in counts]
    image = plots.bars(labels, numbers, caption, colour=colour)
    return Plot(f"{caption}.", image, Table(caption, (what, "records"), rows(labels, numbers)))


def _cursors(report: Report) -> Table:
    return Table(
        "Cursors of the shards",
        ("shard", "K (UTC)", "H", "log start", "log end"),
        [
            (s.name, moment(s.later.key[0]), s.later.offset, s.span.start, s.span.end)
            for s in report.cut.shards
        ],
    )


def rows(*columns: Sequence[object]) -> list[tuple[object, ...]]:
    """Columns as rows."""
    return list(zip(*columns, strict=True))
