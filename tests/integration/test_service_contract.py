"""The header contract, end to end: one running service, a producer and a consumer not ours."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from delayservice.contract.partitioner import partition_for
from tests.integration.bench import Bench, Header, Seen, now_ms, served

pytestmark = pytest.mark.quick

LATE_MS_MAX = 10_000
WINDOW_MS = 2_000
PARTITIONS = 2


SETS = (
    "wheel.slots=60",
    "wheel.slot_ms=1s",
    f"delivery.roll_window_ms={WINDOW_MS}",
    "delivery.park_delays_ms=500,1500",
    "delivery.max_delay_ms=1h",
    "delivery.header_bytes_max=1024",
)
bench = served(partitions=PARTITIONS, sets=SETS)


def assert_on_time(seen: Seen, due_ms: int) -> None:
    assert seen.header("delay-due-at") == str(due_ms)
    assert due_ms <= seen.timestamp_ms <= due_ms + LATE_MS_MAX


def rfc3339(epoch_ms: int) -> str:
    moment = datetime.fromtimestamp(epoch_ms / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- when ----------------------------------------------------------------------------------------


def test_a_record_arrives_when_each_way_of_saying_so_says(bench: Bench) -> None:
    target = bench.target("when")
    at_ms = now_ms() + 1_500
    ways: dict[bytes, tuple[str, str, int | None]] = {
        b"now": ("delay-after", "0", 0),
        b"ms": ("delay-after", "700", 700),
        b"iso": ("delay-after", "PT0.9S", 900),
        b"at": ("delay-at", str(at_ms), None),
        b"rfc": ("delay-at", rfc3339(at_ms), None),
        b"units": ("delay-after", "1.2s", 1_200),
        b"past": ("delay-at", "1000000000000", None),
        b"sec": ("TIMER_DELAY_SEC", "1", 1_000),
        b"millis": ("TIMER_DELAY_MS", "800", 800),
        b"deliver": ("TIMER_DELIVER_MS", str(at_ms), None),
        b"level": ("DELAY", "1", 1_000),
    }
    to: Header = ("delay-target-topic", target)
    sent = {
        key: bench.send([(name, value), to], key=key, value=key)
        for key, (name, value, _) in ways.items()
    }
    seen = {one.key: one for one in bench.read(target, len(ways))}
    assert seen.keys() == sent.keys()
    for name, (partition, offset, appended_ms) in sent.items():
        one = seen[name]
        after_ms = ways[name][2]
        due_ms = at_ms if after_ms is None else appended_ms + after_ms
        if name == b"past":
            assert appended_ms <= one.timestamp_ms <= appended_ms + LATE_MS_MAX
            due_ms = 1_000_000_000_000
        else:
            assert_on_time(one, due_ms)
        assert one.headers == [
            ("delay-due-at", b"%d" % due_ms),
            ("delay-source", f"{bench.any}:{partition}:{offset}".encode()),
            ("delay-settles", b"%d" % offset),
        ]


# --- where and what ------------------------------------------------------------------------------


def test_keys_values_and_own_headers_arrive_byte_for_byte(bench: Bench) -> None:
    target = bench.target("bytes")
    cases: list[tuple[bytes | None, bytes | None, list[Header]]] = [
        (None, None, []),
        (b"", b"", [("", b"empty name")]),
        (bytes(range(256)), bytes(range(256)) * 40, [("\N{SNOWMAN}", b"\xff\xfe")]),
        (b"twice", b"v", [("trace", b"1"), ("trace", b"2"), ("null", None), ("empty", b"")]),
        (b"foreign", b"v", [("delay-of-mine", b"passes"), ("Delay-At", b"another case")]),
        (b"many", b"v", [(f"h{number}", b"x" * number) for number in range(200)]),
    ]
    for key, value, own in cases:
        bench.send(bench.to(target, 0, *own), key=key, value=value)
    added = {"delay-due-at", "delay-source", "delay-settles"}
    seen = [
        (one.key, one.value, [header for header in one.headers if header[0] not in added])
        for one in bench.read(target, len(cases))
    ]
    assert seen == cases


def test_forged_provenance_is_replaced_by_the_services_own(bench: Bench) -> None:
    target = bench.target("forged")
    forged: list[Header] = [
        ("delay-source", b"other:0:1"),
        ("delay-settles", b"77"),
        ("delay-due-at", b"1"),
        ("delay-attempt", b"9"),
        ("delay-error", b"time-missing"),
    ]
    partition, offset, appended_ms = bench.send(bench.to(target, 0, *forged))
    (one,) = bench.read(target, 1)
    assert one.headers == [
        ("delay-due-at", b"%d" % appended_ms),
        ("delay-source", f"{bench.any}:{partition}:{offset}".encode()),
        ("delay-settles", b"%d" % offset),
    ]


def test_records_are_partitioned_as_a_java_producer_does(bench: Bench) -> None:
    target = bench.target("spread", partitions=7)
    keys = [b"", b"a", b"order-17", b"\xff\x00\x80", b"x" * 301, "\N{SNOWMAN}".encode()]
    for key in keys:
        bench.send_later(bench.to(target, 0), key=key)
    bench.send_later(bench.to(target, 0, ("delay-target-key", b"order-17")), key=b"other")
    bench.send_later(bench.to(target, 0, ("delay-target-partition", b"3")), key=b"third")
    bench.producer.flush()
    placed = {(one.key, one.partition) for one in bench.read(target, len(keys) + 2)}
    expected = {(key, partition_for(key, 7)) for key in keys}
    assert placed == expected | {(b"third", 3)}
