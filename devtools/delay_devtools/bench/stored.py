"""The benches ``whole``, ``burst`` and ``level``, in rounds that are each followed by a copy of the
same records without the service (passthrough); and the bench ``passthrough`` alone.

The records of a round are written in one transaction, so that consumers see all at its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import US, Figures
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import (
    A_SECOND_MS,
    PASSED,
    judge_plan,
    load_and_pass,
    load_plan,
    pass_through,
    warm_up,
)
from delay_devtools.bench.passthrough_process import PassthroughCost
from delay_devtools.bench.sampling import Sampler, busy_until, cpu_s
from delay_devtools.bench.stand import Names, ServiceCounters, Stand, now_ms
from delay_devtools.bench.tally import Batch, BenchVerdict
from delay_devtools.bench.wire import Helper
from delayservice.base.errors import DelayServiceError

_ALL: Final = "all"
_ATTEMPTS: Final = 3
_LEVEL_MS: Final = 1_000
# Time before the first due time at which the service's counters are read, in s.
_COUNTED_BEFORE_S: Final = 0.3


class _TooSlowError(DelayServiceError):
    """Some records of a round were due before all were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """Results of a round that stored and delivered a load. Times in seconds.

    Attributes:
        load_s: time until all records were written, in a transaction that is still open.
        ingest_s: time from the commit of that transaction until all were stored; 0 for ``level``,
            which stores no records.
        deliver_s: time from the first due time (for ``level``: from the commit) until the last
            record was received.
    """

    names: Names
    batch: Batch
    load_s: float
    ingest_s: float
    deliver_s: float
    cpu_s: float
    broker_cpu_s: float
    delivered: ServiceCounters
    sampler: Sampler
    verdict: BenchVerdict

    @property
    def records_per_transaction(self) -> float:
        return self.delivered.settled / max(self.delivered.transactions, 1)


def whole(stand: Stand, figures: Figures) -> dict[int, int]:
    """Measure rounds in which a load is stored and then delivered."""
    return _compare_stored(stand, figures, lambda one: one.ingest_s + one.deliver_s)


def burst(stand: Stand, figures: Figures) -> dict[int, int]:
    """Measure the delivery of stored records that are due within one second."""
    return _compare_stored(stand, figures, lambda one: one.deliver_s)


def level(stand: Stand, figures: Figures) -> dict[int, int]:
    """Measure a level topic whose records become visible to consumers when all are due."""
    rounds = (_leveled_round(stand) for _ in range(stand.options.rounds))
    _compare(stand, figures, rounds, lambda one: one.deliver_s)
    return {}


def passthrough(stand: Stand, figures: Figures) -> dict[int, int]:
    # The rate is an upper limit for the service.
    n = stand.options.n
    warm_up(stand, n)
    found = [load_and_pass(stand, n) for _ in range(stand.options.rounds)]
    _fill_rates(figures, [n / passed.seconds for passed, _ in found])
    _fill_passed(figures, n, [passed for passed, _ in found])
    figures.n = n
    figures.transactions = int(median(passed.transactions for passed, _ in found))
    if figures.transactions:
        figures.records_per_transaction = n / figures.transactions
    figures.judge([verdict for _, verdict in found], [])
    return {}


# --- rounds --------------------------------------------------------------------------------------


def _compare_stored(
    stand: Stand, figures: Figures, seconds_of: Callable[[_Round], float]
) -> dict[int, int]:
    rounds = _compare(stand, figures, _stored_rounds(stand), seconds_of)
    n = stand.options.n
    figures.ingest_per_s = median(n / one.ingest_s for one in rounds)
    figures.deliver_per_s = median(n / one.deliver_s for one in rounds)
    return figures.take_lateness([one.verdict for one in rounds])


def _compare(
    stand: Stand, figures: Figures, rounds: Iterable[_Round], seconds_of: Callable[[_Round], float]
) -> list[_Round]:
    n = stand.options.n
    warm_up(stand, n)
    found: list[_Round] = []
    passes: list[tuple[PassthroughCost, BenchVerdict]] = []
    for one in rounds:
        found.append(one)
        size = max(round(one.records_per_transaction), 1)
        passes.append(pass_through(stand, one.names, one.batch, size))
    took = [(passed, seconds_of(one)) for one, (passed, _) in zip(found, passes, strict=True)]
    _fill_rates(figures, [n / seconds for _, seconds in took])
    ratios = [passed.seconds / seconds for passed, seconds in took]
    figures.ratio, figures.ratio_min, figures.ratio_max = median(ratios), min(ratios), max(ratios)
    _fill_costs(figures, n, found)
    _fill_passed(figures, n, [passed for passed, _ in passes])
    figures.judge([one.verdict for one in found] + [verdict for _, verdict in passes], [])
    return found


def _stored_rounds(stand: Stand) -> Iterator[_Round]:
    options = stand.options
    lead_s = 5.0 + options.n / 40_000 + options.n * options.size / 40e6
    for _ in range(options.rounds):
        one = _round_in_time(stand, lead_s)
        lead_s = 4.0 + 1.5 * (one.load_s + one.ingest_s)
        yield one


def _round_in_time(stand: Stand, lead_s: float) -> _Round:
    for _ in range(_ATTEMPTS):
        try:
            return _stored_round(stand, lead_s)
        except _TooSlowError:
            lead_s *= 2
    raise DelayServiceError(
        f"{stand.options.n} records were not stored within {lead_s / 2:.0f} s, so that they could "
        "not be due together afterwards; give fewer with --n"
    )


