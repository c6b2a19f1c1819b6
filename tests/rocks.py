"""A RocksDB with one shard: what most tests of the RocksDB store need."""

from __future__ import annotations

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
