"""Stores on a disk for tests of what looks at them."""

from __future__ import annotations

import os
from pathlib import Path

from delayservice.contract.codec import Meta, encode_payload
from delayservice.engine.cursor import NO_GROUP
from delayservice.store.base import NO_MARK, Frame, Mark, Named, Store
from delayservice.store.wheel import WheelOptions
from tests.rocks import LoneRocks
from tests.wheels import LoneStore

HOUR_MS = 3_600_000
DUE_MS = 4_102_444_800_000
"""2100-01-01T00:00:00Z: nothing of it can have been settled."""
LABEL = b'[[0,{"version":2}]]'
SMALL = WheelOptions(slot_ms=HOUR_MS, buffer_bytes_max=20_000, near_bytes_max=20_000, handles_max=8)
SHARD = ("0123456789abcdef01234567", 3)


def shard_path(state: Path, kind: str) -> Path:
    """The folder of the worker that keeps the shard, in a node's state folder."""
    path = state / kind / "0"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def opened(state: Path, kind: str) -> LoneStore | LoneRocks:
    path = shard_path(state, kind)
    store = LoneStore(path, SMALL, place=SHARD) if kind == "wheel" else LoneRocks(path, place=SHARD)
    store.open()
    return store


def a_frame(key_ms: int, offset: int, value: bytes | None = None) -> Frame:
    """Every third record bears an id, every fifth goes to another target."""
    meta: Meta | None = (b"id-%d" % offset, b"any:1:7", 2, None) if offset % 3 == 0 else None
    target = "bills" if offset % 5 == 0 else "orders"
    value = b"value %d" % offset if value is None else value
    payload = (target, -1, b"key", value, [("color", b"blue")], key_ms, meta)
    return (key_ms, offset, NO_MARK, encode_payload(payload))


def named_of(frames: list[Frame]) -> list[Named]:
    return [(b"id-%d" % f[1], f[0], f[1], NO_GROUP) for f in frames if f[1] % 3 == 0]


def fill(store: Store, count: int = 600, start_ms: int = DUE_MS) -> list[Frame]:
    """Records of three hours, of which the one at offset 9 is cancelled; synced."""
    frames = [a_frame(start_ms + n * 17_989 % (3 * HOUR_MS), n) for n in range(count)]
    store.set_label(LABEL)
    store.append(frames, named_of(frames), [], count)
    mark: Mark = (b"id-9", *frames[9][:2], count)
    store.append([], [], [mark], count + 1)
    store.sync()
    frames[9] = (*frames[9][:2], count, frames[9][3])
    return sorted(frames)


def slot_files(state: Path) -> list[Path]:
    return sorted(shard_path(state, "wheel").glob("slots/*"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def snapshot(state: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder: names, times, rights, bytes."""
    found = {}
    for folder, _, names in os.walk(state):
        for path in [Path(folder), *(Path(folder, name) for name in names)]:
            stat = path.stat()
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (stat.st_mtime_ns, stat.st_mode, data)
    return found
