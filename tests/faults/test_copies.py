"""Copies come, go and catch up; partitions are added; records keep coming meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.cimpl import NewPartitions, NewTopic  # its stubs export them here only

from delayservice.slices.edges import Limits
from tests.faults.conftest import Scenario
from tests.faults.node import Node
from tests.faults.stage import Script, Stage

pytestmark = pytest.mark.fault

ADDED: Final = 2
AWAY_S: Final = 4
SHOWN_S_MAX: Final = 2 * Limits().sync_s
"""Time until a running node's wheel shows on disk what it keeps: it does so at each sync."""


def kept(node: Node) -> set[int]:
    """Slices that a node has on its disk; none while it has no store there."""
    if not node.state_dir.exists():
        return set()
    command = (sys.executable, "-m", "delayservice", "store", "inspect", str(node.state_dir))
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if "holds no shard" in done.stderr:
        return set()
    assert done.returncode == 0, done.stderr
    return {shard["partition"] for shard in json.loads(done.stdout)["shards"]}


def checkpoint_partitions(stage: Stage) -> int:
    topics = stage.admin.list_topics(stage.checkpoint, timeout=30).topics
    return len(topics[stage.checkpoint].partitions)


def copies(stage: Stage) -> list[int]:
    """How many running nodes keep each slice."""
    kept_by = [kept(node) for node in stage.nodes if node.running]
    return [sum(number in mine for mine in kept_by) for number in range(stage.script.slices)]


def delivered(stage: Stage, target: str, partitions: list[int]) -> set[bytes | None]:
    """Keys of records that were sent to these partitions, due soon, and came."""
    sent = {b"%d" % number for number in partitions}
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "acks": "all"})

    def are_known() -> bool:
        topic = producer.list_topics(stage.delay_topic, timeout=30).topics[stage.delay_topic]
        return set(partitions) <= set(topic.partitions)

    stage.await_true(are_known, "the partitions are known")
    for number in partitions:
        headers: list[tuple[str, str | bytes | None]] = [
            ("delay-after", b"500"),
            ("delay-target-topic", target.encode()),
        ]
        producer.produce(
            stage.delay_topic, b"added", b"%d" % number, partition=number, headers=headers
        )
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": stage.cluster.bootstrap,
            "group.id": target,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([target])
    found: set[bytes | None] = set()

    def has_come() -> bool:
        message = consumer.poll(1.0)
        error = None if message is None else message.error()
        if error is not None:
            assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error
        elif message is not None:
            found.add(message.key())
        return found >= sent

    stage.await_true(has_come, f"records of partitions {partitions} were delivered")
    consumer.close()
    return found


def test_partitions_are_added_under_load(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        target = f"to_{stage.run}_added"
        for made in stage.admin.create_topics([NewTopic(target, 1, 3)]).values():
            made.result(30)
        slices, before = stage.script.slices, checkpoint_partitions(stage)
        grown = slices + ADDED
        for done in stage.admin.create_partitions(
            [NewPartitions(stage.delay_topic, grown)]
        ).values():
            done.result(30)
        new = list(range(slices, grown))
        assert delivered(stage, target, new) == {b"%d" % number for number in new}
        assert checkpoint_partitions(stage) == before
        assert all(stage.owner(number) for number in new)


def test_a_copy_moves_when_its_node_is_gone_for_good_and_goes_when_it_is_back(
    scenario: Scenario,
) -> None:
    sets = ("placement.replicas=2", f"placement.away_ms={AWAY_S}s", "node.store=wheel")
    with scenario.play(Script(sets=sets), nodes_min=3) as stage:
        stage.await_true(lambda: min(copies(stage)) == 2, "two copies of each slice", SHOWN_S_MAX)
        gone = stage.any_owner()
        gone.kill()
        stage.await_served()
        stage.await_true(
            lambda: copies(stage) == [2] * stage.script.slices, "copies were built", SHOWN_S_MAX
        )
        gone.start()
        stage.await_served()
        stage.await_true(lambda: kept(gone), "the node keeps copies again")
        stage.await_true(
            lambda: sum(copies(stage)) == 2 * stage.script.slices,
            "the spare copies were removed",
            SHOWN_S_MAX,
        )
        assert any(node.told("slice_retired") for node in stage.nodes)


def test_a_wiped_copy_says_how_far_it_is_and_owns_nothing_before(scenario: Scenario) -> None:
    # A broker waits in vain for a fetch's least bytes, and sends 160 KB of a partition a second.
    slow = ("fetch.min.bytes=10000000", "fetch.wait.max.ms=50", "max.partition.fetch.bytes=8000")
    sets = ("placement.lag_s_max=2",)
    with scenario.play(Script(per_s=1_000, sets=sets), nodes_min=2) as stage:
        stage.await_written(20_000)
        wiped = stage.any_owner()
        wiped.kill()
        stage.await_served()
        wiped.wipe()
        wiped.start(*(f"kafka.consumer.{option}" for option in slow))
        stage.await_true(lambda: wiped.told_now("catching_up"), "it says how far it is")
        stage.await_true(lambda: wiped.told_now("took_over"), "it owns again", 120)
        told = wiped.told_now("catching_up", "caught_up", "took_over")
        assert all(0 <= one["percent"] <= 100 for one in told if "percent" in one)
        for number in {one["slice"] for one in wiped.told_now("took_over")}:
            story = [one for one in told if one["slice"] == number]
            names = [one["message"] for one in story]
            caught_up = names.index("caught_up")
            assert "took_over" not in names[:caught_up]
            percents = [one["percent"] for one in story[:caught_up]]
            assert percents[0] < 50 < percents[-1]
