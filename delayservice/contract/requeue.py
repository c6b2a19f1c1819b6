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

# Holds a schedule's next occurrence and settles no record.
CONTINUES: Final = -1

# (base, key time in epoch ms, payload). A record of its id at ``base`` or above cancels it.
Copy: TypeAlias = tuple[int, int, Payload]

_SIGNER: Final = Signer(b"delay-copy 1", DELAY_COPY, DELAY_COPY_MAC)


# ``at``, ``due``, ``expires`` and ``turn`` are epoch ms; bytes are base64.
class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
    """Return a pending record as it is requeued to ``partition`` of ``topic``, to which its
    signature is bound.

    ``settles``: source offset of the record that it settles, or ``CONTINUES``. ``source``:
    ``delay-source`` of the record as the user wrote it. ``base``: first offset at which a record of
    its id cancels it. ``at_ms``: when it is to be settled, epoch ms, 1 or more. ``shard``:
    ``topic:partition`` of ``settles`` if it is not the partition to append to: a level topic's
    record is parked in another delay topic.
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
    """Return the content of a requeued record; None: no secret signed it for this partition. Its
    meta always names the place where the user wrote the record. Never raises.
    """
    if _SIGNER.verified(f"{topic}:{partition}", secrets, original) is None:
        return None
    claim = read_claim(original)
    return None if claim is None else (claim.base, claim.at_ms, claim.payload)


class Claim(NamedTuple):
    """Content of a requeued record with its signature unchecked; fields as in ``write_copy``."""

    settles: int
    shard: str | None
    base: int
    at_ms: int
    payload: Payload


def read_claim(original: Original) -> Claim | None:
    """Return a requeued record's content unchecked, for readers without the cluster secret; None:
    it can't be read. Never raises.
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
