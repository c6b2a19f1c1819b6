"""The bench's figures: percentiles, verdicts, growth of memory, and when work ended."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delay_devtools.bench.figures import Figures, quantile, show
from delay_devtools.bench.sampling import MIB, Sampler, UsageSample, busy_until, disk_bytes
from delay_devtools.bench.tally import BenchVerdict
from delayservice.cli import app

ROOT = Path(__file__).parents[2]


def figures_of(delivery: str) -> Figures:
    return Figures(
        bench="whole", delivery=delivery, store="wheel", partitions=4, workers=2, size=100
    )


def working(*spans: tuple[float, float]) -> list[UsageSample]:
    """A core that works 90 % within these seconds and 2 % outside, seen each 10 ms for 3 s."""
    found, used_s = [], 0.0
    for tick in range(300):
        at_s = tick / 100
        used_s += 0.009 if any(start < at_s <= stop for start, stop in spans) else 0.0002
        found.append(UsageSample(at_s, used_s, 0))
    return found


def verdict(**changes: int) -> BenchVerdict:
    facts = {"lost": 0, "duplicated": 0, "early": 0, "altered": 0, "strangers": 0, **changes}
    return BenchVerdict(n=4, seen=4, last_seen_s=0.0, lateness_ms={3: 4}, **facts)


def test_a_quantile_is_the_smallest_value_that_so_many_are_at_or_below() -> None:
    histogram = dict.fromkeys(range(1, 101), 1)
    assert [quantile(histogram, f) for f in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert quantile({9: 1, 5: 99}, 0.99) == 5
    assert quantile({}, 0.5) is None


def test_memory_is_that_of_the_peak_and_what_the_end_has_more_than_the_start() -> None:
    sampler = Sampler([])
    sampler.samples += [UsageSample(0.0, 0.0, rss * MIB) for rss in (50, 80, 60)]
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


@pytest.mark.parametrize("what", ["lost", "early", "altered", "strangers"])
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_anything_wrong_with_any_load_fails_the_run(what: str, delivery: str) -> None:
    figures = figures_of(delivery)
    figures.judge([verdict(), verdict(**{what: 1})], [verdict()])
    assert not figures.is_good


def test_a_doubled_record_fails_exactly_once_only() -> None:
    for delivery, is_good in (("exactly_once", False), ("at_least_once", True)):
        figures = figures_of(delivery)
        figures.judge([verdict(duplicated=1)], [verdict(), verdict()])
        assert figures.lateness_ms_max == 3
        assert (figures.is_good, figures.duplicated) == (is_good, 1)


def test_json_is_one_object_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of("exactly_once")
    figures.cpu_percent = 1.23456
    show(figures, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == [field.name for field in fields(Figures)]
    assert (shown["cpu_percent"], shown["lost"]) == (1.235, None)


def test_every_field_is_explained() -> None:
    page = (ROOT / "docs" / "internals" / "benchmarks.md").read_text("utf-8")
    explained = {
        name
        for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert {field.name for field in fields(Figures)} <= explained


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["whole", "--size", "23"], "24 or more"),
        (["steady", "--delay-ms", "9", "3"], "the shortest delay first"),
        (["failover", "--rate", "0"], "needs a load"),
        (["failover", "--bootstrap", "127.0.0.1:1"], "brokers of its own"),
        (["peers", "--bootstrap", "127.0.0.1:1"], "brokers of its own"),
        (["whole", "--set", "node.workerz=2"], "did you mean node.workers"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    words: list[str], complaint: str
) -> None:
    done = CliRunner().invoke(app, ["dev", "bench", *words])
    assert complaint in done.output


def test_a_bench_that_does_not_exist_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["dev", "bench", "everything"]).exit_code == 2
