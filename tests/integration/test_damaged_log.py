"""Bytes that are altered on a broker's disk: no consumer of the service returns such a record."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from connectors.kafka.scan import consumer_config, scan_partition
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import KafkaEdgeError
from tests.conftest import MakeTopic
from tests.integration.bench import Bench, await_true, benches

bench = benches(partitions=2)


def alter(cluster: EmbeddedCluster, topic: str, was: bytes, becomes: bytes) -> None:
    """Overwrite bytes in the only segment of partition 0 of a topic."""
    path = cluster.folder / "broker-1" / "data" / f"{topic}-0" / "00000000000000000000.log"
    with path.open("r+b") as segment:
        segment.seek(segment.read().index(was))
        segment.write(becomes)


def test_a_corrupt_record_holds_up_its_partition_until_it_is_deleted(
    cluster: EmbeddedCluster, bench: Bench
) -> None:
    target = bench.target("paid")
    with bench.serving():
        bench.send(bench.to(target, 12_000), value=b"stored")
        bench.send(bench.to(target, 0), value=b"before")
        bench.await_match(target, lambda one: one.value == b"before")
    for value in (b"pay 100", b"behind"):  # a batch each
        bench.send(bench.to(target, 0), value=value)
    bench.send(bench.to(target, 0), value=b"beside", partition=1)
    alter(cluster, bench.any, b"pay 100", b"pay 900")
    with bench.serving() as service:
        bench.await_match(target, lambda one: one.value == b"beside")
        bench.await_match(target, lambda one: one.value == b"stored")

        def told() -> list[str]:
            problems: list[str] = bench.status(service)["problems"]
            return [text for text in problems if f"{bench.any}:0 is damaged at offset 2" in text]

        await_true(told, "the status names the offset")
        assert len(service.events("log_damaged")) == 1
        assert not service.events("slice_interrupted", "log_moved", "log_truncated")
        expected = [b"before", b"beside", b"stored"]
        assert sorted(one.value or b"" for one in bench.read_all(target)) == expected
        end = TopicPartition(bench.any, 0, 3)
        bench.admin.delete_records([end])[end].result(30)
        bench.await_match(target, lambda one: one.value == b"behind")
        await_true(lambda: bench.status(service)["healthy"], "the alarm ends")
        values = sorted(one.value or b"" for one in bench.read_all(target))
        assert values == [b"before", b"behind", b"beside", b"stored"]
        assert len(service.events("log_damaged")) == 1


def test_an_altered_checkpoint_is_named_and_nothing_is_delivered_by_an_older_one(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path) as bench:
        target = bench.target("paid")
        with bench.serving():
            bench.send(bench.to(target, 0), value=b"delivered")
            bench.await_match(target, lambda one: one.value == b"delivered")
        alter(cluster, bench.checkpoint, b'"epoch":', b'"epoxx":')
        bench.send(bench.to(target, 0), value=b"waits")
        service = bench.start()

        def told() -> bool:
            problems = bench.status(service)["problems"]
            return any(f"{bench.checkpoint}:0 is damaged at offset" in text for text in problems)

        await_true(lambda: service.events("metrics_served"), "the status can be asked")
        await_true(told, "the status names the offset")
        await_true(lambda: service.events("take_over_failed"), "nothing is taken over", 60)
        assert [one.value for one in bench.read_all(target)] == [b"delivered"]
        service.kill()


def test_a_range_with_an_altered_record_is_not_scanned_beyond_it(
    cluster: EmbeddedCluster, bench: Bench, make_topic: MakeTopic
) -> None:
    topic = make_topic("altered")
    for value in (b"before", b"pay 100", b"behind"):
        bench.send([], topic=topic, value=value)
    alter(cluster, topic, b"pay 100", b"pay 900")
    config = consumer_config({"bootstrap.servers": cluster.bootstrap}, "altered")
    values: list[bytes | None] = []
    with pytest.raises(KafkaEdgeError, match=f"{topic}:0 is damaged at offset 1"):
        values.extend(row[3] for run in scan_partition(config, topic, 0, 0, 3) for row in run.rows)
    assert values in ([], [b"before"])
