"""One bad thing never holds up a slice: records that nothing takes, targets that go away."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.integration.bench import Bench, Header, served

HUGE = b"\0" * 5_000_000
"""Compresses to a few kilobytes, so the delay topic takes it from a producer that compresses."""
PARKED_MS = 500
LATE_MS_MAX = 10_000


SETS = (f"delivery.park_delays_ms={PARKED_MS},{PARKED_MS}", "node.store=memory")
bench = served(sets=SETS)


def test_a_record_that_the_dead_letter_topic_refuses_leaves_a_trace(bench: Bench) -> None:
    target = bench.target("sound")
    config = {
        "bootstrap.servers": bench.bootstrap,
        "compression.type": "gzip",
        "message.max.bytes": 10_000_000,
    }
    compressing = Producer(config)
    good: list[Header] = [("delay-after", "0"), ("delay-target-topic", target)]
    for headers in (good, [("delay-target-topic", target)]):
        compressing.produce(bench.any, HUGE, b"huge", 0, headers=list(headers))
    assert compressing.flush(30) == 0
    bench.send(good, key=b"after", value=b"goes on")

    arrived = bench.await_match(target, lambda one: one.key == b"after")
    letters = bench.read(bench.dead_letter, 2)

    assert [one.value for one in arrived] == [b"goes on"]
    assert sorted(one.header("delay-error") or "" for one in letters) == [
        "time-missing",
        "too-large",
    ]
    assert {one.value for one in letters} == {None}
    assert {one.header("delay-source") for one in letters} == {
        f"{bench.any}:0:0",
        f"{bench.any}:0:1",
    }
