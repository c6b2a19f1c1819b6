"""Very many pending records, and very many partitions, on real nodes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from delay_devtools.bench.sampling import rss_mib
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.nodes import LocalNode
from delay_devtools.service import ServiceProcess
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, counts, judge
from delayservice.smoke.load import Batch, Loaded, LoadPlan, load
from tests.integration.bench import Bench, Header, await_true, now_ms
from tests.integration.nodes import two_nodes

pytestmark = [pytest.mark.night, pytest.mark.timeout(7_200)]

PENDING = int(os.environ.get("PENDING_RECORDS", "10000000"))
PER_S = 16_000
"""Rate at which they become due, and the least at which both nodes store them."""
RSS_MIB_MAX = 1 << 10
"""Of all processes of a node, however many records are pending."""
SLICES = 4
PARTITIONS = 1_000
TOPICS = 3


def test_pending_records_outlive_the_death_of_their_owner_and_its_return(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    client = {"bootstrap.servers": cluster.bootstrap}
    batch = Batch(b"very-old", PENDING, 100, 11)
    stored_s = 60 + PENDING / PER_S
    with Bench(cluster.bootstrap, tmp_path, partitions=SLICES) as bench:
        targets = (bench.target("many", SLICES),)
        with (
            two_nodes(bench, cluster.zookeeper) as group,
            Helper(judge, JudgePlan(client, targets, batch, stall_s=stored_s)) as judging,
        ):

            def holds(node: LocalNode, count: int) -> bool:
                assert rss_mib(node.service.workers()) < RSS_MIB_MAX
                slices = bench.status(node.service)["slices"]
                return bool(sum(one["pending"] for one in slices) == count)

            group.start()
            due_ms = now_ms() + int(2 * stored_s * 1_000)
            span_ms = PENDING * 1_000 // PER_S
            plan = LoadPlan(client, bench.any, targets, batch, due_ms, span_ms=span_ms)
            with Helper(load, plan) as loading:
                loading.tell()
                loaded = loading.expect(Loaded)
            for node in group.nodes.values():
                await_true(lambda: holds(node, PENDING), "a node holds all", stored_s)  # noqa: B023
            group.await_calm(6)
            group.kill_owner(0)
            group.await_home()
            assert now_ms() < due_ms
            judging.tell(loaded)
            verdict = judging.expect(Verdict, timeout_s=4 * stored_s)
            assert verdict.is_good, counts(verdict)
            for node in group.nodes.values():
                await_true(lambda: holds(node, 0), "a node holds none", 60)  # noqa: B023
            group.stop()


def test_a_node_serves_a_thousand_partitions_of_several_topics(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as bench:
        target = bench.target("all", 4)
        stamp = {"message_timestamp_type": "LogAppendTime"}
        topics = [bench.topic(f"{bench.any}_{n}", PARTITIONS, **stamp) for n in range(TOPICS)]
        places = [(topic, number) for topic in topics for number in range(PARTITIONS)]

        def send(due_ms: int, what: str) -> list[bytes]:
            due: list[Header] = [("delay-at", b"%d" % due_ms), ("delay-target-topic", target)]
            values = [f"{what} {topic} {number}".encode() for topic, number in places]
            for (topic, number), value in zip(places, values, strict=True):
                bench.producer.produce(topic, value, partition=number, headers=due)
            assert bench.producer.flush(60) == 0
            return values

        def serving() -> ServiceProcess:
            service = bench.start()
            service.wait_serving(PARTITIONS, 300)
            return service

        began_ms = now_ms()
        service = serving()
        took_ms = now_ms() - began_ms
        values = send(now_ms(), "at once")
        bench.read(target, len(values), 120)
        later_ms = now_ms() + 60_000 + 3 * took_ms
        values += send(later_ms, "later")
        await_true(lambda: bench.status(service)["ingested"] == len(values), "all are stored", 120)
        service.kill()
        service = serving()
        assert now_ms() < later_ms
        bench.read(target, len(values), 180 + 3 * took_ms / 1_000)
        assert rss_mib(service.workers()) < RSS_MIB_MAX
        assert service.stop() == 0
        seen = bench.read_all(target)
        assert Counter(one.value for one in seen) == Counter(values)
        assert all(one.timestamp_ms >= int(one.header("delay-due-at") or 0) for one in seen)
