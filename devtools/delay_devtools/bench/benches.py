"""The benches ``steady``, ``whole`` and ``restart``, of one node."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Final

from delay_devtools.bench.figures import US, Figures, Measured
from delay_devtools.bench.passthrough import Passed, PassPlan, passthrough
from delay_devtools.bench.sampling import Sampler, busy_until, cpu_s, disk_bytes
from delay_devtools.bench.stand import (
    Names,
    ServiceCounters,
    Serving,
    Stand,
    settings_of,
)
from delayservice.base.errors import DelayServiceError
from delayservice.commands.options import now_ms
from delayservice.contract.provenance import Provenance
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import Verdict, judge, lateness
from delayservice.smoke.load import Batch, Loaded, load
from delayservice.smoke.run import send_and_judge

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
# Time to store a round's records, which has to end before they are due: 10 s, and the time at this
# rate; a node stores them several times as fast.
_LEAD_S: Final = 10.0
_LEAD_PER_S: Final = 20_000
# Rate at which records become due after a restart, in records per s; a node can deliver more.
_DUE_PER_S: Final = 20_000
# Time between the last record of a burst and the first due time, in s.
_BURST_LEAD_S: Final = 2.0
# Number of records with different keys, enough to reach each of a few partitions.
_PROBES: Final = 64
_PROBE_DELAY_MS: Final = 50


# --- steady --------------------------------------------------------------------------------------


def steady(stand: Stand) -> Measured:
    options, names, verdicts, others = stand.options, stand.round(), [], []
    figures: Figures = {"seconds": options.seconds}
    with stand.service(names, stand.create(names, (_WARM, _MEASURED))) as serving:
        if not options.per_s:
            time.sleep(_SETTLE_S)
        elif options.warm_up:
            others.append(_keep_rate(stand, names, _WARM, _WARM_UP_S)[0])
        before, used_s, broker_used_s = serving.counters(), *_cpu_s(stand, serving)
        started_s = time.monotonic()
        with Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler:
            if options.per_s:
                due_ms = now_ms() + int((options.seconds + _BURST_LEAD_S) * _A_SECOND_MS)
                burst_ms = due_ms if options.burst else 0
                verdict, rate = _keep_rate(stand, names, _MEASURED, options.seconds, burst_ms)
                verdicts.append(verdict)
                figures["rate_per_s"] = rate
                if options.burst:
                    drained_s = verdict.last_seen_s - due_ms / _A_SECOND_MS
                    figures["deliver_per_s"] = verdict.delivered / drained_s
            else:
                time.sleep(options.seconds)
        took_s = time.monotonic() - started_s
        now_s, broker_now_s = _cpu_s(stand, serving)
        # The counters are published late; lost records are never counted.
        settled = sum(one.delivered for one in verdicts)
        counted = serving.await_count("settled", before["settled"] + settled) - before
    figures["rss_mib_peak"], figures["rss_mib_growth"] = (
        sampler.rss_mib_peak,
        sampler.rss_mib_growth,
    )
    if not verdicts:
        figures["cpu_percent"] = (now_s - used_s) / took_s * _PERCENT
        return Measured(figures)
    figures |= _costs(verdicts[0].n, now_s - used_s, broker_now_s - broker_used_s)
    figures |= _transactions(counted)
    if not options.burst:
        others.append(_floor(stand, figures, counted["transactions"]))
    return Measured(figures, verdicts, others)


def _floor(stand: Stand, figures: Figures, transactions: int) -> Verdict:
    """Copy the same load, due at once, without the service, in transactions as long as its own."""
    options = stand.options
    warm_up = int(options.per_s * _FLOOR_WARM_UP_S) if options.warm_up else 0
    n = max(int(options.per_s * options.seconds), 1) + warm_up
    names, batch = stand.round(), replace(stand.batch(n), warm_up=warm_up)
    stand.create(names, (_PASSED,))
    interval_s = options.seconds * settings_of(options).node.workers / max(transactions, 1)
    due_at_once = replace(
        stand.load(names, _PASSED, batch), per_s=options.per_s, after_ms=0, span_ms=0
    )
    broker_used_s = -cpu_s(stand.brokers)
    with Helper(load, due_at_once) as loader:
        passed, verdict = _pass_through(stand, names, batch, n, interval_s, loader)
    broker_used_s += cpu_s(stand.brokers)
    costs = _costs(n, passed.cpu_s, broker_used_s) | lateness(verdict.lateness_ms)
    del costs["n"], costs["lateness_ms_max"]
    figures |= {f"floor_{name}": value for name, value in costs.items()}
    return verdict


def _cpu_s(stand: Stand, serving: Serving) -> tuple[float, float]:
    return cpu_s(serving.processes), cpu_s(stand.brokers)


def _costs(n: int, used_s: float, broker_used_s: float) -> Figures:
    return {
        "n": n,
        "cpu_us_per_message": used_s / n * US,
        # The processes of a cluster that was named are unknown.
        "broker_cpu_us_per_message": broker_used_s / n * US or None,
    }


def _transactions(counted: ServiceCounters) -> Figures:
    return {
        "transactions": counted["transactions"],
        "aborts": counted["aborts"],
        "records_per_transaction": counted["settled"] / max(counted["transactions"], 1),
    }


def _keep_rate(
    stand: Stand, names: Names, target: str, seconds: float, burst_ms: int = 0
) -> tuple[Verdict, float]:
    rate = stand.options.per_s
    batch = stand.batch(max(int(rate * seconds), 1))
    plan = replace(stand.load(names, target, batch), per_s=rate)
    if burst_ms:
        plan = replace(plan, due_from_ms=burst_ms, after_ms=0, span_ms=_A_SECOND_MS)
    loaded, verdict = send_and_judge(plan, stand.judge(names, target, batch), stand.steps)
    return verdict, loaded.n / loaded.seconds


# --- whole ---------------------------------------------------------------------------------------


def whole(stand: Stand) -> Measured:
    """Store and deliver a load, and then copy the same records without the service, in rounds.

    The records of a round are written in one transaction, so that consumers see all at its commit.
    """
    n = stand.options.count
    _warm_up(stand)
    counted, found, verdicts, others = ServiceCounters(), [], [], []
    for _ in range(stand.options.repetitions):
        figures, delivered, verdict, passed = _round(stand)
        found.append(figures)
        counted += delivered
        verdicts.append(verdict)
        others.append(passed)
    figures = {name: median(one[name] for one in found) for name in found[0]}
    ratios = [one["ratio"] for one in found]
    figures |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
    figures["rss_mib_peak"] = max(one["rss_mib_peak"] for one in found)
    costs = _costs(n, figures.pop("cpu_s"), figures.pop("broker_cpu_s"))
    every: Figures = {"rounds": len(found), **figures, **costs, **_transactions(counted)}
    return Measured(every, verdicts, others)


def _round(stand: Stand) -> tuple[dict[str, float], ServiceCounters, Verdict, Verdict]:
    names, batch = stand.round(), stand.batch(stand.options.count)
    n = batch.n
    with ExitStack() as stack:
        sets = stand.create(names, (_MEASURED, _PASSED))
        began_s = time.monotonic()
        serving = stack.enter_context(stand.service(names, sets))
        # All is stored by then, also on a machine that starts a service slowly.
        lead_s = max(_LEAD_S, 3 * (time.monotonic() - began_s)) + n / _LEAD_PER_S
        due_ms = now_ms() + int(lead_s * _A_SECOND_MS)
        plan = stand.load(names, _MEASURED, batch, is_hidden=True)
        plan = replace(plan, due_from_ms=due_ms, span_ms=_A_SECOND_MS)
        loader = stack.enter_context(Helper(load, plan, stand.steps.bar("Loading", n)))
        loader.tell()
        loaded = loader.expect(Loaded)
        judging = stand.judge(names, _MEASURED, batch)
        judge_process = stack.enter_context(
            Helper(judge, judging, stand.steps.bar("Delivering", n))
        )
        with Sampler(serving.workers) as sampler:
            used_s, broker_used_s = _cpu_s(stand, serving)
            loader.tell()
            shown_s = loader.expect(float)
            serving.await_count("ingested", n, stand.steps.bar("Storing", n))
            # Until then from the transaction's commit; consumers see its records from there on.
            ingest_s = busy_until(sampler.samples, shown_s, time.time()) - shown_s
            before = _await_due(stand, serving, due_ms / _A_SECOND_MS)
            judge_process.tell(loaded)
            verdict = judge_process.expect(Verdict)
            now_s, broker_now_s = _cpu_s(stand, serving)
        delivered = serving.await_count("settled", verdict.delivered) - before
    size = max(round(delivered["settled"] / max(delivered["transactions"], 1)), 1)
    passed, passed_verdict = _pass_through(stand, names, batch, size)
    deliver_s = verdict.last_seen_s - due_ms / _A_SECOND_MS
    figures = {
        "rate_per_s": n / (ingest_s + deliver_s),
        "ingest_per_s": n / ingest_s,
        "deliver_per_s": n / deliver_s,
        "passthrough_per_s": n / passed.seconds,
        "ratio": passed.seconds / (ingest_s + deliver_s),
        "cpu_s": now_s - used_s,
        "broker_cpu_s": broker_now_s - broker_used_s,
        "rss_mib_peak": sampler.rss_mib_peak,
    }
    return figures, delivered, verdict, passed_verdict


def _await_due(stand: Stand, serving: Serving, due_s: float) -> ServiceCounters:
    wait_s = due_s - _COUNTED_BEFORE_S - time.time()
    if wait_s < 0:
        raise DelayServiceError(
            f"{stand.options.count} records were not stored before they were due: give fewer (--n)"
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
        Helper(passthrough, plan, stand.steps.bar("Passing through", n)) as passing,
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
    names, batch = stand.round(), stand.batch(min(stand.options.count, _WARM_UP_RECORDS))
    stand.create(names, (_PASSED,))
    with stand.steps.doing("Warming the broker up"):
        with Helper(load, stand.load(names, _PASSED, batch)) as loader:
            loader.tell()
            loader.expect(Loaded)
        _pass_through(stand, names, batch, batch.n)


# --- restart -------------------------------------------------------------------------------------


def restart(stand: Stand) -> Measured:
    n = stand.options.count
    names, batch = stand.round(), stand.batch(n)
    due_ms = now_ms() + int((2 * _LEAD_S + n / _DUE_PER_S) * _A_SECOND_MS)
    span_ms = max(n * _A_SECOND_MS // _DUE_PER_S, _A_SECOND_MS)
    figures: Figures = {"n": n}
    with stand.service(names, stand.create(names, (_MEASURED, _PROBE))) as serving:
        plan = replace(stand.load(names, _MEASURED, batch), due_from_ms=due_ms, span_ms=span_ms)
        with (
            Sampler(serving.workers, _SLOW_SAMPLES_S) as sampler,
            Helper(load, plan, stand.steps.bar("Loading", n)) as loader,
        ):
            loader.tell()
            loaded = loader.expect(Loaded)
            serving.await_count("ingested", n, stand.steps.bar("Storing", n))
        figures["rss_mib_peak"] = sampler.rss_mib_peak
        figures["disk_bytes_per_message"] = disk_bytes(serving.state_dir) / n
        probed = _kill_and_probe(stand, figures, names, serving)
        receiving = stand.steps.bar("Delivering", n)
        with Helper(judge, stand.judge(names, _MEASURED, batch), receiving) as judging:
            judging.tell(loaded)
            verdict = judging.expect(Verdict)
    return Measured(figures, [verdict], [probed])


def _kill_and_probe(stand: Stand, figures: Figures, names: Names, serving: Serving) -> Verdict:
    batch = stand.batch(_PROBES)
    plan = replace(stand.load(names, _PROBE, batch), after_ms=_PROBE_DELAY_MS, span_ms=0)
    with (
        Helper(load, plan) as loader,
        Helper(judge, stand.judge(names, _PROBE, batch)) as judging,
        stand.steps.doing("Killing it, and starting it again"),
    ):
        serving.kill()
        started_s = time.time()
        serving.start()
        loader.tell()
        loaded = loader.expect(Loaded)
        serving.await_serving(stand.options.partitions)
        figures["took_over_s"] = time.time() - started_s
        judging.tell(loaded)
        verdict = judging.expect(Verdict)
    figures["first_delivery_s"] = verdict.last_seen_s - started_s
    return verdict
