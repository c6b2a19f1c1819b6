"""A scan of a copy comes to its end, wherever the damage lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayservice.contract.codec import encode_payload
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.digesting import DigestingStore
from delayservice.store.wheel import WheelOptions
from tests.wheels import LoneStore, slot_files

HOURS = 3
HOUR_MS = 3_600_000
START_MS = 1_795_226_400_000
TURNS_MAX = 20
HOURLY = WheelOptions(slot_ms=HOUR_MS)


def frames() -> list[Frame]:
    payload = encode_payload(("t", -1, None, b"v", [], 0, None))
    return [(START_MS + o * HOURS * HOUR_MS // 90, o, NO_MARK, payload) for o in range(90)]


@pytest.mark.parametrize("damaged", range(HOURS))
def test_a_scan_ends_behind_a_damaged_hour_and_sums_up_the_others(
    tmp_path: Path, damaged: int
) -> None:
    store = LoneStore(tmp_path / "shard", HOURLY)
    store.open()
    store.append(frames(), [], [], 90)
    store.close()
    victim = slot_files(tmp_path / "shard")[damaged]
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    copy = DigestingStore(LoneStore(tmp_path / "shard", HOURLY))
    copy.open()
    copy.begin_scan()
    turns = 1
    while not copy.scan_on():
        turns += 1
        assert turns < TURNS_MAX
    assert [(d.start_ms, d.stop_ms) for d in copy.damaged] == [
        (START_MS + damaged * HOUR_MS, START_MS + (damaged + 1) * HOUR_MS)
    ]
    copy.digest.finish()
    assert copy.digest.sums is not None
    assert copy.digest.sums.totals()[1] == 60
    copy.close()
