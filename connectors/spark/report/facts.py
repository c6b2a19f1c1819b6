"""The facts of a report, as ``report.json`` holds them and the page shows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from connectors.spark.common.cut import Cut
from delayservice.config.units import DAY_MS, MINUTE_MS

HOUR_MS: Final = 60 * MINUTE_MS

LATENESS_BOUNDS_MS: Final = (
    *(-1, 0, 1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000),
    *(MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS),
)
"""Upper bounds of the classes of lateness, inclusive; the first is what was early."""

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
"""Classes of delays, from writing to being due; unknown: the source record has expired."""

HOURS_MAX: Final = 31 * 24
"""Hours that are shown."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of the deliveries of one group; a record that was due when it was written counts
    from its writing.

    Attributes:
        name: the target, the hour's start in epoch milliseconds, or the class of delays.
        records: how many.
        early: those before their due time that were not fired.
        p50_ms: with the others, quantiles of lateness; None when all were fired.
        histogram: how many in each class of ``LATENESS_BOUNDS_MS``, and later.
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
"""Of no deliveries."""


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Pending records of one step of time; ``peak_per_s``: in its fullest second."""

    start_ms: int
    records: int
    bytes: int
    peak_per_s: int


@dataclass(frozen=True, slots=True)
class PendingTotals:
    """Pending records in all."""

    records: int
    bytes: int
    overdue: int
    beyond: int
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Count:
    """A name and its number."""

    name: str
    records: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that the page shows.

    Attributes:
        whole: of all deliveries.
        targets: the largest ones; ``targets_total`` says how many there are.
        hours: the last ``HOURS_MAX`` hours in which records were due, ascending.
        delays: classes that hold any, in the order of ``DELAYS``.
        forecast: steps of ``step_ms`` that hold any, ascending.
        pending_targets: where most of it goes.
        outcomes: of records that were not delivered, by kind.
        letters: dead letters by code.
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
        """Return the content of ``report.json``."""
        facts = {name: value for name, value in asdict(self).items() if name != "cut"}
        return {
            "v": 1,
            **facts,
            "lateness_bounds_ms": LATENESS_BOUNDS_MS,
            "cut": self.cut.to_json(),
        }
