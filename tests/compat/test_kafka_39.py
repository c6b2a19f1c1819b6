"""A quick look at Kafka 3.9 with every run of the tests; `make compat` takes a longer one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench

pytestmark = pytest.mark.cluster


def test_on_kafka_3_9_records_arrive_exactly_once_though_the_service_is_killed(
    tmp_path: Path,
) -> None:
    with (
        EmbeddedCluster(zookeepers=0, kafka="3.9") as cluster,
        Bench(cluster.bootstrap, tmp_path) as bench,
    ):
        log = (cluster.folder / "broker-1" / "server.log").read_text()
        assert "Kafka version: 3.9." in log
        target = bench.target("orders")
        service = bench.serve()
        values = {b"value-%d" % number for number in range(400)}
        with bench.reader(target) as reader:
            due_ms = time.time_ns() // 1_000_000 + 1_500
            for number, value in enumerate(values):
                at = str(due_ms + 5 * number).encode()
                bench.send_later([("delay-at", at), ("delay-target-topic", target)], value=value)
            bench.producer.flush()
            early = len(reader.await_count(20))
            service.kill()
        service = bench.serve()
        bench.read(target, len(values))
        assert service.stop() == 0
        seen = bench.read_all(target)
    assert early < len(values)
    assert sorted(one.value or b"" for one in seen) == sorted(values)
    assert all(one.timestamp_ms >= int(one.header("delay-due-at") or 0) for one in seen)
