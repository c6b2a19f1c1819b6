"""What the Spark tests share: one local session, and the cluster of ``tests/conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.common.session import open_session

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
