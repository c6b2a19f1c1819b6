"""A delay service of one test's own: its topics, its processes, and a user's view of both.

What is sent goes through a plain confluent-kafka producer, what is judged through a plain
``read_committed`` consumer. Nothing here imports the service but the class that starts it.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess

SECRET: Final = "only-for-tests-0123456789"  # noqa: S105  # nothing else is signed with it
WAIT_S: Final = 30.0
OWN_TOPICS: Final = "checkpoint", "dead_letter", "outcomes", "digests", "repairs", "audit", "pauses"

_headers_of: Final = methodcaller("headers")
"""In a plain call the client's error would appear anywhere later (``connectors.kafka.source``)."""

Header: TypeAlias = tuple[str, bytes | str | None]
Place: TypeAlias = tuple[int, int, int]
"""``(partition, offset, log-append time)`` of a record that was sent."""


def await_true(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Until the condition holds; fails with ``what`` when it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
        tick.wait(0.05)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Seen:
    """One record as a consumer saw it."""

    def __init__(self, message: Any) -> None:
        self.topic: str = message.topic()
        self.partition: int = message.partition()
        self.offset: int = message.offset()
        self.timestamp_ms: int = message.timestamp()[1]
        self.key: bytes | None = message.key()
        self.value: bytes | None = message.value()
        try:
            self.headers: list[tuple[str, bytes | None]] = _headers_of(message) or []
        except SystemError:  # a name that is not UTF-8
            self.headers = []

    def __repr__(self) -> str:
        """Return place, key and headers, which a failed assertion shows."""
        return f"{self.topic}:{self.partition}:{self.offset} {self.key!r} {self.headers}"

    def header(self, name: str) -> str | None:
        """The last header of a name, as text."""
        found = [value for known, value in self.headers if known == name]
        return found[-1].decode() if found and found[-1] is not None else None

    @property
    def own(self) -> list[tuple[str, bytes | None]]:
        """Headers that are not the service's."""
        return [header for header in self.headers if not header[0].startswith("delay-")]


class Bench:
    """Topics of one run and the services that serve them.

    Args:
        bootstrap: the brokers.
        folder: state and log go there.
        partitions: of the delay topic.
        sets: settings of every service that this bench starts; ``{run}`` is the name of the run.
    """

    def __init__(
        self, bootstrap: str, folder: Path, *, partitions: int = 1, sets: Sequence[str] = ()
    ) -> None:
        self.run = uuid.uuid4().hex[:8]
        self.bootstrap = bootstrap
        self.folder = folder
        self.partitions = partitions
        self.any = f"delay_topic_{self.run}"
        self.checkpoint = f"delay_checkpoint_{self.run}"
        self.claims = f"{self.checkpoint}_claims"
        self.dead_letter = f"delay_dead_letter_{self.run}"
        self.outcomes = f"delay_outcomes_{self.run}"
        self.digests = f"delay_digests_{self.run}"
        self.repairs = f"delay_repairs_{self.run}"
        self.audit = f"delay_audit_{self.run}"
        self.pauses = f"delay_pauses_{self.run}"
        self.log_path = folder / "service.log"
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 2,
                "message.max.bytes": 20_000_000,
                "log_level": 0,  # the cluster's end is no news
            }
        )
        self._sets = [one.replace("{run}", self.run) for one in sets]
        self._services: list[ServiceProcess] = []

    def __enter__(self) -> Self:
        """Use it as it is."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no service behind."""
        for service in self._services:
            service.kill()

    # --- the service -----------------------------------------------------------------------------

    def settings(self, *more: str) -> list[str]:
        """``--set`` arguments; later ones win."""
        return [
            f"kafka.bootstrap={self.bootstrap}",
            f"kafka.transactional_id_prefix=tx-{self.run}",
            f"topics.delay={self.any}",
            f"topics.pattern=delay_topic_{self.run}*",
            *(f"topics.{name}={getattr(self, name)}" for name in OWN_TOPICS),
            f"topics.partitions={self.partitions}",
            "topics.refresh_s=1",
            f"node.state_dir={self.folder / 'state'}",
            f"node.cluster_secret={SECRET}",
            f"targets.default.allow=to_{self.run}_*",
            "metrics.listen=127.0.0.1:0",
            "admin.listen=127.0.0.1:0",
            *self._sets,
            *more,
        ]

    def start(self, *more: str, fault: str = "", log: str = "", **how: Any) -> ServiceProcess:
        """A service, not awaited; ``how`` are further arguments of ``ServiceProcess``."""
        path = self.folder / log if log else self.log_path
        service = ServiceProcess(self.settings(*more), path, fault=fault, **how)
        self._services.append(service)
        return service

    def serve(self, *more: str, fault: str = "") -> ServiceProcess:
        """A service that has taken over every slice."""
        service = self.start(*more, fault=fault)
        service.wait_serving(self.partitions)
        return service

    @contextmanager
    def serving(self, *more: str) -> Iterator[ServiceProcess]:
        """A service that has taken over every slice, ends well, and in which nothing has failed."""
        service = self.serve(*more)
        yield service
        assert service.stop() == 0
        assert service.events("loop_failed") == []
        assert service.events("worker_died") == []

    def status(self, service: ServiceProcess) -> dict[str, Any]:
        """Return the JSON of ``/status``."""
        url = service.events("metrics_served")[-1]["url"]
        with urllib.request.urlopen(f"http://{url}/status", timeout=10) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found

    # --- topics ----------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; ``config`` with ``_`` for ``.``."""
        return self._make(NewTopic(name, partitions, 1, config=_dotted(config)))

    def placed(self, name: str, copies: Sequence[Sequence[int]], **config: str) -> str:
        """Make a topic; ``copies`` are the brokers of each partition."""
        brokers = [list(one) for one in copies]
        count, dotted = len(brokers), _dotted(config)
        return self._make(NewTopic(name, count, replica_assignment=brokers, config=dotted))

    def _make(self, topic: NewTopic) -> str:
        # The client waits for the controller that it was told last, a minute for one that is down.
        self.admin.list_topics(timeout=30)
        made = self.admin.create_topics([topic], operation_timeout=30)
        made[topic.topic].result(60)
        # What the controller has, a broker tells a moment later.
        await_true(lambda: self.partitions_of(topic.topic) > 0, f"{topic.topic} is known")
        return str(topic.topic)

    def target(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic that records may be delivered to."""
        return self.topic(self.target_name(name), partitions, **config)

    def target_name(self, name: str) -> str:
        return f"to_{self.run}_{name}"

    def alter(self, topic: str, **config: str) -> None:
        """Change a topic's configuration."""
        alter(self.admin, topic, config)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions, and wait until the brokers show them."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        await_true(lambda: self.partitions_of(topic) == partitions, f"{topic} has grown")

    def partitions_of(self, topic: str) -> int:
        found = self.admin.list_topics(timeout=30).topics.get(topic)
        return 0 if found is None or found.error is not None else len(found.partitions)

    # --- a user ----------------------------------------------------------------------------------

    def send(self, headers: Sequence[Header], **record: Any) -> Place:
        """Write one record, as ``send_later`` does, and wait until the broker has it."""
        places: list[Place] = []
        self.send_later(headers, note=places.append, **record)
        assert self.producer.flush(WAIT_S) == 0
        return places[0]

    def send_later(
        self,
        headers: Sequence[Header],
        *,
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int = 0,
        topic: str = "",
        note: Callable[[Place], None] | None = None,
    ) -> None:
        """Write one record; ``producer.flush`` waits for it."""

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            if note is not None:
                note((message.partition(), message.offset(), message.timestamp()[1]))

        self.producer.produce(
            topic or self.any,
            value,
            key,
            partition,
            headers=list(headers),
            on_delivery=delivered,
        )
        self.producer.poll(0)

    def to(self, target: str, delay_ms: int, *more: Header) -> list[Header]:
        """The headers of a plain delayed record."""
        return [("delay-after", str(delay_ms)), ("delay-target-topic", target), *more]

    def reader(self, *topics: str) -> Reader:
        """A consumer of whole topics from their beginning."""
        return Reader(self.bootstrap, topics)

    def read(self, topic: str, count: int, timeout_s: float = WAIT_S) -> list[Seen]:
        """Return all records of a topic, once there are ``count`` at least: also those beyond."""
        with self.reader(topic) as reader:
            reader.await_count(count, timeout_s)
            return reader.to_end()

    def await_match(
        self, topic: str, matches: Callable[[Seen], object], count: int = 1
    ) -> list[Seen]:
        """Records of a topic that match, once there are ``count``."""
        with self.reader(topic) as reader:
            return reader.await_match(matches, count)

    def read_all(self, *topics: str) -> list[Seen]:
        """Return all records that are in the topics now."""
        with self.reader(*topics) as reader:
            return reader.to_end()


class Reader:
    """A consumer that keeps all it has seen."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], isolation: str = "read_committed"
    ) -> None:
        self.seen: list[Seen] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 50,
            }
        )
        found: dict[str, Any] = {}

        def are_known() -> bool:
            found.update(self._consumer.list_topics(timeout=30).topics)
            return all(topic in found and found[topic].partitions for topic in topics)

        await_true(are_known, f"{topics} are known")
        self._places = [
            TopicPartition(topic, number, 0)
            for topic in topics
            for number in found[topic].partitions
        ]
        self._consumer.assign(self._places)
        self._ended: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        """Use it as it is."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the connections."""
        self._consumer.close()

    def take(self, timeout_s: float) -> None:
        """Add what is there."""
        for message in self._consumer.consume(10_000, timeout_s):
            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                self._ended.discard(place)
                self.seen.append(Seen(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(place)
            else:
                raise AssertionError(str(error))

    def await_count(self, count: int, timeout_s: float = WAIT_S) -> list[Seen]:
        """Until ``count`` records were seen."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.seen) < count:
            assert time.monotonic() < deadline_s, (
                f"{len(self.seen)} of {count} records within {timeout_s:.0f} s: "
                f"{[repr(seen)[:160] for seen in self.seen[-4:]]}"
            )
            self.take(0.1)
        return self.seen

    def await_match(
        self, matches: Callable[[Seen], object], count: int = 1, timeout_s: float = WAIT_S
    ) -> list[Seen]:
        """Until ``count`` records that match were seen."""
        while True:
            found = [one for one in self.seen if matches(one)]
            if len(found) >= count:
                return found
            self.await_count(len(self.seen) + 1, timeout_s)

    def to_end(self, timeout_s: float = WAIT_S) -> list[Seen]:
        """Until every partition is at its end."""
        deadline_s = time.monotonic() + timeout_s
        while len(self._ended) < len(self._places):
            assert time.monotonic() < deadline_s, "the end of the topics was not reached"
            self.take(0.1)
        return self.seen


def _dotted(config: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in config.items()}


def alter(
    admin: AdminClient,
    name: str,
    config: Mapping[str, str],
    kind: ResourceType = ResourceType.TOPIC,
) -> None:
    """Change the configuration of a topic or a broker; ``config`` with ``_`` for ``.``."""
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in _dotted(config).items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def benches(*, partitions: int = 1, sets: Sequence[str] = ()) -> Any:
    """Return the fixture ``bench`` of a module: topics and services of each test's own."""

    @pytest.fixture(name="bench")
    def made(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
        with Bench(cluster.bootstrap, tmp_path, partitions=partitions, sets=sets) as running:
            yield running

    return made


def served(*, partitions: int = 1, sets: Sequence[str] = ()) -> Any:
    """Return the fixture ``bench`` of a module all of whose tests have the same service."""

    @pytest.fixture(name="bench", scope="module")
    def made(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
        folder = tmp_path_factory.mktemp("served")
        with (
            Bench(cluster.bootstrap, folder, partitions=partitions, sets=sets) as running,
            running.serving(),
        ):
            yield running

    return made


def aborts(service: ServiceProcess) -> list[object]:
    """Return the events of a service that lost a transaction or its writer."""
    names = ("writer_ended", "ownership_lost")
    return [event for name in names for event in service.events(name)]


def outcomes_of(bench: Bench, record_id: str, count: int) -> list[str | None]:
    """Return the outcomes of an id, once there are this many."""
    found = bench.await_match(
        bench.outcomes, lambda one: one.header("delay-id") == record_id, count
    )
    return [one.header("delay-outcome") for one in found]


def outcomes_by_id(bench: Bench) -> dict[str, Counter[str]]:
    """Return every outcome that there is, by id."""
    found: dict[str, Counter[str]] = {}
    for one in bench.read_all(bench.outcomes):
        outcome = one.header("delay-outcome") or ""
        found.setdefault(one.header("delay-id") or "", Counter())[outcome] += 1
    return found


def quiet(bench: Bench) -> dict[str, object]:
    """Return a producer's configuration that logs nothing when the cluster ends."""
    return {"bootstrap.servers": bench.bootstrap, "linger.ms": 2, "log_level": 0}
