"""A broker with TLS, passwords and ACLs: what docs/security.md lists is enough to schedule."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from pyspark.sql import SparkSession

from connectors.kafka.clients import admin_client
from connectors.spark.schedule.run import served_contracts
from delayservice.base.errors import KafkaEdgeError
from tests.integration.secured import Right, SecureCluster, rights_of, secure_cluster
from tests.spark.schedule_desk import Desk, Feed

RIGHTS = rights_of("Who schedules in bulk")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("tls")) as running:
        yield running


def feed_of(
    secure: SecureCluster, spark: SparkSession, folder: Path, rights: Sequence[Right]
) -> Feed:
    """A feed and its desk, whose user has these rights only."""
    user = uuid.uuid4().hex[:8]
    delay, read, target, checkpoint = (f"{name}_{user}" for name in ("delay", "feed", "to", "done"))
    new = [NewTopic(topic, 2, 1) for topic in (delay, read, target, checkpoint)]
    admin = admin_client({"bootstrap.servers": secure.bootstrap})  # kept: its answers end with it
    for made in admin.create_topics(new).values():
        made.result(30)
    names = {
        "delay_topic_any": delay,
        "delay_checkpoint": checkpoint,
        "orders*": f"{target}*",
        "delayservice-schedule-*": f"schedule-{delay}*",
        "signups": read,
    }
    secure.add_user(user)
    secure.grant(user, [right._replace(name=names[right.name]) for right in rights])
    desk = Desk(spark, secure.bootstrap, delay, target, folder)
    desk.client = secure.client(user)
    assert served_contracts(desk.client, checkpoint, delay) == ()
    return Feed(desk, read, folder)


def test_the_listed_rights_are_enough_for_rows_and_streams(
    secure: SecureCluster, spark: SparkSession, tmp_path: Path
) -> None:
    feed = feed_of(secure, spark, tmp_path, RIGHTS)
    assert feed.desk.run(feed.desk.rows(feed.desk.reminders(2))).written == 2
    feed.add(*feed.desk.reminders(3)[2:])
    stream = feed.run()
    assert (stream.written, stream.rejected) == (1, {})
    assert {seen.key for seen in feed.desk.written()} == {b"reminder-%d" % n for n in range(3)}


@pytest.mark.parametrize("kind", ["transactional-id", "group"])
def test_a_right_that_is_missing_is_said_before_anything_is_written(
    secure: SecureCluster, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rights = [right for right in RIGHTS if right.kind != kind]
    desk = feed_of(secure, spark, tmp_path, rights).desk
    with pytest.raises(KafkaEdgeError, match=r"docs/security\.md"):
        desk.run(desk.rows(desk.reminders(1)))
    assert desk.written() == []
