"""Limits of targets and of seconds, on a real broker, also through crashes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tests.integration.asked import metrics_of
from tests.integration.bench import Bench, Seen, benches, now_ms

PARTITIONS = 2
PER_S = 100
RECORDS = 800
WINDOW_MS = 2_000
BURST_MS = 1_000
TURNS_MS = 1_000 * (RECORDS // PER_S) - BURST_MS
"""The last record's turn after the burst's due time, at the earliest."""
BUSY_MS = 1_000
"""By how much a turn may be late on a busy machine, so that more than a window's worth meet."""


bench = benches(partitions=PARTITIONS)


def send_burst(bench: Bench, target: str, due_ms: int) -> set[bytes]:
    headers = [("delay-at", str(due_ms)), ("delay-target-topic", target)]
    values = {b"%d" % number for number in range(RECORDS)}
    for number in range(RECORDS):
        bench.send_later(headers, value=b"%d" % number, partition=number % PARTITIONS)
    bench.producer.flush()
    return values


def assert_within_limit(seen: Sequence[Seen], last_turn_ms: int) -> None:
    """No window holds more than the limit allows, and the last record kept its turn."""
    times = sorted(one.timestamp_ms for one in seen)
    most = max(bisect_left(times, at + WINDOW_MS) - n for n, at in enumerate(times))
    assert most <= PER_S * (WINDOW_MS + BURST_MS + BUSY_MS) / 1_000
    assert times[-1] >= last_turn_ms


def test_a_burst_reaches_its_target_at_the_rate_while_another_target_is_not_held_up(
    bench: Bench,
) -> None:
    target, other = bench.target("limited"), bench.target("other")
    service = bench.serve(f'rates.per_s."{target}"={PER_S}')
    due_ms = now_ms() + 3_000
    values = send_burst(bench, target, due_ms)
    beside = [("delay-at", str(due_ms + 500)), ("delay-target-topic", other)]
    bench.send(beside, value=b"beside")
    (one,) = bench.read(other, 1)
    seen = bench.read(target, RECORDS)
    assert one.timestamp_ms < sorted(limited.timestamp_ms for limited in seen)[RECORDS // 2]
    assert sorted(one.value or b"" for one in seen) == sorted(values)
    assert_within_limit(seen, due_ms + TURNS_MS)
    assert {one.header("delay-due-at") for one in seen} == {str(due_ms)}
    assert {one.header("delay-attempt") for one in seen} == {None}
    assert min(one.timestamp_ms for one in seen) >= due_ms
    assert bench.status(service)["settled"]["paced"] > RECORDS / 2


def test_records_that_wait_for_their_turn_survive_the_death_of_their_owner(bench: Bench) -> None:
    target = bench.target("limited")
    setting = f'rates.per_s."{target}"={PER_S}'
    service = bench.serve(setting)
    due_ms = now_ms() + 2_000
    values = send_burst(bench, target, due_ms)
    with bench.reader(target) as reader:
        assert len(reader.await_count(RECORDS // 4)) < RECORDS
        service.kill()
    bench.start(setting, f"node.state_dir={bench.folder / 'second'}", log="second.log")
    seen = bench.read(target, RECORDS, 60)
    assert sorted(one.value or b"" for one in bench.read_all(target)) == sorted(values)
    assert_within_limit(seen, due_ms + TURNS_MS)


def test_records_above_the_rate_are_delivered_in_later_seconds(bench: Bench) -> None:
    cap = PER_S // PARTITIONS
    target = bench.target("capped")
    service = bench.serve("delivery.slot_policy=spread", f"delivery.slot_records_max={cap}")
    due_ms = now_ms() + 2_000
    values = send_burst(bench, target, due_ms)
    seen = bench.read(target, RECORDS)
    assert sorted(one.value or b"" for one in seen) == sorted(values)
    last_place_ms = 1_000 * (RECORDS // PER_S - 1) + 1_000 * (cap - 1) // cap
    assert_within_limit(seen, due_ms // 1_000 * 1_000 + last_place_ms)
    counted = metrics_of(service, "delay_slot_full_total")
    assert sum(float(line.split()[-1]) for line in counted) > RECORDS / 2
