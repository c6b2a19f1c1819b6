"""The end of a transaction that reaches the broker late ends no other transaction of the service.

librdkafka sends it again after its connection has failed, and says so in its log only. These tests
fail when an upgrade of the client changes the words of that log (``CoordinatorLog``).
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from connectors.kafka.dead_letters import Replayer
from connectors.spark.common.sink import TopicSink, _Part, mark_of
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import NewRecord
from delayservice.contract.replays import DeadLetter
from tests.faults.kafka_proxy import KafkaProxy, ProxiedCluster
from tests.integration.bench import Bench, await_true, now_ms

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.timeout(900)]

ROUNDS = 5
PARTITIONS = 4
PER_S = 200
BURST = 4_000
CONNECTION = "the connection to the coordinator has failed"


@pytest.fixture
def proxied(request: pytest.FixtureRequest) -> Iterator[ProxiedCluster]:
    """A cluster of the version that a test's parameter names; without one, of the newest."""
    with ProxiedCluster(1, 0, kafka=getattr(request, "param", None)) as cluster:
        yield cluster


@pytest.fixture
def bench(proxied: ProxiedCluster, tmp_path: Path) -> Iterator[Bench]:
    """Users reach the broker themselves; only the service comes through the proxy."""
    sets = [f"kafka.bootstrap={proxied.proxied}", "node.workers=1"]
    with Bench(proxied.bootstrap, tmp_path, partitions=PARTITIONS, sets=sets) as running:
        yield running


class Load:
    """Records for a target, due within a second, until it ends; ``sent``: their values."""

    def __init__(self, bench: Bench, target: str) -> None:
        self.sent: list[bytes] = []
        self._bench = bench
        self._target = target

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._send, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _send(self, stop: threading.Event) -> None:
        rng = random.Random(1)
        for number in count():
            if stop.wait(1 / PER_S):
                return
            self.add(self._target, rng.randint(200, 900), b"%d" % number, number % PARTITIONS)

    def burst(self, prefix: bytes) -> None:
        """Add records that are due together: outputs are on their way long before the cursor."""
        due_ms = now_ms() + 1_500
        for number in range(BURST):
            value = prefix + b"%d" % number
            self.add(self._target, due_ms - now_ms(), value, number % PARTITIONS)

    def add(self, target: str, delay_ms: int, value: bytes, partition: int = 0) -> None:
        self.sent.append(value)
        headers = self._bench.to(target, delay_ms)
        self._bench.send_later(headers, key=b"k", value=value, partition=partition)


@pytest.mark.parametrize(
    ("proxied", "commit"),
    [
        pytest.param(None, True, id="newest-commit", marks=pytest.mark.sample),
        pytest.param(None, False, id="newest-abort"),
        pytest.param("3.9", True, id="3.9-commit"),
        pytest.param("3.9", False, id="3.9-abort"),
    ],
    indirect=["proxied"],
)
def test_late_end_of_a_transaction_loses_and_doubles_nothing(
    bench: Bench, proxied: ProxiedCluster, *, commit: bool
) -> None:
    steady = bench.target("steady")
    tight = [bench.target(f"tight{n}") for n in range(0 if commit else ROUNDS)]
    load = Load(bench, steady)
    with KafkaProxy(proxied, bench.checkpoint, steady) as proxy:
        service = bench.serve()
        with load.running():
            for number in range(ROUNDS):
                proxy.hold_next(commit=commit)
                load.burst(b"burst %d " % number)
                if not commit:
                    provoke_abort(bench, load, tight[number])
                await_true(partial(is_answered, proxy, number), "the held end is answered", 60)
                await_true(serves(bench, service), "all slices are served again", 60)
        bench.producer.flush()
        with bench.reader(steady, bench.dead_letter, *tight) as reader:
            reader.await_count(len(load.sent), 90)
        assert service.stop() == 0
    arrived = bench.read_all(steady, bench.dead_letter, *tight)
    assert Counter(one.value for one in arrived) == Counter(load.sent)
    assert all(held.by_other for held in proxy.done), "no writer goes on"
    if commit:
        ended = [event["why"] for event in service.events("writer_ended")]
        assert sum(CONNECTION in why and "TxnCoordinator" in why for why in ended) >= ROUNDS


def is_answered(proxy: KafkaProxy, number: int) -> bool:
    return len(proxy.done) > number


def provoke_abort(bench: Bench, load: Load, topic: str) -> None:
    """A record is on its way to a topic that has just begun to take small ones only."""
    value = topic.encode()
    load.add(topic, 0, value)
    bench.await_match(topic, lambda one: one.value == value)
    due_ms = now_ms() + 1_000
    load.add(topic, due_ms - now_ms(), value + b"L" * 3_000)
    bench.alter(topic, max_message_bytes="2000")


def serves(bench: Bench, service: ServiceProcess) -> Callable[[], bool]:
    return lambda: sum(one["state"] == "owner" for one in slices(bench, service)) == PARTITIONS


def slices(bench: Bench, service: ServiceProcess) -> list[dict[str, Any]]:
    found = bench.status(service)["slices"]
    assert isinstance(found, list)
    return found


def test_late_commit_of_a_bulk_writer_ends_no_later_transaction(
    bench: Bench, proxied: ProxiedCluster
) -> None:
    topic = bench.target("bulk")
    client = {"bootstrap.servers": proxied.proxied}
    sink = TopicSink(client=client, topic=topic, name=topic, parts=1, record_bytes_max=1_000_000)
    with KafkaProxy(proxied) as proxy:
        sink.begin()
        part = _Part(sink, 0)
        assert part.mark == 0
        proxy.hold_next(commit=True)
        part.write([(b"1", b"", None)], mark_of(0, 1))
        part.write([(b"2", b"", None)], mark_of(0, 2))
        assert proxy.let_go() == KafkaError.INVALID_PRODUCER_EPOCH
        assert sink.fence() == [mark_of(0, 2)]
    assert [one.key for one in bench.read_all(topic)] == [b"1", b"2"]


def test_replay_of_dead_letters_ends_after_its_connection_has_failed(
    bench: Bench, proxied: ProxiedCluster
) -> None:
    delay, letters = bench.topic(bench.any), bench.topic(bench.dead_letter)
    facts = DeadLetter(0, 0, 0, "too-large", "", None, None, b"", [])
    client = {"bootstrap.servers": proxied.proxied}
    with KafkaProxy(proxied) as proxy, Replayer(letters, "replays", client) as replayer:
        proxy.hold_next(commit=True)
        assert replayer.replay([(facts, NewRecord(delay, 0, b"1", b"", []))]) == {}
        with pytest.raises(KafkaEdgeError, match="run the replay again"):
            replayer.replay([(facts, NewRecord(delay, 0, b"2", b"", []))])
        proxy.let_go()
    assert [one.key for one in bench.read_all(delay)] == [b"1"]
