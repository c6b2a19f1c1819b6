"""What clients of other systems write, byte for byte, reaches its target on time.

Header for header as in their sources: RocketMQ's ``Message.setDelayTimeSec`` and its companions and
``RecallMessageProcessor``, etf1's ``clientlib`` (``Schedule``, ``DeleteSchedule``), Karafka's
``ScheduledMessages::Proxy`` (``schedule``, ``cancel``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, Header, Seen, now_ms, outcomes_of

LATE_MS_MAX = 10_000
ROCKETMQ_TARGET = "orders"
UNIQ_KEYS = [f"7F00000100002A139A55{number:012X}" for number in range(7)]


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(cluster.bootstrap, tmp_path_factory.mktemp("aliases"))
    target = bench.target(ROCKETMQ_TARGET)
    with bench, bench.serving(f"targets.default.default_target={target}"):
        yield bench


def assert_on_time(seen: Seen, due_ms: int) -> None:
    assert seen.header("delay-due-at") == str(due_ms)
    assert due_ms <= seen.timestamp_ms <= due_ms + LATE_MS_MAX


def rocketmq(number: int, *timer: Header) -> list[Header]:
    """A message's properties, as its producer sets them: our target is the topic's default."""
    return [
        ("KEYS", b"order-17"),
        ("UNIQ_KEY", UNIQ_KEYS[number].encode()),
        ("WAIT", b"true"),
        ("TAGS", b"TagA"),
        *timer,
    ]


def test_rocketmq_timers_and_recalls(bench: Bench) -> None:
    target = bench.target_name(ROCKETMQ_TARGET)
    at_ms = now_ms() + 1_700
    timers: list[Header] = [
        ("TIMER_DELAY_SEC", b"1"),
        ("TIMER_DELAY_MS", b"1300"),
        ("TIMER_DELIVER_MS", str(at_ms)),
        ("DELAY", b"1"),
    ]
    after_ms = (1_000, 1_300, None, 1_000)
    written = {}
    for number, timer in enumerate(timers):
        _, _, written_ms = bench.send(rocketmq(number, timer), value=b"body %d" % number)
        delay_ms = after_ms[number]
        written[b"body %d" % number] = at_ms if delay_ms is None else written_ms + delay_ms
    recalled = UNIQ_KEYS[4:6]
    later_ms = now_ms() + 1_500
    for number in (4, 5):
        bench.send(rocketmq(number, ("TIMER_DELIVER_MS", str(later_ms))), value=b"never")
    # Version 5.3.2 names the topic, too; before it did not.
    for key, named in zip(recalled, (f"{ROCKETMQ_TARGET}+{recalled[0]}", recalled[1]), strict=True):
        bench.send(
            [
                ("TAGS", b"_RECALL_TAG"),
                ("TIMER_DEL_UNIQKEY", named),
                ("TIMER_DEL_MS", str(later_ms)),
                ("UNIQ_KEY", key),
                ("TIMER_DELIVER_MS", str(later_ms)),
            ],
            value=b"0",
        )
    for key in recalled:
        assert outcomes_of(bench, key, 2) == ["cancelled", "cancelled"]
    _, _, last_ms = bench.send(rocketmq(6, ("TIMER_DELAY_MS", b"2500")), value=b"last")
    seen = {one.value: one for one in bench.read(target, len(timers) + 1)}
    assert seen.keys() == {*written, b"last"}
    assert len(bench.read_all(target)) == len(seen)
    for value, due_ms in (written | {b"last": last_ms + 2_500}).items():
        assert value is not None
        assert_on_time(seen[value], due_ms)
    assert [name for name, _ in seen[b"body 0"].own] == ["KEYS", "UNIQ_KEY", "WAIT", "TAGS"]


def test_etf1_schedules_replacements_and_tombstones(bench: Bench) -> None:
    target = bench.target("videos")
    epoch_s = now_ms() // 1_000 + 3

    def schedule(name: bytes, value: bytes, key: bytes | None) -> None:
        headers: list[Header] = [
            ("customer-header", b"dummy"),
            ("scheduler-epoch", str(epoch_s)),
            ("scheduler-target-topic", target),
            ("scheduler-target-key", key),
        ]
        bench.send(headers, key=name, value=value)

    schedule(b"vid1-online", b"video 1", b"vid1")
    schedule(b"vid2-online", b"never", b"vid2")
    schedule(b"vid2-online", b"video 2", None)
    schedule(b"vid3-online", b"never", b"vid3")
    bench.send([], key=b"vid3-online", value=None)
    assert outcomes_of(bench, "vid3-online", 2) == ["cancelled", "cancelled"]
    assert outcomes_of(bench, "vid2-online", 1) == ["replaced"]
    seen = {one.value: one for one in bench.read(target, 2)}
    assert {value: one.key for value, one in seen.items()} == {
        b"video 1": b"vid1",
        b"video 2": None,
    }
    for one in seen.values():
        assert_on_time(one, epoch_s * 1_000)
        assert one.own == [("customer-header", b"dummy")]


def test_karafka_schedules_and_cancels(bench: Bench) -> None:
    target = bench.target("karafka", partitions=3)
    epoch_s = now_ms() // 1_000 + 3

    def schedule(name: bytes, value: bytes, *more: Header) -> None:
        headers: list[Header] = [
            ("special", b"header"),
            ("schedule_schema_version", b"1.0.0"),
            ("schedule_target_epoch", str(epoch_s)),
            ("schedule_source_type", b"schedule"),
            ("schedule_target_topic", target),
            *more,
        ]
        bench.send(headers, key=name, value=value)

    schedule(b"unique-1", b"one", ("schedule_target_partition", b"2"))
    schedule(b"unique-2", b"two", ("schedule_target_key", b"test-key"))
    schedule(b"unique-3", b"never")
    cancel: list[Header] = [
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_source_type", b"cancel"),
    ]
    bench.send(cancel, key=b"unique-3", value=None)
    assert outcomes_of(bench, "unique-3", 2) == ["cancelled", "cancelled"]
    seen = {one.value: one for one in bench.read(target, 2)}
    assert seen.keys() == {b"one", b"two"}
    assert (seen[b"one"].partition, seen[b"one"].key) == (2, None)
    assert seen[b"two"].key == b"test-key"
    for one in seen.values():
        assert_on_time(one, epoch_s * 1_000)
        assert one.own == [("special", b"header")]
