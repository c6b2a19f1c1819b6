"""Delay topics that are deleted and made again where brokers have restarted, so that the leader
epochs of the new topic are lower than those of the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delayservice.engine.pauses import Pause, Paused, encode_key, encode_pause
from tests.integration.bench import Bench, Header, await_true, now_ms
from tests.integration.test_paused_seen import write

FIT: dict[str, str] = {"message_timestamp_type": "LogAppendTime"}
LATE_S = 3.0
"""Longest time for which other topics may wait while a topic is made again, once."""


@pytest.fixture(scope="module")
def restarting() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(zookeepers=0) as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [
        ("any", 2),
        pytest.param("any", 5, marks=pytest.mark.night),
        pytest.param("level", 3, marks=pytest.mark.night),
    ],
)
def test_a_delay_topic_made_again_with_lower_leader_epochs_is_read_from_its_start(
    restarting: EmbeddedCluster, tmp_path: Path, kind: str, partitions: int
) -> None:
    with Bench(restarting.bootstrap, tmp_path, partitions=3) as bench, ExitStack() as stack:
        is_level = kind == "level"
        levels = [f"levels.prefix={bench.any}_", "levels.delays_ms=100"] if is_level else []
        service = stack.enter_context(bench.serving(*levels))
        target, name = bench.target("served"), f"{bench.any}_1"
        if not is_level:
            bench.topic(name, 3, **FIT)
        at_once: list[Header] = (
            [("delay-target-topic", target)] if is_level else bench.to(target, 0)
        )
        for number in range(3):
            bench.send(at_once, topic=name, partition=number, value=b"old")
        bench.await_match(target, lambda one: one.value == b"old", 3)
        restarting.stop_broker(1)
        restarting.start_broker(1)
        bench.send(at_once, topic=name, value=b"after the restart")
        bench.await_match(target, lambda one: one.value == b"after the restart")
        beside = bench.target("beside", message_timestamp_type="LogAppendTime")
        due_ms = {}
        for number in range(100):  # due until the new topic is read, at least
            key, delay_ms = b"%d" % number, 50 * number
            sent_ms = bench.send(bench.to(beside, delay_ms), key=key)[2]
            due_ms[key] = sent_ms + delay_ms
        bench.admin.delete_topics([name])[name].result(30)
        await_true(lambda: bench.partitions_of(name) == 0, "the topic is gone")
        bench.topic(name, partitions, **FIT)
        producer = Bench(restarting.bootstrap, tmp_path).producer  # knows nothing of the old topic
        for number in range(partitions):
            producer.produce(name, b"new", partition=number, headers=at_once)
        assert producer.flush(30) == 0
        bench.await_match(target, lambda one: one.value == b"new", partitions)
        waited = bench.await_match(beside, lambda one: one.key in due_ms, len(due_ms))
        late_s = max(one.timestamp_ms - due_ms[one.key or b""] for one in waited) / 1_000
        assert late_s < LATE_S, "other topics wait for a moment"
        assert not service.events("slice_interrupted")
        assert len(service.events("topic_recreated")) == min(partitions, 3)
        assert [one.value for one in bench.read_all(target)].count(b"new") == partitions


@pytest.mark.parametrize("which", ["checkpoint", "claims"])
def test_cursors_outlive_a_topic_of_the_service_that_is_made_again_while_it_runs(
    restarting: EmbeddedCluster, tmp_path: Path, which: str
) -> None:
    with Bench(restarting.bootstrap, tmp_path, partitions=2) as bench:
        target = bench.target("served")
        name = bench.checkpoint if which == "checkpoint" else bench.claims
        with bench.serving() as service:
            for number in range(20):
                bench.send(bench.to(target, 0), value=b"before", partition=number % 2)
            bench.await_match(target, lambda one: one.value == b"before", 20)
            restarting.stop_broker(1)
            restarting.start_broker(1)
            count = bench.partitions_of(name)
            bench.admin.delete_topics([name])[name].result(30)
            await_true(lambda: bench.partitions_of(name) == 0, "the topic is gone")
            bench.send(bench.to(target, 0), value=b"meanwhile")
            bench.topic(name, count, cleanup_policy="compact", **FIT)

            def told() -> bool:
                said = " ".join(
                    str(one["problems"]) for one in service.events("own_topics_at_risk")
                )
                return f"{name} had been deleted" in said or f"{name} does not exist" in said

            await_true(told, "it is reported")
            for number in range(2):
                bench.send(bench.to(target, 0), value=b"after", partition=number)
            bench.await_match(target, lambda one: one.value == b"meanwhile")
            bench.await_match(target, lambda one: one.value == b"after", 2)
        with bench.serving():  # it goes on from what was written to the new topic
            for number in range(2):
                bench.send(bench.to(target, 0), value=b"again", partition=number)
            bench.await_match(target, lambda one: one.value == b"again", 2)
        values = [one.value for one in bench.read_all(target)]
        assert {value: values.count(value) for value in values} == {
            b"before": 20,
            b"meanwhile": 1,
            b"after": 2,
            b"again": 2,
        }


def test_pauses_are_heard_of_after_their_topic_is_made_again(
    restarting: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(restarting.bootstrap, tmp_path) as bench, bench.serving() as service:
        name, paused = bench.pauses, Paused("topic", bench.any)
        restarting.stop_broker(1)
        restarting.start_broker(1)
        write(bench, paused, Pause(now_ms(), "a move"))
        await_true(lambda: bench.status(service)["paused"], "the new leader epoch is known")
        bench.admin.delete_topics([name])[name].result(30)
        await_true(lambda: bench.partitions_of(name) == 0, "the topic is gone")
        bench.topic(name, cleanup_policy="compact")
        await_true(lambda: not bench.status(service)["paused"], "its pauses are gone")
        target = Paused("target", bench.target("held"))
        fresh = Bench(restarting.bootstrap, tmp_path).producer
        fresh.produce(name, encode_pause(Pause(now_ms(), "again")), encode_key(target), 0)
        assert fresh.flush(30) == 0
        await_true(lambda: bench.status(service)["paused"], "the new pause is heard of")
        bench.send(bench.to(bench.target("other"), 0), value=b"goes on")
        bench.await_match(bench.target_name("other"), lambda one: one.value == b"goes on")
