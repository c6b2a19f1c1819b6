"""What the Spark tests share: one local session, and the cluster of ``tests/conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.spark.common.session import open_session
from delay_devtools.cluster import EmbeddedCluster
from tests.conftest import MakeTopic
from tests.integration.bench import await_true
from tests.spark.schedule_desk import PARTITIONS, Desk

QUICK_JAVA = "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Setting of Spark for a command that runs for seconds: it starts sooner without C2."""

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need the cluster, and two cores for themselves."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark in this process, as the commands run it."""
    session = open_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})
    yield session
    session.stop()


@pytest.fixture
def desk(
    spark: SparkSession, cluster: EmbeddedCluster, make_topic: MakeTopic, tmp_path: Path
) -> Desk:
    """A delay topic and a target that the broker knows."""
    topics = {make_topic("delay_topic", partitions=PARTITIONS), make_topic("to")}
    admin = admin_client({"bootstrap.servers": cluster.bootstrap})
    # What the controller has made, the broker tells a moment later.
    await_true(lambda: topics <= partition_counts(admin).keys(), "the topics are there")
    topic, target = sorted(topics)
    return Desk(spark, cluster.bootstrap, topic, target, tmp_path)
