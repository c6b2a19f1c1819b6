"""Facts of a report, for ``report.json``, and its page: charts, each with a table of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from connectors.spark.common.cut import Cut
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
from delayservice.config.units import DAY_MS, MINUTE_MS, format_duration

HOUR_MS: Final = 60 * MINUTE_MS

LATENESS_BOUNDS_MS: Final = (
    *(-1, 0, 1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000),
    *(MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS),
)
"""Upper bounds of the classes of lateness, in ms, inclusive; the first class is early deliveries.
After the class of the last bound comes one for later deliveries."""

DELAY_BOUNDS: Final = (
    ("none", 0),
    ("≤ 1 s", 1_000),
    ("≤ 10 s", 10_000),
    ("≤ 1 min", MINUTE_MS),
    ("≤ 10 min", 10 * MINUTE_MS),
    ("≤ 1 h", HOUR_MS),
    ("≤ 6 h", 6 * HOUR_MS),
    ("≤ 1 d", DAY_MS),
    ("≤ 7 d", 7 * DAY_MS),
    ("≤ 30 d", 30 * DAY_MS),
)
DELAY_LONGER: Final = "> 30 d"
DELAY_RECURRING: Final = "recurring"
DELAY_UNKNOWN: Final = "unknown"
DELAYS: Final = (*(name for name, _ in DELAY_BOUNDS), DELAY_LONGER, DELAY_RECURRING, DELAY_UNKNOWN)
"""Names of the classes of delays (times from a record's writing to its due time), or "recurring".
"unknown": the source record is no longer in its log."""

HOURS_MAX: Final = 31 * 24


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of the deliveries of one group (a target, an hour or a class of delays): the time
    from a record's due time to its delivery, or from its writing if it was due by then.

    Attributes:
        name: the target, the hour's start in epoch milliseconds, the class of delays, or ``all``.
        bytes: sum of the bytes of the deliveries' keys and values.
        early, fired: fired records have no lateness, and are not early.
        histogram: number of deliveries in each class of ``LATENESS_BOUNDS_MS``, and of later ones.
    """

    name: str | int
    records: int
    bytes: int
    early: int
    fired: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    max_ms: int | None
    histogram: tuple[int, ...]


NOTHING_LATE: Final = Lateness(
    "all", 0, 0, 0, 0, None, None, None, None, (0,) * (len(LATENESS_BOUNDS_MS) + 1)
)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Pending records due in one step; ``peak_per_s``: largest number in one second of it."""

    start_ms: int
    records: int
    bytes: int
    peak_per_s: int


@dataclass(frozen=True, slots=True)
class PendingTotals:
    """Totals of all pending records. A parked or paced record counts as due at its next attempt.
    ``beyond``: records due after the end of the forecast.
    """

    records: int
    bytes: int
    overdue: int
    beyond: int
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Count:
    """Name of a target or outcome, or code of a dead letter; and its number of records."""

    name: str
    records: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """All facts of a report.

    Attributes:
        since_ms, until_ms: start and exclusive end of the reported period, epoch ms.
        targets: lateness for the targets with the most deliveries, of ``targets_total``.
        hours: lateness by hour of the due time, the last ``HOURS_MAX`` hours with deliveries.
        delays: lateness for each class of delays with any deliveries, in the order of ``DELAYS``.
        forecast: pending records by steps of ``step_ms``; steps without records are left out.
        outcomes: number of records by ``delay-outcome``, also ``fired`` and ``not_pending``.
        letters: number of dead letters by error code.
    """

    since_ms: int | None
    until_ms: int | None
    whole: Lateness
    targets: tuple[Lateness, ...]
    targets_total: int
    hours: tuple[Lateness, ...]
    delays: tuple[Lateness, ...]
    waiting: PendingTotals
    horizon_ms: int
    step_ms: int
    forecast: tuple[LoadStep, ...]
    pending_targets: tuple[Count, ...]
    outcomes: tuple[Count, ...]
    letters: tuple[Count, ...]
    seconds: float
    cut: Cut

    def to_json(self) -> dict[str, object]:
        facts = {name: value for name, value in asdict(self).items() if name != "cut"}
        return {
            "v": 1,
            **facts,
            "lateness_bounds_ms": LATENESS_BOUNDS_MS,
            "cut": self.cut.to_json(),
        }


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
