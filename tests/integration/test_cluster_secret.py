"""A node with a wrong cluster secret loses nothing, and the secret is replaced by the run-book."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.asked import metrics_of, probed
from tests.integration.bench import Bench, await_true, now_ms

pytestmark = pytest.mark.slow

WINDOW_MS = 30_000
DUE_MS = 58_000
FAR = 20
SCHEDULES = 3
OLD, NEW = "the-old-one-0123456789", "the-new-one-0123456789"


class Pair:
    """Two nodes that elect an owner, over several lives."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path, window_ms: int) -> None:
        self.folder = folder
        self.bench = Bench(
            cluster.bootstrap,
            folder,
            sets=[
                f"zookeeper.hosts={cluster.zookeeper}",
                f"zookeeper.root=/{uuid.uuid4().hex}",
                "zookeeper.session_timeout_s=4",
                "node.workers=1",
                f"delivery.roll_window_ms={window_ms}",
            ],
        )
        self.running: dict[str, ServiceProcess] = {}

    def start(self, name: str, *sets: str) -> ServiceProcess:
        """Begin a life."""
        state = f"node.state_dir={self.folder / name}"
        node = self.bench.start(f"node.node_id={name}", state, *sets, log=f"{name}.log")
        self.running[name] = node
        return node

    def ready(self, node: ServiceProcess) -> tuple[int, str]:
        """Status and body of its ``/readyz``; 0 before it listens."""
        status, body = probed(node, "/readyz")
        return status, str(body.get("detail", ""))

    def await_ready(self, node: ServiceProcess) -> None:
        """Until it could take over."""
        await_true(lambda: self.ready(node)[0] == 200, "the node is ready", 120)

    def copies(self) -> int:
        """How many copies the delay topic holds."""
        seen = self.bench.read_all(self.bench.any)
        return sum(one.header("delay-copy") is not None for one in seen)

    def alarm(self, node: ServiceProcess) -> str:
        """Its line of ``delay_alarm`` in the metrics."""
        return next(iter(metrics_of(node, "delay_alarm{")), "")


@pytest.fixture
def pair(
    cluster: EmbeddedCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    made = Pair(cluster, tmp_path, request.param)
    with made.bench:
        yield made


@pytest.mark.parametrize("pair", [WINDOW_MS], indirect=True)
def test_a_replica_that_had_a_wrong_secret_loses_nothing_when_it_takes_over(pair: Pair) -> None:
    bench, target = pair.bench, pair.bench.target("far")
    owner = pair.start("a")
    owner.wait_serving(1)
    wrong = pair.start("b", f"node.cluster_secret={NEW}")
    await_true(lambda: "another cluster secret" in pair.ready(wrong)[1], "it is not ready", 60)
    assert "another cluster secret" in bench.status(wrong)["problems"][0]
    assert pair.alarm(wrong).endswith(" 1.0")
    assert wrong.events("slice_interrupted") or wrong.events("take_over_failed")

    sent_ms = now_ms()
    for number in range(FAR):
        bench.send_later(bench.to(target, DUE_MS), value=b"far %d" % number)
    for number in range(SCHEDULES):
        again = [("delay-every", str(DUE_MS)), ("delay-times", "2")]
        bench.send_later(bench.to(target, 1_000, *again), value=b"again %d" % number)
    assert bench.producer.flush(30) == 0
    signed = FAR + 2 * SCHEDULES  # what recurs is signed with its first occurrence, too
    await_true(lambda: pair.copies() >= signed, "all that waits was rolled", 60)
    assert wrong.events("took_over") == []
    assert wrong.stop() == 0

    right = pair.start("b")
    pair.await_ready(right)
    owner.kill()
    killed_ms = now_ms()
    right.wait_serving(1)
    seen = bench.read(target, FAR + 2 * SCHEDULES, timeout_s=90)
    assert killed_ms < sent_ms + DUE_MS, "this machine is too slow to tell"
    expected = {b"far %d" % n: 1 for n in range(FAR)} | {
        b"again %d" % n: 2 for n in range(SCHEDULES)
    }
    assert Counter(one.value for one in seen) == expected
    assert bench.read_all(bench.dead_letter) == []


@pytest.mark.parametrize("pair", [2_000], indirect=True)
def test_the_secret_is_replaced_while_records_wait_and_nothing_is_lost(pair: Pair) -> None:
    """docs/internals/procedures.md, "Replacing the cluster secret", step by step."""
    bench, target = pair.bench, pair.bench.target("kept")
    accepted = pair.folder / "accepted_secrets"
    accepts = f"node.accepted_secrets_file={accepted}"
    sent = 0

    def roll_out(*sets: str, wiped: str = "") -> None:
        """Restart one node after the other, while records go on being written."""
        nonlocal sent
        for name in ("a", "b"):
            if name in pair.running:
                assert pair.running[name].stop() == 0
            if name == wiped:
                shutil.rmtree(pair.folder / name)
            pair.await_ready(pair.start(name, *sets))
            for _ in range(5):
                headers = bench.to(target, 3_600_000, ("delay-id", f"r{sent}"))
                bench.send_later(headers, value=b"%d" % sent)
                sent += 1
            assert bench.producer.flush(30) == 0

    roll_out(f"node.cluster_secret={OLD}")
    accepted.write_text(NEW)
    roll_out(f"node.cluster_secret={OLD}", accepts)
    accepted.write_text(OLD)
    roll_out(f"node.cluster_secret={NEW}", accepts)
    for node in pair.running.values():
        assert node.events("contract_changed") == [], "no store is rebuilt for it"
    before = pair.copies()
    await_true(lambda: pair.copies() >= before + 2 * sent, "all was signed anew, and again", 120)
    roll_out(f"node.cluster_secret={NEW}", wiped="b")
    pair.running["a"].kill()
    for number in range(sent):
        bench.send_later([("delay-id", f"r{number}"), ("delay-op", "fire")])
    assert bench.producer.flush(30) == 0
    seen = bench.read(target, sent, timeout_s=120)
    assert Counter(one.value for one in seen) == {b"%d" % number: 1 for number in range(sent)}
    assert bench.read_all(bench.dead_letter) == []
