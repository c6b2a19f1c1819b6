"""Fixtures for all tests.

``cluster`` is one real Kafka broker and one ZooKeeper per pytest process (with ``pytest -n N``: per
worker), started by the first test that asks for it. Tests share it, so each makes topics of its own
(``make_topic``) and paths of its own, and leaves the servers running. A test that stops servers
starts an ``EmbeddedCluster`` itself.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from delayservice.dev.cluster import EmbeddedCluster

_INTEGRATION = Path(__file__).parent / "integration"


class MakeTopic(Protocol):
    """Make a topic with a name of its own and return the name once it is usable."""

    def __call__(
        self, prefix: str = "topic", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs real servers, so that it can be run by itself or left out."""
    for item in items:
        if item.path.is_relative_to(_INTEGRATION):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker and one ZooKeeper for the whole session."""
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def make_topic(cluster: EmbeddedCluster) -> MakeTopic:
    """Return a function that makes topics in the session's cluster."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def make(
        prefix: str = "topic", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str:
        name = f"{prefix}_{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        # The controller has it when the future ends, and a single broker is the controller.
        admin.create_topics([new], operation_timeout=30)[name].result(30)
        return name

    return make
