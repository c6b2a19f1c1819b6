"""A limit is a limit, whatever comes, aborts and changes hands; and nothing starves under it."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from delayservice.core.flow import AHEAD_MS
from tests.unit.test_rates import NOW_MS, TICK_MS, World, limited, payload

WINDOW_MS = 2_000

dues = st.lists(
    st.integers(0, 3_000) | st.sampled_from((0, 1_000, 2_000)), min_size=1, max_size=150
)
steps = st.lists(st.sampled_from(("commit", "commit", "commit", "abort", "fail over")), max_size=30)


@given(rate=st.sampled_from((7, 20, 55, 200)), dues=dues, steps=steps)
@settings(deadline=None)
def test_no_window_has_more_than_the_limit_and_all_arrive_in_order(
    rate: int, dues: list[int], steps: list[str]
) -> None:
    world = World(limited(rate))
    for number, due in enumerate(sorted(dues)):
        world.append(NOW_MS + due, payload(due_ms=NOW_MS + due, value=b"%d" % number))
    to_do = iter(steps)
    changes = 0
    end_ms = NOW_MS + 3_000 + 1_000 * len(dues) // rate + 1_000
    while world.now_ms < end_ms:
        before = list(world.pending)
        outputs = world.turn()
        step = next(to_do, "commit") if outputs else "commit"
        if step == "commit":
            world.commit(outputs)
        elif step == "abort":
            world.abort(before)
        else:
            changes += 1
            world.abort(before)
            world.fail_over(limited(rate))
        world.now_ms += TICK_MS
    seen = world.delivered()
    assert [value for _, value in seen] == [b"%d" % n for n in range(len(dues))]
    # A new owner knows the turns that were given away, not those that were used at once.
    slack_ms = (AHEAD_MS + TICK_MS) * (1 + changes)
    most = rate * (WINDOW_MS + slack_ms) / 1_000 + 1 + changes
    times = [at for at, _ in seen]
    for first, at_ms in enumerate(times):
        assert bisect_left(times, at_ms + WINDOW_MS) - first <= most
