"""`store verify` finds each damage, explains it, and calls nothing damage that is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from delayservice.base.errors import SlotDamagedError
from delayservice.cli import app
from delayservice.engine.cursor import Cursor
from delayservice.store.base import Store
from delayservice.store.folder import version_text
from delayservice.store.ids import IDS_OPTIONS
from delayservice.store.rocks import open_database, prefix_of, read_keys, snapshot_database
from tests.rocks import LoneRocks
from tests.unit import stored_folders as stored
from tests.wheels import LoneStore

both_kinds = pytest.mark.parametrize("kind", ["wheel", "rocksdb"])
only_wheel = pytest.mark.parametrize("kind", ["wheel"])
FOOTER_BYTES = 64
"""Some of the last bytes of a table file mean nothing."""
only_rocks = pytest.mark.parametrize("kind", ["rocksdb"])


@pytest.fixture
def store(tmp_path: Path, kind: str) -> Iterator[LoneStore | LoneRocks]:
    found = stored.opened(tmp_path, kind)
    yield found
    found.abandon()


@pytest.fixture
def folder(store: Store, tmp_path: Path, kind: str) -> Path:
    """A filled store that nobody has open."""
    stored.fill(store)
    store.close()
    return stored.shard_path(tmp_path, kind)


def verified(path: Path, status: int) -> dict[str, Any]:
    """What is said of the one shard, with this exit status."""
    done = CliRunner().invoke(app, ["store", "verify", str(path), "--json"])
    assert done.exit_code == status, done.output
    (shard,) = json.loads(done.stdout)["shards"]
    return dict(shard)


def damage(path: Path) -> dict[str, Any]:
    (found,) = verified(path, 3)["findings"]
    return dict(found)


def check_sound(path: Path, now_ms: int = stored.DUE_MS) -> None:
    """At this time: what was due before may be pruned."""
    with patch("time.time_ns", lambda: now_ms * 1_000_000):
        done = CliRunner().invoke(app, ["store", "verify", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert not any(shard["findings"] for shard in json.loads(done.stdout)["shards"])


# --- sound ---------------------------------------------------------------------------------------


@both_kinds
def test_a_healthy_store_is_sound_and_all_of_it_was_read(folder: Path) -> None:
    said = verified(folder, 0)
    assert (said["state"], said["findings"]) == ("sound", [])
    assert (said["records"], said["stop_offset"], said["partition"]) == (600, 601, 3)


@both_kinds
def test_a_file_removed_during_the_snapshot_is_fine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []

    def snapshot(source: Path, target: Path) -> None:
        snapshot_database(source, target)
        if not taken:
            for file in [*target.glob("*.sst"), *target.glob("*.log")]:
                file.unlink()
        taken.append(target)

    monkeypatch.setattr("delayservice.store.offline.snapshot_database", snapshot)
    assert verified(folder, 0)["state"] == "sound"
    assert len(taken) == 2


# --- damage ------------------------------------------------------------------------------------


def slot(folder: Path, number: int = -1) -> Path:
    return stored.slot_files(folder.parents[1])[number]


def table(folder: Path) -> Path:
    """The largest file of a database whose log was written into tables."""
    stored.opened(folder.parents[1], "rocksdb").close()
    return max(folder.glob("db/*.sst"), key=lambda path: path.stat().st_size)


def truncate(path: Path, size: int = -1) -> None:
    path.write_bytes(path.read_bytes()[:size])


def read_by_its_node(folder: Path) -> None:
    stored.flip(slot(folder), -1)
    store = stored.opened(folder.parents[1], "wheel")
    with pytest.raises(SlotDamagedError):
        list(store.scanner().frames((0, -1), 10**15))
    store.close()


def lose_record(folder: Path) -> None:
    store = stored.opened(folder.parents[1], "rocksdb")
    assert isinstance(store, LoneRocks)
    store._db.delete(store._pack_key(stored.DUE_MS, 0))
    store.abandon()


def lose_id(folder: Path) -> None:
    ids = folder / "ids"
    database = open_database(ids if ids.exists() else folder / "db", IDS_OPTIONS)
    (lost,) = read_keys(database, prefix_of(1) + b"d", prefix_of(1) + b"e", 1)
    database.delete(lost)
    database.close()


def spoil_ids(folder: Path) -> None:
    next((folder / "ids").glob("MANIFEST-*")).write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("kind", "case", "spoil", "said"),
    [
        ("wheel", "slot", lambda folder: stored.flip(slot(folder, 0), 20), "checksum"),
        ("wheel", "slot", lambda folder: truncate(slot(folder)), "{slot}"),
        ("wheel", "slot", lambda folder: slot(folder).unlink(), "{slot}: the file is missing"),
        ("wheel", "slot", lambda folder: shutil.copy(slot(folder, 0), slot(folder)), "{slot}"),
        ("wheel", "slot", read_by_its_node, "is not read again yet"),
        ("wheel", "start-over", lambda folder: stored.flip(folder / "horizon", 20), "checksum"),
        ("wheel", "start-over", lambda folder: stored.flip(folder / "horizon", -1), "checksum"),
        ("wheel", "start-over", lambda folder: (folder / "horizon").unlink(), "missing"),
        ("wheel", "start-over", lambda folder: shutil.rmtree(folder / "ids"), "ids"),
        ("wheel", "start-over", spoil_ids, "ids"),
        ("wheel", "start-over", lose_id, ""),
        ("wheel", "start-over", lambda folder: (folder / "VERSION").unlink(), ""),
        ("rocksdb", "start-over", lambda folder: (folder / "VERSION").unlink(), ""),
        ("rocksdb", "start-over", lambda folder: truncate(table(folder), 1_000), ""),
        ("rocksdb", "start-over", lambda folder: table(folder).unlink(), ""),
        ("rocksdb", "start-over", lambda folder: shutil.rmtree(folder / "db"), ""),
        ("rocksdb", "start-over", lambda folder: (folder / "db/DAMAGED").touch(), "found damaged"),
        ("rocksdb", "start-over", lose_record, "rows, which is not what it had"),
        ("rocksdb", "start-over", lose_id, ""),
    ],
)
def test_each_damage_is_found_and_handled(
    folder: Path, kind: str, case: str, spoil: Callable[[Path], None], said: str
) -> None:
    name = str(slot(folder).relative_to(folder)) if "{slot}" in said else ""
    spoil(folder)
    found = damage(folder.parents[1])
    assert found["case"] == case
    assert said.replace("{slot}", name) in found["what"]
    store = stored.opened(folder.parents[1], kind)
    assert store.sync() == (601 if case == "slot" else 0)
    store.abandon()


@only_wheel
def test_the_due_range_and_the_offsets_of_a_damaged_file_are_told(folder: Path) -> None:
    victim = slot(folder)
    stored.flip(victim, -1)
    found = damage(folder)
    hour_ms = stored.DUE_MS + 2 * stored.HOUR_MS
    assert found["due_ms"] == [hour_ms, hour_ms + stored.HOUR_MS]
    assert 0 <= found["offsets"][0] < found["offsets"][1] <= 601
    done = CliRunner().invoke(app, ["store", "verify", str(folder)])
    assert done.exit_code == 3
    assert done.stdout.startswith("damaged  ")
    assert str(victim.relative_to(folder)) in done.stdout
    assert "(due 2100-01-01T02:00:00.000Z to 2100" in done.stdout.replace("\n", " ")
    assert "What happens: a node that reads it moves it to quarantine" in done.stdout
    assert "What to do: No action needed." in done.stdout


@only_rocks
def test_a_flipped_byte_anywhere_is_found(folder: Path, tmp_path: Path, kind: str) -> None:
    store = stored.opened(tmp_path, kind)  # what the log held is in a table file now
    store.close()
    table = max(folder.glob("db/*.sst"), key=lambda path: path.stat().st_size)
    whole = table.read_bytes()
    for at in range(0, len(whole) - FOOTER_BYTES, len(whole) // 40):
        stored.flip(table, at)
        assert damage(folder)["case"] == "start-over", at
        table.write_bytes(whole)
    check_sound(folder)


# --- what is told --------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize(("change", "said"), [(1, "newer"), (-1, "rebuilds it from Kafka")])
def test_another_format_is_unreadable_not_damaged(
    folder: Path, kind: str, change: int, said: str
) -> None:
    number = int((folder / "VERSION").read_text().split()[1])
    (folder / "VERSION").write_bytes(version_text(kind, number + change))
    found = verified(folder, 1)
    assert found["state"] == "unreadable"
    assert said in found["error"]
    assert str(folder) in found["error"]


def test_damage_of_one_shard_outweighs_another_that_can_not_be_read(tmp_path: Path) -> None:
    store = stored.opened(tmp_path, "wheel")
    stored.fill(store)
    store.close()
    stored.flip(stored.slot_files(tmp_path)[0], -1)
    other = stored.shard_path(tmp_path, "rocksdb")
    other.mkdir()
    (other / "VERSION").write_bytes(version_text("rocksdb", 99))
    done = CliRunner().invoke(app, ["store", "verify", str(tmp_path), "--json"])
    assert done.exit_code == 3
    states = {shard["state"] for shard in json.loads(done.stdout)["shards"]}
    assert states == {"damaged", "unreadable"}


def test_folders_of_other_programs_are_no_stores(tmp_path: Path) -> None:
    # As the numbers in ``/proc`` or in a mail spool.
    (tmp_path / "proc" / "17").mkdir(parents=True)
    (tmp_path / "proc" / "17" / "status").write_text("sleeping")
    done = CliRunner().invoke(app, ["store", "verify", str(tmp_path)])
    assert done.exit_code == 1
    assert "holds no shard" in done.output


@only_wheel
def test_a_foreign_folder_beside_a_store_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wheel" / "cache" / "5").mkdir(parents=True)
    assert verified(tmp_path, 0)["path"] == str(folder)


@only_wheel
def test_files_settled_since_the_last_sync_are_sound(store: LoneStore, tmp_path: Path) -> None:
    frames = stored.fill(store, start_ms=1_700_000_000_000)
    store.prune(Cursor(frames[300][:2], 601))
    store.abandon()  # the index still speaks of what has gone
    check_sound(tmp_path)
