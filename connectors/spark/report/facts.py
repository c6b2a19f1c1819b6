"""Facts of a report, for ``report.json`` and the page.

*Lateness* is the time from a record's due time to its delivery, or from its writing if it was due
by then.
"""

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
    """Lateness of the deliveries of one group (a target, an hour or a class of delays).

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
