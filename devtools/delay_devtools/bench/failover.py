"""The bench ``failover``: nodes are killed and started again while records become due all the time.

Each trial kills the owner of a slice; other nodes take its slices over; the killed node is started
again, and its slices are handed back to it. A load process sends the records. A judge process reads
the target topic with a ``read_committed`` consumer, checks each record and measures the pauses of
delivery; the nodes' logs only tell which change of owner a pause belongs to.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures, quantile
from delay_devtools.bench.helper import Helper
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import judge_plan, load_plan, warm_up
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.bench.trace import Trace
from delay_devtools.nodes import NodeGroup
from delay_devtools.ownership import hand_overs
from delay_devtools.probe import zookeeper_tick_s
from delayservice.base.errors import DelayServiceError

_ALL: Final = "all"
_CALM_S: Final = 6.0
"""Time without a change of owner before the kills begin, in s; longer than an owner waits before it
hands a slice to the node that is preferred for it.
"""
_TRIAL_S_MAX: Final = 180.0
_PAUSE_S_MAX: Final = 1.0
"""Longest random pause before a kill, in s, so that kills fall on any moment between heartbeats."""
_SETTLED_S: Final = 1.0
"""Time for which records are still sent after the last trial, in s, so that the deliveries that
follow it are measured.
"""


@dataclass(frozen=True, slots=True)
class _Kill:
    """Kill of a node that owned ``slices``: ``at_ms`` is the time of the signal, ``dead_ms`` the
    end of the node's last process, both in epoch milliseconds.
    """

    at_ms: float
    dead_ms: float
    slices: tuple[int, ...]


def failover(stand: Stand, figures: Figures) -> dict[int, int]:
    """Run the trials; fill ``figures`` with take-over times, pauses around hand-overs, rate, errors
    and lateness. Return the number of records by lateness in ms.
    """
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
    """Start the load process, which sends records until it gets the word ``stop``, and the judge
    process; return both, the load process first. ``stack`` kills them at its end.
    """
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
        threading.Event().wait(rng.uniform(0, _PAUSE_S_MAX))
        kills.append(_kill(group, trial % options.partitions))
        bar.at(trial + 1)
    threading.Event().wait(_SETTLED_S)
    return kills


def _kill(group: NodeGroup, slice_no: int) -> _Kill:
    """Kill the owner of a slice, wait for other owners of its slices, start it again, and wait
    until all of them are handed back. Return times and slices of the kill.
    """
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
    """Fill in median, 99 % quantile and maximum of the take-over time in s, from a kill to the
    first record from another node. That of a trial is the longest of the killed node's slices.
    """
    waited = Counter(
        max(_waited_ms(trace, kill, slice_no) for slice_no in kill.slices) for kill in kills
    )
    figures.takeover_s_p50 = _seconds(quantile(waited, 0.5))
    figures.takeover_s_p99 = _seconds(quantile(waited, 0.99))
    figures.takeover_s_max = _seconds(quantile(waited, 1.0))


def _waited_ms(trace: Trace, kill: _Kill, slice_no: int) -> int:
    """Return the ms from the kill until the consumer received the slice's first record from another
    node.

    Raises:
        DelayServiceError: no other node delivered a record of the slice.
    """
    first = trace.first_after(slice_no, kill.dead_ms)
    if first is None:
        raise DelayServiceError(
            f"nothing of slice {slice_no} was delivered after its owner was killed; is the load "
            "spread over all slices? Give a higher --rate"
        )
    return round(first.seen_ms - kill.at_ms)


def _fill_hand_overs(figures: Figures, trace: Trace, changes: Sequence[tuple[int, float]]) -> None:
    """Fill in number, median, 99 % quantile and maximum of the pauses of delivery around
    hand-overs, in ms; slices without a delivery before or after one are left out.
    """
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
