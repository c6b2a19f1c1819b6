"""A shard that has to read its log again from a leader that says nothing keeps no other waiting."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true, now_ms
from tests.integration.stream import PARTITIONS, Stream, figures
from tests.wheels import slot_files

SILENT: Final = 3
SOUND: Final = (1, 2)
LEADERS: Final = [[SILENT], [1], [2], [1]]
SLOT_MS: Final = 10_000
SLOT_RECORDS: Final = 500
DUE_IN_MS: Final = 40_000
SILENCE_S: Final = 12
"""Longer than the broker's session, the client's request and the loop's patience."""


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, zookeepers=0) as running:
        yield running


@pytest.fixture
def bench(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Bench]:
    """Only shard 0 lives on the broker that will fall silent."""
    sets = ["topics.replication_factor=2", "node.workers=1", "node.store=wheel"]
    sets += ["delivery.id_partitions=0"]
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS, sets=sets) as running:
        timed = {"message_timestamp_type": "LogAppendTime"}
        running.placed("__transaction_state", [SOUND] * 4, cleanup_policy="compact", **timed)
        for own in (running.checkpoint, running.claims):
            running.placed(own, [SOUND], cleanup_policy="compact", **timed)
        running.placed(running.any, LEADERS, **timed)
        for name in ("sound", "bad", "later"):
            running.placed(running.target_name(name), [SOUND])
        yield running


def damage_last_slot(folder: Path) -> None:
    """Alter a byte, as a bad sector does. Earlier slots are settled already."""
    path = slot_files(folder)[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.night
def test_a_damaged_slot_of_a_silent_leader_keeps_the_shards_beside_it_as_punctual(
    cluster: EmbeddedCluster, bench: Bench
) -> None:
    sound, later = bench.target_name("sound"), bench.target_name("later")
    began_ms = now_ms()
    with bench.serving():
        # All below is done before, as fast as this machine is.
        due_ms = (now_ms() + DUE_IN_MS + 5 * (now_ms() - began_ms)) // SLOT_MS * SLOT_MS
        for number in range(SLOT_RECORDS):
            headers = [("delay-at", str(due_ms)), ("delay-target-topic", later)]
            bench.send_later([*headers, ("delay-id", f"id {number}")])
        assert bench.producer.flush(30) == 0
        bench.send(bench.to(sound, 0))
        bench.read(sound, 1)  # behind it all is stored
    damage_last_slot(bench.folder / "state" / "wheel" / "0")
    service = bench.serve()
    pause = threading.Event()
    with Stream(bench, sound, bench.target_name("bad"), partitions=range(1, PARTITIONS)) as stream:
        stream.await_seen(1)
        calm_s = now_ms() // 1_000
        nearly_ms = due_ms - 3_000
        await_true(lambda: now_ms() > nearly_ms, "it is nearly due", due_ms / 1_000 - time.time())
        assert not service.events("slot_rebuilt")
        silent_s = now_ms() // 1_000
        cluster.signal_broker(SILENT, signal.SIGSTOP)
        try:
            await_true(lambda: service.events("slot_damaged"), "the slot is found damaged")
            pause.wait(SILENCE_S)
            sent = stream.sent
            stream.await_seen(sent)  # while the leader still says nothing
            spoke_s = now_ms() // 1_000
            assert not service.events("slot_rebuilt")
        finally:
            cluster.signal_broker(SILENT, signal.SIGCONT)
        stream.finish()
    before, beside = stream.late_between(calm_s, silent_s), stream.late_between(silent_s, spoke_s)
    for name, late_ms in (("before", before), ("beside a silent leader", beside)):
        sys.stdout.write(f"\n  {name}: {figures(late_ms)}")
    # Within one run. A median beside a p99, and a second, leave room for other load on this
    # machine: a loop that waits for the leader is late by three.
    assert beside[len(beside) // 2] <= max(1.5 * before[len(before) * 99 // 100], 1_000)
    assert not service.events("writer_ended", "ownership_lost", "loop_hangs")
    found = bench.read(later, SLOT_RECORDS, 60)
    assert len(service.events("slot_rebuilt")) >= 1
    assert len({one.offset for one in found}) == SLOT_RECORDS
    assert sorted(one.header("delay-id") or "" for one in bench.read_all(later)) == sorted(
        f"id {number}" for number in range(SLOT_RECORDS)
    )
