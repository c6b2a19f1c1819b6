"""Recurring schedules on a real broker: each occurrence once, none lost, none twice."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tests.integration.bench import Bench, Header, Seen, await_true, now_ms, outcomes_of, served

WINDOW_MS = 5_000
BERLIN = ZoneInfo("Europe/Berlin")
SETS = ("wheel.slots=60", "wheel.slot_ms=1s", f"delivery.roll_window_ms={WINDOW_MS}")


bench = served(sets=SETS)


def series(bench: Bench, target: str, *headers: Header) -> tuple[int, int]:
    """Begin one; its offset, and when it was written."""
    asked: list[Header] = [("delay-target-topic", target), ("trace", b"\x00"), *headers]
    return bench.send(asked, key=b"k", value=b"again")[1:]


def assert_series(
    bench: Bench, seen: list[Seen], offset: int, count: int | None = None
) -> list[int]:
    """Consecutive occurrences of one record, byte for byte, none early; when they were due."""
    assert count is None or len(seen) == count
    numbered = [f"{bench.any}:0:{offset}#{number + 1}" for number in range(len(seen))]
    assert [one.header("delay-source") for one in seen] == numbered
    dues = [int(one.header("delay-due-at") or 0) for one in seen]
    for one, due_ms in zip(seen, dues, strict=True):
        assert (one.key, one.value, one.own) == (b"k", b"again", [("trace", b"\x00")])
        assert one.timestamp_ms >= due_ms or one.header("delay-fired-by")
    return dues


def copies_of(bench: Bench, offset: int) -> list[dict[str, object]]:
    """What the copies of one record say, in the order they were written."""
    stem = f"{bench.any}:0:{offset}"
    said = [
        json.loads(one.header("delay-copy") or "")
        for one in bench.read_all(bench.any)
        if one.header("delay-copy")
    ]
    return [s for s in said if base64.b64decode(s["source"]).decode().partition("#")[0] == stem]


def test_schedules_recur_as_long_as_they_say(bench: Bench) -> None:
    """All at once, for each takes a few seconds."""
    targets = {
        name: bench.target(name)
        for name in ("every", "times", "start", "ends", "cron", "zone", "endless")
    }
    begin_ms = now_ms() // 1_000 * 1_000 + 3_000
    every = series(bench, targets["every"], ("delay-every", b"PT1S"), ("delay-times", b"5"))
    times = series(bench, targets["times"], ("delay-every", b"1000"), ("delay-times", b"2"))
    start = series(
        bench,
        targets["start"],
        ("delay-every", b"1500"),
        ("delay-times", b"2"),
        ("delay-at", str(begin_ms)),
    )
    ends = series(
        bench,
        targets["ends"],
        ("delay-cron", b"* * * * * *"),
        ("delay-at", str(begin_ms)),
        ("delay-expires-at", str(begin_ms + 1_900)),
    )
    cron = series(bench, targets["cron"], ("delay-cron", b"*/2 * * * * *"), ("delay-times", b"3"))
    zone = series(
        bench,
        targets["zone"],
        ("delay-cron", b"30 7 * * *"),
        ("delay-timezone", b"Europe/Berlin"),
        ("delay-id", b"breakfast"),
    )
    endless = series(bench, targets["endless"], ("delay-every", b"1000"), ("delay-id", b"endless"))

    bench.read(targets["endless"], 2)
    bench.send([("delay-id", b"endless"), ("delay-op", b"cancel")])
    assert outcomes_of(bench, "endless", 2) == ["cancelled", "cancelled"]
    stopped = len(bench.read_all(targets["endless"]))

    dues = assert_series(bench, bench.read(targets["every"], 5), every[0], 5)
    assert all((due_ms - every[1]) % 1_000 == 0 for due_ms in dues)
    assert dues == sorted(set(dues))
    dues = assert_series(bench, bench.read(targets["start"], 2), start[0], 2)
    assert dues[0] == begin_ms
    assert (dues[1] - begin_ms) % 1_500 == 0
    dues = assert_series(bench, bench.read(targets["cron"], 3), cron[0], 3)
    assert all(due_ms % 2_000 == 0 for due_ms in dues)
    assert dues == sorted(set(dues))
    await_true(lambda: now_ms() > begin_ms + 4_000, "what ended would have gone on")
    assert_series(bench, bench.read_all(targets["times"]), times[0], 2)
    dues = assert_series(bench, bench.read_all(targets["ends"]), ends[0])
    assert dues[0] == begin_ms
    assert dues[-1] <= begin_ms + 1_900
    assert len(bench.read_all(targets["every"], targets["start"], targets["cron"])) == 10
    seen = bench.read_all(targets["endless"])
    assert_series(bench, seen, endless[0], stopped)

    written = datetime.fromtimestamp(zone[1] / 1_000, BERLIN)
    breakfast = written.replace(hour=7, minute=30, second=0, microsecond=0)
    if breakfast <= written:
        breakfast += timedelta(days=1)
    first = copies_of(bench, zone[0])[0]
    assert first["due"] == int(breakfast.timestamp() * 1_000)
    bench.send([("delay-id", b"breakfast"), ("delay-op", b"fire")])
    (one,) = bench.read(targets["zone"], 1)
    assert_series(bench, [one], zone[0])
    assert one.header("delay-due-at") == str(first["due"])
    assert one.header("delay-fired-by") is not None
    after = copies_of(bench, zone[0])[-1]
    assert after["due"] == int((breakfast + timedelta(days=1)).timestamp() * 1_000)
    bench.send([("delay-id", b"breakfast"), ("delay-op", b"cancel")])
    assert outcomes_of(bench, "breakfast", 3) == ["fired", "cancelled", "cancelled"]
