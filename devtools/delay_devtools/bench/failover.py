"""The bench ``failover``: nodes are killed and come back, under a load that is due all the time.

A trial: the owner of a slice is killed; others take its slices over; it starts again, and they hand
the slices back. Everything that is measured is what a ``read_committed`` consumer of the target
sees; the nodes' logs say only which change of owner it belongs to.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from delay_devtools.bench import wire
from delay_devtools.bench.figures import Figures, quantile
from delay_devtools.bench.helper import Helper
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.passing import (
    LOAD_TIMEOUT_S,
    judge_plan,
    load_plan,
    verdict_of,
    warm_up,
)
from delay_devtools.bench.stand import Names, Stand, now_ms
from delay_devtools.bench.tally import Verdict
from delay_devtools.bench.trace import Trace
from delay_devtools.nodes import NodeGroup
from delay_devtools.ownership import HandOver, hand_overs
from delay_devtools.probe import zookeeper_tick_s
from delayservice.base.errors import DelayServiceError

_ALL: Final = "all"
_CALM_S: Final = 6.0
"""Longer than a new owner waits before it hands a slice to the node where it belongs."""
_TRIAL_S_MAX: Final = 180.0
_PAUSE_S_MAX: Final = 1.0
"""A kill comes at any time between two heartbeats, and between two transactions."""
_SETTLED_S: Final = 1.0
"""The load goes on for so long after the last trial: deliveries on both sides of each change."""


@dataclass(frozen=True, slots=True)
class _Kill:
    """A node's end. Epoch milliseconds; when ``dead_ms`` was read, none of it was alive."""

    at_ms: float
    dead_ms: float
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all trials have come to."""

    kills: Sequence[_Kill]
    hand_overs: Sequence[HandOver]
    trace: Trace
    verdict: Verdict
    load_s: float


def failover(stand: Stand, figures: Figures) -> dict[int, int]:
    """Measure the pauses of delivery after a kill and around a hand-over."""
    warm_up(stand)
    seen = _try_often(stand)
    figures.trials = len(seen.kills)
    figures.n, figures.rate_per_s = seen.verdict.n, seen.verdict.n / seen.load_s
    figures.slices = stand.options.partitions
    figures.session_timeout_s = stand.session_timeout_s
    figures.zookeeper_tick_s = zookeeper_tick_s(stand.zookeeper)
    _fill_takeovers(figures, seen)
    _fill_hand_overs(figures, seen)
    return figures.judge([seen.verdict], [seen.verdict])


def _try_often(stand: Stand) -> _Seen:
    """All trials under one load."""
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
        changes = [change for change in hand_overs(group.slice_events()) if change.at_ms > calm_ms]
        loader.tell(wire.STOP)
        sent = loader.expect(wire.DONE, timeout_s=LOAD_TIMEOUT_S)
        judge.tell(f"{wire.STOP} {sent.count}")
        told = judge.expect(wire.TRACE, timeout_s=LOAD_TIMEOUT_S)
        trace = msgspec.json.decode(told.body, type=Trace)
        return _Seen(kills, changes, trace, verdict_of(judge), sent.at_s)


def _load_and_judge(stack: ExitStack, stand: Stand, names: Names) -> tuple[Helper, Helper]:
    """A load that goes on until it is told to stop, sending already, and its judge."""
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
    """Kill the owner of a slice, and bring it back; the slices are where they were then."""
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


def _fill_takeovers(figures: Figures, seen: _Seen) -> None:
    """A trial's is that of the slice that waited longest."""
    waited = _counts(
        max(_waited_ms(seen.trace, kill, slice_no) for slice_no in kill.slices)
        for kill in seen.kills
    )
    figures.takeover_s_p50 = _seconds(quantile(waited, 0.5))
    figures.takeover_s_p99 = _seconds(quantile(waited, 0.99))
    figures.takeover_s_max = _seconds(quantile(waited, 1.0))


def _waited_ms(trace: Trace, kill: _Kill, slice_no: int) -> int:
    """Return the time from the kill until the consumer had a record of another node."""
    first = trace.first_after(slice_no, kill.dead_ms)
    if first is None:
        raise DelayServiceError(
            f"nothing of slice {slice_no} was delivered after its owner was killed; is the load "
            "spread over all slices? Give a higher --rate"
        )
    return round(first.seen_ms - kill.at_ms)


def _fill_hand_overs(figures: Figures, seen: _Seen) -> None:
    pauses = [seen.trace.pause_at(change.slice_no, change.at_ms) for change in seen.hand_overs]
    produced = _counts(pause.produced_ms for pause in pauses if pause is not None)
    consumed = _counts(pause.seen_ms for pause in pauses if pause is not None)
    figures.handovers = sum(produced.values())
    figures.handover_ms_p50 = quantile(produced, 0.5)
    figures.handover_ms_p99 = quantile(produced, 0.99)
    figures.handover_ms_max = quantile(produced, 1.0)
    figures.handover_seen_ms_p99 = quantile(consumed, 0.99)


def _counts(values: Iterable[int]) -> dict[int, int]:
    """Counts by value."""
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
