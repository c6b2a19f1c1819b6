"""What benches and the drill make of what they measured."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from delay_devtools.bench.failover import Kill, pause_ms, waited_ms
from delay_devtools.bench.figures import Figures, Measured, is_good, report
from delay_devtools.bench.options import Options
from delay_devtools.bench.peers import run, servers
from delay_devtools.bench.sampling import Sampler, UsageSample, busy_until, disk_bytes
from delay_devtools.bench.stand import settings_of
from delay_devtools.drill.copies import COPY_KINDS
from delay_devtools.drill.judge import Defect, judge
from delay_devtools.drill.operators import DEFECTS, SOUND
from delay_devtools.drill.run import KINDS
from delay_devtools.drill.stories import STORIES
from delay_devtools.jars import parse_lock
from delayservice.base.errors import DelayServiceError
from delayservice.cli import app
from delayservice.smoke.judge import Arrival, Verdict
from delayservice.smoke.load import Loaded
from tests.unit.test_imports import ROOT


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
def test_unmeasurable_options_are_refused_at_the_start(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, ["dev", "bench", *words])
    assert complaint in done.output


def test_a_bench_that_does_not_exist_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["dev", "bench", "everything"]).exit_code == 2


# --- the bench ``peers``: its results, and the pinned versions of other brokers -------------------


OPTIONS = Options("peers", n=100, as_json=True)
LOCK = Path(servers.__file__).with_name("rocketmq.lock")


def results() -> list[Figures]:
    late = Verdict(n=100, early=1, duplicated=3, lateness_ms=Counter({-7: 1, 60: 99}))
    good = Verdict(n=100, lateness_ms=Counter({5: 98, 40: 2}))
    return [
        run.result("this service 1", "a node", "undisturbed", good, Loaded(100, seconds=0.5)),
        run.result("Other 2", "a broker", "killed", late, Loaded(100, seconds=1.0, resent=4)),
    ]


def test_a_fault_of_this_service_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    good, wrong = results()
    assert [good[f"lateness_ms_{name}"] for name in ("p50", "p99", "max")] == [5, 40, 40]
    assert (wrong["early"], wrong["early_ms_max"], wrong["duplicated"]) == (1, 7, 3)
    assert (good["sent_per_s"], wrong["resent"]) == (200, 4)
    assert run.show(OPTIONS, results()) == 0
    assert run.show(OPTIONS, [{**wrong, "system": "this service 1"}]) == 1
    shown = json.loads(capsys.readouterr().out.splitlines()[0])
    assert shown["results"] == results()


def test_the_table_has_a_row_for_each_result_and_a_dash_for_what_is_not_counted() -> None:
    console = Console(file=io.StringIO(), width=240, record=True)
    console.print(run.table(results()))
    text = console.export_text()
    assert re.search(r"this service 1 +│ undisturbed .*│ +— ", text)
    assert re.search(r"Other 2 +│ killed .*│ +4 │.*│ +60 / 60 / 60 ", text)


def test_the_versions_are_those_of_the_locks() -> None:
    pinned = {jar.coordinate for jar in parse_lock(LOCK.read_text("utf-8"))}
    for part in ("broker", "namesrv", "client"):
        assert f"org.apache.rocketmq:rocketmq-{part}:{servers.ROCKETMQ}" in pinned
    sums = LOCK.with_name("nats") / "go.sum"
    assert f"nats-server/v2 v{servers.NATS} h1:" in sums.read_text("utf-8")


# --- the tables of a drill fit its stories and its page, and its verdict is exact -----------------


def test_a_command_of_another_kind_loads_no_spark() -> None:
    program = (
        "import sys, delay_devtools.commands\n"
        "print([m for m in sys.modules if m.startswith(('connectors.spark', 'pyspark'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_each_kind_spoils_a_story_that_is_played_and_has_a_name_of_its_own() -> None:
    played = {*STORIES, "aged", "tail"}
    assert {kind.story for kind in (*DEFECTS.values(), *SOUND.values())} <= played
    assert len(set(KINDS)) == len(KINDS) >= 60
    assert not {*KINDS} & {*SOUND}


def test_every_operator_is_in_the_tables_of_the_page() -> None:
    page = (ROOT / "docs/internals/drill.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    done = {name.removeprefix(f"{kind.story}_") for name, kind in {**DEFECTS, **SOUND}.items()}
    copies = {name.partition("_")[2] for name in COPY_KINDS}
    assert named == done | copies


def test_a_defect_counts_only_when_all_of_it_is_found_and_the_rest_is_invented() -> None:
    defects = [
        Defect("missing_minute", (("disks", "missing", 1), ("disks", "missing", 2))),
        Defect("plain_dropped", (("archive", "lost", 7), ("follow", "lost", 7))),
    ]
    all_of_it = [finding for one in defects for finding in one.findings]
    good = judge(defects, all_of_it, 10, {"archive": 2.0})
    assert good.is_good
    assert good.to_json()["rows_per_s"] == 5
    half = judge(defects, all_of_it[1:], 10, {})
    assert (half.found["missing_minute"], half.missed) == (0, all_of_it[:1])
    assert not half.is_good
    twice = judge(defects, [*all_of_it, all_of_it[2]], 10, {})
    assert twice.inventions == [all_of_it[2]]
    once = judge(defects[1:], all_of_it[2:3], 10, {})
    assert (once.found["plain_dropped"], once.missed) == (0, all_of_it[3:])
    elsewhere = judge(defects[1:], [("archive", "lost", 8)], 10, {})
    assert (elsewhere.found["plain_dropped"], len(elsewhere.inventions)) == (0, 1)
