"""The folders of a node's stores: what is kept, what is removed, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayservice.errors import StoreError
from delayservice.settings import Settings
from delayservice.store.folder import version_text
from delayservice.store.wheel import FORMAT
from delayservice.stores import Stores, remove_strangers

OLD_SHARD = "0123456789abcdef01234567/3"


def settings_of(state: Path, store: str = "wheel", workers: int = 2) -> Settings:
    settings = Settings()
    node = settings.node.model_copy(update={"state_dir": state, "store": store, "workers": workers})
    return settings.model_copy(update={"node": node})


def stamped(folder: Path, version: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "VERSION").write_bytes(version_text("wheel", version))
    return folder


def test_older_formats_and_wheels_of_workers_that_are_gone_are_removed(tmp_path: Path) -> None:
    kept = [stamped(tmp_path / "wheel" / str(index), FORMAT) for index in range(2)]
    gone = [stamped(tmp_path / "wheel" / name, FORMAT - 2) for name in ("2", OLD_SHARD)]
    remove_strangers(settings_of(tmp_path))
    assert all((folder / "VERSION").is_file() for folder in kept)
    assert not any(folder.exists() for folder in gone)


def test_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    newer = stamped(tmp_path / "wheel" / OLD_SHARD, FORMAT + 1)
    with pytest.raises(StoreError, match="newer"):
        remove_strangers(settings_of(tmp_path))
    assert (newer / "VERSION").is_file()


def test_a_folder_in_use_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other = Stores(settings_of(tmp_path, workers=4), 3)
    store = other.shard("topic", 7)
    store.open()
    with pytest.raises(StoreError, match="in use"):
        remove_strangers(settings_of(tmp_path))
    assert store.sync() == 0
    store.close()


def test_a_node_with_another_store_leaves_wheels_alone(tmp_path: Path) -> None:
    wheel = stamped(tmp_path / "wheel" / "9", FORMAT)
    remove_strangers(settings_of(tmp_path, "rocksdb"))
    assert wheel.is_dir()


@pytest.mark.parametrize("kind", ["wheel", "rocksdb"])
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
    assert Stores(settings, 0).kept_slices() == {3, 5}
    stores.remove("topic", 3)
    kept = stores.shard("topic", 5)
    assert kept.open() == 2
    kept.close()
    assert Stores(settings, 0).kept_slices() == {5}
