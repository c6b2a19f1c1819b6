"""Benches that store everything and then deliver everything, and the limit: ``whole``, ``burst``,
``passthrough``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

import psutil

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures
from delay_devtools.bench.helper import Helper
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import (
    A_SECOND_MS,
    LOAD_TIMEOUT_S,
    PASSED,
    judge_plan,
    load_and_pass,
    load_plan,
    pass_through,
    verdict_of,
    warm_up,
)
from delay_devtools.bench.passthrough_process import Passed
from delay_devtools.bench.records import Batch
from delay_devtools.bench.sampling import Sampler, busy_until, cpu_s
from delay_devtools.bench.serving import Counters, Serving
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import Verdict
from delayservice.base.errors import DelayServiceError
from delayservice.smoke.progress import Bar

_ALL: Final = "all"
_ATTEMPTS: Final = 3
_US: Final = 1_000_000
_COUNTED_BEFORE_S: Final = 0.3
"""The service's counters are read so long before the first due time."""


class _TooSlowError(DelayServiceError):
    """Records were due before all of them were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a round took of the machine."""

    cpu_s: float
    broker_cpu_s: float
    delivered: Counters
    """What the service counted while it delivered."""
    rss_mib_peak: float
    rss_mib_peak_worker: float

    @property
    def records_per_transaction(self) -> float:
        """Outputs in the mean transaction that carried any."""
        return self.delivered.settled / max(self.delivered.transactions, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Costs):
    """Everything stored, then everything delivered. Times in seconds."""

    names: Names
    batch: Batch
    load_s: float
    ingest_s: float
    deliver_s: float
    verdict: Verdict


def whole(stand: Stand, figures: Figures) -> dict[int, int]:
    """Store everything, then deliver everything; the rate is over both."""
    return _compare(stand, figures, lambda one: one.ingest_s + one.deliver_s)


def burst(stand: Stand, figures: Figures) -> dict[int, int]:
    """All due within the same second; the rate is over the delivery."""
    return _compare(stand, figures, lambda one: one.deliver_s)


def passthrough(stand: Stand, figures: Figures) -> dict[int, int]:
    """The limit alone."""
    n = stand.options.n
    warm_up(stand, n)
    found = [load_and_pass(stand, n) for _ in range(stand.options.rounds)]
    fill_rates(figures, [n / passed.seconds for passed, _ in found])
    fill_passed(figures, n, [passed for passed, _ in found])
    figures.n = n
    figures.transactions = int(median(passed.transactions for passed, _ in found))
    if figures.transactions:
        figures.records_per_transaction = n / figures.transactions
    figures.judge([verdict for _, verdict in found], [])
    return {}


# --- rounds --------------------------------------------------------------------------------------


def _compare(
    stand: Stand, figures: Figures, seconds_of: Callable[[Round], float]
) -> dict[int, int]:
    """The service and passthrough in turn, on the same log each time."""
    n = stand.options.n
    warm_up(stand, n)
    lead_s = 5.0 + n / 40_000 + n * stand.options.size / 40e6
    pairs: list[tuple[Round, Passed]] = []
    verdicts: list[Verdict] = []
    for _ in range(stand.options.rounds):
        one = _round_in_time(stand, lead_s)
        lead_s = 4.0 + 1.5 * (one.load_s + one.ingest_s)
        size = max(round(one.records_per_transaction), 1)
        passed, verdict = pass_through(stand, one.names, one.batch, size)
        pairs.append((one, passed))
        verdicts += [one.verdict, verdict]
    fill_rates(figures, [n / seconds_of(one) for one, _ in pairs])
    fill_ratio(figures, [passed.seconds / seconds_of(one) for one, passed in pairs])
    _fill_rounds(figures, n, [one for one, _ in pairs])
    fill_passed(figures, n, [passed for _, passed in pairs])
    return figures.judge(verdicts, [one.verdict for one, _ in pairs])


def _round_in_time(stand: Stand, lead_s: float) -> Round:
    """A round whose records were all stored before the first was due."""
    for _ in range(_ATTEMPTS):
        try:
            return _round(stand, lead_s)
        except _TooSlowError:
            lead_s *= 2
    raise DelayServiceError(
        f"{stand.options.n} records were not stored within {lead_s / 2:.0f} s, so that they could "
        "not be due together afterwards; give fewer with --n"
    )


