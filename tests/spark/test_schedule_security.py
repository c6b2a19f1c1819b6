"""A broker with TLS, passwords and ACLs: what docs/security.md lists is enough to schedule."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from pyspark.sql import SparkSession

from connectors.kafka.clients import admin_client
from connectors.spark.schedule.mapping import Fields
from connectors.spark.schedule.run import ScheduleOptions, schedule, served_contracts
from connectors.spark.schedule.stream import Stream, StreamOptions, start_stream
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contract
from tests.integration.bench import Reader, await_true
from tests.integration.secured import Right, SecureCluster, rights_of, secure_cluster

RIGHTS = rights_of("Who schedules in bulk")


class User:
    """Schedules on a cluster where it has the page's rights, or some of them."""

    def __init__(self, secure: SecureCluster, spark: SparkSession, folder: Path) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.secure = secure
        self.spark = spark
        self.folder = folder
        self.names = {
            "delay_topic_any": f"delay_topic_{self.run}",
            "delay_checkpoint": f"checkpoint_{self.run}",
            "orders*": f"orders_{self.run}*",
            "delayservice-schedule-*": f"{self.run}-schedule-*",
            "signups": f"signups_{self.run}",
        }
        topics = ["delay_topic_any", "delay_checkpoint", "orders*", "signups"]
        new = [NewTopic(self.names[topic].rstrip("*"), 2, 1) for topic in topics]
        self.admin = {"bootstrap.servers": secure.bootstrap}
        for made in admin_client(self.admin).create_topics(new).values():
            made.result(30)
        self.client = secure.client(self.run)
        self.options = ScheduleOptions(
            client=self.client,
            topic=self.names["delay_topic_any"],
            name=f"{self.run}-schedule-rows",
            fields=Fields(target=f"=orders_{self.run}", after="1d", id="user"),
            rejected_path=str(folder / "rejected"),
            min_partitions=1,
        )
        secure.add_user(self.run)

    def grant(self, rights: list[Right]) -> None:
        self.secure.grant(self.run, [one._replace(name=self.names[one.name]) for one in rights])

    def contracts(self) -> tuple[Contract, ...]:
        found = served_contracts(self.client, self.names["delay_checkpoint"], self.options.topic)
        return found or (Contract(),)

    def rows(self) -> int:
        rows = self.spark.createDataFrame([("ada",), ("grace",)], "user string")
        return schedule(rows, self.contracts(), self.options, print).written

    def stream(self) -> Stream:
        producer = Producer(self.admin)
        producer.produce(self.names["signups"], json.dumps({"user": "edith"}))
        assert producer.flush(30) == 0
        options = StreamOptions(
            source=self.client,
            from_topic=self.names["signups"],
            checkpoint=str(self.folder / "state"),
            schema="user string",
        )
        named = replace(self.options, name=f"{self.run}-schedule")
        return start_stream(self.spark, self.contracts, named, options, print)

    def written(self) -> set[bytes | None]:
        with Reader(self.secure.bootstrap, [self.options.topic]) as reader:
            return {seen.key for seen in reader.to_end()}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture
def user(secure: SecureCluster, spark: SparkSession, tmp_path: Path) -> User:
    return User(secure, spark, tmp_path)


def test_the_listed_rights_are_enough_for_rows_and_streams(user: User) -> None:
    user.grant(RIGHTS)
    assert user.rows() == 2
    stream = user.stream()
    await_true(lambda: not stream.is_active, "it has read all", 120)
    stream.stop()
    assert (stream.written, stream.rejected) == (1, {})
    assert user.written() == {b"ada", b"grace", b"edith"}


@pytest.mark.parametrize("kind", ["transactional-id", "group"])
def test_a_right_that_is_missing_is_said_before_anything_is_written(user: User, kind: str) -> None:
    user.grant([right for right in RIGHTS if right.kind != kind])
    with pytest.raises(KafkaEdgeError, match=r"docs/security\.md"):
        user.rows()
    assert user.written() == set()
