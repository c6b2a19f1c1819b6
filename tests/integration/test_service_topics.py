"""What happens to delay topics while they are served: grown, new, cut off, unfit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from delayservice.config.settings import Topics
from tests.integration.bench import Bench, await_true

FIT = {"message_timestamp_type": "LogAppendTime"}


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("topics")
    with Bench(cluster.bootstrap, folder) as running:
        yield running


@pytest.fixture(scope="module")
def service(bench: Bench) -> Iterator[ServiceProcess]:
    running = bench.serve()
    yield running
    assert running.stop() == 0
    assert running.events("loop_failed") == []
    assert running.events("worker_died") == []


@pytest.fixture(scope="module")
def target(bench: Bench) -> str:
    return bench.target("served")


def arrives(bench: Bench, target: str, value: bytes, count: int = 1) -> None:
    bench.await_match(target, lambda one: one.value == value, count)


def test_a_new_delay_topic_is_served_from_its_start(
    bench: Bench, service: ServiceProcess, target: str
) -> None:
    fresh = bench.topic(f"{bench.any}_fresh", 1, **FIT)
    bench.send(bench.to(target, 0), topic=fresh, value=b"first of the new topic")
    arrives(bench, target, b"first of the new topic")
    assert service.events("took_over")


def test_added_partitions_are_served_from_their_start(
    bench: Bench, service: ServiceProcess, target: str
) -> None:
    bench.grow(bench.any, 3)
    await_true(lambda: bench.partitions_of(bench.any) == 3, "the partitions are known")
    bench.producer.list_topics(bench.any, timeout=10)  # so that the producer knows them, too
    for partition in (1, 2):
        bench.send(bench.to(target, 0), partition=partition, value=b"in %d" % partition)
    arrives(bench, target, b"in 1")
    arrives(bench, target, b"in 2")
    partitions = bench.partitions_of(bench.checkpoint)
    assert partitions == Topics().checkpoint_partitions, "it never grows"
    kept = {(one.partition, one.key) for one in bench.read_all(bench.checkpoint)}
    assert kept == {(number % partitions, b"%d" % number) for number in range(3)}
    assert {event["slice"] for event in service.events("took_over")} == {0, 1, 2}


def test_a_log_that_was_cut_off_at_its_start_is_served_from_what_is_left(
    bench: Bench, service: ServiceProcess, target: str
) -> None:
    name = bench.topic(f"{bench.any}_cut", 1, **FIT)
    for number in range(10):
        bench.send(bench.to(target, 0), topic=name, value=b"cut %d" % number)
    arrives(bench, target, b"cut 9")
    _, kept, _ = bench.send(bench.to(target, 4_000), topic=name, value=b"stored, then deleted")
    bench.send(bench.to(target, 0), topic=name, value=b"stored by now")
    arrives(bench, target, b"stored by now")
    end = TopicPartition(name, 0, kept + 2)
    bench.admin.delete_records([end])[end].result(30)
    bench.send(bench.to(target, 0), topic=name, value=b"after the cut")
    arrives(bench, target, b"after the cut")
    arrives(bench, target, b"stored, then deleted")
    assert service.events("loop_failed") == []


def test_an_unfit_topic_is_explained_and_served_once_it_is_put_right(
    bench: Bench, service: ServiceProcess, target: str
) -> None:
    dated = bench.topic(f"{bench.any}_dated")
    brief = bench.topic(f"{bench.any}_brief", 1, retention_ms="60000", **FIT)
    compact = bench.topic(f"{bench.any}_compact", 1, cleanup_policy="compact", **FIT)
    large = bench.topic(f"{bench.any}_large", 1, max_message_bytes="9000000", **FIT)
    bounded = bench.topic(f"{bench.any}_bounded", 1, retention_bytes="1000000", **FIT)
    unfit = {dated: "LogAppendTime", brief: "retention.ms", compact: "cleanup.policy"}
    unfit |= {large: "max.message.bytes", bounded: "retention.bytes"}
    for name in unfit:
        bench.send(bench.to(target, 0), topic=name, key=b"k", value=name.encode())

    def explained() -> bool:
        told = bench.status(service)["problems"]
        return all(
            any(text.startswith(name) and word in text for text in told)
            for name, word in unfit.items()
        )

    await_true(explained, "the status explains every unfit topic")
    logged = {e["topic"]: " ".join(e["problems"]) for e in service.events("topic_not_served")}
    assert all(word in logged[name] for name, word in unfit.items())
    bench.send(bench.to(target, 0), value=b"the others go on")
    arrives(bench, target, b"the others go on")
    assert not {one.value for one in bench.read_all(target)} & {n.encode() for n in unfit}

    bench.alter(dated, message_timestamp_type="LogAppendTime")
    bench.alter(brief, retention_ms="604800000")
    bench.alter(compact, cleanup_policy="delete")
    bench.alter(large, max_message_bytes="1048588")
    bench.alter(bounded, retention_bytes="-1")
    for name in unfit:
        arrives(bench, target, name.encode())
    await_true(lambda: bench.status(service)["healthy"], "the status is healthy again")


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ({"retention_ms": "60000"}, {"retention_ms": "604800000"}),
        ({"retention_bytes": "100000000"}, {"retention_bytes": "-1"}),
        ({"max_message_bytes": "9000000"}, {"max_message_bytes": "1048588"}),
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_change_that_may_lose_records_raises_an_alarm_and_stops_no_delivery(
    bench: Bench,
    service: ServiceProcess,
    target: str,
    change: dict[str, str],
    back: dict[str, str],
) -> None:
    setting = next(iter(change))
    name = bench.topic(f"{bench.any}_risk_{setting}", 1, **FIT)
    value = setting.encode()
    bench.send(bench.to(target, 0), topic=name, value=b"before " + value)
    arrives(bench, target, b"before " + value)
    bench.send(bench.to(target, 12_000), topic=name, value=b"stored " + value)
    bench.alter(name, **change)

    def told() -> list[str]:
        problems: list[str] = bench.status(service)["problems"]
        return [text for text in problems if text.startswith(f"{name} may lose records")]

    await_true(told, "the status says that records may be lost")
    assert setting.replace("_", ".") in told()[0]
    bench.send(bench.to(target, 0), topic=name, value=b"written meanwhile " + value)
    arrives(bench, target, b"written meanwhile " + value)
    arrives(bench, target, b"stored " + value)
    dropped = {event["topic"] for event in service.events("shard_dropped")}
    assert name not in dropped
    assert name in {event["topic"] for event in service.events("topic_at_risk")}
    bench.alter(name, **back)
    await_true(lambda: not told(), "the alarm ends")


def test_a_topic_at_risk_is_served_on_by_a_node_that_starts(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """What is pending there is in the checkpoint of whoever served it before."""
    with Bench(cluster.bootstrap, tmp_path) as mine:
        first = mine.serve()
        target = mine.target("served")
        mine.send(mine.to(target, 0), value=b"first")
        mine.await_match(target, lambda one: one.value == b"first")
        mine.send(mine.to(target, 8_000), value=b"pending")
        mine.alter(mine.any, retention_ms="60000")
        assert first.stop() == 0
        second = mine.serve()
        mine.await_match(target, lambda one: one.value == b"pending")
        assert second.stop() == 0


def test_a_topic_that_becomes_unfit_keeps_its_place(
    bench: Bench, service: ServiceProcess, target: str
) -> None:
    name = bench.topic(f"{bench.any}_turns", 1, **FIT)
    bench.send(bench.to(target, 0), topic=name, value=b"before it turned")
    arrives(bench, target, b"before it turned")
    bench.alter(name, message_timestamp_type="CreateTime")
    await_true(
        lambda: name in {event["topic"] for event in service.events("shard_dropped")},
        "the topic is not served",
    )
    bench.alter(name, message_timestamp_type="LogAppendTime")
    bench.send(bench.to(target, 0), topic=name, value=b"after it was put right")
    arrives(bench, target, b"after it was put right")
    assert [one.value for one in bench.read_all(target)].count(b"before it turned") == 1
