"""What one sync of the wheel must make durable, in the order that keeps the horizon honest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delayservice.store.files import Files
    from delayservice.store.ids import IdIndex
    from delayservice.store.wheel.manifest import Entry, Manifest

_THREADS = 16
"""Fsyncs in flight share the journal's commits: 2,000 small files took 3.1 s one by one and 0.22 s
with 16 threads on ext4."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """A snapshot of what a sync covers; ``run`` touches nothing that the owner's thread changes."""

    files: Files
    manifest: Manifest
    ids: IdIndex
    slot_paths: list[str]
    folders: list[str]
    entries: list[Entry]
    live: list[Entry]
    doomed: list[str]
    stop_offset: int

    def run(self) -> None:
        """Make it durable: (1) slot files, (2) their folders, (3) ids and marks, (4) index and
        horizon. A crash in between leaves the horizon before, and that is still true.

        Raises:
            StoreError: an fsync failed; the process must exit.
        """
        self._sync_slots()
        for folder in self.folders:
            self.files.sync_dir(folder)
        self.ids.sync(self.stop_offset)
        self.manifest.commit(
            self.stop_offset,
            has_ids=self.ids.in_use,
            changed=self.entries,
            live=self.live,
        )

    def _sync_slots(self) -> None:
        if len(self.slot_paths) < _THREADS:
            for path in self.slot_paths:
                self.files.sync_file(path)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(self.files.sync_file, self.slot_paths):
                pass
