"""A process to be killed: feeds a store from the model log for ever, and says what it promised.

``python -m tests.crash.feeder KIND FOLDER`` prints ``<S> <what>`` lines: ``open`` after opening,
``synced`` after each sync, ``done`` at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import Store
from delayservice.store.wheel import WheelOptions
from tests.crash.model_log import ModelLog
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

COUNT = 4_000
PRUNES = range(580, COUNT, 600)
"""Offsets at which it prunes."""


def make_store(kind: str, folder: Path) -> Store:
    """A store with bounds so small that every kind of work happens all the time."""
    if kind == "rocksdb":
        return LoneRocks(folder)
    options = WheelOptions(
        buffer_bytes_max=60_000, near_bytes_max=20_000, sync_bytes=80_000, handles_max=3
    )
    return LoneStore(folder, options)


def prune_key(log: ModelLog, offset: int) -> Key:
    """To where it prunes then: a tenth of what is below."""
    return log.held(offset, (0, 0))[offset // 10][:2]


def _say(stop: int, what: str) -> None:
    sys.stdout.write(f"{stop} {what}\n")
    sys.stdout.flush()


def main() -> None:
    log = ModelLog(COUNT, seed=3, spread_ms=20_000)
    store = make_store(sys.argv[1], Path(sys.argv[2]))
    stop = store.open()
    _say(stop, "open")
    for start in range(stop, COUNT, 20):
        log.feed(store, start, min(COUNT, start + 20))
        if start // 20 % 12 == 5:
            _say(store.sync(), "synced")
        if start in PRUNES:
            store.prune(Cursor(prune_key(log, start), 0))
    _say(store.sync(), "done")


if __name__ == "__main__":
    main()
