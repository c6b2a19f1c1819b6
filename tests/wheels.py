"""A wheel with one shard: what most tests of the wheel need."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from delayservice.store.files import Files
from delayservice.store.ids import IdDatabase
from delayservice.store.wheel import Wheel, WheelOptions, WheelStore

TOPIC = "0" * 24
SHARD = (TOPIC, 0)


class LoneStore(WheelStore):
    """The only shard of a wheel of its own."""

    def __init__(
        self,
        path: Path,
        options: WheelOptions | None = None,
        files: Files | None = None,
        executor: Executor | None = None,
        make_ids: Callable[[Path], IdDatabase] = IdDatabase,
        place: tuple[str, int] = SHARD,
    ) -> None:
        self.wheel = Wheel(path, options, files, executor, make_ids)
        super().__init__(self.wheel, *place)

    def abandon(self) -> None:
        """Release every handle without a sync, as a crash does."""
        self.wheel.abandon()


def slot_files(root: Path) -> list[Path]:
    """The slot files of a wheel, by their starts."""
    return sorted(root.glob("slots/*"))
