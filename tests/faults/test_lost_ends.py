"""Logs lose their end under running nodes: a broker leads that lacks what another acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.faults.conftest import Scenario
from tests.faults.facts import UID, Step
from tests.faults.stage import Script, Stage
from tests.integration.bench import Reader

pytestmark = pytest.mark.fault

KEEPS, LACKS = 1, 2
"""Broker that has all of the lossy topic, and the one that then leads."""
COUNT: Final = 200
DELAY_MS: Final = 40_000
S: Final = 60.0


@contextmanager
def without_the_end(stage: Stage, topic: str) -> Iterator[None]:
    """Brokers as they are: only one has what the block writes; then the other leads."""
    stage.cluster.stop_broker(LACKS, kill=True)
    stage.await_true(lambda: in_sync(stage, topic) == {KEEPS}, "one replica is in sync", S)
    yield
    stage.cluster.stop_broker(KEEPS, kill=True)
    stage.cluster.start_broker(LACKS)
    stage.await_true(lambda: in_sync(stage, topic) == {LACKS}, "the one that lacks it leads", S)


def in_sync(stage: Stage, topic: str) -> set[int]:
    found = stage.admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return {broker for one in found if one.leader >= 0 for broker in one.isrs}


def write(stage: Stage, name: bytes) -> set[bytes]:
    """Write records that stay pending for a while; return their uids."""
    producer: Any = Producer({"bootstrap.servers": stage.cluster.bootstrap, "log_level": 0})
    uids = set()
    for number in range(COUNT):
        uid, partition = b"%s-%d" % (name, number), number % stage.script.slices
        step = Step(uid, partition, None, b"", ((UID, uid),), DELAY_MS, stage.targets[0])
        noted = partial(stage.history.note, step)
        producer.produce(*(stage.delay_topic, b"", None, partition, noted), headers=step.headers())
        uids.add(uid)
    assert producer.flush(S) == 0
    assert uids <= {one.step.uid for one in stage.history.acked}
    return uids


def test_records_that_a_delay_topic_kept_have_one_outcome_after_it_lost_its_end(
    scenario: Scenario,
) -> None:
    script = Script(
        lossy="delay", sets=("wheel.slots=3600", "delivery.roll_window_ms=1h"), settle_s=120
    )
    with scenario.play(script, nodes_min=2) as stage:
        stage.await_written(300)
        stage.history.finish()
        # A lost requeued record takes its schedule with it.
        recurring = [one.step.arrivals for one in stage.history.acked if one.step.times]
        stage.await_true(
            lambda: all(map(stage.watch.uids.issuperset, recurring)), "what recurs has ended"
        )
        write(stage, b"before")
        with without_the_end(stage, stage.delay_topic):
            stage.cut |= write(stage, b"lost")
        write(stage, b"after")
        stage.cluster.start_broker(KEEPS)
        with Reader(stage.cluster.bootstrap, [stage.delay_topic]) as log:
            left = {dict(one.headers).get(UID) for one in log.to_end()}  # envelopes have none
        assert not stage.cut & left, "the log has lost them"
        stage.await_true(
            lambda: any(node.told("log_truncated") for node in stage.nodes), "it is alarmed"
        )
        stage.await_served()


def test_a_checkpoint_topic_that_lost_its_end_doubles_and_loses_nothing(
    scenario: Scenario,
) -> None:
    script = Script(lossy="checkpoint", named=0.0, duplicates_max=10**6, settle_s=120)
    with scenario.play(script, nodes_min=2) as stage:
        stage.await_written(300)
        with without_the_end(stage, stage.checkpoint):
            stage.await_delivered(600)
        for node in stage.nodes:
            node.kill()
            node.start()
        stage.cluster.start_broker(KEEPS)
        stage.await_served(120)
        stage.await_delivered(300)
