"""Share groups (KIP-932) on a target topic, to which the service writes in transactions."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't name them
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true

pytestmark = pytest.mark.night

RECORDS = 20


def test_a_share_group_with_read_committed_sees_each_delivery_and_no_aborted_record(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path) as bench, bench.serving():
        target = bench.target("orders")
        aborting = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"aborts-{bench.run}"}
        )
        aborting.init_transactions(30)
        delivered = [f"delivered {number}" for number in range(RECORDS)]
        for number, value in enumerate(delivered, 1):
            aborting.begin_transaction()
            aborting.produce(target, b"aborted")
            assert aborting.flush(30) == 0
            bench.send(bench.to(target, 0), value=value.encode())
            aborting.abort_transaction(30)
            bench.read(target, number)
        assert seen_by_share_group(bench, target, "read_committed") == delivered
        seen = seen_by_share_group(bench, target, "read_uncommitted")
        assert seen.count("aborted") == RECORDS, "the broker has them, and hid them before"
        assert [one for one in seen if one != "aborted"] == delivered


def seen_by_share_group(bench: Bench, topic: str, isolation: str) -> list[str]:
    """Values that a new share group gets, up to the last record of the topic."""
    group = f"share-{uuid.uuid4().hex[:8]}"
    settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": isolation}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    asked = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    bench.admin.incremental_alter_configs([asked])[asked].result(30)
    seen: list[str] = []
    with ShareConsumer({"bootstrap.servers": bench.bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])

        def has_last() -> bool:
            seen.extend((one.value() or b"").decode() for one in consumer.poll(0.5))
            return f"delivered {RECORDS - 1}" in seen

        await_true(has_last, "the share group reads to the end")
    return seen
