"""The bench ``failover``: nodes are killed and started again while records become due all the time.

Each trial kills the owner of a slice; other nodes take its slices over; the killed node is started
again, and its slices are handed back. The judge process measures the pauses of delivery; the nodes'
logs only tell which change of owner a pause belongs to.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from delay_devtools.bench.figures import Figures, Measured
from delay_devtools.bench.stand import Stand
from delay_devtools.nodes import Kill, NodeGroup, hand_overs
from delayservice.base.errors import DelayServiceError
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import Arrival, lateness
from delayservice.smoke.run import send_and_judge

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


def failover(stand: Stand) -> Measured:
    names, options = stand.round(), stand.options
    batch = stand.batch(int(options.per_s * options.repetitions * _TRIAL_S_MAX))
    with ExitStack() as stack:
        group = stack.enter_context(stand.group(names, stand.create(names, (_ALL,))))
        with stand.steps.doing("Starting the nodes"):
            group.start()
        kills: list[Kill] = []
        changes: list[tuple[int, float]] = []

        def trouble(loader: Helper, _judge: Helper) -> None:
            with stand.steps.doing("Waiting until they agree"):
                group.await_calm(_CALM_S)
            calm_ms = time.time() * 1_000
            kills.extend(_kill_again_and_again(stand, group))
            changes.extend(one for one in hand_overs(group.slice_events()) if one[1] > calm_ms)
            loader.tell()

        judging = replace(stand.judge(names, _ALL, batch), has_arrivals=True)
        loading = replace(stand.load(names, _ALL, batch), per_s=options.per_s)
        loaded, verdict = send_and_judge(loading, judging, stand.steps, trouble)
    # Of a trial, the longest of the killed node's slices counts.
    waited = Counter(
        max(waited_ms(verdict.arrivals, kill, slice_no) for slice_no in kill.slices)
        for kill in kills
    )
    pauses = [pause_ms(verdict.arrivals, kills, *change) for change in changes]
    paused = Counter(pause for pause in pauses if pause is not None)
    figures: Figures = {
        "rounds": len(kills),
        "n": loaded.n,
        "rate_per_s": loaded.n / loaded.seconds,
        "session_timeout_s": stand.session_timeout_s,
        "handovers": sum(paused.values()),
        **lateness(waited, "takeover_ms"),
        **lateness(paused, "handover_ms"),
    }
    return Measured(figures, [verdict])


def _kill_again_and_again(stand: Stand, group: NodeGroup) -> list[Kill]:
    options = stand.options
    rng = random.Random(options.repetitions)  # noqa: S311 (kills that replay from a seed)
    bar = stand.steps.bar("Killing nodes", options.repetitions)
    kills = []
    for trial in range(options.repetitions):
        time.sleep(rng.uniform(0, _PAUSE_S_MAX))
        kills.append(group.kill_owner(trial % options.partitions))
        group.await_home()
        bar(trial + 1)
    time.sleep(_SETTLED_S)
    return kills


# --- figures -------------------------------------------------------------------------------------


def waited_ms(arrivals: Sequence[Arrival], kill: Kill, slice_no: int) -> int:
    """Return the time from a kill until the first record was received that another node made."""
    seen_ms = [
        one.seen_ms
        for one in arrivals
        if one.slice_no == slice_no and one.produced_ms > int(kill.dead_ms)
    ]
    if not seen_ms:
        raise DelayServiceError(
            f"nothing of slice {slice_no} was delivered after its owner was killed; is the load "
            "spread over all slices? Give a higher --rate"
        )
    return round(min(seen_ms) - kill.at_ms)


def pause_ms(
    arrivals: Sequence[Arrival], kills: Sequence[Kill], slice_no: int, at_ms: float
) -> int | None:
    """Return the distance of the records of a slice that were produced right before and after; None
    if one of them is missing, or the new owner was killed in between: then it is the pause of a
    take-over.
    """
    # Records produced up to that millisecond are the old owner's, later ones the new owner's.
    made_ms = sorted(one.produced_ms for one in arrivals if one.slice_no == slice_no)
    place = bisect_right(made_ms, int(at_ms))
    if not 0 < place < len(made_ms):
        return None
    before_ms, after_ms = made_ms[place - 1 : place + 1]
    is_killed = any(slice_no in k.slices and at_ms <= k.at_ms <= after_ms for k in kills)
    return None if is_killed else after_ms - before_ms
