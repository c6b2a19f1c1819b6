"""The durable word on what the slot files hold: an index of slots and the horizon that seals it.

::

    index.<generation>   entries of 64 bytes, appended by each sync for the slots it touched; the
                         last entry of a slot counts
    horizon              one record, replaced by rename: the horizon S, how long the index is and
                         its checksum, and the label of what lies below S

A horizon is written only after all it speaks of is durable. Whatever lies beyond the lengths that
it and the index state is of no account, and written over. Damage to either means: start over at 0.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from delayservice.store.files import Files

_ENTRY = Struct("<qqqqqqIIHBxxxxx")
_HORIZON = Struct("<8sIIqqqIIII")
_MAGIC = b"DLYWHEEL"
_VERSION = 3
_HAS_IDS = 1
_COMPACT_BYTES = 1 << 20

LIVE, DAMAGED, GONE = 0, 1, 2

if (_ENTRY.size, _HORIZON.size) != (64, 56):
    raise AssertionError(_ENTRY.size, _HORIZON.size)


class Entry(NamedTuple):
    """A slot file as of a sync: its first ``size`` bytes are durable, the rest is of no account.

    ``moved`` of them, which end in ``moved_crc``, went to finer slots; ``records`` are in the
    others. ``first`` and ``last`` bound the offsets of records and marks in it: what to read again
    when it is damaged.
    """

    second: int
    size: int
    moved: int
    records: int
    first: int
    last: int
    crc: int
    moved_crc: int
    width: int
    state: int


class ManifestDamagedError(ValueError):
    """Horizon, label or index is not as it was written. Never leaves the wheel."""


class State(NamedTuple):
    """What a horizon vouches for; ``has_ids``: whether it speaks of ids, ``live``: its slots."""

    stop_offset: int
    label: bytes
    has_ids: bool
    live: list[Entry]


class _Horizon(NamedTuple):
    magic: bytes
    version: int
    flags: int
    stop_offset: int
    generation: int
    index_size: int
    index_crc: int
    label_size: int
    label_crc: int
    crc: int


class Manifest:
    """Reads and commits index and horizon.

    Args:
        path: folder of the store.
        files: where effects go; not the owner's, for commits run in a thread beside it.
    """

    def __init__(self, path: str, files: Files) -> None:
        self._path = path
        self._files = files
        self._generation = 1
        self._size = 0
        self._crc = 0

    def load(self) -> State | None:
        """What the horizon vouches for, or None if that can't be trusted."""
        try:
            return self.read()
        except (OSError, ManifestDamagedError):
            return None

    def read(self) -> State:
        """What the horizon vouches for.

        Raises:
            ManifestDamagedError: that can't be trusted; the text says what and why.
            OSError: horizon or index is missing, or the medium fails.
        """
        horizon = self._read_horizon()
        generation, size, crc = horizon.generation, horizon.index_size, horizon.index_crc
        label = self._read(self._horizon(), _HORIZON.size, horizon.label_size, horizon.label_crc)
        data = self._read(self._index(generation), 0, size, crc)
        self._generation, self._size, self._crc = generation, size, crc
        entries = {(e.second, e.width): e for e in map(Entry._make, _ENTRY.iter_unpack(data))}
        live = [e for e in entries.values() if e.state != GONE]
        return State(horizon.stop_offset, label, bool(horizon.flags & _HAS_IDS), live)

    def _read_horizon(self) -> _Horizon:
        data = self._files.read_at(self._horizon(), 0, _HORIZON.size)
        if len(data) != _HORIZON.size:
            raise ManifestDamagedError(f"horizon has {len(data)} bytes of {_HORIZON.size}")
        horizon = _Horizon._make(_HORIZON.unpack(data))
        if horizon.crc != google_crc32c.value(data[:-4]):
            raise ManifestDamagedError("horizon fails its checksum")
        if horizon.magic != _MAGIC or horizon.version != _VERSION:
            raise ManifestDamagedError(f"horizon is of version {horizon.version}, not {_VERSION}")
        return horizon

    def _read(self, path: str, position: int, size: int, crc: int) -> bytes:
        """What was written there."""
        data = self._files.read_at(path, position, size) if size else b""
        name = path.rpartition("/")[2]
        if len(data) != size:
            raise ManifestDamagedError(f"{name} has {position + len(data)} bytes, and not {size}")
        if google_crc32c.value(data) != crc:
            raise ManifestDamagedError(f"{name} fails its checksum")
        return data

    def commit(
        self,
        stop_offset: int,
        label: bytes,
        has_ids: bool,  # noqa: FBT001 - two callers, both name it
        changed: Iterable[Entry],
        live: Sequence[Entry],
    ) -> None:
        """Make the horizon ``stop_offset`` durable; the slot files and ids must be so already.

        Args:
            stop_offset: the new S.
            label: that of all below S.
            has_ids: whether the id index holds anything that S speaks for.
            changed: entries that differ from the commit before.
            live: all live entries, for when the index is to be written afresh.
        """
        old = self._generation
        data = b"".join([_ENTRY.pack(*entry) for entry in changed])
        if self._size + len(data) > _COMPACT_BYTES + 4 * len(live) * _ENTRY.size:
            self._generation, self._size, self._crc = old + 1, 0, 0
            data = b"".join([_ENTRY.pack(*entry) for entry in live])
        index = self._index(self._generation)
        if data:
            self._files.write_at(index, self._size, data)
            self._files.sync_file(index)
            self._size += len(data)
            self._crc = google_crc32c.extend(self._crc, data)
        self._write_horizon(stop_offset, label, has_ids)
        if old != self._generation:
            self._files.remove(self._index(old))

    def discard(self) -> None:
        """Remove horizon and index, the horizon first: without it the rest counts for nothing."""
        self._files.remove(self._horizon())
        self._files.sync_dir(self._path)
        self.remove_strays(keep="")
        self._generation, self._size, self._crc = 1, 0, 0

    def close(self) -> None:
        """Release the handles of index and horizon."""
        self._files.close()

    def remove_strays(self, keep: str | None = None) -> None:
        """Remove indexes that no horizon speaks of, left by a crash."""
        wanted = f"index.{self._generation}" if keep is None else keep
        for name in self._files.list_dir(self._path):
            stray = name.startswith("index.") and name != wanted
            if stray or name == "horizon.new":
                self._files.remove(f"{self._path}/{name}")

    def _horizon(self) -> str:
        return f"{self._path}/horizon"

    def _index(self, generation: int) -> str:
        return f"{self._path}/index.{generation}"

    def _write_horizon(self, stop_offset: int, label: bytes, has_ids: bool) -> None:  # noqa: FBT001 - private
        horizon = _Horizon(
            magic=_MAGIC,
            version=_VERSION,
            flags=_HAS_IDS if has_ids else 0,
            stop_offset=stop_offset,
            generation=self._generation,
            index_size=self._size,
            index_crc=self._crc,
            label_size=len(label),
            label_crc=google_crc32c.value(label),
            crc=0,
        )
        head = _HORIZON.pack(*horizon)[:-4]
        head += google_crc32c.value(head).to_bytes(4, "little")
        temporary = f"{self._path}/horizon.new"
        self._files.write_at(temporary, 0, head + label)
        self._files.sync_file(temporary)
        self._files.replace(temporary, self._horizon())
        self._files.sync_dir(self._path)
