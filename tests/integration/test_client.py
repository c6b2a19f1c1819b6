"""The client library against a real service, as its user would see it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import KafkaError, Message

from connectors.kafka.client import (
    NO_KEY,
    DelayProducer,
    LevelProducer,
    OutcomeReader,
)
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.partitioner import partition_for
from tests.integration.bench import Bench, quiet, served

pytestmark = pytest.mark.quick

PARTITIONS = 3
LEVELS_MS = (400, 1_500)


LEVELS = ("levels.delays_ms=400,1500", "levels.prefix=delay_topic_{run}_level_")
# Where ids have homes, a cancel finds its record without what a client does after partitions were
# added.
bench = served(partitions=PARTITIONS, sets=(*LEVELS, "delivery.id_partitions=0"))


@pytest.fixture
def client(bench: Bench) -> Iterator[DelayProducer]:
    with DelayProducer(quiet(bench), bench.any) as made:
        yield made


def test_a_record_arrives_when_the_client_said_with_the_key_that_it_had(
    bench: Bench, client: DelayProducer
) -> None:
    target = bench.target("ways", partitions=2)
    at = datetime.now(UTC) + timedelta(seconds=1)
    reports: list[tuple[KafkaError | None, Message]] = []
    client.send(target, b"at", key="k", at=at, on_delivery=lambda *one: reports.append(one))
    client.send(target, b"after", key=b"\x00k", delay=timedelta(seconds=0.8))
    client.send(target, "text", key=b"", delay="PT0.7S", headers={"trace": b"\xff", "null": None})
    client.send(target, b"other key", key=b"k", delay=600, target_key="other")
    client.send(target, b"no key", key=b"k", delay=500, target_key=NO_KEY, partition=1)
    client.send(target, None, key=b"null", delay=0, id="null is no cancel")
    assert client.flush(30) == 0
    assert [error for error, _ in reports] == [None]
    assert reports[0][1].key() == b"k", "the source record keeps its key"
    seen = {one.value: one for one in bench.read(target, 6)}
    assert {value: one.key for value, one in seen.items()} == {
        b"at": b"k",
        b"after": b"\x00k",
        b"text": b"",
        b"other key": b"other",
        b"no key": None,
        None: b"null",
    }
    assert seen[b"at"].header("delay-due-at") == str(-(-int(at.timestamp() * 1e6) // 1_000))
    assert all(one.timestamp_ms >= int(one.header("delay-due-at") or 0) for one in seen.values())
    assert seen[b"text"].own == [("trace", b"\xff"), ("null", None)]
    assert seen[b"no key"].partition == 1
    assert seen[None].header("delay-id") == "null is no cancel"


def test_keys_and_ids_go_to_the_partitions_that_java_would_choose(
    bench: Bench, client: DelayProducer
) -> None:
    target = bench.target("places")
    keys = [b"key-%d" % number for number in range(20)]
    for key in keys:
        client.send(target, b"keyed", key=key, delay=0)
        client.send(target, b"named", key=b"same for all", id=key, delay=0)
    client.flush(30)
    placed = {
        (
            one.value,
            one.key if one.value == b"keyed" else (one.header("delay-id") or "").encode(),
        ): int((one.header("delay-source") or "").split(":")[1])
        for one in bench.read(target, 40)
    }
    expected = {key: partition_for(key, PARTITIONS) for key in keys}
    assert placed == {
        **{(b"keyed", key): place for key, place in expected.items()},
        **{(b"named", key): place for key, place in expected.items()},
    }
    assert len(set(expected.values())) == PARTITIONS


def test_a_cancel_and_a_fire_are_answered(bench: Bench, client: DelayProducer) -> None:
    reader = OutcomeReader({"bootstrap.servers": bench.bootstrap}, bench.outcomes)
    target = bench.target("answered")
    made = client.send(target, b"x", make_id=True, delay="1h")
    assert made is not None
    assert client.send(target, b"x", id=f"{target}-fired", delay="1h") == f"{target}-fired"
    client.flush(30)
    assert reader.cancel(client, made, 30) == "cancelled"
    assert reader.cancel(client, made, 30) == "not_pending"
    assert reader.fire(client, f"{target}-fired", 30) == "fired"
    assert reader.fire(client, made, 0) is None
    nowhere = OutcomeReader({"bootstrap.servers": bench.bootstrap}, f"{bench.outcomes}_none")
    with pytest.raises(KafkaEdgeError, match=r"_none can't be used: .*did you mean"):
        nowhere.cancel(client, f"{target}-fired")


def test_a_reschedule_replaces_the_pending_record(bench: Bench, client: DelayProducer) -> None:
    target, record_id = bench.target("moved"), "moved"
    client.send(target, b"old", id=record_id, delay="PT1H")
    client.reschedule(record_id, target, b"new", delay=0)
    client.flush(30)
    assert [one.value for one in bench.read(target, 1)] == [b"new"]
    replaced = bench.await_match(bench.outcomes, lambda one: one.header("delay-id") == record_id, 1)
    assert [one.header("delay-outcome") for one in replaced] == ["replaced"]


def test_a_delay_by_level_waits_for_the_next_level_up_and_the_last_one_at_most(
    bench: Bench,
) -> None:
    target = bench.target("levels")
    delays: list[int | str] = [LEVELS_MS[0], LEVELS_MS[0] + 1, "P9D"]
    with LevelProducer(quiet(bench), LEVELS_MS, topic_prefix=f"{bench.any}_level_") as client:
        waits = [
            client.send(target, b"%d" % number, key=b"k", delay=delay, headers=[("trace", b"1")])
            for number, delay in enumerate(delays)
        ]
    assert waits == [LEVELS_MS[0], LEVELS_MS[1], LEVELS_MS[1]]
    for one in bench.read(target, 3):
        level = 1 if one.value == b"0" else 2
        topic, _, offset = (one.header("delay-source") or "").split(":")
        assert (topic, one.key, one.own) == (f"{bench.any}_level_{level}", b"k", [("trace", b"1")])
        (source,) = (seen for seen in bench.read_all(topic) if str(seen.offset) == offset)
        assert one.timestamp_ms >= source.timestamp_ms + LEVELS_MS[level - 1]
