"""The checkpoint topic in other hands: foreign records, a wrong policy, added partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from delayservice.engine.checkpoint import VERSION
from tests.integration.bench import Bench, Seen, await_true

pytestmark = pytest.mark.cluster


def deliver(bench: Bench, target: str, values: list[bytes], partition: int = 0) -> None:
    """Let these be delivered at once."""
    for value in values:
        bench.send_later(bench.to(target, 0), value=value, partition=partition)
    assert bench.producer.flush(30) == 0
    bench.await_match(target, lambda one: one.value == values[-1])


def checkpoints(bench: Bench, slice_no: int = 0) -> list[Seen]:
    """All checkpoints of a slice, oldest first."""
    key = b"%d" % slice_no
    return [one for one in bench.read_all(bench.checkpoint) if one.key == key and one.value]


def write(bench: Bench, value: bytes | None, key: bytes = b"0", partition: int = 0) -> None:
    """Write to the checkpoint topic, as only the service should."""
    bench.producer.produce(bench.checkpoint, value, key, partition)
    assert bench.producer.flush(30) == 0


def problems(bench: Bench, service: ServiceProcess) -> str:
    return " / ".join(bench.status(service)["problems"])


FOREIGN = [
    "a tombstone",
    "no checkpoint",
    "a checkpoint of slice 7",
    "is older than the one before",
]


def is_reported(service: ServiceProcess, what: str) -> bool:
    return any(what in event["what"] for event in service.events("foreign_checkpoint"))


def foreign_records(bench: Bench) -> list[bytes | None]:
    """One of each kind, in the order of ``FOREIGN``."""
    first, newest = checkpoints(bench)[0].value, checkpoints(bench)[-1].value
    assert first is not None
    assert newest is not None
    return [None, b"hello", newest.replace(b'"slice":0,', b'"slice":7,'), first]


def test_a_foreign_record_raises_an_alarm_and_the_owner_writes_its_checkpoint_again(
    bench: Bench,
) -> None:
    target = bench.target("foreign")
    service = bench.serve()
    deliver(bench, target, [b"record %d" % number for number in range(5)])
    for number, record in enumerate(foreign_records(bench)):
        before = len(checkpoints(bench))
        write(bench, record)
        await_true(lambda n=number: is_reported(service, FOREIGN[n]), "it is reported")  # type: ignore[misc]
        grown = before + int(record is not None) + 1
        await_true(lambda n=grown: len(checkpoints(bench)) >= n, "a checkpoint lies above it")  # type: ignore[misc]
        await_true(lambda: bench.status(service)["healthy"], "the alarm has ended")
    deliver(bench, target, [b"afterwards"])
    assert service.stop() == 0
    assert len(bench.read_all(target)) == 6


@pytest.mark.parametrize("kind", range(len(FOREIGN)), ids=FOREIGN)
def test_a_take_over_goes_on_from_the_newest_real_checkpoint(bench: Bench, kind: int) -> None:
    target = bench.target("foreign")
    service = bench.serve()
    deliver(bench, target, [b"record %d" % number for number in range(20)])
    await_true(lambda: len(checkpoints(bench)) > 1, "all of it is committed")
    service.kill()
    write(bench, foreign_records(bench)[kind])
    service = bench.serve()
    deliver(bench, target, [b"afterwards"])
    assert service.stop() == 0
    values = [one.value for one in bench.read_all(target)]
    assert len(values) == len(set(values)) == 21


def test_keys_and_values_that_nothing_decodes_stop_neither_reading_nor_a_take_over(
    bench: Bench,
) -> None:
    target = bench.target("undecodable")
    service = bench.serve()
    deliver(bench, target, [b"before"])
    write(bench, b"{}", key=b"9" * 5_000)
    write(bench, b'{"v":"\xff"}')
    await_true(lambda: is_reported(service, "no checkpoint"), "it is reported")
    for key in (b"9" * 5_000 + b":w", b"0:\xff"):
        bench.producer.produce(bench.claims, b'{"v":1,"word":"\xff"}', key)
    assert bench.producer.flush(30) == 0
    await_true(lambda: len(service.events("claim_not_readable")) > 1, "both are reported")
    service.kill()
    service = bench.serve()
    deliver(bench, target, [b"afterwards"])
    assert service.stop() == 0
    assert [one.value for one in bench.read_all(target)] == [b"before", b"afterwards"]


def is_emptied(bench: Bench, end: TopicPartition) -> bool:
    """Delete all records; False while the broker has not heard of the new policy."""
    try:
        bench.admin.delete_records([end])[end].result(30)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    else:
        return True


def test_a_slice_without_a_checkpoint_waits_for_one_and_says_so(bench: Bench) -> None:
    target = bench.target("stands")
    service = bench.serve()
    deliver(bench, target, [b"record %d" % number for number in range(20)])
    bench.send(bench.to(target, 1_000), value=b"pending")
    assert service.stop() == 0
    kept = checkpoints(bench)[-1].value
    bench.alter(bench.checkpoint, cleanup_policy="delete")  # or no record may be deleted
    end = TopicPartition(bench.checkpoint, 0, -1)
    await_true(lambda: is_emptied(bench, end), "the partition is emptied, as compaction does it")
    bench.alter(bench.checkpoint, cleanup_policy="compact")
    write(bench, None)
    service = bench.start()

    def stands() -> bool:
        said = problems(bench, service) if service.events("metrics_served") else ""
        return "tombstone" in said and "it is not known what was delivered" in said

    await_true(stands, "the slice stands, and says why")
    assert len([one for one in bench.read_all(target) if one.value != b"pending"]) == 20
    write(bench, kept)
    bench.await_match(target, lambda one: one.value == b"pending")
    deliver(bench, target, [b"afterwards"])
    assert service.stop() == 0
    values = [one.value for one in bench.read_all(target)]
    assert len(values) == len(set(values)) == 22


def test_a_checkpoint_of_a_newer_version_is_refused_until_it_is_replaced(bench: Bench) -> None:
    target = bench.target("newer")
    service = bench.serve()
    deliver(bench, target, [b"before"])
    bench.send(bench.to(target, 4_000), value=b"pending")
    assert service.stop() == 0
    kept = checkpoints(bench)[-1].value
    write(bench, json.dumps({"v": VERSION + 1, "something": "else"}).encode())
    service = bench.start()
    await_true(lambda: service.events("take_over_failed"), "it says why it does not serve")
    why = service.events("take_over_failed")[0]["why"]
    assert f"holds version {VERSION + 1}, this build reads version {VERSION}: upgrade" in why
    assert not service.events("took_over")
    write(bench, kept)
    bench.await_match(target, lambda one: one.value == b"pending")
    assert service.stop() == 0
    assert [one.value for one in bench.read_all(target)] == [b"before", b"pending"]


def test_a_checkpoint_topic_with_retention_is_refused_at_the_start(bench: Bench) -> None:
    target = bench.target("policy")
    service = bench.serve()
    deliver(bench, target, [b"before"])
    bench.alter(bench.checkpoint, cleanup_policy="delete")
    await_true(lambda: "must be compact" in problems(bench, service), "the status says so")
    assert service.events("own_topics_at_risk")
    deliver(bench, target, [b"meanwhile"])
    assert service.stop() == 0
    service = bench.start()
    await_true(
        lambda: any("must be compact" in e["why"] for e in service.events("waiting_for_kafka")),
        "the start is refused",
    )
    assert not service.events("worker_started")
    bench.alter(bench.checkpoint, cleanup_policy="compact", message_timestamp_type="CreateTime")
    await_true(
        lambda: any("LogAppendTime" in e["why"] for e in service.events("waiting_for_kafka")),
        "the start is refused",
    )
    bench.alter(bench.checkpoint, message_timestamp_type="LogAppendTime")
    deliver(bench, target, [b"afterwards"])
    assert service.stop() == 0
    assert [one.value for one in bench.read_all(target)] == [b"before", b"meanwhile", b"afterwards"]


def test_partitions_that_were_added_stop_no_slice_that_they_do_not_move(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path, partitions=5) as bench:
        target = bench.target("grown")
        service = bench.serve()
        for slice_no in range(5):
            deliver(bench, target, [b"first of %d" % slice_no], slice_no)
        bench.grow(bench.checkpoint, 5)
        await_true(lambda: "had 4 partitions and has 5" in problems(bench, service), "it is told")
        deliver(bench, target, [b"meanwhile"], 4)
        assert service.stop() == 0
        service = bench.start()
        for slice_no in range(4):
            deliver(bench, target, [b"second of %d" % slice_no], slice_no)
        await_true(lambda: "belongs in partition 4" in problems(bench, service), "it stands")
        moved = checkpoints(bench, 4)[-1].value
        write(bench, moved, b"4", partition=4)
        write(bench, None, b"4", partition=0)
        deliver(bench, target, [b"second of 4"], 4)
        assert service.stop() == 0
        values = [one.value for one in bench.read_all(target)]
        assert len(values) == len(set(values)) == 11
