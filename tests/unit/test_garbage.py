"""The collector's policy, in a process of its own: it changes the whole interpreter."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, weakref
from delayservice.process import worker

class Ring:
    def __init__(self):
        self.me = self

worker.collect_garbage()
held = [weakref.ref(Ring()) for _ in range(10_000)]
assert all(ring() is not None for ring in held), "collected by count"
worker.collect_garbage()
assert all(ring() is None for ring in held), "cycles are never collected"
"""


def test_cycles_are_collected_at_the_interval_and_at_no_other_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
