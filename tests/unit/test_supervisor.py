"""The supervisor: a node ends as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
