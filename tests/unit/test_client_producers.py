from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from connectors.kafka.client import DelayProducer, InvalidRequestError, LevelProducer
from connectors.kafka.client.places import Places
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.partitioner import partition_for
from tests.elapsed import at_most
from tests.integration.bench import await_true

NOWHERE: dict[str, object] = {"log_level": 0}  # no broker at all


def test_nothing_is_written_when_a_request_is_refused() -> None:
    client = DelayProducer(NOWHERE)
    refused: list[dict[str, Any]] = [
        {},
        {"delay": 1, "at": 1},
        {"delay": 1, "id": ""},
        {"delay": 1, "id": "x" * 513},
        {"delay": 1, "headers": [("delay-at", b"1")]},
        {"delay": 1, "partition": True},
        {"every": 1_000, "times": True},
    ]
    for request in refused:
        with pytest.raises(InvalidRequestError):
            client.send("orders", b"v", **request)
    with pytest.raises(InvalidRequestError, match="never a target"):
        client.send("delay_topic_1", b"v", delay=1)
    with pytest.raises(TypeError, match="dealy"):
        client.send("orders", b"v", dealy=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError):
        client.cancel("")
    assert len(client) == 0


def test_a_delay_topic_of_any_name_is_not_its_own_target() -> None:
    with pytest.raises(InvalidRequestError, match="never a target"):
        DelayProducer(NOWHERE, "later").send("later", b"v", delay=1)


def test_the_end_of_a_block_says_how_many_records_are_left() -> None:
    client = DelayProducer(NOWHERE, close_timeout_s=0.05)
    client.send("orders", b"1", delay=1)
    client.send("orders", b"2", delay=1)
    with pytest.raises(KafkaEdgeError, match="2 records were not acknowledged"), client:
        assert len(client) == 2
    client.producer.purge()


def test_an_error_that_ends_a_block_is_not_hidden_by_records_that_are_left() -> None:
    client = DelayProducer(NOWHERE, close_timeout_s=0.05)
    client.send("orders", b"1", delay=1)
    with pytest.raises(RuntimeError, match="mine") as raised, client:
        raise RuntimeError("mine")
    client.producer.purge()
    assert raised.value.__notes__ == ["1 records were not acknowledged within 0.05 s"]


def test_a_level_is_the_next_one_up_and_the_last_one_for_more() -> None:
    client = LevelProducer(NOWHERE, (5_000, 60_000))
    waits = [client.send("orders", b"v", delay=ms) for ms in (0, 5_000, 5_001, 60_000, 10**9)]
    assert waits == [5_000, 5_000, 60_000, 60_000, 60_000]
    assert len(client) == 5
    with pytest.raises(InvalidRequestError):
        client.send("delay_topic_1", b"v", delay=1)
    client.producer.purge()


@pytest.mark.parametrize("levels_ms", [(), (5, 5), (5, 4), (0, 1), (-1,)])
def test_levels_ascend_from_above_zero(levels_ms: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="levels ascend"):
        LevelProducer(NOWHERE, levels_ms)


def test_a_handed_over_producer_is_used_as_it_is() -> None:
    producer = Producer(NOWHERE)
    assert DelayProducer(producer).producer is producer


class TellingProducer:
    """Stands for a cluster whose partition count changes from one question to the next."""

    def __init__(self) -> None:
        self.count = 4
        self.asked = 0
        self.is_away = False
        self.answers = threading.Event()
        self.answers.set()

    def list_topics(self, **_: float) -> SimpleNamespace:
        self.asked += 1
        self.answers.wait(10)
        if self.is_away:
            raise KafkaException("away")
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.count)))
        return SimpleNamespace(topics={"t": found} if self.count else {"tt": found})


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def places_of(cluster: TellingProducer, clock: Clock, *before: int) -> Places:
    return Places(cluster, "t", before, 60.0, clock)  # type: ignore[arg-type]


def test_an_id_is_looked_for_where_it_lived_before_partitions_were_added() -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock, 2)
    ids = [b"id-%d" % number for number in range(50)]
    for one in ids:
        assert places.now(one) == partition_for(one, 4)
    assert cluster.asked == 1
    cluster.count, clock.now_s = 6, 59.0
    assert places.now(ids[0]) == partition_for(ids[0], 4)
    clock.now_s = 60.0
    await_true(lambda: all(places.now(one) == partition_for(one, 6) for one in ids), "asked again")
    for one in ids:
        everywhere = {partition_for(one, count) for count in (2, 4, 6)}
        assert {places.now(one), *places.former(one)} == everywhere
        assert places.now(one) not in places.former(one)


def test_a_known_count_is_kept_while_the_cluster_does_not_answer() -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    cluster.is_away = True
    with pytest.raises(KafkaEdgeError, match="away"):
        places.now(b"id")
    cluster.is_away = False
    first = places.now(b"id")
    cluster.is_away, clock.now_s = True, 61.0
    assert places.now(b"id") == first
    await_true(lambda: cluster.asked >= 3, "asked again")
    assert places.now(b"id") == first
    assert places.former(b"id") == []


def test_a_known_count_is_used_while_the_cluster_takes_its_time_to_answer() -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    first = places.now(b"id")
    cluster.answers.clear()
    clock.now_s = 61.0
    with at_most(30):
        assert [places.now(b"id") for _ in range(100)] == [first] * 100
    assert cluster.asked <= 2, "one question at a time"
    cluster.answers.set()


def test_a_topic_that_was_deleted_is_named_until_it_is_there_again() -> None:
    cluster, clock = TellingProducer(), Clock()
    cluster.count = 0
    places = places_of(cluster, clock)
    with pytest.raises(KafkaEdgeError, match=r"topic t can't be used.*did you mean tt"):
        places.now(b"id")
    cluster.count = 4

    def is_found() -> bool:
        with suppress(KafkaEdgeError):
            return places.now(b"id") == partition_for(b"id", 4)
        return False

    await_true(is_found, "it is there again")


def test_a_recreated_topic_with_fewer_partitions_is_known_by_its_count() -> None:
    cluster, clock = TellingProducer(), Clock()
    cluster.count = 2
    places = places_of(cluster, clock, 64)
    assert all(place < 2 for n in range(50) for place in places.former(b"%d" % n))


@pytest.mark.parametrize("count", [0, -1, True])
def test_a_former_partition_count_is_one_or_more(count: int) -> None:
    with pytest.raises(InvalidRequestError, match="partitions_before"):
        DelayProducer(NOWHERE, partitions_before=[count])


def test_the_client_loads_nothing_heavy_of_the_service() -> None:
    code = "import sys, connectors.kafka.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    tops = {name.partition(".")[0] for name in loaded.decode().split()}
    assert not tops & {"rocksdict", "kazoo", "pydantic", "structlog", "typer", "prometheus_client"}
