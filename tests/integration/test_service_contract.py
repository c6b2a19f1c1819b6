"""The header contract, end to end: one running service, a producer and a consumer not ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.partitioner import partition_for
from tests.integration.bench import Bench, Header, Seen, now_ms

pytestmark = pytest.mark.quick

LATE_MS_MAX = 10_000
WINDOW_MS = 2_000
PARTITIONS = 2


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    sets = (
        "wheel.slots=60",
        "wheel.slot_ms=1s",
        f"delivery.roll_window_ms={WINDOW_MS}",
        "delivery.park_delays_ms=500,1500",
        "delivery.max_delay_ms=1h",
        "delivery.header_bytes_max=1024",
    )
    folder = tmp_path_factory.mktemp("contract")
    with (
        Bench(cluster.bootstrap, folder, partitions=PARTITIONS, sets=sets) as running,
        running.serving(),
    ):
        yield running


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
    ways: dict[bytes, tuple[str, str]] = {
        b"now": ("delay-after", "0"),
        b"ms": ("delay-after", "700"),
        b"iso": ("delay-after", "PT0.9S"),
        b"at": ("delay-at", str(at_ms)),
        b"rfc": ("delay-at", rfc3339(at_ms)),
        b"units": ("delay-after", "1.2s"),
        b"past": ("delay-at", "1000000000000"),
        b"sec": ("TIMER_DELAY_SEC", "1"),
        b"millis": ("TIMER_DELAY_MS", "800"),
        b"deliver": ("TIMER_DELIVER_MS", str(at_ms)),
        b"level": ("DELAY", "1"),
    }
    after_ms = {
        b"now": 0,
        b"ms": 700,
        b"iso": 900,
        b"units": 1_200,
        b"sec": 1_000,
        b"millis": 800,
        b"level": 1_000,
    }
    sent = {
        name: bench.send([header, ("delay-target-topic", target)], key=name, value=name)
        for name, header in ways.items()
    }
    seen = {one.key: one for one in bench.read(target, len(ways))}
    assert seen.keys() == sent.keys()
    for name, (partition, offset, appended_ms) in sent.items():
        one = seen[name]
        due_ms = appended_ms + after_ms[name] if name in after_ms else at_ms
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


def test_a_delay_beyond_the_window_rolls_and_arrives_once_with_its_first_source(
    bench: Bench,
) -> None:
    target = bench.target("rolled")
    own: list[Header] = [("trace", b"\x00\xff"), ("null", None), ("trace", b"again")]
    headers = bench.to(target, 3 * WINDOW_MS - 1_000, ("delay-id", b"far\xff"), *own)
    partition, offset, appended_ms = bench.send(headers, key=b"\x00key", value=b"\xff\x00value")
    (one,) = bench.read(target, 1)
    assert_on_time(one, appended_ms + 3 * WINDOW_MS - 1_000)
    assert (one.key, one.value, one.own) == (b"\x00key", b"\xff\x00value", own)
    assert one.header("delay-source") == f"{bench.any}:{partition}:{offset}"
    assert dict(one.headers)["delay-id"] == b"far\xff"
    assert int(one.header("delay-settles") or 0) > offset
    assert one.header("delay-attempt") is None
    copies = [
        seen
        for seen in bench.read_all(bench.any)
        if any(name == "delay-copy" for name, _ in seen.headers) and seen.value == one.value
    ]
    assert len(copies) == 2
    assert str(copies[-1].offset) == one.header("delay-settles")
    assert len(bench.read_all(target)) == 1


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


def test_a_target_key_takes_the_place_of_the_key(bench: Bench) -> None:
    target = bench.target("keys")
    for asked in (b"\x00other", b"", None):
        bench.send(bench.to(target, 0, ("delay-target-key", asked)), key=b"own", value=asked)
    assert [one.key for one in bench.read(target, 3)] == [b"\x00other", b"", None]


def test_headers_said_twice_count_once_when_they_agree(bench: Bench) -> None:
    target = bench.target("agree")
    at_ms = now_ms() + 300
    headers: list[Header] = [
        ("delay-at", str(at_ms)),
        ("delay-at", rfc3339(at_ms)),
        ("TIMER_DELIVER_MS", str(at_ms)),
        ("delay-target-topic", target),
        ("schedule_target_topic", target),
    ]
    bench.send(headers, key=b"k")
    (one,) = bench.read(target, 1)
    assert_on_time(one, at_ms)


def test_producers_of_other_systems_work_unchanged(bench: Bench) -> None:
    target = bench.target("aliases", partitions=3)
    epoch_s = now_ms() // 1_000 + 2
    bench.send(
        [
            ("scheduler-epoch", str(epoch_s)),
            ("scheduler-target-topic", target),
            ("scheduler-target-key", b"video1"),
            ("customer", b"dupont"),
        ],
        key=b"etf1-id",
        value=b"etf1",
    )
    bench.send(
        [
            ("schedule_schema_version", "1.0.0"),
            ("schedule_target_epoch", str(epoch_s)),
            ("schedule_target_topic", target),
            ("schedule_target_key", b"karafka-key"),
            ("schedule_target_partition", "2"),
            ("schedule_source_type", "schedule"),
        ],
        key=b"karafka-id",
        value=b"karafka",
    )
    bench.send(
        [
            ("TIMER_DELAY_SEC", "1"),
            ("UNIQ_KEY", b"rocket-id"),
            ("delay-target-topic", target),
        ],
        key=b"rocket-key",
        value=b"rocketmq",
    )
    seen = {one.value: one for one in bench.read(target, 3)}
    etf1, karafka, rocket = seen[b"etf1"], seen[b"karafka"], seen[b"rocketmq"]
    assert_on_time(etf1, epoch_s * 1_000)
    assert_on_time(karafka, epoch_s * 1_000)
    assert (etf1.key, etf1.own) == (b"video1", [("customer", b"dupont")])
    assert etf1.header("delay-id") == "etf1-id"
    assert (karafka.key, karafka.partition, karafka.own) == (b"karafka-key", 2, [])
    assert karafka.header("delay-id") == "karafka-id"
    assert (rocket.key, rocket.own) == (b"rocket-key", [("UNIQ_KEY", b"rocket-id")])
    assert rocket.header("delay-id") == "rocket-id"


# --- ids -----------------------------------------------------------------------------------------


def outcomes_of(bench: Bench, name: str, count: int) -> list[tuple[str | None, int]]:
    """``(outcome, offset that it settles)`` of one id, in the order they were written."""
    found = bench.await_match(bench.outcomes, lambda one: one.key == name.encode(), count)
    assert all(one.value is None and one.header("delay-id") == name for one in found)
    return [(one.header("delay-outcome"), int(one.header("delay-settles") or -1)) for one in found]


def test_a_second_record_of_an_id_replaces_the_first(bench: Bench) -> None:
    target = bench.target("replaced")
    name = ("delay-id", b"again")
    _, first, _ = bench.send(bench.to(target, 900, name), value=b"first")
    _, second, _ = bench.send(bench.to(target, 1_000, name), value=b"second")
    assert outcomes_of(bench, "again", 1) == [("replaced", first)]
    (one,) = bench.read(target, 1)
    assert (one.value, one.header("delay-settles")) == (b"second", str(second))
    last = bench.send(bench.to(target, 0), value=b"last")
    assert [seen.value for seen in bench.read(target, 2)] == [b"second", b"last"], last


def test_a_cancel_settles_what_is_pending_and_says_when_nothing_is(bench: Bench) -> None:
    target = bench.target("cancelled")
    name: Header = ("delay-id", b"stop")
    _, record, _ = bench.send(bench.to(target, 1_500, name), value=b"never")
    _, cancel, _ = bench.send([name, ("delay-op", b"cancel")])
    _, null, _ = bench.send([name], value=None)
    assert outcomes_of(bench, "stop", 3) == [
        ("cancelled", record),
        ("cancelled", cancel),
        ("not_pending", null),
    ]
    bench.send(bench.to(target, 1_600), value=b"after")
    assert [one.value for one in bench.read(target, 1)] == [b"after"]


def test_a_rolled_record_can_be_cancelled(bench: Bench) -> None:
    target = bench.target("cancel_rolled")
    name: Header = ("delay-id", b"roll and stop")
    bench.send(bench.to(target, 2 * WINDOW_MS, name), value=b"rolls at the window")
    (copy,) = bench.await_match(
        bench.any,
        lambda one: one.value == b"rolls at the window" and one.header("delay-copy"),
    )
    _, cancel, _ = bench.send([name, ("delay-op", b"cancel")])
    assert outcomes_of(bench, "roll and stop", 2) == [
        ("cancelled", copy.offset),
        ("cancelled", cancel),
    ]
    bench.send(bench.to(target, WINDOW_MS), value=b"after")
    assert [one.value for one in bench.read(target, 1)] == [b"after"]


def test_other_systems_cancel_as_they_are_used_to(bench: Bench) -> None:
    target = bench.target("cancel_aliases")
    soon = str(now_ms() // 1_000 + 2)
    bench.send([("scheduler-epoch", soon), ("scheduler-target-topic", target)], key=b"etf1-stop")
    bench.send([], key=b"etf1-stop", value=None)
    bench.send(
        [("schedule_target_epoch", soon), ("schedule_target_topic", target)], key=b"karafka-stop"
    )
    bench.send([("schedule_source_type", b"cancel")], key=b"karafka-stop", value=b"")
    bench.send(
        [("TIMER_DELAY_SEC", "2"), ("UNIQ_KEY", b"rocket-stop"), ("delay-target-topic", target)]
    )
    bench.send([("TIMER_DEL_UNIQKEY", b"topic+rocket-stop")])
    for name in ("etf1-stop", "karafka-stop", "rocket-stop"):
        assert [fate for fate, _ in outcomes_of(bench, name, 2)] == ["cancelled"] * 2
    bench.send(bench.to(target, 2_500), value=b"after")
    assert [one.value for one in bench.read(target, 1)] == [b"after"]


def test_a_record_past_its_expiry_is_expired_instead_of_delivered(bench: Bench) -> None:
    target = bench.target("expired")
    past = ("delay-expires-at", str(now_ms() - 1_000))
    _, offset, _ = bench.send(bench.to(target, 100, past, ("delay-id", b"milk")), value=b"sour")
    later = ("delay-expires-at", rfc3339(now_ms() + 60_000))
    bench.send(bench.to(target, 200, later), value=b"fresh")
    assert [one.value for one in bench.read(target, 1)] == [b"fresh"]
    assert outcomes_of(bench, "milk", 1) == [("expired", offset)]
