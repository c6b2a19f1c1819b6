"""Roll and park copies (design rule 12): a pending record appended again to its own partition.

The copy keeps the record's key, value and own headers byte for byte, and adds two headers::

    delay-copy      JSON: v, settles, source, base, at, due, target, partition, id, attempt,
                    expires; with v 2 also recur, shard or turn
    delay-copy-mac  HMAC-SHA256 (hex) over where it was written, delay-copy, key, value and headers

Any producer of the delay topic could write such a record, hence the signature: without it, a forged
copy would be delivered past the target allowlist. The signature covers topic and partition, so a
copy is worth nothing elsewhere. It can't tell a copy from the same bytes appended a second time to
the same partition; whoever may do that may write to the delay topic anyway.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from delayservice.core.codec import Meta, Payload
from delayservice.core.entry import Headers, Original
from delayservice.core.names import DELAY_COPY, DELAY_COPY_MAC, Header
from delayservice.core.times import DUE_STOP_MS

COPY_VERSION: Final = 2
"""2: of a recurring schedule, of a record of a level topic, or of one that a rate limit gave its
turn. Others are written as 1, which every version reads."""

CONTINUES: Final = -1
"""``settles`` of a copy that settles nothing: the next occurrence of a schedule."""

Copy: TypeAlias = tuple[int, int, Payload]
"""``(base, at_ms, payload)`` of a copy whose signature is right."""

_DIGEST: Final = "sha256"
_DOMAIN: Final = b"delay-copy 1"
_LENGTH = struct.Struct(">q")
_NULL_LENGTH = _LENGTH.pack(-1)


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ``delay-copy`` header; ids and sources are bytes, base64 in JSON."""

    v: int
    settles: int
    source: bytes
    base: int
    at: int
    due: int
    target: str
    partition: int
    id: bytes | None
    attempt: int
    expires: int | None
    recur: bytes | None = None
    shard: str | None = None
    turn: int | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Fields).decode


def write_copy(  # one argument per fact of the copy
    topic: str,
    partition: int,
    secret: bytes,
    *,
    settles: int,
    source: bytes,
    base: int,
    at_ms: int,
    payload: Payload,
    shard: str | None = None,
) -> tuple[bytes | None, bytes | None, Headers]:
    """A copy, as the record to append to ``topic`` and ``partition``.

    Args:
        topic: the delay topic; the signature is bound to it and to ``partition``.
        partition: its partition.
        secret: the cluster's secret.
        settles: the offset that this copy settles, or ``CONTINUES``.
        source: ``delay-source`` of the user's original; it replaces the payload's own.
        base: where the search for the copy's canceller starts (rule 13).
        at_ms: the copy's key, epoch milliseconds, 1 or more.
        payload: the pending record, with the attempt and due time it is to have.
        shard: ``topic:partition`` that ``settles`` is an offset of, if that is not where the copy
            goes: a record of a level topic is parked in a precise one.

    Returns:
        ``(key, value, headers)``.
    """
    target, target_partition, key, value, own, due_ms, meta = payload
    identity, _, attempt, expires_ms, *more = meta or (None, None, 1, None)
    recur, turn_ms = (*more, None, None)[:2]
    fields = _Fields(
        v=1 if recur is None and shard is None and turn_ms is None else COPY_VERSION,
        settles=settles,
        source=source,
        base=base,
        at=at_ms,
        due=due_ms,
        target=target,
        partition=target_partition,
        id=identity,
        attempt=attempt,
        expires=expires_ms,
        recur=recur,
        shard=shard,
        turn=turn_ms,
    )
    text = _encode(fields)
    mac = _sign(secret, _message(f"{topic}:{partition}", text, (key, value, own)))
    return key, value, [*own, (DELAY_COPY, text), (DELAY_COPY_MAC, mac)]


def read_copy(
    topic: str, partition: int, secrets: Sequence[bytes], original: Original
) -> Copy | None:
    """What ``write_copy`` wrote, or None: not signed by any of ``secrets``, or not intact.

    The payload's meta always names the source. Never raises.
    """
    key, value, headers = original
    own, text, mac = _split(headers)
    if text is None or mac is None:
        return None
    message = _message(f"{topic}:{partition}", text, (key, value, own))
    if not any(hmac.compare_digest(_sign(secret, message), mac) for secret in secrets):
        return None
    claim = read_claim(original)
    return None if claim is None else (claim.base, claim.at_ms, claim.payload)


class Claim(NamedTuple):
    """What a record says that claims to be a copy; ``shard`` is None where it is its own."""

    settles: int
    shard: str | None
    base: int
    at_ms: int
    payload: Payload


def read_claim(original: Original) -> Claim | None:
    """What a copy says, its signature not looked at; None: it claims nothing that can be read.

    For those who read topics without the cluster's secret. Never raises.
    """
    key, value, headers = original
    own, text, mac = _split(headers)
    if text is None or mac is None:
        return None
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    if not 1 <= fields.v <= COPY_VERSION or not 1 <= fields.at < DUE_STOP_MS:
        return None
    meta: Meta = (fields.id, fields.source, fields.attempt, fields.expires)
    if fields.turn is not None:
        meta = (*meta[:4], fields.recur, fields.turn)
    elif fields.recur is not None:
        meta = (*meta[:4], fields.recur)
    payload = (fields.target, fields.partition, key, value, own, fields.due, meta)
    return Claim(fields.settles, fields.shard, fields.base, fields.at, payload)


def _split(headers: Headers) -> tuple[Headers, bytes | None, bytes | None]:
    """Own headers, copy text, signature. A copy has each of the last two once, at the end."""
    *own, copy, mac = headers if len(headers) > 1 else [*headers, ("", None), ("", None)]
    once = copy[0] == DELAY_COPY and mac[0] == DELAY_COPY_MAC
    if not once or any(_is_copy_header(header) for header in own):
        return own, None, None
    return own, copy[1], mac[1]


def _is_copy_header(header: Header) -> bool:
    return header[0] in (DELAY_COPY, DELAY_COPY_MAC)


def _sign(secret: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, message, _DIGEST).hex().encode("ascii")


def _message(shard: str, text: bytes, record: Original) -> bytes:
    """The signed bytes: each part behind its length, -1 for null, so no two records share them."""
    key, value, own = record
    parts = [_DOMAIN, shard.encode(), text, key, value]
    for name, content in own:
        parts.append(name.encode())
        parts.append(content)
    pieces = []
    for part in parts:
        if part is None:
            pieces.append(_NULL_LENGTH)
        else:
            pieces.append(_LENGTH.pack(len(part)))
            pieces.append(part)
    return b"".join(pieces)
