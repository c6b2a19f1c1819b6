"""Roll and park copies (design rule 12): a pending record appended again to its own partition.

The copy keeps the record's key, value and own headers byte for byte, and adds two headers::

    delay-copy      JSON: v, settles, source, base, at, due, target, partition, id, attempt,
                    expires; with v 2 also recur, shard or turn
    delay-copy-mac  HMAC-SHA256 (hex) over where it was written, delay-copy, key, value and headers

Why it is signed: ``signing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from delayservice.contract.codec import Meta, Payload
from delayservice.contract.entry import Original
from delayservice.contract.names import DELAY_COPY, DELAY_COPY_MAC
from delayservice.contract.signing import Signer
from delayservice.contract.times import DUE_STOP_MS

COPY_VERSION: Final = 2
"""2: of a recurring schedule, of a record of a level topic, or of one that a rate limit gave its
turn. Others are written as 1, which every version reads."""

CONTINUES: Final = -1
"""``settles`` of a copy that settles nothing: the next occurrence of a schedule."""

Copy: TypeAlias = tuple[int, int, Payload]
"""``(base, at_ms, payload)`` of a copy whose signature is right."""

_SIGNER: Final = Signer(b"delay-copy 1", DELAY_COPY, DELAY_COPY_MAC)


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
) -> Original:
    """Return a copy, as the record to append to ``topic`` and ``partition``.

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
    return _SIGNER.signed(f"{topic}:{partition}", secret, _encode(fields), (key, value, own))


def read_copy(
    topic: str, partition: int, secrets: Sequence[bytes], original: Original
) -> Copy | None:
    """Return what ``write_copy`` wrote; None: not signed by any of ``secrets``, or not intact.

    The payload's meta always names the source. Never raises.
    """
    if _SIGNER.verified(f"{topic}:{partition}", secrets, original) is None:
        return None
    claim = read_claim(original)
    return None if claim is None else (claim.base, claim.at_ms, claim.payload)


class Claim(NamedTuple):
    """The claims of a record that says it is a copy; ``shard`` is None where it is its own."""

    settles: int
    shard: str | None
    base: int
    at_ms: int
    payload: Payload


def read_claim(original: Original) -> Claim | None:
    """Return the claims of a copy without verifying them; None: they can't be read.

    For those who read topics without the cluster's secret. Never raises.
    """
    found = _SIGNER.claimed(original)
    if found is None:
        return None
    text, (key, value, own) = found
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
