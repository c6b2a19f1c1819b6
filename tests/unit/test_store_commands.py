"""`store verify` and `store inspect`: what they say of folders, which they do not change."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from delayservice.base.errors import SlotDamagedError
from delayservice.cli import app
from delayservice.engine.cursor import Cursor
from delayservice.store.base import Frame, Store
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
def test_a_file_removed_meanwhile_is_fine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_another_format_is_not_damaged(folder: Path, kind: str, change: int, said: str) -> None:
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


# --- what `store inspect` says of a folder is what its owner would, and it changes nothing --------


def inspect(*words: object) -> Result:
    return CliRunner().invoke(app, ["store", "inspect", *map(str, words)])


def rows(*words: object) -> list[dict[str, Any]]:
    done = inspect(*words, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def opened_store(tmp_path: Path, kind: str) -> Iterator[Store]:
    found = stored.opened(tmp_path, kind)
    yield found
    found.abandon()


@pytest.fixture
def frames(opened_store: Store) -> list[Frame]:
    return stored.fill(opened_store)


@both_kinds
def test_a_folder_in_use_is_described(frames: list[Frame], kind: str, tmp_path: Path) -> None:
    (said,) = rows(tmp_path)
    (shard,) = said["shards"]
    assert (shard["store"], shard["shard"], shard["partition"]) == (
        kind,
        "0123456789abcdef01234567",
        3,
    )
    assert (shard["stop_offset"], shard["label"]) == (601, json.loads(stored.LABEL))
    assert shard["in_use_by"] == os.getpid()
    assert (shard["oldest_due_ms"], shard["newest_due_ms"]) == (frames[0][0], frames[-1][0])
    expected = [sum(frame[0] // stored.HOUR_MS == hour for frame in frames) for hour in HOURS]
    assert [hour["records"] for hour in shard["hours"]] == expected
    assert shard["records"] == 600
    assert [hour["hour_ms"] // stored.HOUR_MS for hour in shard["hours"]] == HOURS
    assert all(hour["bytes"] > 0 for hour in shard["hours"])


HOURS = [stored.DUE_MS // stored.HOUR_MS + n for n in range(3)]


@both_kinds
@pytest.mark.usefixtures("frames")
def test_a_person_is_told_the_same(opened_store: Store, kind: str, tmp_path: Path) -> None:
    opened_store.close()
    told = inspect(tmp_path).stdout
    assert f"store       {kind}" in told
    assert "open in process" not in told
    assert "2100-01-01T02:00Z" in told
    assert "601: all records below it are stored" in told


@both_kinds
def test_records_come_in_due_order_with_their_marks(frames: list[Frame], tmp_path: Path) -> None:
    found = rows(tmp_path, "--limit", 1000)
    assert [(row["next_ms"], row["offset"]) for row in found] == [frame[:2] for frame in frames]
    assert {row["offset"]: row["marked_by"] for row in found if row["marked_by"]} == {9: 600}
    assert not any(row["value"] for row in found)
    assert len(rows(tmp_path, "--records")) == 100


@both_kinds
def test_records_are_found_by_due_range_id_and_target(frames: list[Frame], tmp_path: Path) -> None:
    since, until = frames[100][0], frames[110][0]
    found = rows(tmp_path, "--from", since, "--to", until)
    assert [row["offset"] for row in found] == [frame[1] for frame in frames[100:110]]
    assert rows(tmp_path, "--from", "2100-01-01T02:59:00Z", "--limit", 1000) == [
        row
        for row in rows(tmp_path, "--limit", 1000)
        if row["due_ms"] >= stored.DUE_MS + 10_740_000
    ]
    (one,) = rows(tmp_path, "--id", "id-33", "--values")
    assert (one["offset"], one["attempt"], one["source"]) == (33, 2, "any:1:7")
    assert (one["id"]["data"], one["value"]["data"]) == ("id-33", "value 33")
    assert one["headers"][0]["value"]["data"] == "blue"
    bills = rows(tmp_path, "--target", "bills", "--limit", 1000)
    assert sorted(row["offset"] for row in bills) == list(range(0, 600, 5))
    assert rows(tmp_path, "--target", "bills", "--limit", 7) == bills[:7]


@both_kinds
def test_control_characters_do_not_reach_the_terminal(opened_store: Store, tmp_path: Path) -> None:
    opened_store.append([stored.a_frame(stored.DUE_MS, 1, b"\xff\x00")], [], [], 2)
    opened_store.append([stored.a_frame(stored.DUE_MS + 1, 2, b"\x1b[31mred")], [], [], 3)
    opened_store.sync()
    told = inspect(tmp_path, "--values").stdout
    assert "base64 /wA=" in told
    assert "\x1b" not in told
    assert "\ufffd[31mred" in told


@both_kinds
@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--values"], ["verify"]], ids=str)
def test_inspection_changes_nothing(
    opened_store: Store, frames: list[Frame], tmp_path: Path, words: list[str]
) -> None:
    more = [stored.a_frame(stored.DUE_MS + n, 601 + n) for n in range(400)]
    opened_store.append(
        more, stored.named_of(more), [], 1_001
    )  # some of it in files, none of it synced
    before = stored.snapshot(tmp_path)
    done = CliRunner().invoke(app, ["store", words[0], str(tmp_path), *words[1:], "--json"])
    assert done.exit_code == 0, done.output
    assert stored.snapshot(tmp_path) == before
    opened_store.prune(Cursor(frames[20][:2], 601))  # the owner is not disturbed
    assert opened_store.sync() == 1_001


@both_kinds
@pytest.mark.usefixtures("frames")
def test_a_store_of_another_format_is_named_beside_others(kind: str, tmp_path: Path) -> None:
    old = stored.shard_path(tmp_path, kind).with_name("4")
    old.mkdir()
    (old / "VERSION").write_bytes(version_text(kind, 0))
    done = inspect(tmp_path, "--json")
    assert done.exit_code == 1
    whole, refused = json.loads(done.stdout)["shards"]
    assert whole["records"] == 600
    assert "format 0" in refused["error"]
    assert "rebuilds it from Kafka" in refused["error"]


def test_a_folder_without_stores_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    done = inspect(tmp_path)
    assert done.exit_code == 1
    assert "node.state_dir" in done.output


@pytest.mark.parametrize("kind", ["wheel"])
@pytest.mark.usefixtures("frames")
def test_unreadable_stores_are_listed_beside_readable_ones(tmp_path: Path) -> None:
    folder = stored.shard_path(tmp_path, "wheel")
    shutil.copytree(folder, folder.with_name("1"))
    stored.flip(stored.slot_files(tmp_path)[0], 100)  # in the first of its blocks, of worker 0
    done = inspect(tmp_path, "--limit", 1000, "--json")
    assert done.exit_code == 1
    assert 600 < len(done.stdout.splitlines()) < 1200
    assert done.stderr.count("not readable, due 2100-01-01T00:00:00.000Z") == 1
