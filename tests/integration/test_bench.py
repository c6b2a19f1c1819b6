"""``dev bench`` from the command line: it measures, judges, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from delay_devtools.cluster import EmbeddedCluster
from tests.deployed import ROOT
from tests.integration.bench import await_true

PROGRAM = (sys.executable, "-m", "delayservice", "dev", "bench")


def command(cluster: EmbeddedCluster, *words: str) -> list[str]:
    return [*PROGRAM, *words, "--bootstrap", cluster.bootstrap, "--json", "--no-warm-up"]


def bench(cluster: EmbeddedCluster, *words: str) -> dict[str, Any]:
    return judged(command(cluster, *words))


def judged(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)  # nothing but the object
    assert isinstance(found, dict)
    wrong = ("lost", "duplicated", "early", "altered", "strangers")
    assert [found[name] for name in wrong] == [0] * 5
    page = (ROOT / "docs" / "internals" / "benchmarks.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    assert found.keys() <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    return found


def await_no_topics(cluster: EmbeddedCluster) -> None:
    """Wait until the broker lists none: it learns of a deletion after its confirmation."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def is_clean() -> bool:
        return not any(name.startswith("bench_") for name in admin.list_topics(timeout=10).topics)

    await_true(is_clean, "the bench's topics are deleted")


def test_whole_measures_the_service_and_the_limit(cluster: EmbeddedCluster) -> None:
    found = bench(cluster, "whole", "--n", "2000", "--rounds", "1", "--set", "node.store=rocksdb")
    assert (found["bench"], found["store"], found["n"]) == ("whole", "rocksdb", 2_000)
    for name in ("rate_per_s", "passthrough_per_s", "ratio", "rss_mib_peak", "lateness_ms_max"):
        assert found[name] > 0, name
    assert found["records_per_transaction"] > 1
    await_no_topics(cluster)


def test_steady_judges_every_record(cluster: EmbeddedCluster) -> None:
    words = ("--seconds", "2", "--rate", "500", "--delay-ms", "100", "300")
    found = bench(cluster, "steady", *words, "--set", "delivery.mode=at_least_once", "--full")
    await_no_topics(cluster)
    assert found["cpu_us_per_message"] > 0
    assert found["n"] == 1_000
    assert found["lateness_ms_p50"] <= found["lateness_ms_p99"] <= found["lateness_ms_max"]
    assert 0 < found["floor_lateness_ms_p50"] <= found["floor_lateness_ms_p99"]
    assert found["floor_cpu_us_per_message"] > 0


def test_a_burst_is_drained_when_all_of_it_is_due(cluster: EmbeddedCluster) -> None:
    found = bench(cluster, "steady", "--burst", "--seconds", "2", "--rate", "1000")
    assert found["n"] == 2_000
    assert 0 < found["deliver_per_s"] < 2_000 / 0.9
    assert found["rss_mib_peak"] > 0


def test_steady_without_a_load_measures_an_idle_node(cluster: EmbeddedCluster) -> None:
    words = [*command(cluster, "steady", "--seconds", "1", "--rate", "0")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout)
    assert 0 <= found["cpu_percent"] < 100
    assert found["rss_mib_peak"] > 0


def test_restart_times_the_first_delivery_beside_pending_records(cluster: EmbeddedCluster) -> None:
    found = bench(cluster, "restart", "--n", "2000")
    assert found["took_over_s"] > 0
    assert found["first_delivery_s"] > 0
    assert found["disk_bytes_per_message"] > 0


@pytest.mark.night
def test_failover_kills_the_owner_and_times_its_successors() -> None:
    words = ("--rounds", "1", "--rate", "200", "--partitions", "2", "--delay-ms", "0", "500")
    sets = ("--set", "zookeeper.session_timeout_s=2")
    found = judged([*PROGRAM, "failover", *words, *sets, "--json"])
    assert (found["rounds"], found["session_timeout_s"]) == (1, 2.0)
    assert 0 < found["takeover_ms_p50"] <= found["takeover_ms_p99"] == found["takeover_ms_max"]
    assert found["handovers"] >= 1
    assert 0 < found["handover_ms_p50"] <= found["handover_ms_p99"]


def test_a_bench_that_is_told_to_stop_leaves_nothing_behind(cluster: EmbeddedCluster) -> None:
    process = subprocess.Popen(
        command(cluster, "whole", "--n", "2000"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    top = psutil.Process(process.pid)

    def service_runs() -> bool:
        return any("delayservice run" in _words_of(child) for child in top.children())

    await_true(service_runs, "the service was started")
    started = top.children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) != 0
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    await_true(lambda: not any(map(_is_alive, started)), "everything that was started has ended")
    await_no_topics(cluster)


def _words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one of those
        return ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
