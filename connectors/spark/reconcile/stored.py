"""Rows of a store as Spark sees them: one schema for wheels and RocksDB.

A row is a pending record, or says in ``damage`` what could not be read; then all columns from
``key_ms`` to ``frame_hash`` are null, and what is missing is in the source offsets from
``first_offset`` up to ``stop_offset``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from connectors.spark.common.arrow import arrow_schema
from connectors.spark.common.pending import PendingColumns
from delayservice.contract.codec import Payload, decode_payload, encode_payload
from delayservice.contract.entry import Entry
from delayservice.engine.pending import NO_MARK, Frame
from delayservice.replicas.digest import SLOT_MS, frame_hash
from delayservice.store.wheel.reading import Damage

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
"""``shard``: the folder's name, a hash of the topic's id. ``topic``: its name, where it is known.
``slot_start_ms``, ``slot_stop_ms``: what the file is for. ``mark``: the offset that cancels or
replaces the record. ``payload_hash``: of key, offset and payload; ``frame_hash``: as in digests, of
the id instead of the payload where there is one; both 64 bits, as signed numbers.
"""

SCHEMA: Final = arrow_schema(DDL)

_PLAIN: Final = (None, None, 1, None)
_Decoded: TypeAlias = tuple[Frame, Payload]


@dataclass(frozen=True, slots=True)
class ShardName:
    """Which shard rows are of: its folder, ``topic`` where that is known, and partition."""

    shard: str
    partition: int
    topic: str | None = None

    def batch(
        self, slot_ms: tuple[int, int] | None, frames: Sequence[Frame], *, content: bool
    ) -> pa.RecordBatch:
        """Some frames.

        Args:
            slot_ms: first and exclusive last millisecond of the slot that holds them; None: the
                minute of each.
            frames: in any order.
            content: with keys, values and headers; they are most of the bytes.

        Raises:
            StoreError: a payload is of no version that this code knows.
        """
        decoded = [(frame, decode_payload(frame[3])) for frame in frames]
        count = len(frames)
        columns: dict[str, list[object]] = {
            **_slot_columns(slot_ms, frames),
            **_key_columns(decoded),
            **_payload_columns(decoded, self._prefix()),
        }
        if content:
            columns |= _content_columns(decoded)
        return self._filled(count, columns)

    def damage_batch(self, damage: Damage) -> pa.RecordBatch:
        """One row that says what could not be read."""
        columns: dict[str, list[object]] = {
            "slot_start_ms": [damage.start_ms],
            "slot_stop_ms": [damage.stop_ms],
            "damage": [damage.why],
            "first_offset": [damage.first_offset],
            "stop_offset": [damage.stop_offset],
        }
        return self._filled(1, columns)

    def _prefix(self) -> str | None:
        return None if self.topic is None else f"{self.topic}:{self.partition}:"

    def _filled(self, count: int, columns: dict[str, list[object]]) -> pa.RecordBatch:
        """The columns that are given, those that name the shard, and nulls."""
        columns |= {
            "shard": [self.shard] * count,
            "topic": [self.topic] * count,
            "partition": [self.partition] * count,
        }
        arrays = [
            pa.array(columns[column.name], column.type)
            if column.name in columns
            else pa.nulls(count, column.type)
            for column in SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def signed(hashed: int) -> int:
    """An unsigned number of 64 bits as Spark and Arrow keep one."""
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
"""The hashes of a record of a delay topic that is pending."""


def _slot_columns(
    slot_ms: tuple[int, int] | None, frames: Sequence[Frame]
) -> dict[str, list[object]]:
    names = ("slot_start_ms", "slot_stop_ms")
    if slot_ms is not None:
        return _columns(names, [slot_ms] * len(frames))
    starts = [frame[0] - frame[0] % SLOT_MS for frame in frames]
    return _columns(names, [(start, start + SLOT_MS) for start in starts])


def _key_columns(decoded: Iterable[_Decoded]) -> dict[str, list[object]]:
    rows: list[tuple[object, ...]] = []
    for (key_ms, offset, mark, data), payload in decoded:
        meta = payload[6]
        record_id = None if meta is None else meta[0]
        hashes = _hashes(key_ms, offset, record_id, data)
        rows.append((key_ms, offset, None if mark == NO_MARK else mark, record_id, *hashes))
    names = ("key_ms", "offset", "mark", "record_id", "payload_hash", "frame_hash")
    return _columns(names, rows)


def _payload_columns(decoded: Iterable[_Decoded], prefix: str | None) -> dict[str, list[object]]:
    rows: list[tuple[object, ...]] = []
    for (_, offset, _, _), (target, partition, _, _, _, due_ms, meta) in decoded:
        _, source, attempt, expires_ms = _PLAIN if meta is None else meta[:4]
        named = f"{prefix}{offset}" if prefix is not None else None
        origin = source.decode("utf-8", "replace") if source is not None else named
        rows.append((target, _or_none(partition), due_ms, attempt, origin, expires_ms))
    names = ("target", "target_partition", "due_ms", "attempt", "source", "expires_ms")
    return _columns(names, rows)


def _content_columns(decoded: Iterable[_Decoded]) -> dict[str, list[object]]:
    rows = [
        (key, value, [{"name": name, "value": text} for name, text in headers])
        for _, (_, _, key, value, headers, _, _) in decoded
    ]
    return _columns(("key", "value", "headers"), rows)


def _or_none(partition: int) -> int | None:
    return None if partition < 0 else partition


def _columns(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, list[object]]:
    turned = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: list(column) for name, column in zip(names, turned, strict=True)}
