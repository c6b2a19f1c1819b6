"""Each alert is raised by the fault that it is for; its run-book is typed word by word; it ends.

Real nodes, a real Prometheus with the rules of ``deploy``. Waits and ranges of the rules are
shortened, thresholds are not. Whether records are delivered once is judged by the other tests of
this suite, so nothing is judged here.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import LOOPBACK, free_ports
from delayservice.engine.pauses import Pause, Paused, encode_key, encode_pause
from delayservice.store.folder import version_text
from tests.alert_rules import tool_missing
from tests.faults.disk import SmallDisk, disk_missing
from tests.faults.node import Node, Place
from tests.faults.prometheus import Firing, Prometheus
from tests.faults.run_book import Machine
from tests.faults.stage import Script, Stage
from tests.faults.wallclock import WallClock, clock_missing

pytestmark = [pytest.mark.fault, pytest.mark.night, pytest.mark.timeout(900)]

FIRES_S: Final = 180
"""Time limit, in s, for an alert to fire on a busy machine."""
QUIET_S: Final = 40
CLIENT_ID: Final = "delayservice"
FAR: Final = ("wheel.slot_ms=1m", "wheel.slots=180", "delivery.roll_window_ms=2h")
MIB: Final = 1 << 20
DISK_MIB: Final = 64


class Night:
    """Running scenario that Prometheus watches."""

    def __init__(self, stage: Stage, prometheus: Prometheus, addresses: Mapping[str, Node]) -> None:
        self.stage = stage
        self.prometheus = prometheus
        self._addresses = addresses
        self._machines = {
            address: self._machine(address, node) for address, node in addresses.items()
        }

    def _machine(self, address: str, node: Node) -> Machine:
        stage = self.stage
        says = {
            "/var/lib/delayservice": str(node.state_dir),
            "localhost:9464": address,
            "delay_topic_any": stage.delay_topic,
        }
        sets = [*stage.settings(), *node.place.sets]
        return Machine(stage.cluster, node.log_path.parent, node, sets, says)

    def fires(self, alert: str, timeout_s: float = FIRES_S) -> Firing:
        """Wait until the alert fires; return it, after a check that its texts are complete."""
        self.stage.await_true(
            lambda: self.prometheus.firing(alert), f"{alert} fires", timeout_s=timeout_s
        )
        found = self.prometheus.firing(alert)[0]
        for text in found.annotations.values():
            assert "<no value>" not in text
            assert "error" not in text.lower()
        return found

    def shows(self, alert: str, text: str) -> Firing:
        """Wait until the alert fires, and check that its run-book shows the text; return it."""
        firing = self.fires(alert)
        assert text in self.machine(firing).look(alert)
        return firing

    def machine(self, firing: Firing) -> Machine:
        """Return the machine of the node that the alert names, or the first one."""
        first = next(iter(self._machines))
        return self._machines[firing.labels.get("instance", first)]

    def node(self, firing: Firing) -> Node:
        """Return the node that the alert names."""
        return self._addresses[firing.labels["instance"]]

    def is_over(self, *alerts: str, timeout_s: float = FIRES_S) -> None:
        """Wait until none of the alerts fires."""
        for alert in alerts:
            self.stage.await_true(
                lambda: not self.prometheus.firing(alert),  # noqa: B023
                f"{alert} is over",
                timeout_s=timeout_s,
            )


@pytest.fixture
def call(fault_cluster: EmbeddedCluster, tmp_path: Path) -> Call:
    """Return the starter of watched scenarios."""
    if reason := tool_missing("prometheus"):
        pytest.skip(reason)
    return Call(fault_cluster, tmp_path)


class Call:
    """Starter of watched scenarios."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder

    @contextmanager
    def night(
        self,
        *,
        nodes: int = 1,
        sets: Sequence[str] = (),
        places: Mapping[int, Place] | None = None,
        per_s: int = 50,
    ) -> Iterator[Night]:
        """Run nodes under a small load, watched by Prometheus, while the block runs."""
        ports = dict(enumerate(free_ports(nodes), start=1))
        given = places or {}
        listening = {
            number: _listening(given.get(number, Place()), port) for number, port in ports.items()
        }
        script = Script(nodes=nodes, slices=3, per_s=per_s, sets=tuple(sets), places=listening)
        stage = Stage(self._cluster, self._folder, script, 1, f"night-{uuid.uuid4().hex}")
        addresses = {
            f"{LOOPBACK}:{port}": node
            for port, node in zip(ports.values(), stage.nodes, strict=True)
        }
        try:
            stage.open()
            with Prometheus(self._folder, list(addresses)) as prometheus:
                # An increase() is seen only after a first look.
                looked = f"count(count_over_time(delay_slices[20s]) >= 3) == {nodes}"
                stage.await_true(lambda: prometheus.values(looked), "all nodes are watched")
                yield Night(stage, prometheus, addresses)
        finally:
            stage.abandon()


