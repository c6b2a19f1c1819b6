"""Fixtures for all tests.

``cluster`` is one real Kafka broker and one ZooKeeper per pytest process (with ``pytest -n N``: per
worker), started by the first test that asks for it. Tests share it, so each makes topics of its own
(``make_topic``) and paths of its own, and leaves the servers running. A test that stops servers
starts an ``EmbeddedCluster`` itself.
"""

import uuid
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from hypothesis import settings

from delay_devtools.cluster import EmbeddedCluster, forget_settings
from tests.described import topic_id_of
from tests.integration.bench import benches

forget_settings()
settings.register_profile("tests", deadline=None)  # a machine under load breaks any deadline
settings.load_profile("tests")

_INTEGRATION = Path(__file__).parent / "integration"
_TOLD = 30
"""Lines of a log that are shown when a test has failed."""


class MakeTopic(Protocol):
    """Make a topic with a name of its own and return the name once it is usable."""

    def __call__(
        self, prefix: str = "topic", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the tests in another order."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="random order of a seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need real servers, and shuffle when ``--shuffle`` asks for it."""
    for item in items:
        if item.path.is_relative_to(_INTEGRATION):
            item.add_marker(pytest.mark.cluster)
    seed: int | None = config.getoption("--shuffle")
    if seed is not None:
        items[:] = _shuffled(items, Random(seed))


def _shuffled(items: list[pytest.Item], rng: Random) -> list[pytest.Item]:
    """Return the files in random order, and the tests of each file in random order.

    The tests of a file stay together, so that its fixtures are made once.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    for tests in files:
        rng.shuffle(tests)
    rng.shuffle(files)
    return [test for tests in files for test in tests]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last warnings of each service that a failed test ran."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for path in sorted(folder.glob("*.log")):
            told = [line for line in path.read_text(errors="replace").splitlines() if _warns(line)]
            report.sections.append((f"warnings of {path.name}", "\n".join(told[-_TOLD:])))
    return report


def _warns(line: str) -> bool:
    return '"level": "info"' not in line and '"level": "debug"' not in line


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker and one ZooKeeper for the whole session."""
    with EmbeddedCluster() as running:
        yield running


bench = benches()


@pytest.fixture
def make_topic(cluster: EmbeddedCluster) -> MakeTopic:
    """Return a function that makes topics in the session's cluster."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def make(
        prefix: str = "topic", *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str:
        name = f"{prefix}_{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([new], operation_timeout=30)[name].result(30)
        topic_id_of(admin, name)  # what the controller has, the broker tells a moment later
        return name

    return make