def _stored_round(stand: Stand, lead_s: float) -> _Round:
    with ExitStack() as stack:
        scene = _Scene(stand, stand.round(), _ALL, stack)
        due_ms = now_ms() + int(lead_s * 1_000)
        scene.load(Due(due_ms, A_SECOND_MS), due_ms + A_SECOND_MS)
        due_s = due_ms / 1_000
        with scene.measured() as sampler:
            storing = stand.steps.bar("Storing", scene.batch.n)
            shown_s = scene.loader.show()
            scene.serving.await_count("ingested", scene.batch.n, storing.at)
            stored_s = busy_until(sampler.samples, shown_s, time.time())
            wait_s = due_s - _COUNTED_BEFORE_S - time.time()
            if wait_s < 0:
                raise _TooSlowError
            time.sleep(wait_s)
            scene.before = scene.serving.counters()
            return scene.finish(sampler, due_s, stored_s - shown_s)


def _leveled_round(stand: Stand) -> _Round:
    with ExitStack() as stack:
        scene = _Scene(stand, stand.round(_LEVEL_MS), "leveled", stack)
        scene.load(Due(after_ms=_LEVEL_MS))
        time.sleep(_LEVEL_MS / 1_000)  # then all are due, and still invisible
        scene.before = scene.serving.counters()
        with scene.measured() as sampler:
            return scene.finish(sampler, scene.loader.show())


class _Scene:
    """Round in progress; consumers do not see the load's records at first."""

    def __init__(self, stand: Stand, names: Names, target: str, stack: ExitStack) -> None:
        sets = stand.create(names, (target, PASSED))
        self.serving = stack.enter_context(stand.service(names, sets))
        self.batch = stand.batch(stand.options.n)
        self.loader: Helper
        self.before = ServiceCounters()
        self._stand = stand
        self._names = names
        self._target = target
        self._stack = stack
        self._judge: Helper
        self._load_s = 0.0
        self._used_s = (0.0, 0.0)

    def load(self, due: Due, last_due_ms: int = 0) -> None:
        stand, n = self._stand, self.batch.n
        plan = load_plan(stand, self._names, self._target, self.batch, due, is_hidden=True)
        helper = stand.helper("load", plan, stand.steps.bar("Loading", n).at)
        self.loader = self._stack.enter_context(helper)
        self._load_s = self.loader.work().at_s
        last_due_ms = last_due_ms or now_ms() + due.after_ms
        judging = judge_plan(stand, self._names, self._target, self.batch, last_due_ms)
        helper = stand.helper("judge", judging, stand.steps.bar("Delivering", n).at)
        self._judge = self._stack.enter_context(helper)

    @contextmanager
    def measured(self) -> Iterator[Sampler]:
        with Sampler(self.serving.workers) as sampler:
            self._used_s = self._cpu_s()
            yield sampler

    def _cpu_s(self) -> tuple[float, float]:
        return cpu_s(self.serving.processes), cpu_s(self._stand.brokers)

    def finish(self, sampler: Sampler, start_s: float, ingest_s: float = 0.0) -> _Round:
        self._judge.expect(wire.COMPLETE)
        used_s, broker_used_s = self._cpu_s()
        verdict = self._judge.result(wire.DONE, BenchVerdict)
        # The counters are published late; lost records are never counted.
        counted = (
            self.serving.counters()
            if verdict.lost
            else self.serving.await_count("settled", self.batch.n)
        )
        return _Round(
            names=self._names,
            batch=self.batch,
            load_s=self._load_s,
            ingest_s=ingest_s,
            deliver_s=verdict.last_seen_s - start_s,
            cpu_s=used_s - self._used_s[0],
            broker_cpu_s=broker_used_s - self._used_s[1],
            delivered=counted - self.before,
            sampler=sampler,
            verdict=verdict,
        )


# --- figures -------------------------------------------------------------------------------------


def _fill_rates(figures: Figures, rates: list[float]) -> None:
    figures.rounds = len(rates)
    figures.rate_per_s = median(rates)
    figures.rate_per_s_min, figures.rate_per_s_max = min(rates), max(rates)


def _fill_passed(figures: Figures, n: int, passed: list[PassthroughCost]) -> None:
    figures.passthrough_per_s = median(n / one.seconds for one in passed)
    figures.passthrough_cpu_us_per_message = median(one.cpu_s for one in passed) / n * US


def _fill_costs(figures: Figures, n: int, rounds: Sequence[_Round]) -> None:
    figures.n = n
    figures.cpu_us_per_message = median(one.cpu_s for one in rounds) / n * US
    if rounds[0].broker_cpu_s:
        figures.broker_cpu_us_per_message = median(one.broker_cpu_s for one in rounds) / n * US
    figures.transactions = int(median(one.delivered.transactions for one in rounds))
    figures.records_per_transaction = median(one.records_per_transaction for one in rounds)
    figures.aborts = sum(one.delivered.aborts for one in rounds)
    figures.rss_mib_peak = max(one.sampler.rss_mib_peak for one in rounds)
    figures.rss_mib_peak_worker = max(one.sampler.rss_mib_peak_largest for one in rounds)
