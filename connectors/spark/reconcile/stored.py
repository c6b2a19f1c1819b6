"""Rows of a store for Spark: one schema for wheels and RocksDB.

A row is a pending record; or it has in ``damage`` the reason why something could not be read. Then
all columns from ``key_ms`` to ``frame_hash`` are null, and the missing records have source offsets
from ``first_offset`` up to ``stop_offset`` (exclusive).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from connectors.spark.common.frames import arrow_schema, batch_of
from connectors.spark.common.pending import PendingColumns
from delayservice.contract.codec import decode_payload, encode_payload
from delayservice.contract.entry import Entry
from delayservice.engine.cursor import NO_MARK, Frame
from delayservice.replicas.digest import HOUR_MS, frame_hash
from delayservice.store.offline import Damage

DDL: Final = """
    shard string, topic string, partition int,
    slot_start_ms bigint, slot_stop_ms bigint,
    key_ms bigint, offset bigint, mark bigint,
    record_id binary, target string, target_partition int,
    key binary, value binary, headers array<struct<name: string, value: binary>>,
    due_ms bigint, attempt int, source string, expires_ms bigint,
    payload_hash bigint, frame_hash bigint,
    damage string, first_offset bigint, stop_offset bigint
"""
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

SCHEMA: Final = arrow_schema(DDL)

_DAMAGE_COLUMNS: Final = 8
_PLAIN: Final = (None, None, 1, None)


@dataclass(frozen=True, slots=True)
class ShardName:
    """Names for the rows of one shard; ``folder`` is a hash of the topic's id."""

    shard: str
    partition: int
    topic: str | None = None

    def batch(
        self, slot_ms: tuple[int, int] | None, frames: Sequence[Frame], *, content: bool
    ) -> pa.RecordBatch:
        """Return stored records as an Arrow batch with the columns of ``DDL``. ``slot_ms``: start
        and exclusive end of their slot, epoch ms; None: the hour of each record's key.
        """
        return batch_of([self._row(slot_ms, frame, content=content) for frame in frames], SCHEMA)

    def damage_batch(self, damage: Damage) -> pa.RecordBatch:
        slot_ms = (damage.start_ms, damage.stop_ms)
        offsets = (damage.first_offset, damage.stop_offset)
        unknown = (None,) * (len(SCHEMA) - _DAMAGE_COLUMNS)
        row = (self.shard, self.topic, self.partition, *slot_ms, *unknown, damage.why, *offsets)
        return batch_of([row], SCHEMA)

    def _row(
        self, slot_ms: tuple[int, int] | None, frame: Frame, *, content: bool
    ) -> tuple[object, ...]:
        key_ms, offset, mark, data = frame
        target, partition, key, value, headers, due_ms, meta = decode_payload(data)
        record_id, source, attempt, expires_ms = _PLAIN if meta is None else meta[:4]
        hour_ms = key_ms - key_ms % HOUR_MS
        place = None if self.topic is None else f"{self.topic}:{self.partition}:{offset}"
        named = [{"name": name, "value": text} for name, text in headers] if content else None
        return (
            *(self.shard, self.topic, self.partition),
            *(slot_ms or (hour_ms, hour_ms + HOUR_MS)),
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
    return int(struct.unpack("<q", hashed.to_bytes(8, "little"))[0])


def _hashes(key_ms: int, offset: int, record_id: bytes | None, data: bytes) -> tuple[int, int]:
    hashed = signed(frame_hash(key_ms, offset, None, data))
    return hashed, hashed if record_id is None else signed(
        frame_hash(key_ms, offset, record_id, data)
    )


def _hashes_of(entry: Entry) -> tuple[int, int]:
    offset, _, key_ms, record_id, payload, _ = entry
    return _hashes(key_ms, offset, record_id, encode_payload(payload))


HASHES: Final = PendingColumns(arrow_schema("payload_hash bigint, frame_hash bigint"), _hashes_of)
"""Columns ``payload_hash`` and ``frame_hash`` of a pending record that is read from a delay
topic."""
