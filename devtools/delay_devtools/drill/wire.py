"""Formats and formulas of the documents, implemented anew without the service's code.

Sources: ``docs/header-contract.md``, ``docs/internals/design.md`` (checkpoint, copies),
``docs/internals/digests.md`` (digests), and Kafka's ``Utils.murmur2``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
import xxhash

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = list[Header]
Place: TypeAlias = tuple[str, int]

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
MAX_DELAY_MS: Final = 100 * DAY_MS
BY_KEY: Final = -1
# K of a shard before its first settled record.
START_KEY: Final = (0, 2**63 - 1)

_MASK_64: Final = 2**64 - 1
_MASK_32: Final = 2**32 - 1
_GOLDEN: Final = 0x9E37_79B9_7F4A_7C15

# Encoder of a store's payload (target, partition, key, value, headers, due_ms, meta); meta is (id,
# source, attempt, expires_ms), or None without any of them.
pack: Final = msgspec.msgpack.Encoder().encode


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def record_hash(key_ms: int, offset: int, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, (key_ms * _GOLDEN + offset) & _MASK_64)


def hash_text(number: int) -> str:
    return f"{number & _MASK_64:016x}"


@lru_cache(maxsize=4_096)
def partition_of(key: bytes, count: int) -> int:
    m, r = 0x5BD1_E995, 24
    h = 0x9747_B28C ^ len(key)
    body = len(key) // 4 * 4
    for start in range(0, body, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & _MASK_32
        h = (h * m & _MASK_32) ^ ((k ^ k >> r) * m & _MASK_32)
    if body < len(key):
        h = (h ^ int.from_bytes(key[body:], "little")) * m & _MASK_32
    h = (h ^ h >> 13) * m & _MASK_32
    return ((h ^ h >> 15) & 0x7FFF_FFFF) % count


def topic_hash(topic_id: str) -> str:
    return hashlib.blake2b(topic_id.encode(), digest_size=12).hexdigest()


def signed_copy(
    place: Place,
    secret: bytes,
    facts: dict[str, Any],
    content: tuple[bytes | None, bytes | None, Headers],
) -> Headers:
    """Return the headers of a requeued record: its own, ``delay-copy`` and the signature."""
    told = {
        n: base64.b64encode(v).decode() if isinstance(v, bytes) else v for n, v in facts.items()
    }
    return _signed("delay-copy", place, secret, {"v": 1, **told}, content)


def signed_envelope(
    place: Place,
    secret: bytes,
    shard: str,
    facts: dict[str, Any],
    content: tuple[bytes | None, bytes | None, Headers],
) -> Headers:
    source = base64.b64encode(facts["source"]).decode()
    told = {"v": 1, "op": "schedule", **facts, "source": source, "shard": shard}
    return _signed("delay-home", place, secret, told, content)


def _signed(
    name: str,
    place: Place,
    secret: bytes,
    told: dict[str, Any],
    content: tuple[bytes | None, bytes | None, Headers],
) -> Headers:
    key, value, own = content
    text = to_json(told)
    parts: list[bytes | None] = [f"{name} 1".encode(), f"{place[0]}:{place[1]}".encode(), text]
    parts += [key, value]
    for header, said in own:
        parts += [header.encode(), said]
    mac = hmac.digest(secret, b"".join(map(_measured, parts)), "sha256")
    return [*own, (name, text), (f"{name}-mac", mac.hex().encode())]


def _measured(part: bytes | None) -> bytes:
    # The length in front makes different lists of parts differ in bytes; -1: None.
    return struct.pack(">q", -1) if part is None else struct.pack(">q", len(part)) + part


def contract(roll_window_ms: int, max_delay_ms: int = MAX_DELAY_MS) -> dict[str, object]:
    return {
        "version": 1,
        "roll_window_ms": roll_window_ms,
        "roll_spread_ms": 0,
        "max_delay_ms": max_delay_ms,
        "clamp": False,
        "past_due": "deliver",
        "default_target": None,
        "header_bytes_max": 4_096,
        "id_bytes_max": 512,
        "level_ms": 0,
        "id_partitions": 0,
    }
