"""The tools of the fault suite do what the scenarios take for granted. No service."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from delay_devtools.cluster import EmbeddedCluster
from tests.faults.disk import SmallDisk, disk_missing
from tests.faults.facts import UID, Acked
from tests.faults.history import History, Plan, steps
from tests.faults.network import Namespace, Network, network_missing
from tests.faults.wallclock import WallClock, clock_missing

pytestmark = pytest.mark.fault

CLIENT = """\
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1) as connection:
        print(connection.recv(100).decode())
except TimeoutError:
    print("dropped")
except OSError:
    print("unreachable")
"""


class Greeter:
    """A server that says a word to whoever connects."""

    def __init__(self, address: str, word: str) -> None:
        self._word = word.encode()
        self._socket = socket.create_server((address, 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._greet, daemon=True).start()

    def _greet(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._word)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def heard(away: Namespace, address: str, greeter: Greeter) -> str:
    command = [*away.wrapper, sys.executable, "-c", CLIENT, address, str(greeter.port)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_namespace_reaches_the_servers_and_can_be_cut_off_from_each(
    away: Namespace, network: Network
) -> None:
    kafka, zookeeper = Greeter(network.address, "kafka"), Greeter(network.address, "zookeeper")
    with Namespace(network) as other:

        def hears(one: Namespace = away) -> list[str]:
            return [heard(one, network.address, server) for server in (kafka, zookeeper)]

        assert hears() == ["kafka", "zookeeper"]
        away.cut(kafka.port)
        assert hears() == ["dropped", "zookeeper"]
        away.cut(zookeeper.port)
        assert hears() == ["kafka", "dropped"]
        away.cut()
        assert hears() == ["dropped", "dropped"]
        assert hears(other) == ["kafka", "zookeeper"]
        away.heal()
        away.unplug()
        assert hears() == ["unreachable", "unreachable"]
        away.plug()
        assert hears() == ["kafka", "zookeeper"]
    kafka.close()
    zookeeper.close()


def test_a_network_is_gone_with_its_test() -> None:
    if reason := network_missing():
        pytest.skip(reason)
    with Network() as made, Namespace(made) as away:
        assert Path("/sys/class/net", made.bridge).exists()
        assert Path("/run/netns", away.name).exists()
    assert not Path("/sys/class/net", made.bridge).exists()
    assert not Path("/run/netns", away.name).exists()


def test_a_small_disk_fills_up_and_is_freed(tmp_path: Path) -> None:
    if reason := disk_missing():
        pytest.skip(reason)
    with SmallDisk(tmp_path / "disk", 1) as disk:
        disk.fill()
        with pytest.raises(OSError, match="space") as full:
            (disk.folder / "more").write_bytes(b"x" * 5_000)
        assert full.value.errno == errno.ENOSPC
        disk.free()
        (disk.folder / "more").write_bytes(b"x" * 5_000)
    assert list((tmp_path / "disk").iterdir()) == []


CLOCKS = """\
import sys, threading, time
for line in sys.stdin:
    begun = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    waited = time.monotonic() - begun
    looks = []
    for _ in range(50):  # the shortest: nothing came between
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall, elapsed = time.time(), time.monotonic()
        took = time.clock_gettime(time.CLOCK_BOOTTIME) - boot
        looks.append((took, wall - boot, boot - elapsed))
    print(*min(looks)[1:], waited, flush=True)
"""


def test_a_clock_is_stepped_while_the_process_runs_and_elapsed_time_goes_on(tmp_path: Path) -> None:
    if reason := clock_missing():
        pytest.skip(reason)
    clock = WallClock(tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", CLOCKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment,
    ) as process:
        assert process.stdin
        assert process.stdout
        walls, boots = [], []
        for offset_s in (0.0, 5.0, -5.0, 0.25):
            clock.set(offset_s)
            process.stdin.write("look\n")
            process.stdin.flush()
            wall, boot, waited = map(float, process.stdout.readline().split())
            walls.append(wall)
            boots.append(boot)
            assert abs(boot - boots[0]) < 0.01
            assert 0.09 < waited < 1.0
        process.stdin.close()
    assert [round(wall - walls[0], 1) for wall in walls[:3]] == [0.0, 5.0, -5.0]
    assert abs(walls[3] - walls[0] - 0.25) < 0.02


def test_a_record_whose_acknowledgement_names_no_offset_is_looked_up(
    fault_cluster: EmbeddedCluster,
) -> None:
    topic = "acknowledged_twice"
    admin = AdminClient({"bootstrap.servers": fault_cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    history = History(fault_cluster.bootstrap, Plan(1, topic, 1, ("to",), 1))
    one = next(steps(Plan(1, topic, 1, ("to",), 1)))
    copies: list[Message] = []
    producer = Producer({"bootstrap.servers": fault_cluster.bootstrap})
    for uid in (b"another", one.uid, one.uid):
        producer.produce(topic, headers={UID: uid}, on_delivery=lambda _, copy: copies.append(copy))
        assert producer.flush(60) == 0
    report = create_autospec(Message)
    report.offset.return_value = None
    history.note(one, None, report)
    history.place()
    assert history.acked == [Acked(one, 1, copies[1].timestamp()[1])]
