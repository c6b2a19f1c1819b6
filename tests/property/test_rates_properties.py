"""A limit is a limit, whatever comes, aborts and changes hands; and nothing starves under it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from delayservice.engine.flow import AHEAD_MS, BURST_MS
from tests.unit.test_rates import NOW_MS, TICK_MS, World, limited, payload

WINDOW_MS = 2_000
OUTAGE_MS = 5_000
STEPS = ("commit", "commit", "commit", "abort", "fail over")

dues = st.lists(
    st.integers(0, 3_000) | st.sampled_from((0, 1_000, 2_000)), min_size=1, max_size=150
)
rates = st.sampled_from((7, 20, 55, 200))


@dataclass(frozen=True)
class Played:
    seen: list[tuple[int, bytes | None]]
    changes: int
    outages: int


def play(rate: int, dues: list[int], steps: list[str]) -> Played:
    world = World(limited(rate))
    for number, due in enumerate(sorted(dues)):
        world.append(NOW_MS + due, payload(due_ms=NOW_MS + due, value=b"%d" % number))
    to_do = iter(steps)
    changes = outages = 0
    end_ms = NOW_MS + 3_000 + 1_000 * len(dues) // rate + 1_000
    while world.now_ms < end_ms:
        before = list(world.pending)
        outputs = world.turn()
        step = next(to_do, "commit") if outputs else "commit"
        if step == "commit":
            world.commit(outputs)
        else:
            world.abort(before)
        if step == "fail over":
            changes += 1
            world.fail_over(limited(rate))
        if step == "outage":
            outages += 1
            world.now_ms += OUTAGE_MS
            end_ms += OUTAGE_MS
        world.now_ms += TICK_MS
    return Played(world.delivered(), changes, outages)


def most_in_a_window(played: Played) -> int:
    times = [at for at, _ in played.seen]
    return max(bisect_left(times, at + WINDOW_MS) - first for first, at in enumerate(times))


@given(rate=rates, dues=dues, steps=st.lists(st.sampled_from(STEPS), max_size=30))
@example(
    rate=55, dues=[0, 0, 0, 0, 65], steps=["abort"]
)  # due when the turn of the one before comes
def test_no_window_has_more_than_the_limit(rate: int, dues: list[int], steps: list[str]) -> None:
    played = play(rate, dues, steps)
    assert [value for _, value in played.seen] == [b"%d" % n for n in range(len(dues))]
    # A new owner knows the turns that were given away, not those that were used at once.
    slack_ms = (AHEAD_MS + TICK_MS) * (1 + played.changes)
    most = rate * (WINDOW_MS + slack_ms) / 1_000 + 1 + played.changes
    assert most_in_a_window(played) <= most


@given(rate=rates, dues=dues, steps=st.lists(st.sampled_from((*STEPS, "outage")), max_size=30))
def test_after_outages_all_arrive_once(rate: int, dues: list[int], steps: list[str]) -> None:
    played = play(rate, dues, steps)
    assert sorted(value or b"" for _, value in played.seen) == sorted(
        b"%d" % n for n in range(len(dues))
    )
    slack_ms = (AHEAD_MS + TICK_MS + BURST_MS) * (1 + played.changes)
    most = rate * (WINDOW_MS + slack_ms) / 1_000 + 1 + played.changes
    assert most_in_a_window(played) <= most
