"""Stores of older formats are rebuilt, those of this one are read, newer ones are left alone."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import StoreError
from delayservice.engine.cursor import Key
from delayservice.store.base import Frame, Store
from delayservice.store.rocksdb import FORMAT as ROCKS_FORMAT
from delayservice.store.wheel import FORMAT as WHEEL_FORMAT
from tests.compat.make_stores import FORMATS, fixture
from tests.compat.write_store import DUE_MS, LABEL, STOP_OFFSET, frames
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

NOW: Final = {"wheel": WHEEL_FORMAT, "rocksdb": ROCKS_FORMAT}
OLDER: Final = [found for found in FORMATS if found[1] != NOW[found[0]]]
FAR_MS: Final = 10**15
CANCELLED, CANCEL = 8, 55


def unpacked(kind: str, version: int, folder: Path) -> Path:
    """The folder of the shard."""
    with tarfile.open(fixture(kind, version)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def store_in(kind: str, folder: Path) -> Store:
    return LoneStore(folder) if kind == "wheel" else LoneRocks(folder)


def content(folder: Path) -> dict[str, bytes]:
    """Everything below the folder but the lock, which says who looked last."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }


def expected() -> list[Frame]:
    return sorted(
        (key_ms, offset, CANCEL if offset == CANCELLED else mark, payload)
        for key_ms, offset, mark, payload in frames()
    )


def key_of(offset: int) -> Key:
    return frames()[offset][:2]


def test_there_is_a_store_of_every_format_up_to_this_one() -> None:
    every = {(kind, number) for kind, now in NOW.items() for number in range(1, now + 1)}
    every.remove(("wheel", 4))  # no service ever wrote it
    assert set(FORMATS) == every
    assert all(fixture(*found).is_file() for found in every)


@pytest.mark.parametrize("kind", NOW)
def test_a_store_of_this_format_is_read_whole(kind: str, tmp_path: Path) -> None:
    store = store_in(kind, unpacked(kind, NOW[kind], tmp_path))
    assert store.open() == STOP_OFFSET
    assert store.label == LABEL
    assert list(store.scanner().frames((0, -1), FAR_MS)) == expected()
    assert store.latest_unmarked(b"id-8", STOP_OFFSET) is None
    assert store.latest_unmarked(b"id-12", STOP_OFFSET) == key_of(12)
    assert store.marked_from(0) == [(CANCEL, key_of(CANCELLED))]
    store.close()


@pytest.mark.parametrize(("kind", "version"), OLDER)
def test_a_store_of_an_older_format_is_noticed_and_filled_anew_from_the_log(
    kind: str, version: int, tmp_path: Path
) -> None:
    folder = unpacked(kind, version, tmp_path)
    store = store_in(kind, folder)
    with capture_logs() as logged:
        assert store.open() == 0
    (told,) = [line for line in logged if line["event"] == "store_format_old"]
    assert (told["path"], told["found"], told["needed"]) == (str(folder), version, NOW[kind])
    assert store.label == b""
    assert list(store.scanner().frames((0, -1), FAR_MS)) == []
    assert store.latest_unmarked(b"id-12", 1) is None
    again: Frame = (DUE_MS + 1, 0, -1, b"read again")
    store.append([again], [], [], 1)
    store.close()
    store = store_in(kind, folder)
    assert store.open() == 1
    assert list(store.scanner().frames((0, -1), FAR_MS)) == [again]
    store.close()


@pytest.mark.parametrize("kind", NOW)
def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    folder = unpacked(kind, NOW[kind], tmp_path)
    (folder / "VERSION").write_text(f"{kind} {NOW[kind] + 1}\n")
    before = content(folder)
    store = store_in(kind, folder)
    with pytest.raises(StoreError) as raised:
        store.open()
    told = str(raised.value)
    assert str(folder) in told
    assert f"format {NOW[kind] + 1}, newer than {NOW[kind]}," in told
    assert "run the newer service, or move the folder away" in told
    assert content(folder) == before
    store = store_in(kind, folder)  # the lock was given back
    with pytest.raises(StoreError, match="newer"):
        store.open()


@pytest.mark.parametrize("kind", NOW)
def test_a_store_of_the_other_kind_is_refused_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    other = "rocksdb" if kind == "wheel" else "wheel"
    folder = unpacked(other, NOW[other], tmp_path)
    before = content(folder)
    with pytest.raises(StoreError, match=f"holds a '{other}' store and not a '{kind}' one"):
        store_in(kind, folder).open()
    assert content(folder) == before
