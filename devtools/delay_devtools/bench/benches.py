"""The benches ``steady``, ``whole`` and ``restart``, of one node."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from delay_devtools.bench.figures import US, Figures
from delay_devtools.bench.passthrough import Passed, PassPlan, passthrough
from delay_devtools.bench.sampling import Sampler, busy_until, cpu_s, disk_bytes
from delay_devtools.bench.stand import Names, ServiceCounters, Serving, Stand, now_ms
from delayservice.base.errors import DelayServiceError
from delayservice.contract.provenance import Provenance
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import Verdict, judge, quantile
from delayservice.smoke.load import Batch, Loaded, load

_MEASURED: Final = "measured"
_WARM: Final = "warm"
_PROBE: Final = "probe"
_PASSED: Final = "passed"
_WARM_UP_S: Final = 8.0
_FLOOR_WARM_UP_S: Final = 3.0
_WARM_UP_RECORDS: Final = 200_000
_A_SECOND_MS: Final = 1_000
_SLOW_SAMPLES_S: Final = 1.0
_PERCENT: Final = 100
# Time after the take-over of all slices, in s, after which a node counts as idle.
_SETTLE_S: Final = 5.0
# Time before the first due time at which the service's counters are read, in s.
_COUNTED_BEFORE_S: Final = 0.3
# Time to store the first round's records, which has to end before they are due: 10 s, and the time
# at this rate; a node stores them several times as fast.
_LEAD_S: Final = 10.0
_LEAD_PER_S: Final = 20_000
# Rate at which records become due after a restart, in records per s; a node can deliver more.
_DUE_PER_S: Final = 20_000
# Number of records with different keys, enough to reach each of a few partitions.
_PROBES: Final = 64
_PROBE_DELAY_MS: Final = 50


# --- steady --------------------------------------------------------------------------------------


def steady(stand: Stand, figures: Figures) -> None:
    options = stand.options
    names = stand.round()
    verdict = None
    with stand.service(names, stand.create(names, (_WARM, _MEASURED))) as serving:
        if not options.rate_per_s:
            time.sleep(_SETTLE_S)
        elif options.warm_up:
            _keep_rate(stand, names, _WARM, _WARM_UP_S)
        before, used_s, broker_used_s = serving.counters(), *_cpu_s(stand, serving)
        started_s = time.monotonic()
        with Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler:
            if options.rate_per_s:
                verdict, figures.rate_per_s = _keep_rate(stand, names, _MEASURED, options.seconds)
            else:
                time.sleep(options.seconds)
        took_s = time.monotonic() - started_s
        now_s, broker_now_s = _cpu_s(stand, serving)
        counted = serving.counters() - before
    figures.seconds = options.seconds
    figures.rss_mib_peak, figures.rss_mib_growth = sampler.rss_mib_peak, sampler.rss_mib_growth
    if verdict is None:
        figures.cpu_percent = (now_s - used_s) / took_s * _PERCENT
    else:
        _fill_costs(figures, verdict.n, now_s - used_s, broker_now_s - broker_used_s)
        _fill_transactions(figures, counted)
        passed = _floor(stand, figures)
        figures.judge([verdict, passed], [verdict])


def _floor(stand: Stand, figures: Figures) -> Verdict:
    """Copy the same load, due at once, without the service, in transactions as long as its own."""
    rate = stand.options.rate_per_s
    warm_up = int(rate * _FLOOR_WARM_UP_S) if stand.options.warm_up else 0
    n = max(int(rate * stand.options.seconds), 1) + warm_up
    names, batch = stand.round(), replace(stand.batch(n), warm_up=warm_up)
    stand.create(names, (_PASSED,))
    interval_s = stand.options.seconds * figures.workers / max(figures.transactions or 0, 1)
    due_at_once = replace(stand.load(names, _PASSED, batch), per_s=rate, after_ms=0, span_ms=0)
    broker_used_s = -cpu_s(stand.brokers)
    with Helper(load, due_at_once) as loader:
        passed, verdict = _pass_through(stand, names, batch, n, interval_s, loader)
    broker_used_s += cpu_s(stand.brokers)
    figures.floor_cpu_us_per_message = passed.cpu_s / n * US
    figures.floor_broker_cpu_us_per_message = broker_used_s / n * US or None
    figures.floor_lateness_ms_p50 = quantile(verdict.lateness_ms, 0.5)
    figures.floor_lateness_ms_p99 = quantile(verdict.lateness_ms, 0.99)
    return verdict


def _cpu_s(stand: Stand, serving: Serving) -> tuple[float, float]:
    return cpu_s(serving.processes), cpu_s(stand.brokers)


def _fill_costs(figures: Figures, n: int, used_s: float, broker_used_s: float) -> None:
    figures.n = n
    figures.cpu_us_per_message = used_s / n * US
    # The processes of a cluster that was named are unknown.
    figures.broker_cpu_us_per_message = broker_used_s / n * US or None


def _fill_transactions(figures: Figures, counted: ServiceCounters) -> None:
    figures.transactions, figures.aborts = counted["transactions"], counted["aborts"]
    figures.records_per_transaction = counted["settled"] / max(counted["transactions"], 1)


def _keep_rate(stand: Stand, names: Names, target: str, seconds: float) -> tuple[Verdict, float]:
    rate = stand.options.rate_per_s
    batch = stand.batch(max(int(rate * seconds), 1))
    plan = replace(stand.load(names, target, batch), per_s=rate)
    receiving = stand.steps.bar(f"Receiving ({target})", batch.n)
    with (
        Helper(load, plan, stand.steps.bar(f"Sending ({target})", batch.n).at) as loader,
        Helper(judge, stand.judge(names, target, batch), receiving.at) as judging,
    ):
        loader.tell()
        loaded = loader.expect(Loaded)
        judging.tell(loaded)
        return judging.expect(Verdict), loaded.n / loaded.seconds


# --- whole ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Round:
    """Times in seconds.

    Attributes:
        load_s: time until all records were written, in a transaction that is still open.
        ingest_s: time from the commit of that transaction until all were stored.
        deliver_s: time from the first due time until the last record was received.
    """

    load_s: float
    ingest_s: float
    deliver_s: float
    cpu_s: float
    broker_cpu_s: float
    delivered: ServiceCounters
    rss_mib_peak: float
    verdict: Verdict
    passed: Passed
    passed_verdict: Verdict

    @property
    def ratio(self) -> float:
        return self.passed.seconds / (self.ingest_s + self.deliver_s)


def whole(stand: Stand, figures: Figures) -> None:
    """Store and deliver a load, and then copy the same records without the service, in rounds.

    The records of a round are written in one transaction, so that consumers see all at its commit.
    """
    n = stand.options.n
    _warm_up(stand)
    lead_s = _LEAD_S + n / _LEAD_PER_S
    found: list[_Round] = []
    for _ in range(stand.options.rounds):
        one = _round(stand, lead_s)
        lead_s = 4.0 + 1.5 * (one.load_s + one.ingest_s)
        found.append(one)
    ratios = [one.ratio for one in found]
    figures.rounds = len(found)
    figures.rate_per_s = median(n / (one.ingest_s + one.deliver_s) for one in found)
    figures.ingest_per_s = median(n / one.ingest_s for one in found)
    figures.deliver_per_s = median(n / one.deliver_s for one in found)
    figures.passthrough_per_s = median(n / one.passed.seconds for one in found)
    figures.ratio, figures.ratio_min, figures.ratio_max = median(ratios), min(ratios), max(ratios)
    _fill_costs(
        figures,
        n,
        median(one.cpu_s for one in found),
        median(one.broker_cpu_s for one in found),
    )
    _fill_transactions(figures, sum((one.delivered for one in found), ServiceCounters()))
    figures.rss_mib_peak = max(one.rss_mib_peak for one in found)
    verdicts = [one.verdict for one in found]
    figures.judge(verdicts + [one.passed_verdict for one in found], verdicts)


def _round(stand: Stand, lead_s: float) -> _Round:
    names, batch = stand.round(), stand.batch(stand.options.n)
    with ExitStack() as stack:
        sets = stand.create(names, (_MEASURED, _PASSED))
        serving = stack.enter_context(stand.service(names, sets))
        due_ms = now_ms() + int(lead_s * _A_SECOND_MS)
        plan = stand.load(names, _MEASURED, batch, is_hidden=True)
        plan = replace(plan, due_from_ms=due_ms, span_ms=_A_SECOND_MS)
        loader = stack.enter_context(Helper(load, plan, stand.steps.bar("Loading", batch.n).at))
        loader.tell()
        loaded = loader.expect(Loaded)
        judging = stand.judge(names, _MEASURED, batch)
        receiving = stand.steps.bar("Delivering", batch.n)
        judge_process = stack.enter_context(Helper(judge, judging, receiving.at))
        with Sampler(serving.workers) as sampler:
            used_s, broker_used_s = _cpu_s(stand, serving)
            loader.tell()
            shown_s = loader.expect(float)
            serving.await_count("ingested", batch.n, stand.steps.bar("Storing", batch.n).at)
            stored_s = busy_until(sampler.samples, shown_s, time.time())
            before = _await_due(stand, serving, due_ms / _A_SECOND_MS)
            judge_process.tell(loaded)
            verdict = judge_process.expect(Verdict)
            now_s, broker_now_s = _cpu_s(stand, serving)
        # The counters are published late; lost records are never counted.
        if not verdict.lost:
            serving.await_count("settled", batch.n)
        delivered = serving.counters() - before
    size = max(round(delivered["settled"] / max(delivered["transactions"], 1)), 1)
    return _Round(
        loaded.seconds,
        stored_s - shown_s,
        verdict.last_seen_s - due_ms / _A_SECOND_MS,
        now_s - used_s,
        broker_now_s - broker_used_s,
        delivered,
        sampler.rss_mib_peak,
        verdict,
        *_pass_through(stand, names, batch, size),
    )


def _await_due(stand: Stand, serving: Serving, due_s: float) -> ServiceCounters:
    wait_s = due_s - _COUNTED_BEFORE_S - time.time()
    if wait_s < 0:
        raise DelayServiceError(
            f"{stand.options.n} records were not stored before they were due; give fewer with --n"
        )
    time.sleep(wait_s)
    return serving.counters()


def _pass_through(
    stand: Stand,
    names: Names,
    batch: Batch,
    transaction_records: int,
    interval_s: float = 0.0,
    loader: Helper | None = None,
) -> tuple[Passed, Verdict]:
    n = batch.n
    plan = PassPlan(
        consumer=stand.client("consumer"),
        producer=stand.client("producer"),
        source=names.delay,
        target=names.target(_PASSED),
        n=n,
        transaction_records=transaction_records,
        transactional_id=f"{names.prefix}_pass" if stand.is_exactly_once else "",
        headers=[*Provenance(names.delay, 0).headers(n, now_ms(), None)],
        interval_s=interval_s,
    )
    with (
        Helper(judge, stand.judge(names, _PASSED, batch)) as judging,
        Helper(passthrough, plan, stand.steps.bar("Passing through", n).at) as passing,
    ):
        passing.tell()
        if loader is not None:
            loader.tell()
        passed = passing.expect(Passed)
        judging.tell(Loaded(n))
        return passed, judging.expect(Verdict)


def _warm_up(stand: Stand) -> None:
    # A new broker is slow for some seconds.
    if not stand.options.warm_up:
        return
    names, batch = stand.round(), stand.batch(min(stand.options.n, _WARM_UP_RECORDS))
    stand.create(names, (_PASSED,))
    with stand.steps.doing("Warming the broker up"):
        with Helper(load, stand.load(names, _PASSED, batch)) as loader:
            loader.tell()
            loader.expect(Loaded)
        _pass_through(stand, names, batch, batch.n)


# --- restart -------------------------------------------------------------------------------------


def restart(stand: Stand, figures: Figures) -> None:
    n = stand.options.n
    names, batch = stand.round(), stand.batch(n)
    due_ms = now_ms() + int((2 * _LEAD_S + n / _DUE_PER_S) * _A_SECOND_MS)
    span_ms = max(n * _A_SECOND_MS // _DUE_PER_S, _A_SECOND_MS)
    with stand.service(names, stand.create(names, (_MEASURED, _PROBE))) as serving:
        plan = replace(stand.load(names, _MEASURED, batch), due_from_ms=due_ms, span_ms=span_ms)
        with (
            Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler,
            Helper(load, plan, stand.steps.bar("Loading", n).at) as loader,
        ):
            loader.tell()
            loaded = loader.expect(Loaded)
            serving.await_count("ingested", n, stand.steps.bar("Storing", n).at)
        figures.rss_mib_peak = sampler.rss_mib_peak
        figures.disk_bytes_per_message = disk_bytes(serving.state_dir) / n
        probed = _kill_and_probe(stand, figures, names, serving)
        receiving = stand.steps.bar("Delivering", n)
        with Helper(judge, stand.judge(names, _MEASURED, batch), receiving.at) as judging:
            judging.tell(loaded)
            verdict = judging.expect(Verdict)
    figures.n = n
    figures.judge([verdict, probed], [verdict])


def _kill_and_probe(stand: Stand, figures: Figures, names: Names, serving: Serving) -> Verdict:
    batch = stand.batch(_PROBES)
    plan = replace(stand.load(names, _PROBE, batch), after_ms=_PROBE_DELAY_MS, span_ms=0)
    with (
        Helper(load, plan) as loader,
        Helper(judge, stand.judge(names, _PROBE, batch)) as judging,
        stand.steps.doing("Killing it, and starting it again"),
    ):
        started_s = serving.restart_killed()
        loader.tell()
        loaded = loader.expect(Loaded)
        serving.await_serving()
        figures.took_over_s = time.time() - started_s
        judging.tell(loaded)
        verdict = judging.expect(Verdict)
    figures.first_delivery_s = verdict.last_seen_s - started_s
    return verdict
