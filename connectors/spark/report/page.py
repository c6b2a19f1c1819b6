"""Makes the page of a report: its facts as charts, each with a table of the same data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connectors.spark.common.page import (
    BAD,
    FIRST,
    SECOND,
    Chart,
    HtmlPage,
    PageSection,
    Table,
    bars,
    lines,
    moment,
    number,
    write_page,
)
from connectors.spark.report.facts import (
    HOURS_MAX,
    LATENESS_BOUNDS_MS,
    Count,
    Lateness,
    LoadStep,
    ReportFacts,
)
from delayservice.config.units import format_duration

_LATENESS_COLUMNS: Final = ("records", "early", "p50 ms", "p90 ms", "p99 ms", "max ms")
_P99: Final = 5


def page(report: ReportFacts) -> str:
    as_of = moment(report.cut.taken_ms)
    early = f"{number(report.whole.early)} records were delivered before their due time"
    warnings = [f"{early}. An audit names each of them."] if report.whole.early else []
    return write_page(
        HtmlPage(
            title=f"Delay report, {as_of}",
            heading="Delay report",
            lead=f"As of {as_of} UTC. Deliveries, outcomes and dead letters: {_period(report)}.",
            facts=_glance(report),
            warnings=[*warnings, *(f"Not included: {note}." for note in report.cut.notes)],
            sections=[_lateness(report), _load(report), _others(report), _cursors(report)],
            footer=f"Counted by Spark in {report.seconds} s. All groups are in the data sets "
            "lateness and forecast beside this page, and in report.json.",
        )
    )


def _period(report: ReportFacts) -> str:
    if report.since_ms is None and report.until_ms is None:
        return "all that the topics hold"
    since = "the beginning" if report.since_ms is None else moment(report.since_ms)
    until = "now" if report.until_ms is None else moment(report.until_ms)
    return f"{since} to {until} (UTC)"


def _glance(report: ReportFacts) -> list[tuple[str, object]]:
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


def _lateness(report: ReportFacts) -> PageSection:
    targets = report.targets
    sizes = [(target.name, target.records, target.bytes) for target in targets]
    left_out = report.targets_total - len(targets)
    note = f"{left_out:,} targets with fewer records are in the data set." if left_out > 0 else ""
    return PageSection(
        "Lateness",
        "From the due time to the timestamp of the delivered record; of a record that was due when "
        f"it was written, from its writing. {number(report.whole.fired)} fired records have none.",
        [
            _histogram(report.whole),
            _by_hour(report.hours),
            bars(
                "Lateness by delay, from a record's writing until it was due",
                ("delay", *_LATENESS_COLUMNS),
                _rows(report.delays),
                value=_P99,
                note="Unknown: the source record has expired.",
            ),
            bars("Deliveries by target", ("target", "records", "bytes"), sizes),
        ],
        [Table("Lateness by target", ("target", *_LATENESS_COLUMNS), _rows(targets), note)],
    )


def _histogram(whole: Lateness) -> Chart:
    filled = [number for number, count in enumerate(whole.histogram) if count]
    shown = slice(filled[0], filled[-1] + 1) if filled else slice(1, 2)
    rows = list(zip(class_names()[shown], whole.histogram[shown], strict=True))
    note = "Each class ends at its label."
    return bars("How late deliveries were", ("lateness", "records"), rows, note=note)


def _by_hour(hours: Sequence[Lateness]) -> Chart:
    rows = [(moment(int(hour.name)), *_cells(hour)) for hour in hours]
    note = f"The last {HOURS_MAX} hours." if len(hours) == HOURS_MAX else ""
    columns = ("hour (UTC)", *_LATENESS_COLUMNS)
    series = {
        "p99": [hour.p99_ms or 0 for hour in hours],
        "max": [hour.max_ms or 0 for hour in hours],
        "p50": [hour.p50_ms or 0 for hour in hours],
    }
    table = Table("Lateness by the hour in which records were due", columns, rows, note)
    return lines(table, [int(hour.name) for hour in hours], series, "ms")


def _rows(groups: Sequence[Lateness]) -> list[tuple[object, ...]]:
    return [(group.name, *_cells(group)) for group in groups]


def _cells(group: Lateness) -> tuple[object, ...]:
    return (group.records, group.early, group.p50_ms, group.p90_ms, group.p99_ms, group.max_ms)


def class_names() -> list[str]:
    """Return a name for each class of ``Lateness.histogram``, from "early" to "later"."""
    bounds = [format_duration(bound) if bound else "0" for bound in LATENESS_BOUNDS_MS[1:]]
    return ["early", *bounds, "later"]


def _load(report: ReportFacts) -> PageSection:
    waiting, horizon = report.waiting, format_duration(report.horizon_ms)
    last = "" if waiting.last_ms is None else f", the last at {moment(waiting.last_ms)} UTC"
    return PageSection(
        "Load to come",
        f"{number(waiting.records)} records with {number(waiting.bytes)} bytes are pending: "
        f"{number(waiting.overdue)} overdue, {number(waiting.beyond)} due after the next {horizon}"
        f"{last}. Of a recurring schedule only the next occurrence is pending.",
        [
            _forecast(report),
            _counts("Pending records by target", "target", report.pending_targets, SECOND),
        ],
    )


def _forecast(report: ReportFacts) -> Chart:
    steps, seconds = continuous(report.forecast, report.step_ms), report.step_ms / 1_000
    table = Table(
        f"Records per second that will be due, in steps of {format_duration(report.step_ms)}",
        ("from (UTC)", "records", "bytes", "fullest second"),
        [(moment(o.start_ms), o.records, o.bytes, o.peak_per_s) for o in report.forecast],
        "What is overdue is in the first step. Steps without records are left out of the table.",
    )
    series: dict[str, list[float]] = {
        "mean": [load.records / seconds for load in steps],
        "fullest second": [load.peak_per_s for load in steps],
    }
    return lines(table, [load.start_ms for load in steps], series, "records/s")


def continuous(forecast: Sequence[LoadStep], step_ms: int) -> list[LoadStep]:
    # Empty steps stand for missing ones, and one after the last lets the chart's line drop to zero.
    if not forecast:
        return []
    by_start = {load.start_ms: load for load in forecast}
    starts = range(forecast[0].start_ms, forecast[-1].start_ms + 2 * step_ms, step_ms)
    return [by_start.get(start, LoadStep(start, 0, 0, 0)) for start in starts]


def _others(report: ReportFacts) -> PageSection:
    charts = [
        _counts("Outcomes in the outcomes topic", "outcome", report.outcomes),
        _counts("Dead letters", "code", report.letters, BAD),
    ]
    return PageSection("Outcomes and dead letters", charts=charts)


def _counts(caption: str, what: str, counts: Sequence[Count], colour: str = FIRST) -> Chart:
    rows = [(count.name, count.records) for count in counts]
    return bars(caption, (what, "records"), rows, colour=colour)


def _cursors(report: ReportFacts) -> PageSection:
    rows = [
        (s.name, moment(s.later.key[0]), s.later.offset, s.span.start, s.span.end)
        for s in report.cut.shards
    ]
    columns = ("shard", "K (UTC)", "H", "log start", "log end")
    return PageSection("What was read", tables=[Table("Cursors of the shards", columns, rows)])
