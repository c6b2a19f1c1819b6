"""Benches of a service that stands still or falls: ``idle`` and ``restart``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from delayservice.dev.bench import wire
from delayservice.dev.bench.figures import Figures
from delayservice.dev.bench.load_process import LoadPlan
from delayservice.dev.bench.options import IDLE_SHARDS
from delayservice.dev.bench.passing import LOAD_TIMEOUT_S, judge_plan, verdict_of, warm_up
from delayservice.dev.bench.records import Batch
from delayservice.dev.bench.sampling import Sampler, cpu_s
from delayservice.dev.bench.serving import Serving
from delayservice.dev.bench.stand import Names, Stand, now_ms
from delayservice.dev.bench.tally import Verdict

_ALL: Final = "all"
_PROBE: Final = "probe"
_SETTLE_S: Final = 5.0
"""A node that has just taken over is not idle yet."""
_PROBES: Final = 64
"""Enough keys to reach every one of a few partitions."""
_PROBE_DELAY_MS: Final = 50
_SLOW_SAMPLES_S: Final = 0.5
_DUE_PER_S: Final = 20_000
"""So many pending records come due each second, less than a node delivers."""
_LEAD_S: Final = 20.0
_PERCENT: Final = 100


def idle(stand: Stand, figures: Figures) -> dict[int, int]:
    """What a node takes of a core while its shards are empty."""
    options = stand.options
    names = stand.round()
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (), IDLE_SHARDS // options.partitions)
            serving = stack.enter_context(stand.service(names, sets))
            time.sleep(_SETTLE_S)
        with stand.steps.doing("Watching it idle"), Sampler(serving.workers, _SLOW_SAMPLES_S) as s:
            started_s, used_s = time.monotonic(), cpu_s(serving.processes)
            time.sleep(options.seconds)
            took_s = time.monotonic() - started_s
            figures.cpu_percent = (cpu_s(serving.processes) - used_s) / took_s * _PERCENT
    figures.shards, figures.seconds = IDLE_SHARDS, options.seconds
    figures.rss_mib_peak, figures.rss_mib_peak_worker = s.rss_mib_peak, s.rss_mib_peak_largest
    return {}


def restart(stand: Stand, figures: Figures) -> dict[int, int]:
    """SIGKILL while very many records wait: how long until it serves again, and is any lost?"""
    n = stand.options.n
    names, batch = stand.round(), stand.batch(n)
    warm_up(stand, n)
    due_ms = now_ms() + int((_LEAD_S + n / _DUE_PER_S) * 1_000)
    span_ms = max(n * 1_000 // _DUE_PER_S, 1_000)
    judging = judge_plan(stand, names, _ALL, batch, due_ms + span_ms)
    with ExitStack() as stack:
        with stand.steps.doing("Starting the service"):
            sets = stand.create(names, (_ALL, _PROBE))
            serving = stack.enter_context(stand.service(names, sets))
        _load(stand, names, batch, due_ms, span_ms)
        serving.await_count("ingested", n, stand.steps.bar("Storing", n).at)
        probed = _kill_and_probe(stand, figures, names, serving)
        receiving = stand.steps.bar("Delivering", n)
        judge = stack.enter_context(stand.helper("judge", judging, receiving.at))
        verdict = verdict_of(judge)
    figures.n = n
    return figures.judge([verdict, probed], [verdict])


def _load(stand: Stand, names: Names, batch: Batch, due_ms: int, span_ms: int) -> None:
    plan = LoadPlan(
        client=stand.client("producer"),
        topic=names.delay,
        target=names.target(_ALL),
        batch=batch,
        due_from_ms=due_ms,
        due_span_ms=span_ms,
    )
    with stand.helper("load", plan, stand.steps.bar("Loading", batch.n).at) as loader:
        loader.tell(wire.GO)
        loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S)


def _kill_and_probe(stand: Stand, figures: Figures, names: Names, serving: Serving) -> Verdict:
    """Kill the service, start it, and send it records at that moment; what became of those."""
    batch = stand.batch(_PROBES)
    plan = LoadPlan(
        client=stand.client("producer"),
        topic=names.delay,
        target=names.target(_PROBE),
        batch=batch,
        due_from_ms=0,
        due_span_ms=0,
        due_after_ms=_PROBE_DELAY_MS,
    )
    judging = judge_plan(stand, names, _PROBE, batch, now_ms() + 60_000)
    with (
        stand.helper("load", plan) as loader,
        stand.helper("judge", judging) as judge,
        stand.steps.doing("Killing it, and starting it again"),
    ):
        started_s = serving.restart_killed()
        loader.tell(wire.GO)
        serving.await_serving()
        figures.took_over_s = time.time() - started_s
        verdict = verdict_of(judge)
    figures.first_delivery_s = verdict.last_seen_s - started_s
    figures.serving_s = max(figures.took_over_s, figures.first_delivery_s)
    return verdict
