"""What level topics bear, beside the limit: ``level``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures
from delay_devtools.bench.helper import Helper
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import (
    LOAD_TIMEOUT_S,
    PASSED,
    judge_plan,
    load_plan,
    pass_through,
    verdict_of,
    warm_up,
)
from delay_devtools.bench.passthrough_process import Passed
from delay_devtools.bench.records import Batch
from delay_devtools.bench.sampling import Sampler, cpu_s
from delay_devtools.bench.serving import Counters, Serving
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.stored import Costs, fill_costs, fill_passed, fill_rates, fill_ratio
from delay_devtools.bench.tally import Verdict

_LEVELED: Final = "leveled"
_LEVEL_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round(Costs):
    """Everything fetched and delivered, within ``deliver_s`` seconds."""

    names: Names
    batch: Batch
    deliver_s: float
    verdict: Verdict


def level(stand: Stand, figures: Figures) -> dict[int, int]:
    """A level topic whose records all become visible when their time has passed: the service and
    passthrough in turn, on the same log each time. The rate is over fetching and delivering.
    """
    n = stand.options.n
    warm_up(stand, n)
    pairs: list[tuple[_Round, Passed]] = []
    verdicts: list[Verdict] = []
    for _ in range(stand.options.rounds):
        one = _round(stand)
        size = max(round(one.records_per_transaction), 1)
        passed, verdict = pass_through(stand, one.names, one.batch, size)
        pairs.append((one, passed))
        verdicts += [one.verdict, verdict]
    fill_rates(figures, [n / one.deliver_s for one, _ in pairs])
    fill_ratio(figures, [passed.seconds / one.deliver_s for one, passed in pairs])
    fill_costs(figures, n, [one for one, _ in pairs])
    fill_passed(figures, n, [passed for _, passed in pairs])
    figures.judge(verdicts, [])
    return {}


def _round(stand: Stand) -> _Round:
    names, batch = stand.round(_LEVEL_MS), stand.batch(stand.options.n)
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (_LEVELED, PASSED))
            serving = stack.enter_context(stand.service(names, sets))
        due = Due(after_ms=_LEVEL_MS)
        loading = load_plan(stand, names, _LEVELED, batch, due, is_hidden=True)
        bar = stand.steps.bar("Loading", batch.n)
        loader = stack.enter_context(stand.helper("load", loading, bar.at))
        loader.tell(wire.GO)
        loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S)
        judging = judge_plan(stand, names, _LEVELED, batch, now_ms() + _LEVEL_MS)
        bar = stand.steps.bar("Delivering", batch.n)
        judge = stack.enter_context(stand.helper("judge", judging, bar.at))
        time.sleep(_LEVEL_MS / 1_000)  # all are due then, and none has been seen
        return _measure(stand, names, batch, serving, loader, judge)


def _measure(
    stand: Stand, names: Names, batch: Batch, serving: Serving, loader: Helper, judge: Helper
) -> _Round:
    """From the moment at which the load becomes visible until the judge has all of it."""
    before = serving.counters()
    used_s, broker_used_s = cpu_s(serving.processes), cpu_s(stand.brokers)
    with Sampler(serving.workers) as sampler:
        loader.tell(wire.SHOW)
        shown_s = loader.expect(wire.COMPLETE, timeout_s=LOAD_TIMEOUT_S).at_s
        judge.expect(wire.COMPLETE, timeout_s=LOAD_TIMEOUT_S)
        used_s = cpu_s(serving.processes) - used_s
        broker_used_s = cpu_s(stand.brokers) - broker_used_s
    verdict = verdict_of(judge)
    return _Round(
        names=names,
        batch=batch,
        deliver_s=verdict.last_seen_s - shown_s,
        cpu_s=used_s,
        broker_cpu_s=broker_used_s,
        delivered=_counted(serving, batch, verdict) - before,
        rss_mib_peak=sampler.rss_mib_peak,
        rss_mib_peak_worker=sampler.rss_mib_peak_largest,
        verdict=verdict,
    )


def _counted(serving: Serving, batch: Batch, verdict: Verdict) -> Counters:
    """The service's counters, once they are up to date."""
    if verdict.lost:
        return serving.counters()
    return serving.await_count("settled", batch.n)
