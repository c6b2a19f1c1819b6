"""One small store, written by whatever version of the service is first on the path.

    python write_store.py wheel FOLDER

``make_stores`` runs it with the code of old commits; so it uses only what every version has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, cast

from delayservice.contract.codec import encode_payload
from delayservice.store import rocksdb as store_of_rocks
from delayservice.store import wheel

STOP_OFFSET: Final = 60
LABEL: Final = b'[[0,{"version":1}]]'
DUE_MS: Final = 4_102_444_800_000
"""2100-01-01T00:00:00Z."""
NO_MARK: Final = -1


def frames() -> list[tuple[int, int, int, bytes]]:
    """Records of three hours and a day later; every fourth bears an id."""
    found = []
    for offset in range(50):
        due_ms = DUE_MS + offset * 257_003 + (86_400_000 if offset % 7 == 0 else 0)
        meta = (b"id-%d" % offset, None, 1, None) if offset % 4 == 0 else None
        headers = [("color", b"blue"), ("empty", None)]
        payload = ("orders", -1, b"key-%d" % offset, b"value-%d" % offset, headers, due_ms, meta)
        found.append((due_ms, offset, NO_MARK, encode_payload(payload)))
    return found


def main(kind: str, folder: Path) -> None:
    """Write the store of a shard: records, ids, and a cancel of the record at offset 8."""
    store: Any
    if kind == "rocksdb" and hasattr(store_of_rocks, "RocksDatabase"):
        rocks = cast("Any", store_of_rocks).RocksDatabase(folder)
        store = cast("Any", store_of_rocks).RocksStore(rocks, "0" * 24, 0)
    elif kind == "rocksdb":
        store = cast("Any", store_of_rocks).RocksStore(folder)
    elif hasattr(wheel, "Wheel"):
        store = cast("Any", wheel).WheelStore(wheel.Wheel(folder), "0" * 24, 0)
    else:
        store = cast("Any", wheel).WheelStore(folder)
    store.open()
    if hasattr(store, "set_label"):
        store.set_label(LABEL)
    records = frames()
    named = [
        (b"id-%d" % offset, key_ms, offset) for key_ms, offset, *_ in records if not offset % 4
    ]
    store.append(records[:30], [row for row in named if row[2] < 30], [], 30)
    store.sync()
    cancelled = (b"id-8", *records[8][:2], 55)
    store.append(records[30:], [row for row in named if row[2] >= 30], [cancelled], STOP_OFFSET)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
