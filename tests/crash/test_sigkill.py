"""A real process with a real store, killed in a loop."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from delayservice.engine.cursor import Cursor
from tests.crash import feeder
from tests.crash.model_log import ModelLog, read_all

LONG = os.environ.get("CRASH_MODE") == "long"


@pytest.mark.parametrize("kind", ["wheel", "rocksdb"])
def test_a_killed_process_leaves_all_that_it_promised(kind: str, tmp_path: Path) -> None:
    log = ModelLog(feeder.COUNT, seed=3, spread_ms=20_000)
    after = max(feeder.prune_key(log, offset) for offset in feeder.PRUNES)
    rng = random.Random(4)
    folder = tmp_path / "shard"
    promised, killed = 0, 0
    for _ in range(200 if LONG else 12):
        lines = _run_and_kill(kind, folder, rng.uniform(0.0, 0.04))
        promised = max([promised, *(int(line.split()[0]) for line in lines)])
        killed += not any(line.endswith("done") for line in lines)
        store = feeder.make_store(kind, folder)
        stop = store.open()
        assert stop >= promised
        assert read_all(store, after) == log.held(stop, after)
        log.check_label(store, stop, [20])
        log.check_ids(store, stop, Cursor(after, 0))
        if stop == feeder.COUNT:
            store.reset()
            promised = 0
        store.close()
    assert killed >= 3


def _run_and_kill(kind: str, folder: Path, seconds: float) -> list[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.feeder", kind, str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    rest = process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    assert first, "the feeder did not open its store"
    return [first.strip(), *rest]
