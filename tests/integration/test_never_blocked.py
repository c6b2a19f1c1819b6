"""One record in ten goes to a target that fails; how late are the others?

``pytest -s tests/integration/test_never_blocked.py`` prints what
docs/internals/measurements.md has.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from connectors.kafka import take_over_client
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.outcome import DELIVERED
from tests.integration.bench import Bench, await_true, now_ms
from tests.integration.claimants import PLACE, Topics, Worker
from tests.integration.stream import DELAY_MS, PARTITIONS, Stream, figures

CALM_S: Final = 8
TROUBLE_S: Final = 15
BAD_BROKER: Final = 3
SOUND_BROKERS: Final = (1, 2)
PAUSE_MS: Final = 7_000
"""The longest: 3 s of stall, 0.3 s for an abort that can't end, 1 s for the fence, and a retry."""
PARK = "1s,5s,30s" + ",5s" * 30
"""So often that nothing is a dead letter before the broker is back."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, zookeepers=0) as cluster:
        yield cluster


@pytest.fixture
def bench(brokers: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
    sets = ("topics.replication_factor=3", f"delivery.park_delays_ms={PARK}", "node.workers=1")
    with Bench(brokers.bootstrap, tmp_path, partitions=PARTITIONS, sets=sets) as running:
        yield running


def place(bench: Bench, name: str, *copies: int, in_sync_min: int = 1) -> str:
    """Make a target of one partition on these brokers."""
    topic = bench.target_name(name)
    return bench.placed(topic, [copies], min_insync_replicas=str(in_sync_min))


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


def assert_no_pause_once_known(bench: Bench, service: ServiceProcess) -> None:
    """Only the transaction in which the bad target was recognised may end without its records,
    however slow the machine is: between that and the last end nothing was committed, so what waits
    for the target was in none that followed.
    """
    known_ms = min(happened_ms(service, "target_blocked"))
    pauses_ms = happened_ms(service, "writer_ended") + happened_ms(service, "ownership_lost")
    assert pauses_ms
    sent_ms = [one.timestamp_ms for one in bench.read_all(bench.target_name("sound"))]
    assert not [at_ms for at_ms in sent_ms if known_ms < at_ms < max(pauses_ms)]


def happened_ms(service: ServiceProcess, name: str) -> list[float]:
    moments = [datetime.fromisoformat(event["timestamp"]) for event in service.events(name)]
    return [moment.timestamp() * 1_000 for moment in moments]


def assert_parked(bench: Bench, bad: str) -> None:
    """Assert that what the bad target could not take was put off, and that the log says so."""
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


@pytest.mark.night
def test_a_target_that_is_deleted_costs_no_pause_once_it_is_known(bench: Bench) -> None:
    bad = place(bench, "deleted", BAD_BROKER)
    service = play(bench, bad, lambda: bench.admin.delete_topics([bad])[bad].result(30))
    assert_no_pause_once_known(bench, service)
    assert_parked(bench, bad)


@pytest.mark.night
def test_target_made_again_with_other_leaders_costs_the_others_one_short_pause(
    bench: Bench,
) -> None:
    topic = bench.target_name("again")

    def make_again() -> None:
        bench.admin.delete_topics([topic])[topic].result(30)
        await_true(lambda: bench.partitions_of(topic) == 0, "it is gone")
        bench.placed(topic, [[3], [1], [2]])

    bench.placed(topic, [[1], [2], [3]])
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
    assert_no_pause_once_known(bench, service)
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
        monkeypatch.setattr(take_over_client, "FENCE_TIMEOUT_S", 2.0)
        with pytest.raises(KafkaEdgeError, match="could not be fenced"):
            other.take_over_client.fence([first])  # whose process might begin another transaction
    finally:
        brokers.start_broker(BAD_BROKER)
    await_true(lambda: fences(other, first), "the copies are back")
    owner.serve(b"2", again.claim, commit=3)
    await_true(lambda: len(topics.delivered()) > 1, "its marker is written")
    assert topics.delivered() == [b"1", b"2"]
    for worker in (owner, other):
        worker.close()


def fences(worker: Worker, writer: str) -> bool:
    try:
        worker.take_over_client.fence([writer])
    except KafkaEdgeError:
        return False
    return True
