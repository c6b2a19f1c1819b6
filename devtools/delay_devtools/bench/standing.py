"""The benches ``idle``, of a service without load, and ``restart``, of a service that is killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import psutil

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import judge_plan, load_plan, warm_up
from delay_devtools.bench.sampling import Sampler, cpu_s
from delay_devtools.bench.stand import Names, Serving, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.nodes import NodeGroup

_ALL: Final = "all"
_PROBE: Final = "probe"
# Time after the take-over of all slices, in s, after which a node counts as idle.
_SETTLE_S: Final = 5.0
# Time without a change of owner, in s, after which several nodes count as idle.
_CALM_S: Final = 6.0
_KIB_PER_MIB: Final = 1_024
# Number of records with different keys, enough to reach each of a few partitions.
_PROBES: Final = 64
_PROBE_DELAY_MS: Final = 50
_SLOW_SAMPLES_S: Final = 0.5
# Rate at which pending records become due, in records per s; a node can deliver more.
_DUE_PER_S: Final = 20_000
_LEAD_S: Final = 20.0
_PERCENT: Final = 100


def idle(stand: Stand, figures: Figures) -> dict[int, int]:
    options = stand.options
    figures.shards, figures.seconds = options.idle_shards, options.seconds
    figures.slices = options.partitions
    names = stand.round()
    sets = stand.create(names, (), options.idle_shards // options.partitions)
    if options.has_several:
        _idle_together(stand, figures, names, sets)
        return {}
    with stand.service(names, sets) as serving:
        time.sleep(_SETTLE_S)
        (figures.cpu_percent,) = _watch(stand, figures, serving.workers, [serving.processes])
    return {}


def _idle_together(stand: Stand, figures: Figures, names: Names, sets: Sequence[str]) -> None:
    with stand.group(names, sets) as group:
        _warm_up_group(stand, group)
        started_s = time.monotonic()
        with stand.steps.doing("Starting the nodes"):
            group.start()
            figures.startup_s = time.monotonic() - started_s
            group.await_calm(_CALM_S)
        nodes = [node.service for node in group.nodes.values()]
        workers = [worker for node in nodes for worker in node.workers()]
        used = _watch(stand, figures, workers, [node.processes() for node in nodes])
    figures.cpu_percent, figures.cpu_percent_per_node = sum(used), max(used)


def _watch(
    stand: Stand,
    figures: Figures,
    workers: Sequence[psutil.Process],
    nodes: Sequence[Sequence[psutil.Process]],
) -> list[float]:
    with stand.steps.doing("Watching idle nodes"), Sampler(workers, _SLOW_SAMPLES_S) as sampler:
        used = _cpu_percent(nodes, stand.options.seconds)
        threads = sum(worker.num_threads() for worker in workers)
    copies = len(nodes) * stand.options.partitions
    figures.threads_per_slice = threads / copies
    figures.rss_kib_per_slice = sampler.rss_mib_peak * _KIB_PER_MIB / copies
    figures.take_memory(sampler)
    return used


def _warm_up_group(stand: Stand, group: NodeGroup) -> None:
    # New brokers are several times slower.
    if stand.options.warm_up:
        with stand.steps.doing("Warming up"):
            group.start()
            group.await_calm(_CALM_S)
            group.stop()


def _cpu_percent(nodes: Sequence[Sequence[psutil.Process]], seconds: float) -> list[float]:
    started_s, used_s = time.monotonic(), [cpu_s(processes) for processes in nodes]
    time.sleep(seconds)
    took_s = time.monotonic() - started_s
    return [
        (cpu_s(processes) - before_s) / took_s * _PERCENT
        for processes, before_s in zip(nodes, used_s, strict=True)
    ]


def restart(stand: Stand, figures: Figures) -> dict[int, int]:
    n = stand.options.n
    names, batch = stand.round(), stand.batch(n)
    warm_up(stand, n)
    due_ms = now_ms() + int((_LEAD_S + n / _DUE_PER_S) * 1_000)
    span_ms = max(n * 1_000 // _DUE_PER_S, 1_000)
    judging = judge_plan(stand, names, _ALL, batch, due_ms + span_ms)
    with stand.service(names, stand.create(names, (_ALL, _PROBE))) as serving:
        plan = load_plan(stand, names, _ALL, batch, Due(due_ms, span_ms))
        with stand.helper("load", plan, stand.steps.bar("Loading", batch.n).at) as loader:
            loader.work()
        serving.await_count("ingested", n, stand.steps.bar("Storing", n).at)
        probed = _kill_and_probe(stand, figures, names, serving)
        receiving = stand.steps.bar("Delivering", n)
        with stand.helper("judge", judging, receiving.at) as judge:
            verdict = judge.result(wire.DONE, BenchVerdict)
    figures.n = n
    return figures.judge([verdict, probed], [verdict])


def _kill_and_probe(stand: Stand, figures: Figures, names: Names, serving: Serving) -> BenchVerdict:
    batch = stand.batch(_PROBES)
    plan = load_plan(stand, names, _PROBE, batch, Due(after_ms=_PROBE_DELAY_MS))
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
        verdict = judge.result(wire.DONE, BenchVerdict)
    figures.first_delivery_s = verdict.last_seen_s - started_s
    figures.serving_s = max(figures.took_over_s, figures.first_delivery_s)
    return verdict
