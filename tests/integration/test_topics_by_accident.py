"""Topics that don't exist, on brokers that create each topic that a client asks them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.client import DelayProducer, KafkaEdgeError, LevelProducer, OutcomeReader
from connectors.kafka.clients import admin_client, consumer_client, producer_client
from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true


@pytest.fixture(scope="module")
def creating() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        zookeepers=0, broker_properties={"auto.create.topics.enable": "true"}
    ) as running:
        yield running


@pytest.fixture
def bench(creating: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
    with Bench(creating.bootstrap, tmp_path) as made:
        made.topic(made.any, message_timestamp_type="LogAppendTime")
        made.topic(made.outcomes, max_message_bytes="2097152")
        yield made


@pytest.mark.parametrize("make", [admin_client, consumer_client, producer_client])
def test_a_topic_that_is_looked_up_by_name_is_not_created(
    bench: Bench, make: Callable[[dict[str, Any]], Any]
) -> None:
    client = make({"bootstrap.servers": bench.bootstrap, "group.id": "g"})
    for _ in range(2):
        assert client.list_topics("nothing", timeout=10).topics["nothing"].error is not None
    assert bench.partitions_of("nothing") == 0


def test_a_target_that_is_deleted_is_not_made_again_by_the_service_that_wrote_to_it(
    bench: Bench,
) -> None:
    gone, other = bench.target("gone"), bench.target("other")
    with bench.serving("kafka.producer.topic.metadata.refresh.interval.ms=200") as service:
        bench.send(bench.to(gone, 0), value=b"arrives")
        bench.await_match(gone, lambda one: one.value == b"arrives")
        bench.admin.delete_topics([gone])[gone].result(30)
        await_true(lambda: bench.partitions_of(gone) == 0, "the target is gone")
        for number in range(20):
            bench.send(bench.to(gone, 100 * number), value=b"waits")
            bench.send(bench.to(other, 200 * number), value=b"beside")
        bench.await_match(other, lambda one: one.value == b"beside", 20)
        assert service.events("target_blocked")
        assert bench.partitions_of(gone) == 0


def misspelt(bench: Bench) -> str:
    return bench.any.replace("topic", "tpoic")


def test_a_client_names_the_delay_topic_that_was_meant_and_creates_none(bench: Bench) -> None:
    options = {
        "bootstrap.servers": bench.bootstrap,
        "topic.metadata.propagation.max.ms": "1000",  # the time until a record fails
    }
    name = misspelt(bench)
    meant = f"did you mean {bench.any}"
    producer = DelayProducer(options, name)
    for _ in range(2):
        with pytest.raises(KafkaEdgeError, match=meant):
            producer.send("orders", b"v", delay=1, id="1")
    with pytest.raises(KafkaEdgeError, match=meant):  # by now also without an id
        producer.send("orders", b"v", delay=1)
    with pytest.raises(KafkaEdgeError, match=meant), DelayProducer(options, name) as hasty:
        hasty.producer.produce(name, b"v")  # as ``send`` before the answer has come
    with (
        pytest.raises(KafkaEdgeError, match="delay_topic_tpoic_1 can't be used"),
        LevelProducer(options, topic_prefix="delay_topic_tpoic_") as levels,
    ):
        levels.send("orders", b"v", delay=1)
    sound = DelayProducer(options, bench.any)
    with pytest.raises(KafkaEdgeError, match=f"did you mean {bench.outcomes}"):
        OutcomeReader({"bootstrap.servers": bench.bootstrap}, f"{bench.outcomes}s").cancel(
            sound, "1"
        )
    for missing in (name, "delay_topic_tpoic_1", f"{bench.outcomes}s"):
        assert bench.partitions_of(missing) == 0
