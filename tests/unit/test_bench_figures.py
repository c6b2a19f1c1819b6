"""The bench's figures: percentiles, verdicts, growth of memory, and when work ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from delay_devtools.bench.failover import Kill, pause_ms, waited_ms
from delay_devtools.bench.figures import Figures, Measured, is_good, report
from delay_devtools.bench.options import Options
from delay_devtools.bench.sampling import Sampler, UsageSample, busy_until, disk_bytes
from delay_devtools.bench.stand import settings_of
from delayservice.base.errors import DelayServiceError
from delayservice.cli import app
from delayservice.smoke.judge import Arrival, Verdict


def reported(*verdicts: Verdict, delivery: str = "exactly_once") -> Figures:
    options = Options("whole", sets=[f"delivery.mode={delivery}"])
    first, *others = verdicts
    return report(
        options, settings_of(options), Measured({"cpu_percent": 1.23456}, [first], others)
    )


def working(*spans: tuple[float, float]) -> list[UsageSample]:
    """A core that works 90 % within these seconds and 2 % outside, seen each 10 ms for 3 s."""
    found, used_s = [], 0.0
    for tick in range(300):
        at_s = tick / 100
        used_s += 0.009 if any(start < at_s <= stop for start, stop in spans) else 0.0002
        found.append(UsageSample(at_s, used_s, 0))
    return found


def verdict(**changes: Any) -> Verdict:
    return Verdict(n=4, lateness_ms=Counter({3: 4}), **changes)


def arrivals(*times_ms: tuple[int, int]) -> list[Arrival]:
    arrival = Arrival(0, 0, "", False, 3, 0, 0, 0, 0)  # noqa: FBT003
    return [arrival._replace(produced_ms=made_ms, seen_ms=seen_ms) for made_ms, seen_ms in times_ms]


def test_outputs_of_a_dead_owner_are_not_counted_for_its_successor() -> None:
    found = arrivals((100, 190), (150, 300), (200, 310), (210, 305))
    assert waited_ms(found, Kill(5, 150.9, (3,)), 3) == 300
    for slice_no, dead_ms in ((3, 210), (4, 0)):
        with pytest.raises(DelayServiceError, match=f"nothing of slice {slice_no}"):
            waited_ms(found, Kill(5, dead_ms, (slice_no,)), slice_no)


def test_a_pause_is_between_the_last_before_and_the_first_after() -> None:
    found = arrivals((230, 260), (100, 110), (150, 170), (231, 250))
    assert pause_ms(found, 3, 150.2) == 80
    assert pause_ms(found, 3, 99) is None
    assert pause_ms(found, 3, 231) is None
    assert pause_ms(found, 0, 150) is None


def test_memory_is_that_of_the_peak_and_what_the_end_has_more_than_the_start() -> None:
    sampler = Sampler([])
    sampler.samples += [UsageSample(0.0, 0.0, rss) for rss in (50, 80, 60)]
    assert (sampler.rss_mib_peak, sampler.rss_mib_growth) == (80, 10)


@pytest.mark.parametrize("stop_s", [0.2, 1.0, 2.5])
def test_work_ends_when_the_processor_has_nothing_more_to_do(stop_s: float) -> None:
    assert busy_until(working((0.1, stop_s)), 0.1, 2.9) == pytest.approx(stop_s, abs=0.035)


def test_a_pause_is_no_end_and_what_came_before_or_after_is_not_counted() -> None:
    curve = working((0.0, 0.3), (0.5, 1.0), (1.4, 1.6), (2.5, 2.9))
    assert busy_until(curve, 0.5, 2.2) == pytest.approx(1.6, abs=0.035)
    assert busy_until(curve, 1.8, 2.2) == pytest.approx(1.85)


def test_disk_is_counted_in_blocks(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path) == 0
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert 100_000 <= disk_bytes(tmp_path) <= 200_000


@pytest.mark.parametrize("what", ["lost", "early", "altered", "strangers", "duplicated"])
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_fault_fails_the_run_but_a_double_under_at_least_once(what: str, delivery: str) -> None:
    found = reported(verdict(), verdict(**{what: 1}), delivery=delivery)
    assert (found[what], found["lateness_ms_max"], found["cpu_percent"]) == (1, 3, 1.235)
    assert is_good(found) == ((what, delivery) == ("duplicated", "at_least_once"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["whole", "--size", "23"], "24 or more"),
        (["steady", "--delay-ms", "9", "3"], "the shortest delay first"),
        (["failover", "--rate", "0"], "needs a load"),
        (["steady", "--burst", "--rate", "0"], "without --burst"),
        (["failover", "--bootstrap", "127.0.0.1:1"], "brokers of its own"),
        (["peers", "--bootstrap", "127.0.0.1:1"], "brokers of its own"),
        (["whole", "--set", "node.workerz=2"], "did you mean node.workers"),
    ],
)
def test_options_that_cannot_be_measured_are_refused_at_the_start(
    words: list[str], complaint: str
) -> None:
    done = CliRunner().invoke(app, ["dev", "bench", *words])
    assert complaint in done.output


def test_a_bench_that_does_not_exist_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["dev", "bench", "everything"]).exit_code == 2
