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
from dataclasses import dataclass, replace
from typing import Final

from delay_devtools.bench.figures import Figures, quantile
from delay_devtools.bench.helpers import Helper, Loaded, LoadEnd, judge, load
from delay_devtools.bench.stand import Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict, Trace
from delay_devtools.nodes import NodeGroup, hand_overs
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


def failover(stand: Stand, figures: Figures) -> None:
    names, options = stand.round(), stand.options
    batch = stand.batch(int(options.rate_per_s * options.rounds * _TRIAL_S_MAX))
    with ExitStack() as stack:
        group = stack.enter_context(stand.group(names, stand.create(names, (_ALL,))))
        with stand.steps.doing("Starting the nodes"):
            group.start()
        judging = replace(stand.judge(names, _ALL, batch), has_trace=True)
        loading = replace(stand.load(names, _ALL, batch), rate_per_s=options.rate_per_s)
        judge_process = stack.enter_context(Helper(judge, judging))
        loader = stack.enter_context(Helper(load, loading))
        loader.tell()
        with stand.steps.doing("Waiting until they agree"):
            group.await_calm(_CALM_S)
        calm_ms = time.time() * 1_000
        kills = _kill_again_and_again(stand, group)
        changes = [change for change in hand_overs(group.slice_events()) if change[1] > calm_ms]
        loader.tell()
        loaded = loader.expect(Loaded)
        judge_process.tell(LoadEnd(loaded.n, now_ms() + options.delay_ms[1]))
        trace = judge_process.expect(Trace)
        verdict = judge_process.expect(BenchVerdict)
    figures.rounds, figures.n = len(kills), loaded.n
    figures.rate_per_s = loaded.n / loaded.seconds
    figures.session_timeout_s = stand.session_timeout_s
    _fill_takeovers(figures, trace, kills)
    _fill_hand_overs(figures, trace, changes)
    figures.judge([verdict], [verdict])


def _kill_again_and_again(stand: Stand, group: NodeGroup) -> list[_Kill]:
    options = stand.options
    rng = random.Random(options.rounds)  # noqa: S311 (kills that replay from a seed)
    bar = stand.steps.bar("Killing nodes", options.rounds)
    kills = []
    for trial in range(options.rounds):
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
    seen_ms = trace.first_seen_ms(slice_no, kill.dead_ms)
    if seen_ms is None:
        raise DelayServiceError(
            f"nothing of slice {slice_no} was delivered after its owner was killed; is the load "
            "spread over all slices? Give a higher --rate"
        )
    return round(seen_ms - kill.at_ms)


def _fill_hand_overs(figures: Figures, trace: Trace, changes: Sequence[tuple[int, float]]) -> None:
    # Slices without a delivery before or after a hand-over are left out.
    pauses = [trace.pause_ms(*change) for change in changes]
    found = Counter(pause for pause in pauses if pause is not None)
    figures.handovers = sum(found.values())
    figures.handover_ms_p50 = quantile(found, 0.5)
    figures.handover_ms_p99 = quantile(found, 0.99)
    figures.handover_ms_max = quantile(found, 1.0)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
