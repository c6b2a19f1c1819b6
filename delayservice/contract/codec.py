"""The payload of a pending record as bytes, the one shape that every store keeps.

A payload is a msgpack array (msgspec, not our own packing: encode 0.25 µs, decode 0.3 µs)::

    [target, partition, key, value, headers, due_ms, meta]

    target     str         target topic
    partition  int         target partition, or -1: partition by key as a Java producer does
    key        bin | nil   output key
    value      bin | nil   output value
    headers    [[str, bin | nil], ...]   the record's own headers, in order, duplicates kept
    due_ms     int         epoch milliseconds
    meta       nil | [id, source, attempt, expires_ms]   nil for a plain record
                   | [id, source, attempt, expires_ms, recurrence]
                   | [id, source, attempt, expires_ms, recurrence | nil, turn_ms]
      id          bin | nil   delay-id
      source      bin | nil   delay-source of the user's original; nil: the record itself
      attempt     int         1 for the first
      expires_ms  int | nil   epoch milliseconds
      recurrence  bin         ``recurrence.Recurrence``, only where there is one
      turn_ms     int         epoch milliseconds that a rate limit gave it, only where one did

The frame around it (length, checksum, offset, key) belongs to each store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, cast

import msgspec

from delayservice.base.errors import StoreError
from delayservice.contract.names import Header

Meta: TypeAlias = (
    tuple[bytes | None, bytes | None, int, int | None]
    | tuple[bytes | None, bytes | None, int, int | None, bytes]
    | tuple[bytes | None, bytes | None, int, int | None, bytes | None, int]
)
Payload: TypeAlias = tuple[str, int, bytes | None, bytes | None, list[Header], int, Meta | None]

_PLAIN: Final = (None, None, 1, None)
_RECURRING_FIELDS: Final = 5
_ALL_FIELDS: Final = 6


def turn_of(meta: Meta | None) -> int | None:
    """Return the turn that a rate limit gave the record, epoch milliseconds; None: none."""
    return meta[5] if meta is not None and len(meta) == _ALL_FIELDS else None


def with_turn(meta: Meta | None, turn_ms: int) -> Meta:
    """Return the same record with a turn."""
    record_id, source, attempt, expires_ms = meta[:4] if meta is not None else _PLAIN
    return (record_id, source, attempt, expires_ms, packed_recurrence(meta), turn_ms)


def next_attempt(meta: Meta | None) -> Meta:
    """Return the same record for its next attempt, without a turn."""
    record_id, source, attempt, expires_ms = meta[:4] if meta is not None else _PLAIN
    recurrence = packed_recurrence(meta)
    if recurrence is None:
        return (record_id, source, attempt + 1, expires_ms)
    return (record_id, source, attempt + 1, expires_ms, recurrence)


def packed_recurrence(meta: Meta | None) -> bytes | None:
    """Return the record's recurrence as ``recurrence.encode`` packs it; None: it occurs once."""
    return meta[4] if meta is not None and len(meta) >= _RECURRING_FIELDS else None


encode_payload = msgspec.msgpack.Encoder().encode
"""Payload to bytes. Raises nothing for a well-typed payload."""

_Read: TypeAlias = tuple[
    str, int, bytes | None, bytes | None, list[Header], int, tuple[bytes | int | None, ...] | None
]
"""``Payload`` as far as msgspec can check it: it tells no tuples apart by their length."""

_decode: Callable[[bytes], Payload] = msgspec.msgpack.Decoder(_Read).decode


class Head(msgspec.Struct, array_like=True, gc=False):
    """A payload of which key, value and headers are skipped."""

    target: str
    partition: int
    key: msgspec.Raw
    value: msgspec.Raw
    headers: msgspec.Raw
    due_ms: int
    meta: tuple[bytes | int | None, ...] | None

    @property
    def record_id(self) -> bytes | None:
        """Return its ``delay-id``."""
        return None if self.meta is None else cast("bytes | None", self.meta[0])

    @property
    def was_tried(self) -> bool:
        """Return whether its target has failed before."""
        return self.meta is not None and cast("int", self.meta[2]) > 1


decode_head = msgspec.msgpack.Decoder(Head).decode
"""Bytes to what counting needs, in two thirds of the time of ``decode_payload``. Raises
``msgspec.DecodeError`` if they are no payload."""


def decode_payload(data: bytes) -> Payload:
    """Bytes to payload.

    Raises:
        StoreError: the bytes are no payload of this version, although their checksum was right.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError) as exc:
        raise StoreError(
            f"a stored payload of {len(data)} bytes can't be decoded ({exc}); "
            "move the store folder away and restart: it is rebuilt from Kafka"
        ) from exc
