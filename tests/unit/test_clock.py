"""What freezes delivery and what thaws it: the guard, its watch and the broker's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from hypothesis import given
from hypothesis import strategies as st

from connectors.kafka.broker_clock import BrokerClock
from delayservice.base.clock import NOT_COMPARED, ClockGuard, ClockWatch, SystemClock
from delayservice.engine.claims import ClaimLog

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
def test_a_corrected_clock_is_caught_when_it_jumps_back(step_ms: int, sign: int) -> None:
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
    # One came back late, the other was late on its way there; each took 800 ms.
    watched = ClockGuard(500)
    assert watched.observe(WALL, 1_000) == NOT_COMPARED
    assert answer(watched, WALL + 10, WALL + 800, 1_800, took_ms=800), "perhaps 790 ms ahead"
    assert answer(watched, WALL + 1_590, WALL + 1_600, 2_600, took_ms=800) is None


@given(st.integers(min_value=501, max_value=100_000), st.integers(min_value=0, max_value=5_000))
def test_no_slow_answer_vouches_for_a_clock_that_is_ahead(ahead_ms: int, took_ms: int) -> None:
    # The broker stamps at any moment of the round trip: that is the one that flatters most.
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


# --- one clock, asked by all slices of a process --------------------------------------------------


TOLERANCE_MS = 500


@dataclass
class Clocks:
    wall: int = 1_700_000_000_000
    since_boot_s: float = 1_000.0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_s(self) -> float:
        return self.since_boot_s

    def boot_s(self) -> float:
        return self.since_boot_s

    def run(self, seconds: float) -> None:
        self.wall += round(seconds * 1000)
        self.since_boot_s += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def watch(clocks: Clocks) -> ClockWatch:
    return ClockWatch(clocks, TOLERANCE_MS)


def heard(
    watch: ClockWatch,
    clocks: Clocks,
    ahead_ms: int = 0,
    took_s: float = 0.02,
    acknowledged_s: float | None = None,
) -> None:
    """A broker stamps what is sent now; the wall clock is ``ahead_ms`` ahead of the broker's. It is
    acknowledged after ``acknowledged_s``, and read back after ``took_s``.
    """
    sent_s = clocks.monotonic_s()
    broker_ms = clocks.wall - ahead_ms
    clocks.run(took_s)
    known_s = None if acknowledged_s is None else sent_s + acknowledged_s
    watch.heard_answer(broker_ms, int(clocks.boot_s() * 1000), sent_s, known_s)


def test_one_answer_speaks_for_all_slices(watch: ClockWatch, clocks: Clocks) -> None:
    heard(watch, clocks)
    assert watch.doubt() is None


@pytest.mark.parametrize("took_s", [0.6, 1.5, 8.0])
def test_a_slow_way_back_thaws_the_guard(watch: ClockWatch, clocks: Clocks, took_s: float) -> None:
    # The broker acknowledges at once; the commit and the reading back take long.
    heard(watch, clocks, took_s=took_s, acknowledged_s=0.02)
    assert watch.doubt() is None
    clocks.wall += 5_000
    assert watch.doubt() is not None
    heard(watch, clocks, took_s=took_s, acknowledged_s=0.02)
    assert watch.doubt() is None


# --- a worker that owns nothing learns the broker's time from a record that means nothing ---------


class Stamped:
    def __init__(self, kind: int) -> None:
        self._kind = kind

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 1_900_000_000_000


class Producer:
    """Acknowledges what it is given. A real one is in the integration tests."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self.records: list[tuple[bytes, bytes | None]] = []
        self.is_slow = False
        self._reports: list[Callable[[], None]] = []

    def list_topics(self, *_: object) -> None: ...

    def produce(self, _topic: str, *, key: bytes, value: bytes | None, **more: Any) -> None:
        self.records.append((key, value))
        self._reports.append(lambda: more["on_delivery"](None, Stamped(self._kind)))

    def flush(self, _timeout_s: float) -> None:
        while self._reports and not self.is_slow:
            self._reports.pop(0)()


@pytest.mark.parametrize(
    ("kind", "times"), [(TIMESTAMP_LOG_APPEND_TIME, 1), (TIMESTAMP_CREATE_TIME, 0)]
)
def test_only_a_time_that_the_broker_put_there_is_heard(kind: int, times: int) -> None:
    heard: list[tuple[int, float, float]] = []
    producer: Any = Producer(kind)
    clock = BrokerClock({}, "claims", "n1-0", lambda *told: heard.append(told), lambda _: producer)
    clock.ask()
    assert len(heard) == times
    log = ClaimLog()
    log.enter("me")
    log.take(0, *producer.records[0])
    assert log._words == {0: {}}, "the end of a writer that never was"
    for broker_ms, sent_s, acknowledged_s in heard:
        assert broker_ms == 1_900_000_000_000
        assert sent_s <= acknowledged_s


def test_an_answer_that_comes_with_the_next_one_has_the_time_of_its_own_record() -> None:
    heard: list[tuple[int, float, float]] = []
    producer: Any = Producer(TIMESTAMP_LOG_APPEND_TIME)
    clock = BrokerClock({}, "claims", "n1-0", lambda *told: heard.append(told), lambda _: producer)
    producer.is_slow = True
    clock.ask()
    between_s = time.monotonic()
    producer.is_slow = False
    clock.ask()
    (_, first_s, _), (_, second_s, _) = heard
    assert first_s <= between_s <= second_s
