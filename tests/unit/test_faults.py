"""Fault points: off by default, exact when on, and only known names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delayservice.base import faults
from delayservice.base.errors import SettingsError

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
