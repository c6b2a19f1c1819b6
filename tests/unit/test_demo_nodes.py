"""What the demo reads in logs, and where faults stop a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delay_devtools.demo.timeline import Act, Deed, Ending, ending, fences, strip
from delay_devtools.nodes import SliceEvent, hand_overs, owners, ownerships, slice_events_of
from delayservice.base import faults
from delayservice.base.errors import SettingsError


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


ROOT = Path(__file__).parents[2]
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
        cwd=ROOT,
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
    with subprocess.Popen([sys.executable, "-c", passes], cwd=ROOT) as process:
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
        cwd=ROOT,
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
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'faults\.point\("(\w+)"\)', path.read_text())
    }
    assert passed <= faults.POINTS.keys()
