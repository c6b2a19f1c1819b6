"""Claims, fences and writers on a real Kafka: who may still commit for a slice, and who may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from connectors.kafka.checkpoints import KafkaCheckpoints
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.clock import SystemClock
from delayservice.base.errors import OwnershipLostError
from delayservice.engine.checkpoint import Checkpoint, encode_checkpoint
from delayservice.engine.claims import CLAIM, Tenure
from delayservice.engine.outcome import DELIVERED
from delayservice.engine.ports import Control
from tests.conftest import MakeTopic
from tests.integration.bench import Reader, await_true
from tests.integration.claimants import PLACE, SECRET, SLICE, Topics, Worker
from tests.simulation.mutations import to_lso

pytestmark = [pytest.mark.cluster, pytest.mark.quick]


@pytest.fixture
def topics(cluster: EmbeddedCluster, make_topic: MakeTopic) -> Topics:
    compact = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    return Topics(
        cluster.bootstrap,
        make_topic("checkpoint", config=compact),
        make_topic("claims", config=compact),
        make_topic("target"),
    )


@pytest.fixture
def make_worker(topics: Topics) -> Iterator[Callable[[str], Worker]]:
    made: list[Worker] = []

    def make(name: str) -> Worker:
        worker = Worker(topics, name)
        made.append(worker)
        worker.open()
        return worker

    yield make
    for worker in made:
        worker.close()


def test_an_owner_that_was_taken_over_commits_nothing_more(
    topics: Topics, make_worker: Callable[[str], Worker]
) -> None:
    first, second = make_worker("a"), make_worker("b")
    taken = first.take_over()
    first.serve(b"1", taken.claim)
    first.sink.send(PLACE, [(DELIVERED, topics.target, 0, None, b"never", [], 1, 0)])
    found = second.take_over()
    assert found.fenced == {first.writer}
    assert found.checkpoint is not None
    assert found.checkpoint.tenure == Tenure(first.writer, taken.claim)
    with pytest.raises(OwnershipLostError):
        first.sink.commit([first.checkpoint(taken.claim, 2)])
    second.serve(b"2", found.claim)
    assert topics.delivered() == [b"1", b"2"]


def test_a_fence_of_an_open_transaction_does_not_wait_for_the_clients_half_second(
    topics: Topics, make_worker: Callable[[str], Worker]
) -> None:
    took_s, plain_s = [], []
    for number in range(5):
        frozen, plain = make_worker(f"frozen{number}"), make_worker(f"plain{number}")
        second = make_worker(f"second{number}")
        for worker in (frozen, plain):
            worker.sink.send(PLACE, [(DELIVERED, topics.target, 0, None, b"never", [], 1, 0)])
            assert worker.sink._fenced_producer.flush(30) == 0
        began_s = time.monotonic()
        Producer({**topics.client, "transactional.id": plain.writer}).init_transactions(30)
        plain_s.append(time.monotonic() - began_s)
        began_s = time.monotonic()
        second.take_over_client.fence([frozen.writer])
        took_s.append(time.monotonic() - began_s)
        with pytest.raises(OwnershipLostError):
            frozen.sink.commit([])
    assert min(took_s) < min(plain_s), (took_s, plain_s)  # the least: the machine may be busy
    assert topics.delivered() == []


@pytest.mark.parametrize("forgotten", [None, "somebody-else"])
def test_a_claim_or_a_tombstone_that_is_still_open_does_not_hide_its_writer(
    topics: Topics, make_worker: Callable[[str], Worker], forgotten: str | None
) -> None:
    frozen, second = make_worker("a"), make_worker("b")
    word = frozen.say(CLAIM) if forgotten is None else Control(SLICE, None, forgotten)
    frozen.sink._begin()
    frozen.sink._produce_control(frozen.sink._fenced_producer, word)
    assert frozen.sink._flush_step(frozen.sink._fenced_producer) == 0
    found = second.take_over()
    second.serve(b"1", found.claim)
    with pytest.raises(OwnershipLostError):
        frozen.sink.commit([])
    assert topics.delivered() == [b"1"]


@pytest.mark.parametrize("mistake", [nullcontext, to_lso])
def test_a_checkpoint_that_is_still_open_does_not_hide_its_writer(
    make_worker: Callable[[str], Worker], mistake: Callable[[], AbstractContextManager[Any]]
) -> None:
    frozen, second = make_worker("a"), make_worker("b")
    taken = frozen.take_over()
    frozen.serve(b"1", taken.claim)
    frozen.sink._begin()
    frozen.sink._produce_control(frozen.sink._fenced_producer, frozen.checkpoint(taken.claim, 2))
    assert frozen.sink._flush_step(frozen.sink._fenced_producer) == 0
    with mistake():
        second.take_over_client.read_to_end([SLICE])
    is_fenced = pytest.raises(OwnershipLostError) if mistake is nullcontext else nullcontext()
    with is_fenced:
        frozen.sink.commit([])


def test_a_fence_in_a_delivery_report_gives_the_writer_up_without_an_abort(
    topics: Topics, make_worker: Callable[[str], Worker]
) -> None:
    owner, other = make_worker("a"), make_worker("b")
    taken = owner.take_over()
    owner.sink.send(PLACE, [(DELIVERED, topics.target, 0, None, b"never", [], 1, 0)])
    other.take_over_client.fence([owner.writer])
    owner.sink.send(PLACE, [(DELIVERED, topics.target, 0, None, b"never", [], 1, 1)])
    with pytest.raises(OwnershipLostError):
        owner.sink.commit([owner.checkpoint(taken.claim, 1)])

    def goes_on() -> None:
        owner.sink.send(PLACE, [(DELIVERED, topics.target, 0, None, b"never", [], 1, 2)])
        owner.sink.commit([])

    with pytest.raises(OwnershipLostError):
        goes_on()
    assert topics.delivered() == []


def test_two_workers_that_claim_at_once_end_with_one_that_serves(
    topics: Topics, make_worker: Callable[[str], Worker]
) -> None:
    workers = [make_worker(name) for name in "abc"]

    def try_to_serve(worker: Worker) -> bool:
        try:
            taken = worker.take_over()
            version = 1 + (taken.checkpoint.commit if taken.checkpoint else 0)
            worker.serve(b"%d" % version, taken.claim, version)
        except OwnershipLostError:
            return False
        return True

    with ThreadPoolExecutor(len(workers)) as pool:
        served = list(pool.map(try_to_serve, workers))
    values = topics.delivered()
    assert any(served)
    assert values == [b"%d" % number for number in range(1, len(values) + 1)]
    assert len(values) == sum(served)


@pytest.fixture(scope="module")
def forgetful() -> Iterator[EmbeddedCluster]:
    """A broker whose coordinator forgets a transactional id after eight seconds: long enough to
    serve with it, however slow the machine.
    """
    properties = {
        "transactional.id.expiration.ms": "8000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "producer.id.expiration.ms": "8000",
        "producer.id.expiration.check.interval.ms": "500",
    }
    with EmbeddedCluster(zookeepers=0, broker_properties=properties) as running:
        yield running


def test_a_writer_that_the_coordinator_forgot_is_given_up_and_never_recovers(
    forgetful: EmbeddedCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": forgetful.bootstrap})
    names = ("checkpoint", "claims", "target")
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(30)
    topics = Topics(forgetful.bootstrap, *names)
    frozen, second = Worker(topics, "a"), Worker(topics, "b")
    frozen.open()
    taken = frozen.take_over()
    frozen.serve(b"1", taken.claim)
    second.open()
    found = second.take_over()
    assert found.fenced == {frozen.writer}
    second.serve(b"2", found.claim, 2)

    await_forgotten(topics, frozen.writer)
    for value in (b"never", b"ever"):
        with pytest.raises(OwnershipLostError):
            frozen.serve(value, taken.claim, 3)
    assert topics.delivered() == [b"1", b"2"]
    for worker in (frozen, second):
        worker.close()


def await_forgotten(topics: Topics, writer: str) -> None:
    """Wait until the coordinator has written that a transactional id has expired."""
    with Reader(topics.bootstrap, ["__transaction_state"], "read_uncommitted") as reader:
        reader.await_match(
            lambda one: writer.encode() in (one.key or b"") and one.value is None, timeout_s=60
        )


def write_checkpoints(topics: Topics, commits: range) -> None:
    producer = Producer({**topics.client, "batch.num.messages": 5, "linger.ms": 5})
    for commit in commits:
        written = Checkpoint(SLICE, "a", 1, SECRET, {}, commit, Tenure("a", 1))
        producer.produce(topics.checkpoint, encode_checkpoint(written), b"%d" % SLICE)
    assert producer.flush(30) == 0


def test_a_new_slice_is_found_unserved_after_the_checkpoint_topic_was_made_again(
    topics: Topics,
) -> None:
    tail = KafkaCheckpoints(topics.options("tail"), SystemClock(), "tail")
    write_checkpoints(topics, range(2_000))  # it begins 1,000 before the end
    tail.follow(SLICE)
    while not tail.is_newest(SLICE):
        assert tail.tail(5.0)
    admin = AdminClient(topics.client)
    admin.delete_topics([topics.checkpoint])[topics.checkpoint].result(30)
    await_true(
        lambda: topics.checkpoint not in admin.list_topics(timeout=30).topics, "the topic is gone"
    )
    again = NewTopic(topics.checkpoint, 1, 1)
    admin.create_topics([again], operation_timeout=30)[topics.checkpoint].result(30)
    write_checkpoints(topics, range(2_000, 2_001))
    tail.made_again(topics.checkpoint)
    tail.follow(SLICE + 1)
    while not tail.is_unserved(SLICE + 1):
        assert tail.tail(5.0), "nothing is searched that only the old log had"
    tail._end()


def test_old_checkpoints_are_not_taken_for_the_newest_while_they_are_read(topics: Topics) -> None:
    # Nothing is fetched ahead: however long the machine takes, the first read has not all.
    few = {**topics.client, "max.partition.fetch.bytes": "1000", "queued.min.messages": "1"}
    options = replace(topics.options("tail"), consumer=few)
    tail, last = KafkaCheckpoints(options, SystemClock(), "tail"), 0
    for more in (300, 200):  # when it begins, and when it connects anew
        write_checkpoints(topics, range(last, last + more))
        first, last = last, last + more
        read: list[int] = []
        while not read or not tail.is_newest(SLICE):
            assert tail.tail(5.0)
            found = tail.read_back(SLICE)
            if found is None or found.offset < first:  # the end of the claims came first
                assert not tail.is_newest(SLICE)
                continue
            read.append(found.offset)
        assert read[0] < read[-1] == last - 1
        assert SLICE in tail.take_updated()
        tail._end()
