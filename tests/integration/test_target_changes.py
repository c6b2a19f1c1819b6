"""A target that changes, or takes nothing as it is set up, costs the others one short pause."""

from __future__ import annotations

from tests.integration.bench import Bench, Seen, served

LATE_MS_MAX = 10_000
"""Of records for other targets, on a machine that is busy."""
RECORDS = 100


SETS = ("delivery.park_delays_ms=500,500", "node.store=memory", "node.workers=1")
bench = served(partitions=2, sets=SETS)


def late_ms(seen: list[Seen]) -> int:
    return max(one.timestamp_ms - int(one.header("delay-due-at") or 0) for one in seen)


def test_partition_added_to_a_target_gets_its_records_at_once(bench: Bench) -> None:
    grown, sound = bench.target("grown", 2), bench.target("beside_grown")
    bench.send(bench.to(grown, 0), value=b"before")
    bench.await_match(grown, lambda one: one.value == b"before")
    bench.grow(grown, 4)
    for number in range(RECORDS):
        bench.send_later(bench.to(sound, 200), value=b"%d" % number, partition=number % 2)
    wanted = ("delay-target-partition", "3")
    bench.send([*bench.to(grown, 200), wanted], value=b"for the new one")

    arrived = bench.await_match(grown, lambda one: one.value == b"for the new one")
    others = bench.read(sound, RECORDS)
    assert [one.partition for one in arrived] == [3]
    assert late_ms(arrived) < LATE_MS_MAX
    assert late_ms(others) < LATE_MS_MAX
    assert len(bench.read_all(sound)) == RECORDS


def test_recurring_record_in_a_partition_added_to_its_delay_topic_goes_on(bench: Bench) -> None:
    target = bench.target("recurs")
    bench.send(bench.to(target, 0, ("delay-every", "PT1S"), ("delay-times", "2")), value=b"old")
    bench.await_match(target, lambda one: one.value == b"old", 2)
    bench.grow(bench.any, 4)
    bench.producer.list_topics(bench.any, 30)  # else it does not know the new partitions
    recurs = bench.to(target, 0, ("delay-every", "PT1S"), ("delay-times", "3"))
    bench.send(recurs, value=b"new", partition=3)

    arrived = bench.await_match(target, lambda one: one.value == b"new", 3)
    assert late_ms(arrived) < LATE_MS_MAX


def test_target_that_takes_no_timestamp_of_the_service_is_given_up_for_a_while(
    bench: Bench,
) -> None:
    strict = bench.target("strict", message_timestamp_before_max_ms="0")
    sound = bench.target("beside_strict")
    ended = bench.log_path.read_text().count('"writer_ended"')
    for number in range(RECORDS):
        bench.send_later(bench.to(strict, 200), value=b"%d" % number, partition=number % 2)
        bench.send_later(bench.to(sound, 200), value=b"%d" % number, partition=number % 2)
    bench.producer.flush()

    others = bench.read(sound, RECORDS)
    assert late_ms(others) < LATE_MS_MAX
    letters = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-target-topic") == strict, RECORDS
    )
    taken = bench.read_all(strict)
    values = sorted(one.value or b"" for one in (*letters, *taken))
    assert values == sorted(b"%d" % number for number in range(RECORDS))
    assert {one.header("delay-error") for one in letters} == {"target-down"}
    assert all("timestamp" in (one.header("delay-error-detail") or "") for one in letters)
    assert bench.log_path.read_text().count('"writer_ended"') - ended <= 2
    assert len(bench.read_all(sound)) == RECORDS


def test_record_of_17_mb_is_delivered_where_all_topics_take_it(bench: Bench) -> None:
    limit = "20000000"
    target = bench.target("large", max_message_bytes=limit)
    bench.alter(bench.any, max_message_bytes=limit)
    large = bytes(17_000_000)
    bench.send(bench.to(target, 500), value=large)
    assert [one.value for one in bench.read(target, 1, 60)] == [large]
