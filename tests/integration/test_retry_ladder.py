"""Records that a consumer can't handle, round through a real service."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from connectors.kafka.client import (
    DelayProducer,
    RetryLadder,
)
from delayservice.base.errors import KafkaEdgeError
from tests.integration.bench import WAIT_S, Bench, await_true, quiet, served

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "retrying_consumer.py"
STEPS_MS = (300, 600, 900)


bench = served(sets=("targets.default.allow=to_{run}_*,retry_{run}_*",))


def consumer_of(bench: Bench, group: str, *topics: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bench.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe(list(topics))
    return consumer


def next_message(consumer: Consumer) -> Message:
    message = consumer.poll(WAIT_S)
    assert message is not None, "no record in time"
    assert message.error() is None, message.error()
    return message


def test_the_example_consumer_retries_and_at_last_puts_aside(bench: Bench, tmp_path: Path) -> None:
    group, orders = f"{bench.run}_shipping", bench.target("orders")
    retry = bench.topic(f"retry_{group}")
    stock, output = tmp_path / "stock.txt", tmp_path / "output.txt"
    stock.write_text("pears", "utf-8")
    command = [sys.executable, EXAMPLE, bench.bootstrap, stock, "--topic", orders]
    command += ["--group", group, "--delay-topic", bench.any]
    for step_ms in STEPS_MS:
        command += ["--delay-ms", str(step_ms)]
    for article in (b"pears", b"apples", b"unicorns"):
        bench.producer.produce(orders, article, b"key", headers=[("trace", article)])
    bench.producer.flush(WAIT_S)
    with output.open("w") as out:
        example = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out)
    try:
        bench.read(retry, 2)  # both have failed once
        stock.write_text("pears apples", "utf-8")
        (letter,) = bench.await_match(bench.dead_letter, lambda one: one.value == b"unicorns")
        await_true(lambda: "shipped apples" in output.read_text("utf-8"), "apples are shipped")
    finally:
        example.send_signal(signal.SIGINT)
        assert example.wait(WAIT_S) == 0, output.read_text("utf-8")
    lines = output.read_text("utf-8").splitlines()
    assert f"shipped pears, order {orders}:0:0" in lines
    assert f"shipped apples, order {orders}:0:1" in lines, "the identity of its first delivery"
    assert lines[-1] == "stopped"
    assert (letter.key, letter.value) == (b"key", b"unicorns")
    assert letter.own == [
        ("trace", b"unicorns"),
        ("retry-source", f"{orders}:0:2".encode()),
        ("retry-error", b"OutOfStockError: unicorns"),
    ]
    assert letter.header("delay-error") == "retries-exhausted"
    rounds = [one for one in bench.read_all(retry) if one.value == b"unicorns"]
    assert [one.header("delay-retries") for one in rounds] == ["1", "2", "3"]
    waits_ms = [after.timestamp_ms - before.timestamp_ms for before, after in pairwise(rounds)]
    assert all(wait >= step for wait, step in zip(waits_ms, STEPS_MS[1:], strict=True))


def test_a_plain_client_sends_back_what_it_got_until_its_retries_are_exhausted(
    bench: Bench,
) -> None:
    target = bench.target("plain")
    headers = [*bench.to(target, 0)[1:], ("delay-backoff", b"100ms, 200"), ("trace", b"1")]
    value: bytes | None = b"v"
    for retries in (1, 2):
        _, _, written_ms = bench.send(headers, value=value, key=b"k")
        seen = bench.await_match(target, lambda one: one.header("delay-retries"), retries)[-1]
        assert (seen.header("delay-retries"), seen.key, seen.value) == (str(retries), b"k", b"v")
        assert seen.timestamp_ms >= written_ms + 100 * retries
        headers, value = [*seen.headers], seen.value
    bench.send(headers, value=value, key=b"k")
    letters = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-target-topic") == target
    )
    assert [one.header("delay-error") for one in letters] == ["retries-exhausted"]
    assert letters[0].header("delay-retries") == "2"


def test_in_a_transaction_a_failed_record_is_handed_over_exactly_once(bench: Bench) -> None:
    topic, retry = bench.target("exactly"), bench.target("exactly_retry")
    group = f"{bench.run}-exactly"
    producer = Producer({**quiet(bench), "transactional.id": f"{bench.run}-app"})
    producer.init_transactions(WAIT_S)
    ladder = RetryLadder(group, DelayProducer(producer, bench.any), delays=[0], retry_topic=retry)
    for number in range(3):
        bench.producer.produce(topic, b"%d" % number)
    bench.producer.flush(WAIT_S)

    def attempt(consumer: Consumer) -> None:
        message = next_message(consumer)
        producer.begin_transaction()
        ladder.failed(message, ValueError("no"))
        producer.flush(WAIT_S)  # it is at the broker, whatever becomes of the transaction
        position = TopicPartition(topic, 0, (message.offset() or 0) + 1)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata())

    for crashes in (True, False):
        consumer = consumer_of(bench, group, topic)
        try:
            for _ in range(3):
                attempt(consumer)
                if crashes:
                    producer.abort_transaction(WAIT_S)
                else:
                    producer.commit_transaction(WAIT_S)
        finally:
            consumer.close()
    bench.read(retry, 3)
    client = DelayProducer(quiet(bench), bench.any)
    client.send(retry, b"last", delay=500)
    client.flush(WAIT_S)
    seen = bench.await_match(retry, lambda one: one.value == b"last")
    assert seen
    assert [one.value for one in bench.read_all(retry)] == [b"0", b"1", b"2", b"last"]


def test_a_refused_hand_over_is_told_of_until_the_consumer_ends(bench: Bench) -> None:
    topic = bench.target("refused")
    small = bench.topic(f"{bench.any}_small", max_message_bytes="1000")
    client = DelayProducer(quiet(bench), small)
    ladder = RetryLadder("g", client)
    bench.producer.produce(topic, b"x" * 2_000)
    bench.producer.flush(WAIT_S)
    consumer = consumer_of(bench, f"{bench.run}-refused", topic)
    try:
        message = next_message(consumer)
    finally:
        consumer.close()
    ladder.failed(message, ValueError("no"))
    for _ in range(2):
        with pytest.raises(KafkaEdgeError, match="could not be handed over"):
            ladder.confirm()
