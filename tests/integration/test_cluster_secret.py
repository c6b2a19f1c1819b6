"""A node with a wrong cluster secret loses nothing, and the secret is replaced by the run-book."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from tests.integration.bench import Bench, await_true
from tests.integration.nodes import Nodes, metrics_text, nodes_with, unready_because

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
FAR = 20
SCHEDULES = 3
OLD, NEW = "the-old-one-0123456789", "the-new-one-0123456789"
nodes = nodes_with(sets=["delivery.roll_window_ms=2s"])


def copies(bench: Bench) -> int:
    """Return how many copies the delay topic holds."""
    return sum(one.header("delay-copy") is not None for one in bench.read_all(bench.any))


def fire(bench: Bench, *names: str) -> None:
    for name in names:
        bench.send_later([("delay-id", name), ("delay-op", "fire")])
    assert bench.producer.flush(30) == 0


def assert_arrived(bench: Bench, target: str, expected: Counter[bytes]) -> None:
    """Await all records, and read on to the end: nothing came twice or was dead-lettered."""
    bench.read(target, expected.total(), timeout_s=120)
    assert Counter(one.value for one in bench.read_all(target)) == expected
    assert bench.read_all(bench.dead_letter) == []


def test_a_replica_that_had_a_wrong_secret_loses_nothing_when_it_takes_over(nodes: Nodes) -> None:
    bench, target = nodes.bench, nodes.bench.target("far")
    owner = nodes.start("a")
    owner.wait_serving(1)
    wrong = nodes.start("b", f"node.cluster_secret={NEW}")
    reason = "another cluster secret"
    await_true(lambda: reason in unready_because(wrong), "it is not ready", 60)
    assert reason in bench.status(wrong)["problems"][0]
    assert metrics_text(wrong, "delay_alarm{").endswith(" 1.0")
    assert wrong.events("slice_interrupted") or wrong.events("take_over_failed")

    far = [f"far {number}" for number in range(FAR)]
    again = [f"again {number}" for number in range(SCHEDULES)]
    for name in far:
        headers = bench.to(target, HOUR_MS, ("delay-id", name))
        bench.send_later(headers, value=name.encode())
    for name in again:
        series = [("delay-every", "1h"), ("delay-times", "2"), ("delay-id", name)]
        bench.send_later(bench.to(target, 1_000, *series), value=name.encode())
    assert bench.producer.flush(30) == 0
    signed = FAR + 2 * SCHEDULES  # what recurs is signed with its first occurrence, too
    await_true(lambda: copies(bench) >= signed, "all that waits was rolled", 60)
    assert wrong.events("took_over") == []
    assert wrong.stop() == 0

    right = nodes.ready("b")
    owner.kill()
    right.wait_serving(1)
    fire(bench, *far, *again)
    expected = Counter(name.encode() for name in (*far, *again, *again))
    assert_arrived(bench, target, expected)


def test_the_secret_is_replaced_while_records_wait_and_nothing_is_lost(nodes: Nodes) -> None:
    """docs/internals/procedures.md, "Replacing the cluster secret", step by step."""
    bench, target = nodes.bench, nodes.bench.target("kept")
    accepted = bench.folder / "accepted_secrets"
    accepts = f"node.accepted_secrets_file={accepted}"
    names: list[str] = []

    def roll_out(*sets: str, wiped: str = "") -> None:
        """Restart one node after the other, while records go on being written."""
        for name in ("a", "b"):
            if name in nodes.running:
                assert nodes.running[name].stop() == 0
            if name == wiped:
                shutil.rmtree(bench.folder / name)
            nodes.ready(name, *sets)
            for _ in range(5):
                names.append(f"r{len(names)}")
                headers = bench.to(target, HOUR_MS, ("delay-id", names[-1]))
                bench.send_later(headers, value=names[-1].encode())
            assert bench.producer.flush(30) == 0

    roll_out(f"node.cluster_secret={OLD}")
    accepted.write_text(NEW)
    roll_out(f"node.cluster_secret={OLD}", accepts)
    accepted.write_text(OLD)
    roll_out(f"node.cluster_secret={NEW}", accepts)
    for node in nodes.running.values():
        assert node.events("contract_changed") == [], "no store is rebuilt for it"
    before = copies(bench)
    wanted = before + 2 * len(names)
    await_true(lambda: copies(bench) >= wanted, "all was signed anew, and again", 120)
    roll_out(f"node.cluster_secret={NEW}", wiped="b")
    nodes.running["a"].kill()
    fire(bench, *names)
    assert_arrived(bench, target, Counter(name.encode() for name in names))
