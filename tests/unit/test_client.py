"""The client library: producers, requests, places and retries."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaException, Message, Producer

from connectors.kafka.client import (
    RETRY_DELAYS_MS,
    Deduplicator,
    DelayProducer,
    InvalidRequestError,
    LevelProducer,
    LruSeen,
    OutcomeReader,
    RetryLadder,
    own_headers,
)
from connectors.kafka.client import places as places_module
from connectors.kafka.client.places import Places
from connectors.kafka.client.received import Received
from connectors.kafka.outcomes import place_of
from connectors.kafka.target_limits import batch_bytes
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import Headers, RecordPlace
from delayservice.contract.partitioner import murmur2, partition_for
from delayservice.contract.request import (
    delay_ms,
    id_bytes,
    instant_ms,
    plain_headers,
    target_headers,
    when_headers,
)
from tests.elapsed import Clock, at_most
from tests.integration.bench import await_true
from tests.unit.mock_cluster import mock_cluster

NOWHERE: dict[str, object] = {"log_level": 0}  # no broker at all


def test_nothing_is_written_when_a_request_is_refused() -> None:
    client = DelayProducer(NOWHERE)
    refused: list[dict[str, Any]] = [
        {},
        {"delay": 1, "at": 1},
        {"delay": 1, "id": ""},
        {"delay": 1, "id": "x" * 513},
        {"delay": 1, "headers": [("delay-at", b"1")]},
        {"delay": 1, "partition": True},
        {"every": 1_000, "times": True},
    ]
    for request in refused:
        with pytest.raises(InvalidRequestError):
            client.send("orders", b"v", **request)
    with pytest.raises(InvalidRequestError, match="never a target"):
        client.send("delay_topic_1", b"v", delay=1)
    with pytest.raises(TypeError, match="dealy"):
        client.send("orders", b"v", dealy=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError):
        client.cancel("")
    assert len(client) == 0


def test_a_delay_topic_of_any_name_is_not_its_own_target() -> None:
    with pytest.raises(InvalidRequestError, match="never a target"):
        DelayProducer(NOWHERE, "later").send("later", b"v", delay=1)


def test_the_end_of_a_block_says_how_many_records_are_left() -> None:
    client = DelayProducer(NOWHERE, close_timeout_s=0.05)
    client.send("orders", b"1", delay=1)
    client.send("orders", b"2", delay=1)
    with pytest.raises(KafkaEdgeError, match="2 records were not acknowledged"), client:
        assert len(client) == 2
    client.producer.purge()


def test_an_error_that_ends_a_block_is_not_hidden_by_records_that_are_left() -> None:
    client = DelayProducer(NOWHERE, close_timeout_s=0.05)
    client.send("orders", b"1", delay=1)
    with pytest.raises(RuntimeError, match="mine") as raised, client:
        raise RuntimeError("mine")
    client.producer.purge()
    assert raised.value.__notes__ == ["1 records were not acknowledged within 0.05 s"]


def test_a_level_is_the_next_one_up_and_the_last_one_for_more() -> None:
    client = LevelProducer(NOWHERE, (5_000, 60_000))
    waits = [client.send("orders", b"v", delay=ms) for ms in (0, 5_000, 5_001, 60_000, 10**9)]
    assert waits == [5_000, 5_000, 60_000, 60_000, 60_000]
    assert len(client) == 5
    with pytest.raises(InvalidRequestError):
        client.send("delay_topic_1", b"v", delay=1)
    client.producer.purge()


@pytest.mark.parametrize("levels_ms", [(), (5, 5), (5, 4), (0, 1), (-1,)])
def test_levels_ascend_from_above_zero(levels_ms: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="levels ascend"):
        LevelProducer(NOWHERE, levels_ms)


def test_a_handed_over_producer_is_used_as_it_is() -> None:
    producer = Producer(NOWHERE)
    assert DelayProducer(producer).producer is producer


def test_no_outcome_is_made_up_where_a_producer_reports_failures_only() -> None:
    _cluster, address = mock_cluster("delay_topic_any", "delay_outcomes")
    config = {**NOWHERE, "bootstrap.servers": address}
    reader = OutcomeReader(config)
    assert reader.cancel(DelayProducer(config), "id", 0) is None
    client = DelayProducer({**config, "delivery.report.only.error": True})
    for ask in (reader.cancel, reader.fire):
        with pytest.raises(KafkaEdgeError, match=r"takes effect, .*delivery\.report\.only\.error"):
            ask(client, "id", 0)


def test_no_place_is_made_up_for_a_record_that_is_acknowledged_without_an_offset() -> None:
    report = Mock(**{"topic.return_value": "t", "partition.return_value": 2})
    report.offset.return_value = 3
    assert place_of(report) == RecordPlace("t", 2, 3)
    report.offset.return_value = None
    with pytest.raises(KafkaEdgeError, match="written to t:2 and takes effect"):
        place_of(report)


def test_a_cancel_that_is_acknowledged_waits_for_no_other_record() -> None:
    _cluster, address = mock_cluster("delay_topic_any", "delay_outcomes")
    config = {**NOWHERE, "bootstrap.servers": address}
    client = DelayProducer(config)
    client.producer.produce("no such topic", b"v")  # the client looks for it for 30 s
    assert OutcomeReader(config).cancel(client, "id", 0) is None
    assert len(client) == 1
    client.producer.purge()


class TellingProducer:
    """Stands for a cluster whose partition count changes from one question to the next."""

    def __init__(self) -> None:
        self.count = 4
        self.asked = 0
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def list_topics(self, **_: float) -> SimpleNamespace:
        self.asked += 1
        self.answers.wait(10)
        if self.error is not None:
            raise self.error
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.count)))
        return SimpleNamespace(topics={"t": found} if self.count else {"tt": found})


def places_of(cluster: TellingProducer, clock: Clock) -> Places:
    return Places(cluster, "t", 60.0, clock)  # type: ignore[arg-type]


def test_partitions_that_were_added_are_used_after_a_while() -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    ids = [b"id-%d" % number for number in range(50)]
    for one in ids:
        assert places.now(one) == partition_for(one, 4)
    assert cluster.asked == 1
    cluster.count, clock.now_s = 6, 59.0
    assert places.now(ids[0]) == partition_for(ids[0], 4)
    clock.now_s = 60.0
    await_true(lambda: all(places.now(one) == partition_for(one, 6) for one in ids), "asked again")


@pytest.mark.parametrize("error", [KafkaException("away"), RuntimeError("away")])
def test_a_known_count_is_kept_while_the_cluster_does_not_answer(error: Exception) -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    cluster.error = error
    with pytest.raises(KafkaEdgeError, match="away"):
        places.now(b"id")
    cluster.error = None
    first = places.now(b"id")
    cluster.error, clock.now_s = error, 61.0
    assert places.now(b"id") == first
    await_true(lambda: cluster.asked >= 3, "asked again")
    assert places.now(b"id") == first


def test_a_known_count_is_used_while_the_cluster_takes_its_time_to_answer() -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    first = places.now(b"id")
    cluster.answers.clear()
    clock.now_s = 61.0
    with at_most(30):
        assert [places.now(b"id") for _ in range(100)] == [first] * 100
    assert cluster.asked <= 2, "one question at a time"
    cluster.answers.set()


def test_no_caller_waits_for_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = TellingProducer(), Clock()
    places = places_of(cluster, clock)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no more threads")))
        with pytest.raises(KafkaEdgeError, match="can't be asked: no more threads"):
            places.now(b"id")
    monkeypatch.setattr(places_module, "_ANSWER_S", 0.05)
    places = places_of(cluster, clock)
    cluster.answers.clear()
    with at_most(5), pytest.raises(KafkaEdgeError, match="can't be asked: no answer in time"):
        places.now(b"id")
    cluster.answers.set()
    await_true(lambda: places.now(b"id") == partition_for(b"id", 4), "it has answered")


def test_a_topic_that_was_deleted_is_named_until_it_is_there_again() -> None:
    cluster, clock = TellingProducer(), Clock()
    cluster.count = 0
    places = places_of(cluster, clock)
    with pytest.raises(KafkaEdgeError, match=r"topic t can't be used.*did you mean tt"):
        places.now(b"id")
    cluster.count = 4

    def is_found() -> bool:
        with suppress(KafkaEdgeError):
            return places.now(b"id") == partition_for(b"id", 4)
        return False

    await_true(is_found, "it is there again")


def test_the_client_loads_nothing_heavy_of_the_service() -> None:
    code = "import sys, connectors.kafka.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    tops = {name.partition(".")[0] for name in loaded.decode().split()}
    assert not tops & {"rocksdict", "kazoo", "pydantic", "structlog", "typer", "prometheus_client"}


# --- arguments of the client; what their headers mean is in ``test_header_table`` -----------------


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (0, 0),
        (1_500, 1_500),
        (timedelta(seconds=30), 30_000),
        (timedelta(microseconds=1_001), 2),
        (timedelta(microseconds=1), 1),
        ("PT30S", 30_000),
    ],
)
def test_a_delay_is_whole_milliseconds_rounded_up(delay: Any, ms: int) -> None:
    assert delay_ms("delay", delay) == ms


@pytest.mark.parametrize(
    "delay", [-1, timedelta(microseconds=-1_000), "1 hour", 1.5, True, 2**53, "\N{SNOWMAN}"]
)
def test_a_delay_that_the_service_would_refuse_is_refused_by_name(delay: Any) -> None:
    with pytest.raises(InvalidRequestError, match="delay"):
        delay_ms("delay", delay)


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (NOW_MS, NOW_MS),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1))), 1_000),
        (datetime(1970, 1, 1, 0, 0, 0, 1_001, tzinfo=UTC), 2),
        ("2030-01-01T01:00+01:00", 1_893_456_000_000),
    ],
)
def test_an_instant_is_epoch_milliseconds_rounded_up(at: Any, ms: int) -> None:
    assert instant_ms("at", at) == ms


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (datetime(2030, 1, 1), "at is 2030-01-01 00:00:00, without a time zone"),  # noqa: DTZ001
        (datetime(1969, 12, 31, tzinfo=UTC), "at is -86400000 ms"),
        ("2030-01-01T00:00:00", "Z or an offset is expected"),
        (1.5e12, "whole milliseconds"),
        ("1893456000", "looks like seconds"),
    ],
)
def test_an_instant_without_a_zone_or_before_1970_is_refused(at: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        instant_ms("at", at)


def test_times_that_contradict_each_other_are_refused() -> None:
    for when, message in [
        ({"delay": 1, "at": 1}, "give one of them"),
        ({"at": 10, "expires_at": 9}, "expires_at is before at"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            when_headers(**when)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["delay-at", "delay-source", "delay-copy", "delay-home", "DELAY", "delay-id"]
)
def test_own_headers_that_the_service_would_read_or_drop_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        plain_headers([(name, b"1")])
    assert plain_headers({"trace": b"1", "delay-mine": None}) == [
        ("trace", b"1"),
        ("delay-mine", None),
    ]


def test_no_byte_of_a_header_is_lost_in_the_client_library() -> None:
    assert plain_headers({"trace": "a\0b"}) == [("trace", b"a\0b")]
    assert target_headers("orders", None, "a\0b")[1:] == [("delay-target-key", b"a\0b")]
    with pytest.raises(InvalidRequestError, match="zero byte"):
        plain_headers([("trace\0id", b"1")])


def test_an_id_has_at_least_one_byte_and_at_most_the_services_limit() -> None:
    assert id_bytes("\N{SNOWMAN}", 3) == b"\xe2\x98\x83"
    for wrong in ("", b"", "\N{SNOWMAN}" * 2):
        with pytest.raises(InvalidRequestError, match="an id has 1 to 3 bytes"):
            id_bytes(wrong, 3)


# --- the partitioner against the values of Kafka's ``UtilsTest.testMurmur2`` and librdkafka's own -


JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"1": -1993445489,
    b"12": 126087238,
    b"123": -267702483,
    b"1234": -1614185708,
    b"12345": -1188365604,
}
LIBRDKAFKA_HASHES = {
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
    b"4": 0x5A4B5CA1,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    b"": 0x106E08D9,
}
HASHES = {**{k: v % 2**32 for k, v in JAVA_HASHES.items()}, **LIBRDKAFKA_HASHES}


@pytest.mark.parametrize(("data", "expected"), HASHES.items())
def test_murmur2_is_java_s(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@pytest.mark.parametrize(("data", "expected"), HASHES.items())
def test_a_partition_is_the_positive_hash_modulo_the_count(data: bytes, expected: int) -> None:
    assert partition_for(data, 12) == (expected & 0x7FFFFFFF) % 12
    assert partition_for(data, 1) == 0


# --- retry ladder ---------------------------------------------------------------------------------


def message(topic: str, headers: Received | None = None) -> Message:
    return Message(topic=topic, partition=1, offset=7, value=b"v", headers=list(headers or []))


def test_the_default_steps_are_rocketmqs_sixteen() -> None:
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert list(RETRY_DELAYS_MS) == [10_000, 30_000, *(m * 60_000 for m in minutes)]
    assert len(RETRY_DELAYS_MS) == 16


def test_failures_are_counted_in_the_groups_own_retry_topic_only() -> None:
    ladder = RetryLadder("g", DelayProducer(NOWHERE))
    failed: Received = [("delay-backoff", b"1s"), ("delay-retries", b"3")]
    assert ladder.retries(message("retry_g", failed)) == 3
    assert ladder.retries(message("orders", failed)) == 0
    assert ladder.retries(message("retry_other", failed)) == 0


@pytest.mark.parametrize("wrong", [{"delays": []}, {"delays": [-1]}, {"retry_topic": "delay_x"}])
def test_a_ladder_that_can_not_be_climbed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        RetryLadder("g", DelayProducer(NOWHERE), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="no legal topic"):
        RetryLadder("a group", DelayProducer(NOWHERE))


def test_own_headers_are_those_that_neither_the_service_nor_a_ladder_adds() -> None:
    headers: Received = [
        ("trace", b"1"),
        ("delay-source", b"t:0:1"),
        ("delay-id", b"x"),
        ("DELAY", b"3"),
        ("delay-mine", None),
        ("retry-source", b"t:0:1"),
        ("retry-error", b"ValueError: 1"),
        ("trace", b"2"),
    ]
    kept: Received = [("trace", b"1"), ("delay-mine", None), ("trace", b"2")]
    assert own_headers(message("orders", headers)) == kept


def test_work_that_is_done_is_not_done_again_for_another_copy() -> None:
    seen = Deduplicator()
    first = message("orders", [("delay-source", b"t:0:1")])
    copy = message("retry_g", [("delay-source", b"t:0:1")])
    assert not seen.is_done(first)
    assert not seen.is_done(copy), "asking is not doing"
    seen.done(first)
    assert seen.is_done(copy)
    assert not seen.is_done(message("orders", [("delay-source", b"t:0:2")]))


def test_a_bounded_memory_forgets_what_was_used_least_recently() -> None:
    seen = LruSeen(2)
    seen.add("a")
    seen.add("b")
    assert seen.has("a")
    seen.add("c")
    assert [seen.has(one) for one in "abc"] == [True, False, True]
    with pytest.raises(InvalidRequestError):
        LruSeen(0)


# --- the size of a record batch, as brokers compute it --------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, [], 68),  # 61 + length, attributes, two deltas, two nulls, no header
        (b"", b"", [], 68),
        (b"k", b"v" * 63, [], 133),
        (b"k", b"v" * 64, [], 135),  # two lengths take a byte more
        (None, b"v", [("name", b"\xff"), ("null", None)], 82),
        (None, b"v" * 1_000_000, [], 1_000_072),
    ],
)
def test_batch_size_matches_kafkas_encoding(
    key: bytes | None, value: bytes | None, headers: Headers, size: int
) -> None:
    assert batch_bytes(key, value, headers) == size