def _round(stand: Stand, lead_s: float) -> Round:
    names, batch = stand.round(), stand.batch(stand.options.n)
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (_ALL, PASSED))
            serving = stack.enter_context(stand.service(names, sets))
        due_ms = now_ms() + int(lead_s * 1_000)
        due = Due(due_ms, A_SECOND_MS)
        loading = load_plan(stand, names, _ALL, batch, due, is_hidden=True)
        bar = stand.steps.bar("Loading", batch.n)
        loader = stack.enter_context(stand.helper("load", loading, bar.at))
        loader.tell(wire.GO)
        load_s = loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S).at_s
        judging = judge_plan(stand, names, _ALL, batch, due_ms + 1_000)
        storing, bar = (stand.steps.bar(what, batch.n) for what in ("Storing", "Delivering"))
        judge = stack.enter_context(stand.helper("judge", judging, bar.at))
        scene = _Scene(stand.brokers, batch, due_ms, serving, loader, judge, storing)
        with Sampler(serving.workers) as sampler:
            return scene.measure(names, load_s, sampler)


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything is loaded, nothing is visible yet."""

    brokers: Sequence[psutil.Process]
    batch: Batch
    due_ms: int
    serving: Serving
    loader: Helper
    judge: Helper
    storing: Bar

    def measure(self, names: Names, load_s: float, sampler: Sampler) -> Round:
        """From the moment at which the load becomes visible until the judge has all of it."""
        serving, due_s = self.serving, self.due_ms / 1_000
        used_s, broker_used_s = cpu_s(serving.processes), cpu_s(self.brokers)
        shown_s, stored_s = self._store(sampler)
        wait_s = due_s - _COUNTED_BEFORE_S - time.time()
        if wait_s < 0:
            raise _TooSlowError
        time.sleep(wait_s)
        before = serving.counters()
        self.judge.expect(wire.COMPLETE, timeout_s=LOAD_TIMEOUT_S)
        used_s = cpu_s(serving.processes) - used_s
        broker_used_s = cpu_s(self.brokers) - broker_used_s
        verdict = verdict_of(self.judge)
        return Round(
            names=names,
            batch=self.batch,
            load_s=load_s,
            ingest_s=stored_s - shown_s,
            deliver_s=verdict.last_seen_s - due_s,
            cpu_s=used_s,
            broker_cpu_s=broker_used_s,
            delivered=self._counted(verdict) - before,
            rss_mib_peak=sampler.rss_mib_peak,
            rss_mib_peak_worker=sampler.rss_mib_peak_largest,
            verdict=verdict,
        )

    def _store(self, sampler: Sampler) -> tuple[float, float]:
        """Return when the load became visible and when all of it was stored, epoch seconds."""
        self.loader.tell(wire.SHOW)
        shown_s = self.loader.expect(wire.COMPLETE, timeout_s=LOAD_TIMEOUT_S).at_s
        self.serving.await_count("ingested", self.batch.n, self.storing.at)
        return shown_s, busy_until(sampler.samples, shown_s, time.time())

    def _counted(self, verdict: Verdict) -> Counters:
        """The service's counters, once they are up to date."""
        if verdict.lost:
            return self.serving.counters()
        return self.serving.await_count("settled", self.batch.n)


# --- figures -------------------------------------------------------------------------------------


def fill_rates(figures: Figures, rates: list[float]) -> None:
    """``rates``: records a second, round by round."""
    figures.rounds = len(rates)
    figures.rate_per_s = median(rates)
    figures.rate_per_s_min, figures.rate_per_s_max = min(rates), max(rates)


def fill_ratio(figures: Figures, ratios: list[float]) -> None:
    """``ratios``: of the service's rate to that of passthrough, round by round."""
    figures.ratio = median(ratios)
    figures.ratio_min, figures.ratio_max = min(ratios), max(ratios)


def fill_passed(figures: Figures, n: int, passed: list[Passed]) -> None:
    """Fill in what passthrough took for ``n`` records, round by round."""
    figures.passthrough_per_s = median(n / one.seconds for one in passed)
    figures.passthrough_cpu_us_per_message = median(one.cpu_s for one in passed) / n * _US


def _fill_rounds(figures: Figures, n: int, rounds: list[Round]) -> None:
    figures.ingest_per_s = median(n / one.ingest_s for one in rounds)
    figures.deliver_per_s = median(n / one.deliver_s for one in rounds)
    fill_costs(figures, n, rounds)


def fill_costs(figures: Figures, n: int, rounds: Sequence[Costs]) -> None:
    """Medians over rounds; of memory and aborts the worst and all."""
    figures.n = n
    figures.cpu_us_per_message = median(one.cpu_s for one in rounds) / n * _US
    if rounds[0].broker_cpu_s:
        figures.broker_cpu_us_per_message = median(one.broker_cpu_s for one in rounds) / n * _US
    figures.transactions = int(median(one.delivered.transactions for one in rounds))
    figures.records_per_transaction = median(one.records_per_transaction for one in rounds)
    figures.aborts = sum(one.delivered.aborts for one in rounds)
    figures.rss_mib_peak = max(one.rss_mib_peak for one in rounds)
    figures.rss_mib_peak_worker = max(one.rss_mib_peak_worker for one in rounds)
