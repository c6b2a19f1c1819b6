"""Level topics on a real cluster: in order, never early, once, and beside a topic of any delay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.bench import Bench, Header, Place, Seen, await_true

LEVELS_MS: Final = tuple(range(200, 2_600, 200))
PARTITIONS: Final = 4
LATE_MS_P50: Final = 100
"""Or twice what the topic of any delay has at the same time, on a machine with other work."""


def level(bench: Bench, number: int) -> str:
    return f"{bench.any}_{number}"


def sets_of(bench_run: str, levels_ms: Iterable[int]) -> list[str]:
    return [
        f"levels.prefix=delay_topic_{bench_run}_",
        f"levels.delays_ms={','.join(str(ms) for ms in levels_ms)}",
    ]


def leveled(bench: Bench, *levels_ms: int) -> list[str]:
    return sets_of(bench.run, levels_ms)


def topics_of(service: ServiceProcess, event: str) -> set[str]:
    return {told["topic"] for told in service.events(event)}


@pytest.fixture
def broad(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as running:
        yield running


class Sent:
    """Records that were written to level topics, and when each is due."""

    def __init__(self, bench: Bench, levels_ms: Sequence[int]) -> None:
        self._bench = bench
        self._levels_ms = levels_ms
        self.due_ms: dict[bytes, int] = {}

    def __len__(self) -> int:
        """How many are acknowledged."""
        return len(self.due_ms)

    def send(self, number: int, target: str, count: int, *, partitions: int = 1) -> None:
        """``count`` records to one level, round the partitions, not awaited."""
        for _ in range(count):
            serial = len(self.due_ms) + self._unheard
            self._unheard += 1
            value = b"%d-%d" % (number, serial)
            self._bench.send_later(
                [("delay-target-topic", target), ("own", b"%d" % serial)],
                key=value,
                value=value,
                partition=serial % partitions,
                topic=level(self._bench, number),
                note=partial(self._heard, value, number),
            )

    _unheard = 0

    def _heard(self, value: bytes, number: int, place: Place) -> None:
        self._unheard -= 1
        self.due_ms[value] = place[2] + self._levels_ms[number - 1]

    def assert_each_once_in_order(self, seen: Sequence[Seen], *, in_order: bool = True) -> None:
        assert sorted(one.value or b"" for one in seen) == sorted(self.due_ms)
        offsets: dict[str, list[int]] = defaultdict(list)
        for one in seen:
            due_ms = self.due_ms[one.value or b""]
            assert one.timestamp_ms >= due_ms, one
            assert one.header("delay-due-at") == str(due_ms)
            shard, _, offset = (one.header("delay-source") or "").rpartition(":")
            offsets[shard].append(int(offset))
        if in_order:
            assert all(found == sorted(found) for found in offsets.values())

    def late_ms(self, seen: Sequence[Seen]) -> list[int]:
        return [one.timestamp_ms - self.due_ms[one.value or b""] for one in seen]


def test_records_of_twelve_levels_arrive_in_order_and_never_early(broad: Bench) -> None:
    service = broad.serve(*leveled(broad, *LEVELS_MS))
    target, other = broad.target("leveled"), broad.target("any")
    assert broad.partitions_of(level(broad, 12)) == PARTITIONS
    _await_every_slice(broad)
    sent = Sent(broad, LEVELS_MS)
    for _ in range(10):
        for number in range(1, len(LEVELS_MS) + 1):
            sent.send(number, target, 8, partitions=PARTITIONS)
            broad.send_later(broad.to(other, LEVELS_MS[number - 1]), partition=number % PARTITIONS)
        broad.producer.flush()
    seen = broad.read(target, len(sent))
    sent.assert_each_once_in_order(seen)
    beside = broad.read(other, 120)
    beside_ms = median(one.timestamp_ms - int(one.header("delay-due-at") or 0) for one in beside)
    assert median(sent.late_ms(seen)) <= max(LATE_MS_P50, 2 * beside_ms)
    assert broad.status(service)["problems"] == []
    assert service.stop() == 0
    sent.assert_each_once_in_order(broad.read_all(target))


def _await_every_slice(bench: Bench) -> None:
    """Until each has delivered something: its clock has been compared with the broker's."""
    warm = bench.target("warm")
    for partition in range(bench.partitions):
        bench.send(bench.to(warm, 0), partition=partition)
    bench.read(warm, bench.partitions)


def test_more_than_is_fetched_ahead_arrives_in_order(bench: Bench) -> None:
    service = bench.serve(*leveled(bench, 500, 3_000), "levels.fetch_ahead_records=100")
    target = bench.target("ahead")
    sent = Sent(bench, (500, 3_000))
    for number in (2, 1):
        sent.send(number, target, 3_000)
    bench.producer.flush()
    sent.assert_each_once_in_order(bench.read(target, len(sent)))
    assert service.stop() == 0