def _listening(place: Place, port: int) -> Place:
    (admin,) = free_ports(1)
    served = (f"metrics.listen={LOOPBACK}:{port}", f"admin.listen={LOOPBACK}:{admin}")
    sets = (*place.sets, *served)
    return Place(place.wrapper, place.environment, place.state_dir, sets, place.fault)


def make_topic(stage: Stage, name: str) -> None:
    (made,) = stage.admin.create_topics([NewTopic(name, 1, 3)]).values()
    made.result(30)


def alter_topic(stage: Stage, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    stage.admin.incremental_alter_configs([resource])[resource].result(30)


def send(stage: Stage, target: str, delay: str, count: int = 1) -> None:
    """Send ``count`` records beside the load, to the first slice."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "acks": "all"})
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] = [
            ("delay-after", delay.encode()),
            ("delay-target-topic", target.encode()),
        ]
        producer.produce(
            stage.delay_topic, b"value-%d" % number, b"%d" % number, partition=0, headers=headers
        )
    assert producer.flush(30) == 0


# --- nobody is called ----------------------------------------------------------------------------


def test_nothing_fires_while_all_is_well(call: Call) -> None:
    with call.night(nodes=3) as night:
        began_s = time.monotonic()
        seen: set[str] = set()

        def quiet() -> bool:
            seen.update(one.name for one in night.prometheus.firing())
            return time.monotonic() - began_s > QUIET_S

        night.stage.await_true(quiet, "time has passed", FIRES_S)
        # How late a record is depends on what else this machine does; all else does not.
        assert seen <= {"DelayLate"}
        assert night.prometheus.values("job:delay_slices:ownerless") == [0]


# --- who delivers --------------------------------------------------------------------------------


def test_node_down(call: Call) -> None:
    with call.night(nodes=3) as night:
        victim = night.stage.nodes[1]
        victim.kill()
        firing = night.shows("DelayNodeDown", "no node answers")
        assert night.node(firing) is victim
        night.machine(firing).do("DelayNodeDown")
        night.is_over("DelayNodeDown")


def test_slice_ownerless(call: Call) -> None:
    with call.night(nodes=2) as night:
        with night.stage.zookeeper_down():
            firing = night.fires("DelaySliceOwnerless")
            shown = night.machine(firing).look("DelaySliceOwnerless")
            assert "waiting_for_zookeeper" in shown or "session_lost" in shown
        night.is_over("DelaySliceOwnerless")
        night.stage.await_served()


def test_alarm(call: Call) -> None:
    with call.night() as night:
        (node,) = night.stage.nodes
        node.stop()
        node.start("node.cluster_secret=quite-another-one-0123456789")
        firing = night.shows("DelayAlarm", "another cluster secret")
        night.machine(firing).do("DelayAlarm")
        night.is_over("DelayAlarm")
        night.stage.await_served()


def test_topic_not_served(call: Call) -> None:
    with call.night() as night:
        alter_topic(night.stage, night.stage.delay_topic, "retention.ms", "60000")
        firing = night.shows("DelayTopicNotServed", "retention.ms")
        night.machine(firing).do("DelayTopicNotServed")
        night.is_over("DelayTopicNotServed")


def test_topics_old(call: Call) -> None:
    """No broker answers: what is served can't be looked at."""
    with call.night() as night:
        cluster = night.stage.cluster
        for broker_id in cluster.broker_ids:
            cluster.signal_broker(broker_id, signal.SIGSTOP)
        try:
            night.shows("DelayTopicsOld", "topics_not_refreshed")
        finally:
            for broker_id in cluster.broker_ids:
                cluster.signal_broker(broker_id, signal.SIGCONT)
        night.is_over("DelayTopicsOld")


def test_transaction_aborts(call: Call) -> None:
    """Two services of one cluster without ZooKeeper take the slices from each other."""
    with call.night() as night:
        twin = night.stage.add_node(1, "twin")
        night.shows("DelayTransactionAborts", "fenced")
        twin.stop()
        night.is_over("DelayTransactionAborts")
        night.stage.await_served()


# --- the promise ---------------------------------------------------------------------------------


def test_overdue_and_late(call: Call) -> None:
    sets = (f"kafka.client.client.id={CLIENT_ID}", "delivery.batch_bytes_max=64KiB")
    with call.night(sets=sets, per_s=200) as night:
        machine = night.machine(Firing("", {}, {}))
        add = "kafka-configs.sh --bootstrap-server $B --alter --entity-type clients"
        machine.type_one(f"{add} --entity-name {CLIENT_ID} --add-config producer_byte_rate=200")
        firing = night.shows("DelayOverdue", "producer_byte_rate")
        night.shows("DelayLate", "delay_lateness_seconds_sum")
        night.machine(firing).do("DelayOverdue")
        night.is_over("DelayOverdue")
        night.stage.await_true(
            lambda: night.prometheus.values("job:delay_lateness_seconds:p99_5m < 5"),
            "lateness falls",
            FIRES_S,
        )


def test_paused_long(call: Call) -> None:
    """A pause lasts two hours, in which all records of the delay topic become overdue."""
    pauses = f"delay_pauses_{uuid.uuid4().hex[:8]}"
    sets = (
        f"topics.pauses={pauses}",
        "admin.tokens.caller.token=of-whoever-is-called",
    )
    with call.night(sets=sets) as night:
        producer = Producer({"bootstrap.servers": night.stage.cluster.bootstrap})
        topic = Paused("topic", night.stage.delay_topic)
        pause = Pause(time.time_ns() // 1_000_000 - 2 * 3_600_000, "database move")
        producer.produce(pauses, encode_pause(pause), encode_key(topic), partition=0)
        assert producer.flush(30) == 0
        firing = night.fires("DelayPausedLong")
        assert (firing.labels["kind"], firing.labels["name"]) == topic
        shown = night.machine(firing).look("DelayPausedLong")
        assert "database move" in shown
        assert f'delay_paused_timestamp_seconds{{kind="topic",name="{topic.name}"}}' in shown
        night.shows("DelayOverdue", f"topic {topic.name} is paused since")
        night.machine(firing).do("DelayPausedLong")
        night.is_over("DelayPausedLong", "DelayOverdue")
        night.stage.await_served()


def test_target_parked(call: Call) -> None:
    delays = ",".join(["10s"] * 30)
    with call.night(sets=(f"delivery.park_delays_ms={delays}",)) as night:
        target = f"to_{night.stage.run}_missing"
        send(night.stage, target, "100", count=3)
        firing = night.fires("DelayTargetParked")
        assert (firing.labels["topic"], firing.labels["target"]) == (
            night.stage.delay_topic,
            target,
        )
        machine = night.machine(firing)
        told = f"3 records of {night.stage.delay_topic} for target {target} are parked"
        line = f'target="{target}",topic="{night.stage.delay_topic}"}} 3.0'

        def is_shown() -> bool:
            """A record that is being tried again is parked nowhere for a moment."""
            shown = machine.look("DelayTargetParked")
            return told in shown and line in shown

        night.stage.await_true(is_shown, f"it is shown: {told}")
        make_topic(night.stage, target)
        night.is_over("DelayTargetParked")


def test_dead_letters(call: Call) -> None:
    with call.night(sets=("delivery.park_delays_ms=100ms",)) as night:
        target = f"to_{night.stage.run}_missing"
        send(night.stage, target, "100")
        firing = night.shows("DelayDeadLetters", "target-unknown")
        make_topic(night.stage, target)
        assert "1" in night.machine(firing).do("DelayDeadLetters")
        night.is_over("DelayDeadLetters")
        settled = 'sum(delay_settled_total{outcome="dead_lettered"})'
        assert night.prometheus.values(settled) == [1], "none came back"


def test_offsets_lost(call: Call) -> None:
    """An outage that is longer than the retention, in which records are written and deleted."""
    with call.night() as night:
        (node,) = night.stage.nodes
        node.stop()
        send(night.stage, night.stage.targets[0], "100", count=40)
        all_of_it = TopicPartition(night.stage.delay_topic, 0, OFFSET_END)
        (deleted,) = night.stage.admin.delete_records([all_of_it]).values()
        deleted.result(30)
        node.start()
        firing = night.shows("DelayOffsetsLost", 'delay_lost_offsets{slice="0"}')
        assert firing.labels["slice"] == "0"
        night.machine(firing).do("DelayOffsetsLost")
        night.is_over("DelayOffsetsLost")


@pytest.mark.parametrize(
    ("alert", "kind", "found", "more"),
    [
        ("DelayAuditFindings", "summary", "lost", {}),
        ("DelayReconcileFindings", "reconcile", "missing", {"pending": 9}),
    ],
)
def test_findings(call: Call, alert: str, kind: str, found: str, more: dict[str, int]) -> None:
    with call.night() as night:
        producer = Producer({"bootstrap.servers": night.stage.cluster.bootstrap})

        def publish(at_ms: int, findings: dict[str, int]) -> None:
            """As ``delayservice spark audit --publish`` and ``reconcile --follow`` do."""
            said = {"kind": kind, "at_ms": at_ms, "records": 9, "findings": findings, **more}
            producer.produce("delay_audit", json.dumps(said).encode(), partition=0)
            assert producer.flush(30) == 0

        now_ms = time.time_ns() // 1_000_000
        publish(now_ms - 26 * 3_600_000, {})
        night.fires("DelayCheckOld")
        publish(now_ms, {found: 2})
        assert night.shows(alert, "healthy").labels["kind"] == found
        night.is_over("DelayCheckOld")
        publish(now_ms + 1, {})
        night.is_over(alert)


# --- the machines --------------------------------------------------------------------------------


def test_unelectable(call: Call, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with call.night(places={1: Place(fault=f"after_poll:stick:{trap}")}) as night:
        trap.touch()
        firing = night.shows("DelayUnelectable", "the loop's turn has lasted")
        assert firing.labels["reason"] == "loop_hangs"
        night.fires("DelayOverdue")
        night.machine(firing).do("DelayUnelectable")
        night.is_over("DelayUnelectable", "DelayOverdue")
        night.stage.await_served()


def test_worker_lost(call: Call) -> None:
    with call.night() as night:
        (node,) = night.stage.nodes
        for version in node.state_dir.rglob("VERSION"):
            version.write_bytes(version_text("wheel", 99))
        node.signal_worker(signal.SIGKILL)
        firing = night.shows("DelayWorkerLost", "format 99")
        night.machine(firing).do("DelayWorkerLost")
        night.is_over("DelayWorkerLost")
        night.stage.await_served()


def test_clock_frozen(call: Call, tmp_path: Path) -> None:
    if reason := clock_missing():
        pytest.skip(reason)
    clock = WallClock(tmp_path / "clock")
    with call.night(places={1: Place(environment=clock.environment)}) as night:
        clock.set(5.0)
        night.shows("DelayClockFrozen", "clock_in_doubt")
        assert not night.prometheus.firing("DelayAlarm"), "one alert for one fault"
        clock.set(0.0)
        night.is_over("DelayClockFrozen")
        night.stage.await_delivered(100)


def test_disk_fills(call: Call, tmp_path: Path) -> None:
    if reason := disk_missing():
        pytest.skip(reason)
    with SmallDisk(tmp_path / "disk", DISK_MIB) as disk:
        place = Place(state_dir=disk.folder / "state")
        with call.night(nodes=2, places={2: place}) as night:
            ballast = disk.folder / "ballast"
            fill(ballast, 0.78)
            firing = night.fires("DelayDiskFills")
            assert night.node(firing) is night.stage.nodes[1]
            assert str(disk.folder) in shown(night, "DelayDiskFills")
            fill(ballast, 0.87)
            night.fires("DelayStoringStopped")
            assert "nothing more is stored" in shown(night, "DelayStoringStopped")
            night.fires("DelayBehind")
            assert "delay_storing_stopped" in shown(night, "DelayBehind")
            ballast.unlink()
            night.is_over("DelayStoringStopped", "DelayDiskFills", "DelayBehind")


def shown(night: Night, alert: str) -> str:
    firing = next(
        one for one in night.prometheus.firing(alert) if night.node(one) is night.stage.nodes[1]
    )
    return night.machine(firing).look(alert)


def fill(ballast: Path, used: float) -> None:
    """Make it so large that so much of its disk is used."""
    disk = os.statvfs(ballast.parent)
    free = disk.f_bfree - (1 - used) * disk.f_blocks
    with ballast.open("ab") as file:
        file.write(bytes(int(free * disk.f_frsize)))


def test_copy_damaged(call: Call) -> None:
    with call.night(sets=(*FAR, "digests.interval_ms=1s"), per_s=20) as night:
        (node,) = night.stage.nodes
        send(night.stage, night.stage.targets[0], "PT90M", 300)
        stored = 'sum(delay_pending{slice="0"}) >= 300'
        night.stage.await_true(lambda: night.prometheus.values(stored), "they are stored")
        node.stop()
        flip_a_byte(node.state_dir)
        node.start()
        firing = night.shows("DelayCopyDamaged", "damaged")
        night.machine(firing).do("DelayCopyDamaged")
        night.is_over("DelayCopyDamaged")
        night.stage.await_true(lambda: night.prometheus.values(stored), "all are there again")


def flip_a_byte(state: Path) -> None:
    # The last one: it is not due for a while.
    file = max(state.rglob("slots/**/*.*"), key=lambda path: path.name)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
