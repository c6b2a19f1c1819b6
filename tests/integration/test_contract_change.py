"""Settings that decide how records are read change node by node, while records go on coming."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.bench import Bench, await_true
from tests.integration.test_cluster_secret import Pair

pytestmark = pytest.mark.slow

WINDOW_MS = 600_000
HOUR_MS = 3_600_000
PENDING = 5
PAUSE_S = 0.01
"""Between two records: some 100 a second."""


@pytest.fixture
def pair(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(cluster, tmp_path, WINDOW_MS)
    with made.bench:
        yield made


@contextmanager
def written_all_along(bench: Bench, target: str, sent: list[bytes]) -> Iterator[None]:
    """Write records that are due at once, at one pace."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(PAUSE_S):
            sent.append(b"%d" % len(sent))
            bench.send_later(bench.to(target, 1_000), value=sent[-1])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert bench.producer.flush(30) == 0


def restarted(pair: Pair, *sets: str) -> list[ServiceProcess]:
    """Give both nodes other settings, one after the other."""
    lives = []
    for name in ("a", "b"):
        assert pair.running[name].stop() == 0
        lives.append(pair.start(name, *sets))
        pair.await_ready(lives[-1])
    return lives


def test_a_change_of_settings_under_load_rebuilds_no_copy(pair: Pair) -> None:
    bench, target = pair.bench, pair.bench.target("changed")
    sent: list[bytes] = []
    for name in ("a", "b"):
        pair.await_ready(pair.start(name))
    lives = list(pair.running.values())
    with written_all_along(bench, target, sent):
        await_true(lambda: len(sent) > 300, "some seconds passed", 60)
        lives += restarted(pair, "delivery.max_delay_ms=86400000")
        begun = [line for node in lives for line in node.events("contract_extended")]
        assert begun, "the new owner wants another contract"
        assert all(line["from_offset"] > line["log_end"] for line in begun)
        read_to = max(line["from_offset"] for line in begun)
        await_true(lambda: len(sent) > read_to, "the new contract holds", 60)
    seen = bench.read(target, len(sent), timeout_s=90)
    assert Counter(one.value for one in seen) == Counter(sent)
    for node in lives:
        assert node.events("contract_changed") == []


def test_a_changed_allowlist_applies_to_pending_records_without_a_contract(
    pair: Pair,
) -> None:
    bench, target = pair.bench, pair.bench.target("kept")
    closed, opened = bench.target("closed"), bench.topic(f"opened_{bench.run}")
    for name in ("a", "b"):
        pair.await_ready(pair.start(name))
    lives = list(pair.running.values())
    for number in range(PENDING):
        for topic in (closed, opened):
            named = ("delay-id", f"{topic} {number}")
            bench.send_later(bench.to(topic, HOUR_MS, named), value=b"%d" % number)
    sent: list[bytes] = []
    with written_all_along(bench, target, sent):
        await_true(lambda: len(sent) > 300, "some seconds passed", 60)
        lives += restarted(pair, f"targets.default.allow={target},{opened}")
        for number in range(PENDING):
            for topic in (closed, opened):
                bench.send_later([("delay-id", f"{topic} {number}"), ("delay-op", "fire")])
        fired = bench.read(opened, PENDING, timeout_s=90)
        letters = bench.read(bench.dead_letter, PENDING, timeout_s=90)
    seen = bench.read(target, len(sent), timeout_s=90)
    assert Counter(one.value for one in seen) == Counter(sent)
    values = Counter(b"%d" % number for number in range(PENDING))
    assert Counter(one.value for one in fired) == Counter(one.value for one in letters) == values
    assert {one.header("delay-error") for one in letters} == {"target-denied"}
    assert bench.read_all(closed) == []
    for node in lives:
        assert node.events("contract_changed") == node.events("contract_extended") == []
