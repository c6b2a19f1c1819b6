"""Rows of a store for Spark: one schema for wheels and RocksDB.

A row is a pending record; or it has in ``damage`` the reason why something could not be read. Then
all columns from ``key_ms`` to ``frame_hash`` are null, and the missing records have source offsets
from ``first_offset`` up to ``stop_offset`` (exclusive).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from connectors.spark.common.frames import batch_of
from connectors.spark.common.pending import PendingColumns
from connectors.spark.reconcile.compare import SHARD_TYPES, longs
from delayservice.contract.codec import decode_payload, encode_payload
from delayservice.contract.entry import Entry
from delayservice.engine.cursor import NO_MARK, Frame
from delayservice.replicas.digest import frame_hash
from delayservice.replicas.digest_rows import Damage

SCHEMA: Final = pa.schema(
    {
        "shard": pa.string(),
        **SHARD_TYPES,
        **longs("slot_start_ms", "slot_stop_ms", "key_ms", "offset", "mark"),
        "record_id": pa.binary(),
        "target": pa.string(),
        "target_partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()})),
        "due_ms": pa.int64(),
        "attempt": pa.int32(),
        "source": pa.string(),
        **longs("expires_ms", "payload_hash", "frame_hash"),
        "damage": pa.string(),
        **longs("first_offset", "stop_offset"),
    }
)
"""Columns of a store's records.

- ``shard``: folder name, a hash of the topic's id; ``topic``: name of the topic, null if unknown.
- ``slot_start_ms``, ``slot_stop_ms``: range of due times of the record's file, or its hour.
- ``mark``: source offset of the record's canceller, null if it has none.
- ``key``, ``value``, ``headers``: of the record to deliver; null if content was not asked for.
- ``attempt``: number of the next attempt to deliver, from 1; ``source``: place at which the record
  was first written, ``topic:partition:offset``.
- ``payload_hash``: hash of key, offset and payload; ``frame_hash``: the hash in digests, with the
  id instead of the payload where there is an id. Both are signed numbers of 64 bits.
"""

_PLAIN: Final = (None, None, 1, None)


@dataclass(frozen=True, slots=True)
class ShardName:
    """Names for the rows of one shard; ``folder`` is a hash of the topic's id."""

    shard: str
    partition: int
    topic: str | None = None

    def batch(self, frames: Sequence[Frame], slot_ms: int, *, content: bool) -> pa.RecordBatch:
        """Return stored records as an Arrow batch with the columns of ``SCHEMA``. ``slot_ms``:
        range of due times in one file, in ms.
        """
        rows = (self._row(frame, slot_ms, content=content) for frame in frames)
        return batch_of(rows, SCHEMA)

    def damage_batch(self, damage: Damage) -> pa.RecordBatch:
        named = {"shard": self.shard, "topic": self.topic, "partition": self.partition}
        named |= {"slot_start_ms": damage.start_ms, "slot_stop_ms": damage.stop_ms}
        named |= {"damage": damage.why, "first_offset": damage.first_offset}
        named["stop_offset"] = damage.stop_offset
        return pa.RecordBatch.from_pylist([named], SCHEMA)

    def _row(self, frame: Frame, slot_ms: int, *, content: bool) -> tuple[object, ...]:
        key_ms, offset, mark, data = frame
        target, partition, key, value, headers, due_ms, meta = decode_payload(data)
        record_id, source, attempt, expires_ms = _PLAIN if meta is None else meta[:4]
        start_ms = key_ms - key_ms % slot_ms
        place = None if self.topic is None else f"{self.topic}:{self.partition}:{offset}"
        named = [{"name": name, "value": text} for name, text in headers] if content else None
        return (
            *(self.shard, self.topic, self.partition),
            *(start_ms, start_ms + slot_ms),
            *(key_ms, offset, None if mark == NO_MARK else mark),
            *(record_id, target, None if partition < 0 else partition),
            *((key, value, named) if content else (None, None, None)),
            *(due_ms, attempt),
            *(place if source is None else source.decode("utf-8", "replace"), expires_ms),
            *_hashes(key_ms, offset, record_id, data),
            *(None, None, None),
        )


def signed(hashed: int) -> int:
    """Return an unsigned number of 64 bits as Spark and Arrow store it."""
    return hashed - 2**64 if hashed >= 2**63 else hashed


def _hashes(key_ms: int, offset: int, record_id: bytes | None, data: bytes) -> tuple[int, int]:
    whole = signed(frame_hash(key_ms, offset, None, data))
    if record_id is None:
        return whole, whole
    return whole, signed(frame_hash(key_ms, offset, record_id, data))


def _hashes_of(entry: Entry) -> tuple[int, int]:
    offset, _, key_ms, record_id, payload, _ = entry
    return _hashes(key_ms, offset, record_id, encode_payload(payload))


HASHES: Final = PendingColumns(pa.schema(longs("payload_hash", "frame_hash")), _hashes_of)
"""Columns ``payload_hash`` and ``frame_hash`` of a pending record that is read from a delay
topic."""
