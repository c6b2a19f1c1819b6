"""Settings by which Kafka loses acknowledged records, and a log that loses its end by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
    ResourceType,
)
from structlog.testing import capture_logs

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.source import KafkaSource
from connectors.kafka.topic_configs import warn_of_losses
from delay_devtools.cluster import EmbeddedCluster
from delayservice.config.settings import Settings
from delayservice.engine.checkpoint import LastRead
from delayservice.engine.ports import PartitionError, Place, PolledBatch
from tests.integration.bench import alter, await_true

pytestmark = pytest.mark.slow

TOPIC = "delay_topic_any"
PLACE = (TOPIC, 0)
S = 60
ANSWER_S = 5
VERIFICATION = "transaction_partition_verification_enable"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, zookeepers=0) as own:
        yield own


def problems_of(admin: KafkaAdmin) -> list[str]:
    with capture_logs() as told:
        count = warn_of_losses(admin, Settings())
    # What a broker has not heard of yet is told as information; problems are one warning.
    warnings = [line for line in told if line["event"] != "settings_not_readable"]
    found = [p for line in warnings for p in line["problems"]]
    assert len(found) == count
    assert [line["log_level"] for line in warnings] == ["warning"] * bool(count)
    return [problem.split(" is ")[0].split(":")[0] for problem in found]


def test_a_node_warns_of_settings_by_which_kafka_may_lose_what_it_acknowledged(
    cluster: EmbeddedCluster,
) -> None:
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    name = "delay_topic_checked"
    new = NewTopic(name, 1, 3, config={"min.insync.replicas": "1"})
    admin.create_topics([new])[name].result(S)
    await_true(lambda: problems_of(admin) == ["min.insync.replicas"], "brokers know the topic", S)
    alter(admin, name, {"unclean_leader_election_enable": "true"})
    for number in cluster.broker_ids:
        alter(admin, str(number), {VERIFICATION: "false"}, ResourceType.BROKER)
    expected = ["min.insync.replicas", "unclean.leader.election.enable"]
    expected.append(VERIFICATION.replace("_", "."))
    await_true(lambda: problems_of(admin) == expected, "all brokers have the setting", S)
    for number in cluster.broker_ids:
        alter(admin, str(number), {VERIFICATION: "true"}, ResourceType.BROKER)
    safe = {"min_insync_replicas": "2", "unclean_leader_election_enable": "false"}
    alter(admin, name, safe)
    await_true(lambda: problems_of(admin) == [], "the settings are safe", S)
    admin.delete_topics([name])[name].result(S)


def test_topics_with_one_copy_are_one_line(cluster: EmbeddedCluster) -> None:
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    names = ["delay_topic_one", "delay_topic_two"]
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(S)
    # Each broker hears of a new topic, and of a deleted one, in its own time.
    expected = ["replication.factor"]
    await_true(lambda: problems_of(admin) == expected, "brokers know the topics", S)
    for future in admin.delete_topics(names).values():
        future.result(S)


@contextmanager
def reader(
    bootstrap: str, offset: int, epoch: int
) -> Iterator[tuple[list[PolledBatch], list[PartitionError]]]:
    """Yield what a worker hears first from a position that it knows by a leader epoch."""
    admin = KafkaAdmin({"bootstrap.servers": bootstrap})
    source = KafkaSource({"bootstrap.servers": bootstrap}, admin, "test")
    source.seek(PLACE, offset, LastRead(epoch, offset - 1))
    runs: list[PolledBatch] = []
    troubles: list[PartitionError] = []

    def has_heard() -> bool:
        runs.extend(source.poll(0.1, 1_000))
        troubles.extend(source.take_errors())
        return bool(runs or troubles)

    try:
        await_true(has_heard, "the position is checked", S)
        yield runs, troubles
    finally:
        source.close()


def append(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1})
    for _ in range(count):
        producer.produce(TOPIC, b"a record", partition=0)
    assert producer.flush(S) == 0


def end_of(bootstrap: str) -> int:
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(*PLACE), S)[1]


def leader_of(admin: AdminClient, place: Place) -> int | None:
    """None: the broker that was asked does not know the partition yet, or was killed just now: the
    client asks no other one then, and without a limit it waits until that broker is back.
    """
    topic, partition = place
    try:
        found = admin.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions.get(partition)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError._TIMED_OUT:
            raise
        return None
    return None if found is None else found.leader


def test_the_client_tells_by_the_leader_epoch_whether_a_log_has_lost_its_end(
    cluster: EmbeddedCluster,
) -> None:
    admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap})
    lossy = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config=lossy)
    admin.create_topics([new])[TOPIC].result(S)
    append(cluster.bootstrap, 4)
    with reader(cluster.bootstrap, 0, -1) as (runs, _):
        epoch = runs[-1].leader_epoch
    with reader(cluster.bootstrap, 4, epoch) as (runs, troubles):
        assert (runs, troubles) == ([PolledBatch(PLACE, 4, [], 4)], []), "an end, so all is there"
    cluster.stop_broker(2, kill=True)
    await_true(lambda: leader_of(admin, PLACE) == 1, "broker 1 leads", S)
    append(cluster.bootstrap, 4)
    await_true(lambda: end_of(cluster.bootstrap) == 8, "broker 2 is not waited for", S)
    with reader(cluster.bootstrap, 7, -1) as (runs, _):
        last_epoch = runs[-1].leader_epoch
    cluster.stop_broker(1, kill=True)
    cluster.start_broker(2)
    await_true(lambda: leader_of(admin, PLACE) == 2, "broker 2 leads, which lacks the end", S)
    append(cluster.bootstrap, 8)
    with reader(cluster.bootstrap, 8, last_epoch) as (runs, troubles):
        assert troubles[0].is_truncated, "of eight records that were read, four are gone"
        assert runs == []
    with reader(cluster.bootstrap, 4, epoch) as (runs, troubles):
        assert runs[0].rows
        assert troubles == []
    cluster.start_broker(1)
