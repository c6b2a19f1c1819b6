"""The clock guard: what freezes delivery, what does not, and what thaws it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayservice.base.clock import NOT_COMPARED, ClockGuard, SystemClock

WALL = 1_800_000_000_000
STEP = st.integers(min_value=502, max_value=10**12)
SIGN = st.sampled_from([-1, 1])


def guard() -> ClockGuard:
    fresh = ClockGuard(500)
    fresh.observe(WALL, 1_000)
    answer(fresh, WALL - 2, WALL, 1_000, took_ms=5)
    return fresh


def answer(
    watched: ClockGuard, broker_ms: int, wall_ms: int, boot_ms: int, took_ms: int
) -> str | None:
    """The broker stamped ``broker_ms`` on a request that was answered now, after ``took_ms``."""
    return watched.observe_answer(broker_ms, boot_ms - took_ms, boot_ms, wall_ms, boot_ms)


def test_the_system_clock_reads_three_clocks() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > WALL - 10**12
    assert clock.boot_s() > 0
    assert clock.monotonic_s() <= clock.monotonic_s()


@given(
    st.lists(st.integers(min_value=1, max_value=86_400_000), min_size=1, max_size=200),
    st.floats(min_value=-490, max_value=490),
)
def test_slewing_for_weeks_never_freezes(gaps_ms: list[int], ppm: float) -> None:
    watched = guard()
    boot_ms = 1_000
    for gap_ms in gaps_ms:
        boot_ms += gap_ms
        elapsed_ms = boot_ms - 1_000
        # Within a gap the slew must stay inside the tolerance: the guard is asked often.
        if abs(gap_ms * ppm / 1e6) > 500:
            return
        assert watched.observe(WALL + round(elapsed_ms * (1 + ppm / 1e6)), boot_ms) is None


@given(STEP, SIGN)
def test_a_step_beyond_the_tolerance_freezes_at_once(step_ms: int, sign: int) -> None:
    frozen = guard().observe(WALL + 10 + sign * step_ms, 1_010)
    assert frozen is not None
    assert ("ahead of" if sign > 0 else "behind") in frozen


@given(st.integers(min_value=-500, max_value=500))
def test_a_step_within_the_tolerance_is_let_pass(step_ms: int) -> None:
    assert guard().observe(WALL + 10 + step_ms, 1_010) is None


@given(st.integers(min_value=1, max_value=400), SIGN)
def test_small_steps_add_up_and_are_caught(step_ms: int, sign: int) -> None:
    watched = guard()
    for count in range(1, 1_000):
        if watched.observe(WALL + count * (10 + sign * step_ms), 1_000 + 10 * count):
            assert count * step_ms > 500
            return
    raise AssertionError("never caught")


@given(STEP, SIGN)
def test_it_thaws_when_the_wall_clock_returns(step_ms: int, sign: int) -> None:
    watched = guard()
    assert watched.observe(WALL + 10 + sign * step_ms, 1_010)
    assert watched.observe(WALL + 20, 1_020) is None


@given(STEP, SIGN)
def test_it_thaws_where_the_broker_agrees_and_stays_there(step_ms: int, sign: int) -> None:
    watched = guard()
    stepped = WALL + sign * step_ms
    assert watched.observe(stepped + 10, 1_010)
    assert answer(watched, stepped + 19, stepped + 20, 1_020, took_ms=5) is None
    assert watched.observe(stepped + 30, 1_030) is None
    assert watched.observe(WALL + 40, 1_040), "the old time is wrong now"


@given(STEP, SIGN)
def test_a_broker_that_disagrees_freezes_until_it_agrees(step_ms: int, sign: int) -> None:
    watched = guard()
    # An answer within 5 ms of a request; beyond tolerance even at its edge.
    assert answer(watched, WALL + sign * (step_ms + 5), WALL, 1_000, took_ms=5)
    assert watched.observe(WALL + 10, 1_010), "the boot clock can't overrule the broker"
    assert answer(watched, WALL + 18, WALL + 20, 1_020, took_ms=5) is None


@given(STEP, SIGN)
def test_a_clock_that_was_wrong_at_first_is_caught_when_wrong_again(
    step_ms: int, sign: int
) -> None:
    watched = ClockGuard(500)
    watched.observe(WALL + sign * step_ms, 1_000)
    assert answer(watched, WALL + 10, WALL + 10, 1_010, took_ms=0) is None, "it was set meanwhile"
    assert watched.observe(WALL + 20, 1_020) is None
    assert watched.observe(WALL + 30 + sign * step_ms, 1_030)


def test_a_slow_answer_does_not_vouch_for_a_step() -> None:
    watched = guard()
    assert watched.observe(WALL + 3_600_010, 1_010)
    assert answer(watched, WALL + 20, WALL + 3_600_020, 3_601_020, took_ms=3_600_000)


def test_slow_answers_vouch_together() -> None:
    """One came back late, the other was late on its way there; each took 800 ms."""
    watched = ClockGuard(500)
    assert watched.observe(WALL, 1_000) == NOT_COMPARED
    assert answer(watched, WALL + 10, WALL + 800, 1_800, took_ms=800), "perhaps 790 ms ahead"
    assert answer(watched, WALL + 1_590, WALL + 1_600, 2_600, took_ms=800) is None


@given(st.integers(min_value=501, max_value=100_000), st.integers(min_value=0, max_value=5_000))
def test_no_answer_however_slow_vouches_for_a_clock_that_is_ahead(
    ahead_ms: int, took_ms: int
) -> None:
    """The broker stamps at any moment of the round trip: that is the one that flatters most."""
    watched = ClockGuard(500)
    watched.observe(WALL, 1_000)
    for count in range(1, 20):
        boot_ms = 1_000 + count * 10_000
        wall_ms = WALL + boot_ms - 1_000
        stamped_ms = wall_ms - took_ms * (count % 3) // 2
        assert answer(watched, stamped_ms - ahead_ms, wall_ms, boot_ms, took_ms)


def test_a_comparison_with_the_brokers_clock_expires() -> None:
    watched = guard()
    hours_ms = 3_600_000
    boot_ms, wall_ms = 1_000 + hours_ms, WALL + hours_ms
    assert watched.observe(wall_ms + 600, boot_ms), "stepped"
    assert answer(watched, wall_ms - 700, wall_ms + 600, boot_ms, took_ms=2_000), "too slow"
