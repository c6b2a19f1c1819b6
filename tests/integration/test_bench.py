"""``delayservice bench`` from the command line: it measures, judges, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import await_true


def command(cluster: EmbeddedCluster, *words: str) -> list[str]:
    options = ("--bootstrap", cluster.bootstrap, "--json", "--no-warm-up")
    return [sys.executable, "-m", "delayservice", "bench", *words, *options]


def bench(cluster: EmbeddedCluster, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        command(cluster, *words), check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)  # nothing but the object
    assert isinstance(found, dict)
    wrong = ("lost", "duplicated", "early", "altered", "strangers")
    assert [found[name] for name in wrong] == [0] * 5
    return found


def bench_topics(cluster: EmbeddedCluster) -> list[str]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return [name for name in admin.list_topics(timeout=10).topics if name.startswith("bench_")]


def test_whole_measures_the_service_and_the_limit(cluster: EmbeddedCluster) -> None:
    found = bench(cluster, "whole", "--n", "2000", "--rounds", "1", "--store", "rocksdb")
    assert (found["bench"], found["store"], found["n"]) == ("whole", "rocksdb", 2_000)
    for name in ("rate_per_s", "passthrough_per_s", "ratio", "rss_mib_peak", "lateness_ms_max"):
        assert found[name] > 0, name
    assert found["records_per_transaction"] > 1
    assert found["serving_s"] is None
    assert bench_topics(cluster) == []


def test_level_measures_the_service_and_the_limit(cluster: EmbeddedCluster) -> None:
    found = bench(cluster, "level", "--n", "2000", "--rounds", "1")
    for name in ("rate_per_s", "passthrough_per_s", "ratio", "rss_mib_peak"):
        assert found[name] > 0, name
    assert (found["store"], found["lateness_ms_max"]) == (None, None)
    assert bench_topics(cluster) == []


def test_steady_judges_every_record(cluster: EmbeddedCluster) -> None:
    words = ("--seconds", "2", "--rate", "500", "--delay-ms", "100", "300")
    found = bench(cluster, "steady", *words, "--delivery", "at_least_once")
    assert found["n"] == 1_000
    assert found["lateness_ms_p50"] <= found["lateness_ms_p99"] <= found["lateness_ms_max"]
    assert found["passthrough_per_s"] is None


def test_failover_kills_the_owner_and_times_its_successors(cluster: EmbeddedCluster) -> None:
    words = ("--trials", "1", "--rate", "200", "--partitions", "2", "--delay-ms", "0", "500")
    sets = (f"zookeeper.hosts={cluster.zookeeper}", "zookeeper.session_timeout_s=2")
    found = bench(cluster, "failover", *words, *(w for one in sets for w in ("--set", one)))
    assert (found["trials"], found["nodes"], found["slices"]) == (1, 3, 2)
    assert (found["session_timeout_s"], found["zookeeper_tick_s"]) == (2.0, 0.5)
    assert 0 < found["takeover_s_p50"] <= found["takeover_s_p99"] == found["takeover_s_max"]
    assert found["handovers"] >= 1
    assert 0 < found["handover_ms_p50"] <= found["handover_ms_p99"]
    assert bench_topics(cluster) == []
    assert bench_roots(cluster) == []


def bench_roots(cluster: EmbeddedCluster) -> list[str]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        return [name for name in client.get_children("/") if name.startswith("bench_")]
    finally:
        client.stop()
        client.close()


def test_a_bench_that_is_told_to_stop_leaves_nothing_behind(cluster: EmbeddedCluster) -> None:
    process = subprocess.Popen(
        command(cluster, "burst", "--n", "2000"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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
    assert bench_topics(cluster) == []


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
