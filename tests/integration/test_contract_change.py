"""Settings that decide how records are read change node by node, while records go on coming."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.bench import Bench, Seen, await_true
from tests.integration.nodes import Nodes, nodes_with

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
PENDING = 5
PAUSE_S = 0.01
"""Between two records: some 100 a second."""


nodes = nodes_with(sets=["delivery.roll_window_ms=10m"])


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


def assert_each_once(bench: Bench, topic: str, values: list[bytes]) -> list[Seen]:
    """Await all records of a topic, and read on to its end."""
    bench.read(topic, len(values), timeout_s=90)
    seen = bench.read_all(topic)
    assert Counter(one.value for one in seen) == Counter(values)
    return seen


def test_a_change_of_settings_under_load_rebuilds_no_copy(nodes: Nodes) -> None:
    bench, target = nodes.bench, nodes.bench.target("changed")
    sent: list[bytes] = []
    lives = [nodes.ready(name) for name in ("a", "b")]
    with written_all_along(bench, target, sent):
        await_true(lambda: len(sent) > 300, "some seconds passed", 60)
        lives += [nodes.restart(name, "delivery.max_delay_ms=1d") for name in ("a", "b")]
        begun = [line for node in lives for line in node.events("contract_extended")]
        assert begun, "the new owner wants another contract"
        assert all(line["from_offset"] > line["log_end"] for line in begun)
        read_to = max(line["from_offset"] for line in begun)
        await_true(lambda: len(sent) > read_to, "the new contract holds", 60)
    assert_each_once(bench, target, sent)
    for node in lives:
        assert node.events("contract_changed") == []


def test_a_changed_allowlist_applies_to_pending_records_without_a_contract(nodes: Nodes) -> None:
    bench, target = nodes.bench, nodes.bench.target("kept")
    closed, opened = bench.target("closed"), bench.topic(f"opened_{bench.run}")
    lives = [nodes.ready(name) for name in ("a", "b")]
    for number in range(PENDING):
        for topic in (closed, opened):
            named = ("delay-id", f"{topic} {number}")
            bench.send_later(bench.to(topic, HOUR_MS, named), value=b"%d" % number)
    sent: list[bytes] = []
    with written_all_along(bench, target, sent):
        await_true(lambda: len(sent) > 300, "some seconds passed", 60)
        allowed = f"targets.default.allow={target},{opened}"
        lives += [nodes.restart(name, allowed) for name in ("a", "b")]
        for number in range(PENDING):
            for topic in (closed, opened):
                bench.send_later([("delay-id", f"{topic} {number}"), ("delay-op", "fire")])
        values = [b"%d" % number for number in range(PENDING)]
        assert_each_once(bench, opened, values)
    letters = assert_each_once(bench, bench.dead_letter, values)
    assert_each_once(bench, target, sent)
    assert {one.header("delay-error") for one in letters} == {"target-denied"}
    assert bench.read_all(closed) == []
    for node in lives:
        assert node.events("contract_changed") == node.events("contract_extended") == []
