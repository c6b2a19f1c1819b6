"""The bench ``failover``: nodes are killed and started again while records become due all the time.

Each trial kills the owner of a slice; other nodes take its slices over; the killed node is started
again, and its slices are handed back. The judge process measures the pauses of delivery; the nodes'
logs only tell which change of owner a pause belongs to.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures, quantile
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import judge_plan, load_plan, warm_up
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict, Trace
from delay_devtools.bench.wire import Helper
from delay_devtools.nodes import NodeGroup, hand_overs
from delay_devtools.servers import zookeeper_tick_s
from delayservice.base.errors import DelayServiceError

_ALL: Final = "all"
# Time without a change of owner before the kills begin, in s; longer than an owner waits before it
# hands a slice to the node that is preferred for it.
_CALM_S: Final = 6.0
_TRIAL_S_MAX: Final = 180.0
# Longest random pause before a kill, in s, so that kills fall on any moment between heartbeats.
_PAUSE_S_MAX: Final = 1.0
# Time for which records are still sent after the last trial, in s, so that the deliveries that
# follow it are measured.
_SETTLED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Kill:
    # at_ms: time of the signal; dead_ms: end of the node's last process.
    at_ms: float
    dead_ms: float
    slices: tuple[int, ...]


def failover(stand: Stand, figures: Figures) -> dict[int, int]:
    warm_up(stand)
    names = stand.round()
    with ExitStack() as stack:
        sets = stand.create(names, (_ALL,))
        group = stack.enter_context(stand.group(names, sets))
        with stand.steps.doing("Starting the nodes"):
            group.start()
        loader, judge = _load_and_judge(stack, stand, names)
        with stand.steps.doing("Waiting until they agree"):
            group.await_calm(_CALM_S)
        calm_ms = time.time() * 1_000
        kills = _kill_again_and_again(stand, group)
        changes = [change for change in hand_overs(group.slice_events()) if change[1] > calm_ms]
        loader.tell(wire.STOP)
        sent = loader.expect(wire.DONE)
        judge.tell(f"{wire.STOP} {sent.count}")
        trace = judge.result(wire.TRACE, Trace)
        verdict = judge.result(wire.DONE, BenchVerdict)
    figures.trials = len(kills)
    figures.n, figures.rate_per_s = verdict.n, verdict.n / sent.at_s
    figures.slices = stand.options.partitions
    figures.session_timeout_s = stand.session_timeout_s
    figures.zookeeper_tick_s = zookeeper_tick_s(stand.zookeeper)
    _fill_takeovers(figures, trace, kills)
    _fill_hand_overs(figures, trace, changes)
    return figures.judge([verdict], [verdict])


def _load_and_judge(stack: ExitStack, stand: Stand, names: Names) -> tuple[Helper, Helper]:
    options = stand.options
    shortest, longest = options.delay_ms
    batch = stand.batch(int(options.rate_per_s * options.trials * _TRIAL_S_MAX))
    due = Due(span_ms=longest - shortest, after_ms=shortest)
    loading = load_plan(stand, names, _ALL, batch, due, rate_per_s=options.rate_per_s, is_open=True)
    judging = judge_plan(stand, names, _ALL, batch, now_ms(), is_open=True)
    judge = stack.enter_context(stand.helper("judge", judging))
    loader = stack.enter_context(stand.helper("load", loading))
    loader.tell(wire.GO)
    return loader, judge


def _kill_again_and_again(stand: Stand, group: NodeGroup) -> list[_Kill]:
    options = stand.options
    rng = random.Random(options.seed)  # noqa: S311 (kills that replay from a seed)
    bar = stand.steps.bar("Killing nodes", options.trials)
    kills = []
    for trial in range(options.trials):
        time.sleep(rng.uniform(0, _PAUSE_S_MAX))
        kills.append(_kill(group, trial % options.partitions))
        bar.at(trial + 1)
    time.sleep(_SETTLED_S)
    return kills


def _kill(group: NodeGroup, slice_no: int) -> _Kill:
    node = group.owner(slice_no)
    before = group.owned_by(node)
    at_ms = time.time() * 1_000
    node.kill()
    dead_ms = time.time() * 1_000
    group.await_successors(before, [node])
    node.start()
    group.await_home()
    return _Kill(at_ms, dead_ms, tuple(before))


# --- figures -------------------------------------------------------------------------------------


def _fill_takeovers(figures: Figures, trace: Trace, kills: Sequence[_Kill]) -> None:
    # Of a trial, the longest of the killed node's slices counts.
    waited = Counter(
        max(_waited_ms(trace, kill, slice_no) for slice_no in kill.slices) for kill in kills
    )
    figures.takeover_s_p50 = _seconds(quantile(waited, 0.5))
    figures.takeover_s_p99 = _seconds(quantile(waited, 0.99))
    figures.takeover_s_max = _seconds(quantile(waited, 1.0))


def _waited_ms(trace: Trace, kill: _Kill, slice_no: int) -> int:
    first = trace.first_after(slice_no, kill.dead_ms)
    if first is None:
        raise DelayServiceError(
            f"nothing of slice {slice_no} was delivered after its owner was killed; is the load "
            "spread over all slices? Give a higher --rate"
        )
    return round(first.seen_ms - kill.at_ms)


def _fill_hand_overs(figures: Figures, trace: Trace, changes: Sequence[tuple[int, float]]) -> None:
    # Slices without a delivery before or after a hand-over are left out.
    pauses = [trace.pause_at(*change) for change in changes]
    produced = Counter(pause.produced_ms for pause in pauses if pause is not None)
    consumed = Counter(pause.seen_ms for pause in pauses if pause is not None)
    figures.handovers = sum(produced.values())
    figures.handover_ms_p50 = quantile(produced, 0.5)
    figures.handover_ms_p99 = quantile(produced, 0.99)
    figures.handover_ms_max = quantile(produced, 1.0)
    figures.handover_seen_ms_p99 = quantile(consumed, 0.99)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
