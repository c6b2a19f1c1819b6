"""Records due years ahead, in a log that keeps nothing for years: rolled on, in time and evenly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, Header, Seen

WINDOW_MS = 4_000
LATE_MS_MAX = 10_000
DAY_MS = 86_400_000
TEN_YEARS_MS = 3_650 * DAY_MS


@pytest.fixture(scope="module", params=["wheel", "rocksdb"])
def bench(
    cluster: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("far")
    sets = (
        "wheel.slots=60",
        "wheel.slot_ms=1s",
        f"delivery.roll_window_ms={WINDOW_MS}",
        f"node.store={request.param}",
        "outage.allowance_ms=1h",
    )
    with Bench(cluster.bootstrap, folder, sets=sets) as running, running.serving():
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
    delay_ms = 4 * (WINDOW_MS - WINDOW_MS // 8)  # so long that no fourth roll fits
    _, offset, written_ms = bench.send(bench.to(target, delay_ms), value=b"thrice")
    (one,) = bench.read(target, 1, 60)
    assert one.header("delay-source") == f"{bench.any}:0:{offset}"
    assert written_ms + delay_ms <= one.timestamp_ms <= written_ms + delay_ms + LATE_MS_MAX
    rolled = copies(bench, b"thrice", 3)
    assert one.header("delay-settles") == str(rolled[-1][0].offset)
    bench.send(bench.to(target, 0), value=b"last")
    assert [seen.value for seen in bench.read(target, 2)] == [b"thrice", b"last"]
