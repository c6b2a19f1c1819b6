"""Any client's cancel finds its record: ids at home in one partition, on a real broker.

Records and their cancels are written by partitioners that disagree. Records of their own ids at the
end of a batch are fences: once their outcomes are there, all before them had its effect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from functools import partial
from itertools import cycle

import pytest
from confluent_kafka import Producer

from connectors.kafka.client import DelayProducer, OutcomeReader
from delayservice.contract.partitioner import partition_for
from tests.integration.bench import Bench, Header, Seen, await_true, benches, now_ms, outcomes_by_id

pytestmark = pytest.mark.cluster

PARTITIONS = 4
YEAR_MS = 365 * 86_400_000
PARTITIONERS = ("consistent_random", "murmur2_random", "fnv1a_random")
"""librdkafka's own, CRC32; Java's; sarama's."""
CANCEL: Header = ("delay-op", b"cancel")
FIRE: Header = ("delay-op", b"fire")
ROLLS = ("wheel.slots=60", "wheel.slot_ms=1s", "delivery.roll_window_ms=5s")


bench = benches(partitions=PARTITIONS, sets=ROLLS)


def producer(bench: Bench, partitioner: str) -> Producer:
    return Producer({"bootstrap.servers": bench.bootstrap, "partitioner": partitioner})


def named(record_id: str) -> Header:
    return ("delay-id", record_id)


def await_fences(bench: Bench) -> None:
    """Until all that was written so far has had its effect, also where it was forwarded to."""
    for step in ("first", "second"):  # what is forwarded lies before the second ones
        names = {
            f"{step} {partition} {now_ms()}": partition
            for partition in range(bench.partitions_of(bench.any))
        }
        for name, partition in names.items():
            bench.send([named(name), CANCEL], partition=partition)
        is_fence = partial(_is_of, names)
        bench.await_match(bench.outcomes, is_fence, len(names))


def _is_of(names: Collection[str], one: Seen) -> bool:
    return one.header("delay-id") in names


def forwarded(bench: Bench) -> list[Seen]:
    return [one for one in bench.read_all(bench.any) if one.header("delay-home")]


def await_forwarding(bench: Bench, partition: int, headers: list[Header]) -> None:
    """Until ids that are written there go home: the contract for it begins at a later offset."""
    away = cycle(name for name in map("new {}".format, range(20)) if _is_away(name, partition))

    def is_sent_home() -> bool:
        bench.send([*headers, named(next(away))], partition=partition)
        return any(_sent_from(one) == partition for one in forwarded(bench))

    await_true(is_sent_home, f"what is written to partition {partition} goes home")


def _sent_from(one: Seen) -> int:
    """The partition that an envelope comes from."""
    shard: str = json.loads(one.header("delay-home") or "")["shard"]
    return int(shard.split(":")[1])


def test_controls_by_any_partitioner_find_their_records(bench: Bench) -> None:
    target = bench.target("orders", 3)
    pairs = [(one, other) for one in PARTITIONERS for other in PARTITIONERS]
    producers = {name: producer(bench, name) for name in PARTITIONERS}
    ops: dict[str, Header | None] = {"cancelled": CANCEL, "fired": FIRE, "replaced": None}
    ids = {
        f"{one} {other} {fate} {number}": (one, other, fate)
        for one, other in pairs
        for fate in ops
        for number in range(5)
    }
    service = bench.serve()
    headers = bench.to(target, YEAR_MS)
    for record_id, (one, _, _) in ids.items():
        producers[one].produce(
            bench.any, b"v", record_id.encode(), headers=[*headers, named(record_id)]
        )
    assert all(one.flush(30) == 0 for one in producers.values())
    await_fences(bench)
    for record_id, (_, other, fate) in ids.items():
        op = ops[fate]
        said = [op] if op else bench.to(target, YEAR_MS)
        producers[other].produce(
            bench.any, b"again", record_id.encode(), headers=[*said, named(record_id)]
        )
    assert all(one.flush(30) == 0 for one in producers.values())
    await_fences(bench)
    found = outcomes_by_id(bench)
    wrong = {
        record_id: found.get(record_id)
        for record_id, (_, _, fate) in ids.items()
        if found.get(record_id) != Counter({fate: 2 if fate == "cancelled" else 1})
    }
    assert wrong == {}
    fired = sorted(name for name, (_, _, fate) in ids.items() if fate == "fired")
    assert sorted(str(one.header("delay-id")) for one in bench.read_all(target)) == fired
    sent = forwarded(bench)
    assert len(sent) > len(ids) / 2
    assert all(
        one.partition == partition_for((one.header("delay-id") or "").encode(), PARTITIONS)
        for one in sent
    )
    assert service.stop() == 0
    _cancel_from_added_partitions(bench, bench.to(target, YEAR_MS))


