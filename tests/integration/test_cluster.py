"""The embedded cluster: real, restartable, and gone without a trace however its owner ends."""

import json
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from delayservice.base.errors import ClusterError
from tests.integration.bench import Reader

GONE_SECONDS_MAX = 20


def produce_in_transaction(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(30)


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Await so many records, for a commit returns before they can be read, and all beyond them."""
    with Reader(bootstrap, [topic]) as reader:
        reader.await_count(count)
        return [one.value for one in reader.to_end()]


def create_topic(bootstrap: str, copies: int) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("kept", 1, copies)])["kept"].result(30)
    return "kept"


def assert_gone(processes: list[psutil.Process], folder: Path | None) -> None:
    _, alive = psutil.wait_procs(processes, GONE_SECONDS_MAX)
    assert not alive
    assert folder is None or not folder.exists()


class Up:
    """``dev up --json`` as a process of its own, with everything that it started."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "delay_devtools", "dev", "up", "--json", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        self.process.stdout.close()
        facts = json.loads(line)
        self.folder = Path(facts["folder"])
        self.servers = [psutil.Process(pid) for pid in facts["pids"]]
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.removers = [child for child in children if child not in self.servers]


def test_a_misspelt_topic_is_not_created(cluster: EmbeddedCluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "speller"})
    with pytest.raises(KafkaException, match="Unknown"):
        consumer.get_watermark_offsets(TopicPartition("misspelt", 0), timeout=10)
    consumer.close()


@pytest.mark.slow
def test_a_killed_broker_comes_back_with_its_data_and_stop_leaves_nothing() -> None:
    with EmbeddedCluster(zookeepers=0) as own:
        bootstrap, folder = own.bootstrap, own.folder
        topic = create_topic(bootstrap, copies=1)
        produce_in_transaction(bootstrap, topic, [b"before"])
        # Read first: with one broker a transaction must be complete before a kill (stop_broker).
        assert read(bootstrap, topic, 1) == [b"before"]
        own.stop_broker(1, kill=True)
        own.start_broker(1)
        assert own.bootstrap == bootstrap
        produce_in_transaction(bootstrap, topic, [b"after"])
        assert read(bootstrap, topic, 2) == [b"before", b"after"]
        processes = [psutil.Process(pid) for pid in own.pids()]
    assert_gone(processes, folder)


@pytest.mark.slow
def test_a_chosen_folder_is_kept_and_found_again(tmp_path: Path) -> None:
    with EmbeddedCluster(zookeepers=0, folder=tmp_path / "kept") as first:
        topic = create_topic(first.bootstrap, copies=1)
        produce_in_transaction(first.bootstrap, topic, [b"kept"])
    with EmbeddedCluster(zookeepers=0, folder=tmp_path / "kept") as second:
        assert read(second.bootstrap, topic, 1) == [b"kept"]


def test_a_server_that_does_not_start_shows_the_end_of_its_log() -> None:
    own = EmbeddedCluster(zookeepers=1, broker_properties={"num.io.threads": "none"})
    before = set(psutil.Process().children())
    with pytest.raises(ClusterError, match=r"(?s)broker 1 ended with status.*num\.io\.threads"):
        own.start()
    assert set(psutil.Process().children()) == before


@pytest.mark.slow
def test_a_port_that_is_taken_meanwhile_costs_another_try(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(cluster.bootstrap.rpartition(":")[2])  # by a broker 1, just as the new one
    answers = [[taken, *free_ports(5)], free_ports(6)]
    monkeypatch.setattr("delay_devtools.cluster.free_ports", lambda *_: answers.pop(0))
    with EmbeddedCluster() as own:
        assert own.bootstrap != cluster.bootstrap
        assert not answers


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_up_stops_in_order_when_asked(number: signal.Signals) -> None:
    up = Up()
    up.process.send_signal(number)
    assert up.process.wait(GONE_SECONDS_MAX) == 0
    assert_gone(up.servers + up.removers, up.folder)


@pytest.mark.slow
def test_a_killed_owner_leaves_no_process_and_no_file() -> None:
    up = Up()
    up.process.kill()
    up.process.wait()
    assert_gone(up.servers + up.removers, up.folder)


@pytest.mark.slow
def test_a_killed_owner_leaves_no_process_when_what_removes_its_files_is_killed_too() -> None:
    up = Up()
    for remover in up.removers:
        remover.kill()
    up.process.kill()
    up.process.wait()
    assert_gone(up.servers, None)
    shutil.rmtree(up.folder)
