"""Brokers and ZooKeeper go and come back; leaders move."""

from __future__ import annotations

import re
import signal

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stubs don't re-export

from tests.faults.conftest import Scenario
from tests.faults.leaders import move_leaders
from tests.faults.network import network_missing, ports_cut
from tests.faults.stage import Script

pytestmark = pytest.mark.fault

CONTROLLER = re.compile(r"CONTROLLER://[^:]*:(\d+)")

how = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])


@how
def test_each_broker_is_restarted(scenario: Scenario, *, kill: bool) -> None:
    with scenario.play(Script(settle_s=120)) as stage:
        for broker_id in stage.cluster.broker_ids:
            stage.await_written(300)
            with stage.broker_down(broker_id, kill=kill):
                stage.await_written(800)
            stage.await_delivered(300)
        stage.await_served()


def test_a_broker_stands_still_and_goes_on(scenario: Scenario) -> None:
    with scenario.play(Script(settle_s=120)) as stage:
        for broker_id in stage.cluster.broker_ids:
            stage.await_written(300)
            stage.cluster.signal_broker(broker_id, signal.SIGSTOP)
            try:
                stage.await_written(600)
            finally:
                stage.cluster.signal_broker(broker_id, signal.SIGCONT)
            stage.await_delivered(300)
        stage.await_served()


def test_leaders_move_from_broker_to_broker(scenario: Scenario) -> None:
    with scenario.play(Script()) as stage:
        for _ in stage.cluster.broker_ids:
            for topic in (stage.delay_topic, stage.checkpoint, *stage.targets):
                stage.await_written(200)
                move_leaders(stage.cluster.bootstrap, stage.admin, topic)
        stage.await_served()


def test_brokers_go_on_without_their_controllers(scenario: Scenario) -> None:
    if network_missing():
        pytest.skip(network_missing())
    with scenario.play(Script(settle_s=120), nodes_min=2) as stage:
        configs = stage.cluster.folder.glob("broker-*/server.properties")
        ports = [int(port) for one in configs for port in CONTROLLER.findall(one.read_text())]
        assert len(ports) == len(stage.cluster.broker_ids)
        stage.await_written(300)
        with ports_cut(ports):
            wanted = stage.admin.create_topics([NewTopic("unwanted", 1)], request_timeout=2)
            with pytest.raises(KafkaException):
                wanted["unwanted"].result()
            stage.await_written(600)
            stage.await_delivered(300)
            stage.nodes[0].kill()
            stage.await_served()
            stage.await_delivered(300)
        stage.nodes[0].start()
        stage.await_served()
        stage.await_delivered(300)


@how
def test_zookeeper_is_away_longer_than_a_session(scenario: Scenario, *, kill: bool) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        for _ in range(2):
            stage.await_written(300)
            with stage.zookeeper_down(kill=kill):
                # Owners stop at the end of their lease, and storing goes on.
                stage.await_written(2 * stage.script.session_s * stage.script.per_s)
            stage.await_served()
            stage.await_delivered(500)
        assert not [node for node in stage.nodes if not node.running], "nobody had to be restarted"


def test_zookeeper_stands_still_and_goes_on(scenario: Scenario) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        stage.await_written(300)
        stage.cluster.signal_zookeeper(1, signal.SIGSTOP)
        try:
            stage.await_written(2 * stage.script.session_s * stage.script.per_s)
        finally:
            stage.cluster.signal_zookeeper(1, signal.SIGCONT)
        stage.await_served()
        stage.await_delivered(500)


def test_a_node_is_started_while_zookeeper_is_down(scenario: Scenario) -> None:
    with scenario.play(Script(), nodes_min=2) as stage:
        late = stage.nodes[-1]
        stage.await_written(200)
        late.kill()
        stage.await_served()
        with stage.zookeeper_down():
            late.start()
            stage.await_written(2 * stage.script.per_s)
            assert late.running, "it waits, and says what for"
            assert not late.serves()
        stage.await_served()
        stage.await_true(late.serves, "it has taken part of the work")
