"""The folders of a node's stores: what is kept, what is removed, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.config.settings import Settings
from delayservice.process.stores import Stores, remove_strangers
from delayservice.store.folder import version_text
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT

NEWEST = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}
both_kinds = pytest.mark.parametrize("kind", NEWEST)


def settings_of(state: Path, store: str = "wheel", workers: int = 2) -> Settings:
    settings = Settings()
    node = settings.node.model_copy(update={"state_dir": state, "store": store, "workers": workers})
    return settings.model_copy(update={"node": node})


def stamped(folder: Path, kind: str, version: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "VERSION").write_bytes(version_text(kind, version))
    return folder


@both_kinds
def test_stores_of_workers_that_are_gone_are_removed(tmp_path: Path, kind: str) -> None:
    home, newest = tmp_path / kind, NEWEST[kind]
    kept = [stamped(home / str(index), kind, newest) for index in range(2)]
    gone = [stamped(home / name, kind, newest) for name in ("2", "10")]
    with capture_logs() as logged:
        remove_strangers(settings_of(tmp_path, kind))
    assert all((folder / "VERSION").is_file() for folder in kept)
    assert not any(folder.exists() for folder in gone)
    assert [line["event"] for line in logged] == [f"{kind}_removed"] * 2


@both_kinds
def test_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    newer = stamped(tmp_path / kind / "9", kind, NEWEST[kind] + 1)
    with pytest.raises(StoreError, match="newer"):
        remove_strangers(settings_of(tmp_path, kind))
    assert (newer / "VERSION").is_file()


@both_kinds
def test_a_folder_in_use_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    other = Stores(settings_of(tmp_path, kind, workers=4), 3)
    store = other.shard("topic", 7)
    store.open()
    with pytest.raises(StoreError, match="in use"):
        remove_strangers(settings_of(tmp_path, kind))
    assert store.sync() == 0
    store.close()


def test_a_node_with_another_store_leaves_wheels_alone(tmp_path: Path) -> None:
    wheel = stamped(tmp_path / "wheel" / "9", "wheel", NEWEST["wheel"])
    remove_strangers(settings_of(tmp_path, "rocksdb"))
    assert wheel.is_dir()


@both_kinds
def test_slices_are_found_on_the_disk_until_their_stores_are_removed(
    tmp_path: Path, kind: str
) -> None:
    settings = settings_of(tmp_path, kind)
    stores = Stores(settings, 0)
    for partition in (3, 5):
        store = stores.shard("topic", partition)
        store.open()
        store.append([(10_000, 1, -1, b"record")], [], [], 2)
        store.close()
    again = Stores(settings, 0)
    assert again.open() == {3, 5}
    again.remove("topic", 3)
    kept = again.shard("topic", 5)
    assert kept.open() == 2
    kept.close()
    assert again.open() == {5}
    again.close()
