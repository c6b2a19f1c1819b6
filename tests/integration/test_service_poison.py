"""One bad thing never holds up a slice: records that nothing takes, targets that go away."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.integration.bench import Bench, Header, await_true, served

HUGE = b"\0" * 5_000_000
"""Compresses to a few kilobytes, so the delay topic takes it from a producer that compresses."""
PARKED_MS = 500
LATE_MS_MAX = 10_000


SETS = (f"delivery.park_delays_ms={PARKED_MS},{PARKED_MS}", "node.store=memory")
bench = served(sets=SETS)


def test_a_record_that_the_dead_letter_topic_refuses_leaves_a_trace(
    bench: Bench,
) -> None:
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


def test_a_target_deleted_under_load_costs_only_its_own_records(
    bench: Bench,
) -> None:
    doomed, sound = bench.target("doomed"), bench.target("steady")
    bench.send(bench.to(doomed, 0), value=b"while it was there")
    bench.await_match(doomed, lambda one: one.value == b"while it was there")
    bench.admin.delete_topics([doomed])[doomed].result(30)
    await_true(lambda: bench.partitions_of(doomed) == 0, "the target is gone")

    for number in range(100):
        bench.send_later(bench.to(doomed, 100), value=b"doomed %d" % number)
        bench.send_later(bench.to(sound, 100), value=b"sound %d" % number)
    bench.producer.flush()

    seen = bench.await_match(sound, lambda one: (one.value or b"").startswith(b"sound"), 100)
    late_ms = [one.timestamp_ms - int(one.header("delay-due-at") or 0) for one in seen]
    assert len(seen) == 100
    assert max(late_ms) < LATE_MS_MAX
    lost = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-error") == "target-unknown", 100
    )
    assert sorted(one.value or b"" for one in lost) == sorted(
        b"doomed %d" % number for number in range(100)
    )
