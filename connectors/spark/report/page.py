"""Facts of a report, for ``report.json``, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from connectors.spark.common.cut import Cut
from connectors.spark.common.page import (
    Bars,
    HtmlPage,
    PageSection,
    Table,
    moment,
    number,
    write_page,
)
from delayservice.config.units import MINUTE_MS, format_duration

HOUR_MS: Final = 60 * MINUTE_MS

HOURS_MAX: Final = 31 * 24


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of the deliveries of one group (a target or an hour): the time from a record's due
    time to its delivery, or from its writing if it was due by then.

    Attributes:
        name: the target, the hour's start in epoch milliseconds, or ``all``.
        bytes: sum of the bytes of the deliveries' keys and values.
        early, fired: fired records have no lateness, and are not early.
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


NOTHING_LATE: Final = Lateness("all", 0, 0, 0, 0, None, None, None, None)


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
        return {"v": 1, **facts, "cut": self.cut.to_json()}


def page(report: ReportFacts) -> str:
    as_of, whole = moment(report.cut.taken_ms), report.whole
    early = f"{number(whole.early)} records were delivered before their due time"
    letters = sum(letter.records for letter in report.letters)
    return write_page(
        HtmlPage(
            title=f"Delay report, {as_of}",
            heading="Delay report",
            lead=f"As of {as_of} UTC. Deliveries, outcomes and dead letters: {_period(report)}.",
            facts=[
                ("delivered", whole.records),
                *_row(whole)[3:],
                ("dead letters", letters),
                ("pending", report.waiting.records),
                ("overdue", report.waiting.overdue),
            ],
            warnings=[f"{early}. An audit names each of them."] if whole.early else [],
            notes=[f"Not included: {note}." for note in report.cut.notes],
            sections=[_late(report), _load(report), _others(report)],
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


def _late(report: ReportFacts) -> PageSection:
    hours = report.hours
    left_out = report.targets_total - len(report.targets)
    note = f"{left_out:,} targets with fewer records are in the data set." if left_out else ""
    series = {
        name: [getattr(hour, f"{name}_ms") or 0 for hour in hours] for name in ("max", "p99", "p50")
    }
    caption = "Lateness in ms by the hour in which records were due"
    return PageSection(
        "Lateness",
        [
            _table("Lateness by target", Lateness, report.targets, note),
            _table(f"{caption}, the last {HOURS_MAX}", Lateness, hours),
        ],
        "From the due time to the timestamp of the delivered record; of a record that was due when "
        f"it was written, from its writing. {number(report.whole.fired)} fired records have none.",
        Bars(caption, [int(hour.name) for hour in hours], HOUR_MS, series),
    )


def _load(report: ReportFacts) -> PageSection:
    waiting, steps, seconds = report.waiting, report.forecast, report.step_ms / 1_000
    last = "" if waiting.last_ms is None else f", the last at {moment(waiting.last_ms)} UTC"
    caption = f"Records per second that will be due, in steps of {format_duration(report.step_ms)}"
    series = {
        "fullest second": [float(load.peak_per_s) for load in steps],
        "mean": [load.records / seconds for load in steps],
    }
    return PageSection(
        "Load to come",
        [
            _table("Pending records by target", Count, report.pending_targets),
            _table("Due in each step; the first has what is overdue", LoadStep, steps),
        ],
        f"{number(waiting.records)} records with {number(waiting.bytes)} bytes are pending: "
        f"{number(waiting.overdue)} overdue, {number(waiting.beyond)} due after the next "
        f"{format_duration(report.horizon_ms)}{last}. Of a recurring schedule only the next "
        "occurrence is pending.",
        Bars(caption, [load.start_ms for load in steps], report.step_ms, series),
    )


def _others(report: ReportFacts) -> PageSection:
    return PageSection(
        "Outcomes and dead letters",
        [
            _table("Outcomes in the outcomes topic", Count, report.outcomes),
            _table("Dead letters by code", Count, report.letters),
        ],
    )


def _table(caption: str, kind: type[Any], items: Sequence[Any], note: str = "") -> Table:
    rows = [[value for _, value in _row(item)] for item in items]
    columns = tuple(one.name.replace("_", " ") for one in fields(kind))
    return Table(caption, columns, rows, note)


def _row(item: Any) -> list[tuple[str, object]]:  # noqa: ANN401  # one of the facts above
    # Fields by name; the start of a step and the name of an hour are times.
    found = []
    for one in fields(item):
        value = getattr(item, one.name)
        is_time = isinstance(value, int) and one.name in ("name", "start_ms")
        found.append((one.name.replace("_", " "), moment(value) if is_time else value))
    return found
