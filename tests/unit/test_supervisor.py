"""The supervisor: a node ends as a whole."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from delayservice import node
from delayservice.core.electability import SILENT_S_MAX
from delayservice.metrics_hub import MetricsHub
from delayservice.settings import load

ROOT = Path(__file__).parents[2]
NODE = """
import sys
from delayservice import node
from delayservice.settings import load

def broken(_):
    raise OSError("no more processes")

node._prepare_topics = lambda *_: True  # no Kafka: the workers wait for it
node.Supervisor._restart_dead = broken

if __name__ == "__main__":
    sets = [f"node.state_dir={sys.argv[1]}", "node.workers=2", "metrics.listen=", "admin.listen="]
    sets += ["kafka.bootstrap=127.0.0.1:1", "log.format=json"]
    sys.exit(node.run(load(None, sets, {})))
"""


def test_a_supervisor_that_fails_ends_the_node_and_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "failing_node.py"
    script.write_text(NODE, "utf-8")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "state"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in {0, None}
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert "no more processes" in done.stderr
    assert [event["message"] for event in events if event["message"] == "supervisor_failed"]
    started = [event["pid"] for event in events if event["message"] == "worker_started"]
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Process:
    """A worker process that is there until it is killed."""

    exitcode = -9
    is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def join(self) -> None: ...


def supervising(*, has_reported: bool) -> tuple[node.Supervisor, Process]:
    settings = load(None, ["node.workers=1"], {})
    supervisor = node.Supervisor(settings, (b"secret",), "me", MetricsHub(settings))
    process, (mine, _) = Process(), supervisor._context.Pipe()
    nobody: Any = None
    child: Any = node._Child(
        process,  # type: ignore[arg-type]
        mine,
        nobody,
        time.monotonic(),
        has_reported=has_reported,
    )
    supervisor._children[0] = child
    return supervisor, process


@pytest.mark.parametrize(("has_reported", "limit_s"), [(True, SILENT_S_MAX + 5), (False, 60)])
def test_a_worker_that_says_nothing_for_too_long_is_ended(
    *, has_reported: bool, limit_s: float
) -> None:
    supervisor, process = supervising(has_reported=has_reported)
    for _ in range(math.floor(limit_s)):
        supervisor._end_silent(1.0)
    assert not process.is_killed
    supervisor._end_silent(1.0)
    assert process.is_killed


def test_the_lives_of_a_worker_that_ended_soon_are_counted_for_the_next_one() -> None:
    supervisor, _ = supervising(has_reported=True)
    for crashes in (1, 2, 3):
        child = supervisor._children[0]
        supervisor._buried(0)
        assert supervisor._restarts[0] == crashes
        child.pipe, _ = supervisor._context.Pipe()
        supervisor._children[0] = child
    child.started_s -= 3_600
    supervisor._buried(0)
    assert supervisor._restarts[0] == 1, "it lived for long"
