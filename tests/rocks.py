"""A RocksDB with one shard: what most tests of the RocksDB store need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from delayservice.store.rocks import RocksOptions
from delayservice.store.rocksdb import RocksDatabase, RocksStore
from tests.wheels import SHARD


class LoneRocks(RocksStore):
    """The only shard of a database of its own."""

    def __init__(
        self,
        path: Path,
        options: RocksOptions | None = None,
        place: tuple[str, int] = SHARD,
    ) -> None:
        self.rocks = RocksDatabase(path, options)
        super().__init__(self.rocks, *place)

    def abandon(self) -> None:
        """Release every handle without a sync, as a crash does."""
        self.rocks.abandon()


def records_in(manifest: bytes) -> Iterator[tuple[int, int]]:
    """Position and length of each record of a small MANIFEST."""
    at = 0
    while at + 7 <= len(manifest):
        length = int.from_bytes(manifest[at + 4 : at + 6], "little")
        yield at, length
        at += 7 + length


def opens_for_ever(path: Path, data: bytes) -> bool:
    """Whether ``data`` is a MANIFEST whose opening may never end: it has a recyclable record."""
    is_manifest = path.name.startswith("MANIFEST")
    return is_manifest and any(data[at + 6] in range(5, 9) for at, _ in records_in(data))
