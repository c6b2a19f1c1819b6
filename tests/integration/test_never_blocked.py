"""One record in ten goes to a target that fails; how late are the others?

``pytest -s tests/integration/test_never_blocked.py`` prints what
docs/internals/measurements.md has.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not re-exported

from connectors.kafka import succession
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.outcome import DELIVERED
from tests.integration.bench import Bench, Seen, await_true, now_ms
from tests.integration.claimants import PLACE, Topics, Worker

PARTITIONS: Final = 4
DELAY_MS: Final = 2_000
PER_S: Final = 50
CALM_S: Final = 8
TROUBLE_S: Final = 15
BAD_BROKER: Final = 3
SOUND_BROKERS: Final = (1, 2)
PAUSE_MS: Final = 7_000
"""The longest: 3 s of stall, 0.3 s for an abort that can't end, 1 s for the fence, and a retry."""
SAME_TRANSACTION: Final = timedelta(seconds=2)
"""By then the writer of the transaction in which the target was recognised is given up."""


@dataclass
class Stream:
    """Records sent evenly, nine in ten to a sound target, and how late each was seen there."""

    bench: Bench
    sound: str
    bad: str
    partitions: range = range(PARTITIONS)
    sent: int = 0
    late_ms: dict[int, list[int]] = field(default_factory=dict)
    """By due second."""
    sources: list[str | None] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _stop_sending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Begin to send and to read."""
        self._threads = [threading.Thread(target=run) for run in (self._send, self._read)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._stop_sending.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        number = 0
        while not self._stop_sending.wait(1 / PER_S):
            number += 1
            target = self.bad if number % 10 == 0 else self.sound
            self.sent += target == self.sound
            headers = self.bench.to(target, DELAY_MS)
            self.bench.send_later(headers, partition=self.partitions[number % len(self.partitions)])
        self.bench.producer.flush()

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bench.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.sound, 0, 0)])
        while not self._stop.is_set():
            messages = consumer.consume(1_000, 0.05)
            at_ms = now_ms()
            for seen in (Seen(message) for message in messages if message.error() is None):
                due_ms = int(seen.header("delay-due-at") or 0)
                self.late_ms.setdefault(due_ms // 1_000, []).append(at_ms - due_ms)
                self.sources.append(seen.header("delay-source"))
        consumer.close()

    def finish(self) -> None:
        """Send no more, and await what was sent to the sound target."""
        self._stop_sending.set()
        self.await_seen(self.sent)

    def await_seen(self, count: int) -> None:
        await_true(lambda: len(set(self.sources)) >= count, f"{count} are seen", 60)

    def late_between(self, first_s: int, stop_s: int) -> list[int]:
        """Lateness of what was due then, ascending, milliseconds."""
        return sorted(
            ms for s, late in self.late_ms.items() if first_s <= s < stop_s for ms in late
        )


def figures(late_ms: list[int]) -> str:
    count = len(late_ms)
    p50, p99 = late_ms[count // 2], late_ms[count * 99 // 100]
    return f"p50 {p50} ms, p99 {p99} ms, max {late_ms[-1]} ms ({count} records)"


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, zookeepers=0) as cluster:
        yield cluster


@pytest.fixture
def bench(brokers: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
    sets = ("topics.replication_factor=3", "delivery.park_delays_ms=1s,5s,30s", "node.workers=1")
    with Bench(brokers.bootstrap, tmp_path, partitions=PARTITIONS, sets=sets) as running:
        yield running


def place(bench: Bench, name: str, *copies: int, in_sync_min: int = 1) -> str:
    """Make a target of one partition on these brokers."""
    topic = bench.target_name(name)
    config = {"min.insync.replicas": str(in_sync_min)}
    new = NewTopic(topic, 1, replica_assignment=[list(copies)], config=config)
    bench.admin.create_topics([new], operation_timeout=30)[topic].result(60)
    return topic


def play(bench: Bench, bad: str, fail: Callable[[], object]) -> ServiceProcess:
    """Let the target fail amid the stream, and print how late the others were."""
    sound = place(bench, "sound", *SOUND_BROKERS)
    service = bench.serve()
    pause = threading.Event()
    with Stream(bench, sound, bad) as stream:
        pause.wait(2 * DELAY_MS / 1_000)  # the first seconds of a service are no measure
        calm_s = now_ms() // 1_000
        pause.wait(CALM_S)
        failed_s = now_ms() // 1_000
        fail()
        pause.wait(TROUBLE_S)
        stream.finish()
    known_s = failed_s + (PAUSE_MS + DELAY_MS) // 1_000
    before = stream.late_between(calm_s, failed_s)
    found_out = stream.late_between(failed_s, known_s)
    after = stream.late_between(known_s, known_s + TROUBLE_S)
    for name, late_ms in (("before", before), ("found out", found_out), ("after", after)):
        sys.stdout.write(f"\n  {name}: {figures(late_ms)}")
    assert len(stream.sources) == len(set(stream.sources))
    return service


def assert_no_pause_once_known(service: ServiceProcess) -> None:
    """No transaction ends without its records after the bad target was recognised, however slow
    the machine is: what waits for the target is not in any.
    """
    known = min(happened(service, "target_blocked"))
    pauses = happened(service, "writer_ended") + happened(service, "ownership_lost")
    assert pauses
    assert max(pauses) <= known + SAME_TRANSACTION


def happened(service: ServiceProcess, name: str) -> list[datetime]:
    return [datetime.fromisoformat(event["timestamp"]) for event in service.events(name)]


def assert_parked(bench: Bench, bad: str) -> None:
    """What the bad target could not take was put off, and the log says so."""
    log = bench.log_path.read_text("utf-8")
    assert f'"target":"{bad}:-1"' in log.replace('": "', '":"')
    parked = [
        copy
        for one in bench.read_all(bench.any)
        if (text := one.header("delay-copy")) is not None
        and (copy := json.loads(text))["attempt"] > 1
    ]
    assert parked
    assert {copy["target"] for copy in parked} == {bad}


@pytest.mark.night
def test_a_target_that_never_existed_costs_no_pause(bench: Bench) -> None:
    bad = bench.target_name("never")
    service = play(bench, bad, lambda: None)
    assert_parked(bench, bad)
    assert not service.events("writer_ended")


def test_a_target_that_is_deleted_costs_no_pause_once_it_is_known(bench: Bench) -> None:
    bad = place(bench, "deleted", BAD_BROKER)
    service = play(bench, bad, lambda: bench.admin.delete_topics([bad])[bad].result(30))
    assert_no_pause_once_known(service)
    assert_parked(bench, bad)


@pytest.mark.night
def test_target_made_again_with_other_leaders_costs_the_others_one_short_pause(
    bench: Bench,
) -> None:
    topic = bench.target_name("again")

    def make(*leaders: int) -> None:
        new = NewTopic(topic, len(leaders), replica_assignment=[[one] for one in leaders])
        bench.admin.create_topics([new], operation_timeout=30)[topic].result(30)

    def make_again() -> None:
        bench.admin.delete_topics([topic])[topic].result(30)
        await_true(lambda: bench.partitions_of(topic) == 0, "it is gone")
        make(3, 1, 2)

    make(1, 2, 3)
    service = play(bench, topic, make_again)
    assert len(service.events("writer_ended")) <= 3  # none: the client found the leaders in time
    bench.await_match(topic, lambda one: one.value)


@pytest.mark.night
@pytest.mark.parametrize(
    ("copies", "in_sync_min"),
    [
        pytest.param([BAD_BROKER], 1, id="no leader"),
        pytest.param([1, BAD_BROKER], 2, id="too few copies in sync"),
    ],
)
def test_a_target_whose_broker_is_stopped_is_recognised_and_gets_its_records_later(
    bench: Bench, brokers: EmbeddedCluster, copies: list[int], in_sync_min: int
) -> None:
    bad = place(bench, "down", *copies, in_sync_min=in_sync_min)
    try:
        service = play(bench, bad, lambda: brokers.stop_broker(BAD_BROKER))
    finally:
        brokers.start_broker(BAD_BROKER)
    assert_no_pause_once_known(service)
    assert_parked(bench, bad)
    bench.await_match(bad, lambda one: one.header("delay-attempt"))


@pytest.mark.night
def test_a_target_with_too_few_copies_in_sync_from_the_start_costs_no_pause(
    bench: Bench, brokers: EmbeddedCluster
) -> None:
    bad = place(bench, "few", 1, BAD_BROKER, in_sync_min=2)
    brokers.stop_broker(BAD_BROKER)
    try:
        service = play(bench, bad, lambda: None)
    finally:
        brokers.start_broker(BAD_BROKER)
    assert not service.events("writer_ended")
    bench.await_match(bad, lambda one: one.header("delay-attempt"))


def test_a_transaction_that_can_not_end_stops_its_own_worker_for_a_moment_only(
    bench: Bench, brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "FENCE_TIMEOUT_S", 2.0)
    checkpoints, claims = (place(bench, name, *SOUND_BROKERS) for name in ("checkpoints", "claims"))
    target = place(bench, "undecided", 1, BAD_BROKER, in_sync_min=2)
    topics = Topics(brokers.bootstrap, checkpoints, claims, target)
    owner, other = Worker(topics, "a"), Worker(topics, "b")
    owner.open()
    other.open()
    taken = owner.take_over()
    owner.serve(b"1", taken.claim)
    owner.sink.send(PLACE, [(DELIVERED, target, 0, None, b"never", [], 1, 0)])
    await_true(lambda: not owner.sink._flush_step(owner.sink._fenced_producer), "all is sent")
    first = owner.writer
    brokers.stop_broker(BAD_BROKER)
    try:
        owner.sink.abort()
        owner.open()
        again = owner.take_over()
        assert again.fenced == {first}
        owner.sink.commit([owner.checkpoint(again.claim, 2)])
        with pytest.raises(KafkaEdgeError, match="could not be fenced"):
            other.succession.fence([first])  # whose process might begin another transaction
    finally:
        brokers.start_broker(BAD_BROKER)
    await_true(lambda: fences(other, first), "the copies are back")
    owner.serve(b"2", again.claim, commit=3)
    assert topics.delivered() == [b"1", b"2"]
    for worker in (owner, other):
        worker.close()


def fences(worker: Worker, writer: str) -> bool:
    try:
        worker.succession.fence([writer])
    except KafkaEdgeError:
        return False
    return True