def _cancel_from_added_partitions(bench: Bench, headers: list[Header]) -> None:
    bench.grow(bench.any, 2 * PARTITIONS)
    service = bench.serve()
    bench.producer = producer(bench, "consistent_random")  # that knows the new partitions
    await_fences(bench)
    for number in range(20):
        bench.send([*headers, named(f"late {number}")], partition=number % (2 * PARTITIONS))
    await_fences(bench)  # a cancel may overtake a record that another client wrote
    for number in range(20):
        bench.send([named(f"late {number}"), CANCEL], partition=PARTITIONS + number % PARTITIONS)
    await_fences(bench)
    found = outcomes_by_id(bench)
    wrong = [n for n in range(20) if found[f"late {n}"] != Counter(cancelled=2)]
    assert wrong == []
    homes = {one.partition for one in forwarded(bench)}
    assert homes <= set(range(PARTITIONS)), "ids stay at home where they are"
    assert service.stop() == 0


def test_the_outcome_of_a_forwarded_control_reaches_its_writer(bench: Bench) -> None:
    target = bench.target("answers")
    service = bench.serve()
    away = next(n for n in range(100) if partition_for(b"%d" % n, PARTITIONS) != 0)
    bench.send(bench.to(target, YEAR_MS, named(str(away))), partition=0)
    await_fences(bench)  # a cancel may overtake a record that another client wrote
    client = {"bootstrap.servers": bench.bootstrap}
    reader = OutcomeReader(client, bench.outcomes)
    with DelayProducer(client, bench.any) as users:
        assert reader.cancel(users, str(away), 20) == "cancelled"
        assert reader.cancel(users, str(away), 20) == "not_pending"
    assert service.stop() == 0


def test_homes_are_turned_on_with_records_pending(bench: Bench) -> None:
    """What was pending before is found from where it lies, what is written after from anywhere."""
    target = bench.target("orders")
    off = bench.serve("delivery.id_partitions=0")
    far, cron = bench.to(target, YEAR_MS), [("delay-target-topic", target)]
    away = {n: partition_for(b"old %d" % n, PARTITIONS) for n in range(20)}
    for number, home in away.items():
        place = (home + 1) % PARTITIONS
        bench.send([*far, named(f"old {number}")], partition=place)
    bench.send([*cron, ("delay-every", "1s"), named("often")], partition=1)
    bench.await_match(target, lambda one: one.header("delay-id") == "often", 2)
    assert off.stop() == 0
    on = bench.serve(f"delivery.id_partitions={PARTITIONS}")
    for partition in range(PARTITIONS):
        await_forwarding(bench, partition, far)
    for number, home in away.items():
        bench.send([named(f"old {number}"), CANCEL], partition=(home + 1) % PARTITIONS)
    bench.send([named("often"), CANCEL], partition=1)
    await_fences(bench)
    found = outcomes_by_id(bench)
    names = [*(f"old {n}" for n in away), "often"]
    assert [name for name in names if found[name] != Counter(cancelled=2)] == []
    assert on.stop() == 0


def _is_away(record_id: str, partition: int) -> bool:
    return partition_for(record_id.encode(), PARTITIONS) != partition


def test_a_forwarded_record_that_is_too_large_is_dead_lettered(bench: Bench) -> None:
    target = bench.target("large", max_message_bytes="2000000")
    service = bench.serve()
    limit = 1_048_588
    name = next(f"{n}" for n in range(100) if _is_away(f"{n}", 0))
    record = bench.to(target, 0, named(name))
    bench.send(record, value=b"v" * (limit - 300), partition=0)
    bench.send(record, value=b"v" * 1_000, partition=0)
    [delivered] = bench.read(target, 1)
    [letter] = bench.read(bench.dead_letter, 1)
    assert (letter.header("delay-error"), letter.header("delay-settles")) == ("too-large", "0")
    assert len(delivered.value or b"") == 1_000
    assert service.stop() == 0
