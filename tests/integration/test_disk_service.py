"""A real small disk fills up, and is freed. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.faults.disk import SmallDisk, disk_missing
from tests.integration.bench import Bench, await_true

DISK_MIB = 64
STOP_PART = 0.87
FULL_PART = 0.93
SOON_MS, LATER_MS = 1_000, 6_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if reason := disk_missing():
        pytest.skip(reason)
    with SmallDisk(tmp_path / "disk", DISK_MIB) as mounted:
        yield mounted


def fill(disk: SmallDisk, part: float) -> None:
    """So much of it is used afterwards, at least."""
    (disk.folder / "ballast").write_bytes(b"\xff" * round(part * DISK_MIB * 2**20))


def has_stopped_storing(bench: Bench, service: ServiceProcess) -> bool:
    """Whether the slice says so itself: it may hear of it a turn after the worker's log does."""
    return any("nothing more is stored" in text for text in bench.status(service)["problems"])


@pytest.mark.parametrize("store", ["wheel", "rocksdb"])
@pytest.mark.parametrize("part", [STOP_PART, FULL_PART])
def test_on_a_full_disk_stored_records_are_delivered_and_others_wait(
    cluster: EmbeddedCluster, tmp_path: Path, disk: SmallDisk, store: str, part: float
) -> None:
    sets = (
        f"node.store={store}",
        f"node.state_dir={disk.folder / 'state'}",
        *("wheel.buffer_bytes_max=64KiB", "wheel.sync_bytes=64KiB"),
    )
    with Bench(cluster.bootstrap, tmp_path, sets=sets) as bench:
        target = bench.target("stored")
        service = bench.serve()
        for number in range(100):
            bench.send_later(bench.to(target, LATER_MS), value=b"stored %d" % number)
        bench.send(bench.to(target, 0), value=b"first")
        bench.read(target, 1)
        fill(disk, part)
        await_true(lambda: has_stopped_storing(bench, service), "storing stops")
        bench.send(bench.to(target, SOON_MS), value=b"waits")
        stored = bench.read(target, 101)
        assert b"waits" not in {one.value for one in stored}
        assert service.events("storing_stopped")
        disk.free()
        assert len(bench.read(target, 102)) == 102
        assert service.events("storing_resumed")
        assert service.stop() == 0
        assert service.events("worker_died") == []


def test_a_new_owner_delivers_what_its_full_disk_holds(
    cluster: EmbeddedCluster, tmp_path: Path, disk: SmallDisk
) -> None:
    sets = (f"node.state_dir={disk.folder / 'state'}",)
    with Bench(cluster.bootstrap, tmp_path, sets=sets) as bench:
        target = bench.target("stored")
        first = bench.serve()
        bench.send(bench.to(target, LATER_MS), value=b"stored")
        bench.send(bench.to(target, 0), value=b"first")
        bench.read(target, 1)
        assert first.stop() == 0
        fill(disk, STOP_PART)
        second = bench.serve()
        assert [one.value for one in bench.read(target, 2)] == [b"first", b"stored"]
        disk.free()
        bench.send(bench.to(target, 0), value=b"last")
        bench.read(target, 3)
        assert second.stop() == 0
