"""Benches that keep a rate for a time: ``steady``, ``soak``, and ``pending``, which has very many
records waiting meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.options import SPREAD_S_MAX
from delay_devtools.bench.passing import (
    LOAD_TIMEOUT_S,
    judge_plan,
    load_plan,
    verdict_of,
    warm_up,
)
from delay_devtools.bench.sampling import (
    Sampler,
    busy_until,
    cpu_s,
    disk_bytes,
    slope_mib_per_h,
)
from delay_devtools.bench.serving import Serving
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import Verdict

_STEADY: Final = "steady"
_WARM: Final = "warm"
_WAITING: Final = "waiting"
_WARM_UP_S: Final = 8.0
_WARM_UP_DELAY_MS: Final = (0, 2_000)
_START_S: Final = 5.0
"""How long until a helper has started, at most."""
_SLOW_SAMPLES_S: Final = 1.0
_US: Final = 1_000_000
_FIRST_DUE_S_MAX: Final = 900
"""Pending records are due later than a bench takes, where the window leaves room for that."""


def steady(stand: Stand, figures: Figures) -> dict[int, int]:
    """A rate that the service keeps up with: how late is a record then?"""
    return _alone(stand, figures)


def soak(stand: Stand, figures: Figures) -> dict[int, int]:
    """Run ``steady`` for long, and measure the growth of memory."""
    return _alone(stand, figures)


def _alone(stand: Stand, figures: Figures) -> dict[int, int]:
    names = stand.round()
    warm_up(stand)
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (_STEADY, _WARM))
            serving = stack.enter_context(stand.service(names, sets))
        _warm_up_service(stand, names)
        before, used_s, broker_used_s = (
            serving.counters(),
            cpu_s(serving.processes),
            cpu_s(stand.brokers),
        )
        with Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler:
            verdict, load_s = _keep_rate(
                stand, names, _STEADY, stand.options.seconds, stand.options.delay_ms
            )
        n = verdict.n
        figures.cpu_us_per_message = (cpu_s(serving.processes) - used_s) / n * _US
        if stand.brokers:
            figures.broker_cpu_us_per_message = (cpu_s(stand.brokers) - broker_used_s) / n * _US
        counted = serving.counters() - before
    _fill(figures, sampler, verdict, load_s, stand.options.seconds)
    figures.transactions, figures.aborts = counted.transactions, counted.aborts
    figures.records_per_transaction = counted.settled / max(counted.transactions, 1)
    if stand.options.bench == "soak":
        figures.rss_mib_slope_per_h = slope_mib_per_h(sampler.samples)
    return figures.judge([verdict], [verdict])


def _fill(
    figures: Figures, sampler: Sampler, verdict: Verdict, load_s: float, seconds: float
) -> None:
    figures.n, figures.seconds = verdict.n, seconds
    figures.rate_per_s = verdict.n / load_s
    figures.rss_mib_peak = sampler.rss_mib_peak
    figures.rss_mib_peak_worker = sampler.rss_mib_peak_largest


def _warm_up_service(stand: Stand, names: Names) -> None:
    """A service and a broker that have met this load before are as they are for good."""
    if stand.options.warm_up:
        _keep_rate(stand, names, _WARM, _WARM_UP_S, _WARM_UP_DELAY_MS)


def _keep_rate(
    stand: Stand, names: Names, target: str, seconds: float, delay_ms: tuple[int, int]
) -> tuple[Verdict, float]:
    """Send at the rate of the options, and judge; how long the sending took, seconds."""
    options = stand.options
    batch = stand.batch(max(int(options.rate_per_s * seconds), 1))
    shortest, longest = delay_ms
    due = Due(span_ms=longest - shortest, after_ms=shortest)
    plan = load_plan(stand, names, target, batch, due, rate_per_s=options.rate_per_s)
    last_due_ms = now_ms() + int((_START_S + seconds) * 1_000) + longest
    sending = stand.steps.bar(f"Sending ({target})", batch.n)
    receiving = stand.steps.bar(f"Receiving ({target})", batch.n)
    with (
        stand.helper("load", plan, sending.at) as loader,
        stand.helper(
            "judge", judge_plan(stand, names, target, batch, last_due_ms), receiving.at
        ) as judge,
    ):
        loader.tell(wire.GO)
        load_s = loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S + seconds).at_s
        return verdict_of(judge), load_s


# --- pending -------------------------------------------------------------------------------------


def pending(stand: Stand, figures: Figures) -> dict[int, int]:
    """Very many records wait, and a steady load runs beside them."""
    names = stand.round()
    warm_up(stand)
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (_WAITING, _STEADY, _WARM))
            serving = stack.enter_context(stand.service(names, sets))
        with Sampler(serving.workers) as sampler:
            _store_all(stand, figures, names, serving, sampler)
            _warm_up_service(stand, names)
            verdict, load_s = _keep_rate(
                stand, names, _STEADY, stand.options.seconds, stand.options.delay_ms
            )
        figures.disk_bytes_per_message = disk_bytes(serving.state_dir) / stand.options.n
    _fill(figures, sampler, verdict, load_s, stand.options.seconds)
    figures.n = stand.options.n
    return figures.judge([verdict], [verdict])


def _store_all(
    stand: Stand, figures: Figures, names: Names, serving: Serving, sampler: Sampler
) -> None:
    """Have ``n`` records stored that wait; nothing is loaded while they are."""
    n = stand.options.n
    spread_s = stand.options.spread_s or min(SPREAD_S_MAX, stand.roll_window_s)
    ahead_s = min(_FIRST_DUE_S_MAX, spread_s / 2)
    due = Due(now_ms() + int(ahead_s * 1_000), int((spread_s - ahead_s) * 1_000))
    plan = load_plan(stand, names, _WAITING, stand.batch(n), due, is_hidden=True)
    with stand.helper("load", plan, stand.steps.bar("Loading", n).at) as loader:
        loader.tell(wire.GO)
        loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S)
        used_s = cpu_s(serving.processes)
        loader.tell(wire.SHOW)
        shown_s = loader.expect(wire.COMPLETE, timeout_s=LOAD_TIMEOUT_S).at_s
    counted = serving.await_count("ingested", n, stand.steps.bar("Storing", n).at)
    stored_s = busy_until(sampler.samples, shown_s, time.time())
    figures.cpu_us_per_message = (cpu_s(serving.processes) - used_s) / n * _US
    figures.ingest_per_s = n / (stored_s - shown_s)
    figures.pending = counted.pending
