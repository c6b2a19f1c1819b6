"""Starts, stops, and what may come between: lost state, another secret, a second service."""

from __future__ import annotations

import os
import uuid

import psutil
from confluent_kafka import TopicPartition

from tests.integration.bench import Bench, await_true


def sent_pending(bench: Bench, target: str, count: int, delay_ms: int) -> set[bytes]:
    """Records that are due later, each with a value of its own."""
    values = {uuid.uuid4().hex.encode() for _ in range(count)}
    for value in values:
        bench.send_later(bench.to(target, delay_ms), value=value)
    bench.producer.flush()
    return values


def assert_each_once(bench: Bench, target: str, values: set[bytes]) -> None:
    seen = [one.value for one in bench.read_all(target)]
    assert sorted(seen, key=repr) == sorted(values, key=repr)


def test_a_stopped_service_goes_on_where_it_was_and_rebuilds_what_is_wiped(bench: Bench) -> None:
    target = bench.target("stop")
    service = bench.serve()
    values = sent_pending(bench, target, 500, 0) | {b"soon"}
    _, _, appended_ms = bench.send(bench.to(target, 9_000), value=b"soon")
    bench.read(target, 100)
    assert service.stop() == 0

    (bench.folder / "state").rename(bench.folder / "lost")
    values |= sent_pending(bench, target, 500, 0)
    service = bench.serve()
    bench.read(target, 1_000)
    assert service.stop() == 0

    for file in (bench.folder / "state").rglob("*"):  # torn, not only gone
        if file.is_file() and file.stat().st_size > 8:
            os.truncate(file, file.stat().st_size // 2)
    service = bench.serve()
    (soon,) = bench.await_match(target, lambda one: one.value == b"soon")
    assert appended_ms + 9_000 <= soon.timestamp_ms
    assert service.stop() == 0
    assert_each_once(bench, target, values)


def test_records_deleted_during_downtime_are_reported_and_others_served(bench: Bench) -> None:
    target = bench.target("deleted")
    service = bench.serve()
    bench.send(bench.to(target, 0), value=b"before")
    bench.read(target, 1)
    assert service.stop() == 0
    _, last, _ = max(bench.send(bench.to(target, 0), value=b"gone") for _ in range(3))
    bench.send(bench.to(target, 0), value=b"kept")
    cut = TopicPartition(bench.any, 0, last + 1)
    bench.admin.delete_records([cut])[cut].result(30)
    service = bench.serve()
    assert [one.value for one in bench.read(target, 2)] == [b"before", b"kept"]
    assert [event["start"] for event in service.events("log_starts_later")] == [last + 1]


def test_a_state_folder_serves_one_service_at_a_time(bench: Bench) -> None:
    first = bench.serve()
    second = bench.start(log="second.log")
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    await_true(lambda: psutil.Process(second.pid).status() in ended, "the second ends")
    assert second.stop() != 0
    assert "state" in (bench.folder / "second.log").read_text()
    assert first.stop() == 0
