"""What `store inspect` says of a folder is what its owner would, and it changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from delayservice.cli import app
from delayservice.engine.cursor import Cursor
from delayservice.store.base import Frame, Store
from delayservice.store.folder import version_text
from tests.unit import stored_folders as stored

both_kinds = pytest.mark.parametrize("kind", ["wheel", "rocksdb"])


def inspect(*words: object) -> Result:
    return CliRunner().invoke(app, ["store", "inspect", *map(str, words)])


def rows(*words: object) -> list[dict[str, Any]]:
    done = inspect(*words, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path, kind: str) -> Iterator[Store]:
    found = stored.opened(tmp_path, kind)
    yield found
    found.abandon()


@pytest.fixture
def frames(store: Store) -> list[Frame]:
    return stored.fill(store)


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
def test_a_person_is_told_the_same(store: Store, kind: str, tmp_path: Path) -> None:
    store.close()
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
def test_control_characters_do_not_reach_the_terminal(store: Store, tmp_path: Path) -> None:
    store.append([stored.a_frame(stored.DUE_MS, 1, b"\xff\x00")], [], [], 2)
    store.append([stored.a_frame(stored.DUE_MS + 1, 2, b"\x1b[31mred")], [], [], 3)
    store.sync()
    told = inspect(tmp_path, "--values").stdout
    assert "base64 /wA=" in told
    assert "\x1b" not in told
    assert "\ufffd[31mred" in told


@both_kinds
@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--values"], ["verify"]], ids=str)
def test_inspection_changes_nothing(
    store: Store, frames: list[Frame], tmp_path: Path, words: list[str]
) -> None:
    more = [stored.a_frame(stored.DUE_MS + n, 601 + n) for n in range(400)]
    store.append(more, stored.named_of(more), [], 1_001)  # some of it in files, none of it synced
    before = stored.snapshot(tmp_path)
    done = CliRunner().invoke(app, ["store", words[0], str(tmp_path), *words[1:], "--json"])
    assert done.exit_code == 0, done.output
    assert stored.snapshot(tmp_path) == before
    store.prune(Cursor(frames[20][:2], 601))  # the owner is not disturbed
    assert store.sync() == 1_001


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
    stored.flip(stored.slot_files(tmp_path)[0], 100)  # in the first of its blocks
    done = inspect(tmp_path, "--limit", 1000, "--json")
    assert done.exit_code == 1
    assert 0 < len(done.stdout.splitlines()) < 600
    assert "not readable, due 2100-01-01T00:00:00.000Z" in done.stderr
