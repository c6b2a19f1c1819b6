"""``delayservice dev bench peers``: three systems, one load, one judge."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

SYSTEMS = {"this service": True, "RocketMQ": False, "NATS": True}
"""Whether a system must not double a message after a kill."""


@pytest.mark.night
@pytest.mark.timeout(960)
@pytest.mark.skipif(shutil.which("go") is None, reason="NATS is built with Go")
def test_all_systems_deliver_every_message_and_this_one_delivers_it_once() -> None:
    words = ("--n", "200", "--rate", "100", "--no-warm-up", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "delayservice", "dev", "bench", "peers", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["results"]
    assert [found["round"] for found in results] == ["undisturbed", "killed", "burst"] * len(
        SYSTEMS
    )
    for found in results:
        is_once = next(once for name, once in SYSTEMS.items() if found["system"].startswith(name))
        sent = 2_000 if found["round"] == "burst" else 200
        assert (found["n"], found["lost"], found["altered"]) == (sent, 0, 0), found
        if is_once or found["round"] != "killed":
            assert found["duplicated"] == 0, found