def test_a_missing_target_is_waited_for_in_the_topic_of_any_delay(bench: Bench) -> None:
    sets = ("delivery.park_delays_ms=500,1000,10000", "delivery.mode=exactly_once")
    bench.serve(*leveled(bench, 300), *sets)
    missing, there = bench.target_name("missing"), bench.target("there")
    places = [
        bench.send([("delay-target-topic", target)], topic=level(bench, 1), value=value)
        for target, value in ((missing, b"first"), (there, b"second"), (missing, b"third"))
    ]
    (second,) = bench.read(there, 1)
    assert second.timestamp_ms - places[1][2] < 10_000, "it does not wait for the parked one"
    copies = bench.await_match(bench.any, lambda one: one.header("delay-copy"), 2)
    shard = f"{level(bench, 1)}:0"
    texts = [one.header("delay-copy") or "" for one in copies]
    settled = [f'"settles":{places[number][1]},' for number in (0, 2)]
    assert all(name in text for name, text in zip(settled, texts, strict=False))
    assert all(f'"shard":"{shard}"' in text for text in texts[:2])

    bench.target("missing")
    seen = bench.read(missing, 2)
    assert sorted(one.value or b"" for one in seen) == [b"first", b"third"]
    sources = {one.header("delay-source") for one in seen}
    assert sources == {f"{shard}:{places[number][1]}" for number in (0, 2)}
    assert {one.header("delay-due-at") for one in seen} == {
        str(places[number][2] + 300) for number in (0, 2)
    }
    assert all(int(one.header("delay-attempt") or 0) > 1 for one in seen)
    assert {one.header("delay-shard") for one in seen} == {f"{bench.any}:0"}
    settled_there = {one.header("delay-settles") for one in seen}
    assert settled_there <= {str(one.offset) for one in bench.read_all(bench.any)}
    assert bench.read_all(bench.dead_letter) == []


@pytest.mark.parametrize("setting", ["topics.delay=", "delivery.missing_target=dead-letter"])
def test_a_missing_target_means_a_dead_letter_where_nothing_can_or_may_be_parked(
    bench: Bench, setting: str
) -> None:
    bench.serve(*leveled(bench, 300), setting)
    missing = bench.target_name("missing")
    bench.send([("delay-target-topic", missing)], topic=level(bench, 1))
    (letter,) = bench.read(bench.dead_letter, 1)
    assert letter.header("delay-error") == "target-unknown"
    assert letter.header("delay-source") == f"{level(bench, 1)}:0:0"


@pytest.mark.night
def test_levels_change_and_what_was_written_before_does_not(bench: Bench) -> None:
    target = bench.target("changed")
    service = bench.serve(*leveled(bench, 200, 4_000))
    before = Sent(bench, (200, 4_000))
    before.send(1, target, 50)
    before.send(2, target, 50)
    bench.producer.flush()
    bench.read(target, 50)
    assert service.stop() == 0

    service = bench.serve(*leveled(bench, 200, 6_000))
    after = Sent(bench, (200, 6_000))
    after.send(2, target, 1)
    bench.producer.flush()
    before.due_ms |= after.due_ms
    before.assert_each_once_in_order(bench.read(target, 101))
    assert service.stop() == 0

    # No level any more: what it holds is settled, and what comes says itself when it is due.
    service = bench.serve()
    bench.send(bench.to(target, 0), topic=level(bench, 2), value=b"any delay")
    seen = bench.read(target, 102)
    assert [one.value for one in seen[101:]] == [b"any delay"]
    assert service.stop() == 0

    # And a level again: the one that took records meanwhile may have some pending that only a
    # store knows of, so it is refused.
    service = bench.serve(*leveled(bench, 200, 6_000))
    refused = {level(bench, 2)}
    await_true(lambda: topics_of(service, "level_topic_was_precise") == refused, "it says so")
    to_target: list[Header] = [("delay-target-topic", target)]
    bench.send(to_target, topic=level(bench, 2), value=b"not settled")
    bench.send(to_target, topic=level(bench, 1), value=b"the other level goes on")
    seen = bench.read(target, 103)
    assert [one.value for one in seen[102:]] == [b"the other level goes on"]


def test_a_level_topic_must_retain_its_delay_and_no_more(bench: Bench) -> None:
    short = str(24 * 3_600_000 + 60_000)
    for number in (1, 2):
        bench.topic(
            level(bench, number), message_timestamp_type="LogAppendTime", retention_ms=short
        )
    service = bench.serve(*leveled(bench, 60_000, 61_000))
    await_true(lambda: service.events("topic_not_served"), "the second is not served")
    assert topics_of(service, "topic_not_served") == {level(bench, 2)}
    assert "the level's delay" in service.events("topic_not_served")[0]["problems"][0]
