"""The one command of docs/start.md, in both of its forms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import psutil
import pytest

TRY = (sys.executable, "-m", "delayservice", "dev", "try")
ELSEWHERE = {
    "DELAYSERVICE_KAFKA__BOOTSTRAP": "127.0.0.1:1",
    "DELAYSERVICE_TOPICS__PARTITIONS": "0",
    "DELAYSERVICE_CONFIG": "/dev/null",
}
"""Settings of a user's own cluster, as the README has them exported."""
pytestmark = pytest.mark.cluster


def test_the_first_record_arrives_and_nothing_is_left() -> None:
    done = subprocess.run(
        [*TRY, "--once", "--json", "--after", "2s"],
        env={**os.environ, **ELSEWHERE},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["key"], told["value"]) == ("order-17", "hello")
    assert told["place"].startswith("orders:")
    assert told["lateness_ms"] >= 0, "never early"
    assert "$ delayservice send hello --after 2s" in done.stderr
    assert not os.path.exists(told["config"])  # noqa: PTH110  # a text out of JSON
    assert not [one for one in psutil.process_iter() if told["config"] in _environment(one)]


def _environment(process: psutil.Process) -> str:
    try:
        return " ".join(process.environ().values())
    except psutil.Error:
        return ""


@pytest.fixture
def trying() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*TRY, "--after", "1s", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


@pytest.mark.night
def test_it_stays_to_be_tried_until_it_is_told_to_end(trying: subprocess.Popen[str]) -> None:
    assert trying.stdout is not None
    assert trying.stderr is not None
    told = json.loads(trying.stdout.readline())
    with urllib.request.urlopen(f"http://{told['page']}/", timeout=10) as page:
        assert page.status == 200
    for command in (
        ["send", "again", "--after", "1s", "--target", "orders"],
        ["send", "fired", "--after", "1h", "--target", "orders", "--id", "one"],
        ["record", "fire", "one"],
    ):
        subprocess.run(
            [sys.executable, "-m", "delayservice", *command],
            env={**os.environ, "DELAYSERVICE_CONFIG": told["config"]},
            timeout=60,
            check=True,
        )
    for value, place_in_time in (("again", "later"), ("fired", "before that")):
        line = next(one for one in iter(trying.stderr.readline, "") if f"'{value}'" in one)
        assert line.endswith(f" ms {place_in_time}\n")
    trying.send_signal(signal.SIGINT)
    assert trying.wait(60) == 0
