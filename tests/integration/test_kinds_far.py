"""Records due years ahead, in a log that keeps nothing for years: rolled on, in time and evenly."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, Header, Seen, now_ms

WINDOW_MS = 4_000
BURST_WINDOW_MS = 24_000
BURST = 20_000
LATE_MS_MAX = 10_000
DAY_MS = 86_400_000
TEN_YEARS_MS = 3_650 * DAY_MS


def opened(cluster: EmbeddedCluster, folder: Any, window_ms: int, store: str) -> Bench:
    sets = (
        "wheel.slots=60",
        "wheel.slot_ms=1s",
        f"delivery.roll_window_ms={window_ms}",
        f"node.store={store}",
        "outage.allowance_ms=1h",
    )
    return Bench(cluster.bootstrap, folder, sets=sets)


@pytest.fixture(scope="module", params=["wheel", "rocksdb"])
def bench(
    cluster: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    far = opened(cluster, tmp_path_factory.mktemp("far"), WINDOW_MS, request.param)
    with far as running, running.serving():
        running.alter(running.any, retention_ms=str(DAY_MS))
        yield running


def copies(bench: Bench, value: bytes, count: int) -> list[tuple[Seen, dict[str, Any]]]:
    """Copies of a record and what they say, once there are so many."""
    found = bench.await_match(
        bench.any, lambda one: one.value == value and one.header("delay-copy"), count
    )
    return [(one, json.loads(one.header("delay-copy") or "")) for one in found]


def test_ten_years_are_accepted_and_rolled_at_roll_time(bench: Bench) -> None:
    target = bench.target("decade")
    own: Header = ("trace", b"\x00\xff")
    headers = bench.to(target, TEN_YEARS_MS, ("delay-id", b"decade"), own)
    _, offset, written_ms = bench.send(headers, key=b"k\xff", value=b"see you")
    rolled = copies(bench, b"see you", 2)
    before_ms = written_ms
    for copy, said in rolled:
        rolled_after_ms = copy.timestamp_ms - before_ms
        assert WINDOW_MS * 7 // 8 <= rolled_after_ms <= WINDOW_MS + LATE_MS_MAX
        assert said["due"] == written_ms + TEN_YEARS_MS
        assert base64.b64decode(said["source"]).decode() == f"{bench.any}:0:{offset}"
        assert (copy.key, copy.own) == (b"k\xff", [own])
        before_ms = copy.timestamp_ms
    _, fire, _ = bench.send([("delay-id", b"decade"), ("delay-op", b"fire")])
    (one,) = bench.read(target, 1)
    assert (one.key, one.value, one.own) == (b"k\xff", b"see you", [own])
    assert one.header("delay-source") == f"{bench.any}:0:{offset}"
    assert one.header("delay-due-at") == str(written_ms + TEN_YEARS_MS)
    assert one.header("delay-fired-by") == str(fire)
    assert int(one.header("delay-settles") or 0) >= rolled[-1][0].offset


def test_a_record_that_rolls_three_times_arrives_once_and_on_time(bench: Bench) -> None:
    target = bench.target("thrice")
    delay_ms = 3 * WINDOW_MS + 300
    _, offset, written_ms = bench.send(bench.to(target, delay_ms), value=b"thrice")
    (one,) = bench.read(target, 1, 60)
    assert one.header("delay-source") == f"{bench.any}:0:{offset}"
    assert written_ms + delay_ms <= one.timestamp_ms <= written_ms + delay_ms + LATE_MS_MAX
    rolled = copies(bench, b"thrice", 3)
    assert one.header("delay-settles") == str(rolled[-1][0].offset)
    bench.send(bench.to(target, 0), value=b"last")
    assert [seen.value for seen in bench.read(target, 2)] == [b"thrice", b"last"]


def test_eleven_years_are_refused(bench: Bench) -> None:
    _, offset, _ = bench.send(bench.to(bench.target("later"), TEN_YEARS_MS * 11 // 10))
    (one,) = bench.await_match(
        bench.dead_letter, lambda seen: seen.header("delay-settles") == str(offset)
    )
    assert one.header("delay-error") == "delay-too-long"


def test_a_burst_does_not_roll_in_one_second(
    cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Spread over an eighth of the window, and so it comes back."""
    spread_s = BURST_WINDOW_MS // 8 // 1_000
    with opened(cluster, tmp_path_factory.mktemp("burst"), BURST_WINDOW_MS, "wheel") as bench:
        service = bench.serve()
        target = bench.target("burst")
        due = ("delay-at", str(now_ms() + DAY_MS))
        for number in range(BURST):
            bench.send_later([due, ("delay-target-topic", target)], value=b"%d" % number)
        bench.producer.flush()
        with bench.reader(bench.any) as reader:
            seen = reader.await_count(2 * BURST, 120)[BURST:]
        values = {one.value for one in seen}
        assert len(values) == BURST
        rolled = Counter(one.timestamp_ms // 1_000 for one in seen)
        next_roll = Counter(
            json.loads(one.header("delay-copy") or "")["at"] // 1_000 for one in seen
        )
        for seconds in (rolled, next_roll):
            assert max(seconds.values()) < BURST * 2 // (spread_s + 1), sorted(seconds.items())
        assert service.stop() == 0
        assert bench.read_all(target) == []
