"""The benches ``steady``, ``soak`` and ``pending``: records are sent at a constant rate, and
checked; in ``pending`` many other records wait meanwhile.
"""

from __future__ import annotations

import time
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import US, Figures
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.options import SPREAD_S_MAX
from delay_devtools.bench.passing import judge_plan, load_plan, warm_up
from delay_devtools.bench.sampling import (
    Sampler,
    busy_until,
    cpu_s,
    disk_bytes,
    slope_mib_per_h,
)
from delay_devtools.bench.stand import Names, Serving, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict

_STEADY: Final = "steady"
_WARM: Final = "warm"
_WAITING: Final = "waiting"
_WARM_UP_S: Final = 8.0
_WARM_UP_DELAY_MS: Final = (0, 2_000)
_LOAD_TIMEOUT_S: Final = 1_800.0
# Time allowed for the start of the load process in the estimate of the last due time, in s.
_START_S: Final = 5.0
_SLOW_SAMPLES_S: Final = 1.0
# Longest time from loading until the first of the waiting records is due, in s: longer than a bench
# takes.
_FIRST_DUE_S_MAX: Final = 900


def steady(stand: Stand, figures: Figures) -> dict[int, int]:
    names = stand.round()
    warm_up(stand)
    with stand.service(names, stand.create(names, (_STEADY, _WARM))) as serving:
        _warm_up_service(stand, names)
        before = serving.counters()
        used_s, broker_used_s = cpu_s(serving.processes), cpu_s(stand.brokers)
        with Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler:
            verdict = _measure(stand, figures, names)
        n = verdict.n
        figures.cpu_us_per_message = (cpu_s(serving.processes) - used_s) / n * US
        if stand.brokers:
            figures.broker_cpu_us_per_message = (cpu_s(stand.brokers) - broker_used_s) / n * US
        counted = serving.counters() - before
    figures.n = n
    figures.take_memory(sampler)
    figures.transactions, figures.aborts = counted.transactions, counted.aborts
    figures.records_per_transaction = counted.settled / max(counted.transactions, 1)
    if stand.options.bench == "soak":
        figures.rss_mib_slope_per_h = slope_mib_per_h(sampler.samples)
    return figures.judge([verdict], [verdict])


def _measure(stand: Stand, figures: Figures, names: Names) -> BenchVerdict:
    options = stand.options
    verdict, load_s = _keep_rate(stand, names, _STEADY, options.seconds, options.delay_ms)
    figures.seconds, figures.rate_per_s = options.seconds, verdict.n / load_s
    return verdict


def _warm_up_service(stand: Stand, names: Names) -> None:
    if stand.options.warm_up:
        _keep_rate(stand, names, _WARM, _WARM_UP_S, _WARM_UP_DELAY_MS)


def _keep_rate(
    stand: Stand, names: Names, target: str, seconds: float, delay_ms: tuple[int, int]
) -> tuple[BenchVerdict, float]:
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
        load_s = loader.work(_LOAD_TIMEOUT_S + seconds).at_s
        return judge.result(wire.DONE, BenchVerdict), load_s


def pending(stand: Stand, figures: Figures) -> dict[int, int]:
    names = stand.round()
    warm_up(stand)
    sets = stand.create(names, (_WAITING, _STEADY, _WARM))
    with stand.service(names, sets) as serving:
        with Sampler(serving.workers) as sampler:
            _store_all(stand, figures, names, serving, sampler)
            _warm_up_service(stand, names)
            verdict = _measure(stand, figures, names)
        figures.disk_bytes_per_message = disk_bytes(serving.state_dir) / stand.options.n
    figures.n = stand.options.n
    figures.take_memory(sampler)
    return figures.judge([verdict], [verdict])


def _store_all(
    stand: Stand, figures: Figures, names: Names, serving: Serving, sampler: Sampler
) -> None:
    # The sampler's samples show when storing ends.
    n = stand.options.n
    spread_s = stand.options.spread_s or min(SPREAD_S_MAX, stand.roll_window_s)
    ahead_s = min(_FIRST_DUE_S_MAX, spread_s / 2)
    due = Due(now_ms() + int(ahead_s * 1_000), int((spread_s - ahead_s) * 1_000))
    plan = load_plan(stand, names, _WAITING, stand.batch(n), due, is_hidden=True)
    with stand.helper("load", plan, stand.steps.bar("Loading", n).at) as loader:
        loader.work()
        used_s = cpu_s(serving.processes)
        shown_s = loader.show()
    counted = serving.await_count("ingested", n, stand.steps.bar("Storing", n).at)
    stored_s = busy_until(sampler.samples, shown_s, time.time())
    figures.cpu_us_per_message = (cpu_s(serving.processes) - used_s) / n * US
    figures.ingest_per_s = n / (stored_s - shown_s)
    figures.pending = counted.pending
