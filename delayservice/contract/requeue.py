"""Requeued records, called copies in the code: pending records that the service appends to a delay
topic again (design rule 12).

A requeued record keeps the key, value and headers of the pending record byte for byte, and adds two
headers::

    delay-copy      JSON: v, settles, source, base, at, due, target, partition, id, attempt,
                    expires, and perhaps recur, shard or turn
    delay-copy-mac  HMAC-SHA256 (hex) over where it was written, delay-copy, key, value and headers

The module ``signing`` says why requeued records are signed.
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

COPY_VERSION: Final = 1

CONTINUES: Final = -1
"""Value of ``settles`` of a requeued record that holds a schedule's next occurrence and settles no
record."""

Copy: TypeAlias = tuple[int, int, Payload]
"""``(base, at_ms, payload)`` of a requeued record with a right signature: the first offset at which
a record of the same id cancels it, its key time in epoch ms, and the pending record's content."""

_SIGNER: Final = Signer(b"delay-copy 1", DELAY_COPY, DELAY_COPY_MAC)


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of the header ``delay-copy`` of a requeued record: ``v`` is the format version, the
    others are arguments of ``write_copy`` or items of its payload (``codec``). ``at``, ``due``,
    ``expires`` and ``turn`` are epoch ms. Bytes are base64 in the JSON.
    """

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


def write_copy(
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
    """Return a pending record as it is requeued, to be appended to ``partition`` of ``topic``.

    Args:
        topic: the delay topic; the signature is bound to it and to ``partition``.
        partition: partition of that topic.
        secret: the cluster secret.
        settles: source offset of the record that the requeued one settles, or ``CONTINUES``.
        source: ``delay-source`` of the record as the user wrote it; it replaces the one in
            ``payload``.
        base: first offset at which a record of the same id cancels the requeued one.
        at_ms: key time of the requeued record, when it is to be settled, epoch ms, 1 or more.
        payload: the pending record, with the delivery attempt and due time of the requeued one.
        shard: ``topic:partition`` of the offset ``settles``, if it is not the partition to append
            to: a record of a level topic is parked in another delay topic; else None.

    Returns:
        Key, value and headers of the requeued record.
    """
    target, target_partition, key, value, own, due_ms, meta = payload
    identity, _, attempt, expires_ms, *more = meta or (None, None, 1, None)
    recur, turn_ms = (*more, None, None)[:2]
    fields = _Fields(
        v=COPY_VERSION,
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
    """Return the content of a requeued record, ``original``, that lies in ``partition`` of
    ``topic``; None: none of ``secrets`` signed it for this partition, or it can't be read. The meta
    of the returned payload always names the place where the user wrote the record. Never raises.
    """
    if _SIGNER.verified(f"{topic}:{partition}", secrets, original) is None:
        return None
    claim = read_claim(original)
    return None if claim is None else (claim.base, claim.at_ms, claim.payload)


class Claim(NamedTuple):
    """Content of a requeued record whose signature was not checked. The fields are the arguments of
    ``write_copy`` of the same name.
    """

    settles: int
    shard: str | None
    base: int
    at_ms: int
    payload: Payload


def read_claim(original: Original) -> Claim | None:
    """Return the content of a requeued record without a check of its signature; None: it can't be
    read.

    It serves readers of the topic that don't have the cluster secret. Never raises.
    """
    found = _SIGNER.claimed(original)
    if found is None:
        return None
    text, (key, value, own) = found
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    if fields.v != COPY_VERSION or not 1 <= fields.at < DUE_STOP_MS:
        return None
    meta: Meta = (fields.id, fields.source, fields.attempt, fields.expires)
    if fields.turn is not None:
        meta = (*meta[:4], fields.recur, fields.turn)
    elif fields.recur is not None:
        meta = (*meta[:4], fields.recur)
    payload = (fields.target, fields.partition, key, value, own, fields.due, meta)
    return Claim(fields.settles, fields.shard, fields.base, fields.at, payload)
