"""One clock, asked by all slices of a process."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from delayservice.base.clock import ClockWatch

TOLERANCE_MS = 500


@dataclass
class Clocks:
    """Three clocks that a test sets."""

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


def answer(
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
    answer(watch, clocks)
    assert watch.doubt() is None


@pytest.mark.parametrize("took_s", [0.6, 1.5, 8.0])
def test_a_slow_way_back_does_not_keep_the_guard_from_thawing(
    watch: ClockWatch, clocks: Clocks, took_s: float
) -> None:
    """The broker acknowledges at once; the commit and the reading back take long."""
    answer(watch, clocks, took_s=took_s, acknowledged_s=0.02)
    assert watch.doubt() is None
    clocks.wall += 5_000
    assert watch.doubt() is not None
    answer(watch, clocks, took_s=took_s, acknowledged_s=0.02)
    assert watch.doubt() is None
