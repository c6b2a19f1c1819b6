"""Envelopes, in which the service sends records to the home of their id, and records that wait for
their home.

Clients partition differently, so a cancel may lie in another partition than the record that it
cancels. An id has a **home**: partition murmur2(id) modulo a number that the contract fixes. For a
record that lies in another partition, the service appends an *envelope* to the home: key, value and
headers of the record, and two more headers. The envelope settles the record where it lies::

    delay-home      JSON: v, op, source, written, settles, shard
    delay-home-mac  HMAC-SHA256 (hex) over where it was written, delay-home, key, value and headers

The envelope of a cancel or fire has neither key nor value, and no user's headers, so it is never
too large. While the home can't be written to, the record *waits*: it is requeued where it lies, as
a parked record whose target is its home, together with the records of its id that waited before it
(``carried``). ``signing`` says why envelopes are signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from delayservice.base.errors import StoreError
from delayservice.contract.codec import Payload
from delayservice.contract.draft import CANCEL_OP, FIRE_OP, SCHEDULE_OP
from delayservice.contract.entry import CANCEL, FIRE, SCHEDULE, Original
from delayservice.contract.names import DELAY_HOME, DELAY_HOME_MAC, DELAY_ID, DELAY_OP, Header
from delayservice.contract.signing import Signer

ENVELOPE_VERSION: Final = 1

SETTLES_NOTHING: Final = -1
"""Value of ``settles`` of an envelope that settles no record: its record was settled before, when
it began to wait inside a later record of its id."""

_OPS: Final = {SCHEDULE: SCHEDULE_OP, CANCEL: CANCEL_OP, FIRE: FIRE_OP}
_KINDS: Final = {name: kind for kind, name in _OPS.items()}
_SIGNER: Final = Signer(b"delay-home 1", DELAY_HOME, DELAY_HOME_MAC)


class Sent(NamedTuple):
    """Record of a user that is sent to the home partition of its id.

    Attributes:
        kind: ``SCHEDULE``, ``CANCEL`` or ``FIRE`` of ``entry``.
        source: ``delay-source``, the place where the user wrote it.
        written_ms: append time where the user wrote it, epoch milliseconds, from which its delay
            counts.
        original: key, value and headers in the envelope.
    """

    kind: int
    source: bytes
    written_ms: int
    original: Original


Group: TypeAlias = tuple[Sent, ...]
"""Records of one id in the order in which they were written."""


class Arrived(NamedTuple):
    """Content of an envelope.

    Attributes:
        sent: the record.
        settles: offset of the record in ``shard`` that the envelope settles, or
            ``SETTLES_NOTHING``.
        shard: ``topic:partition`` from which the record was sent.
    """

    sent: Sent
    settles: int
    shard: str


class _Carried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record that waits for its home partition inside a later waiting record of the same id.
    ``op`` is its operation, ``written`` its append time in epoch ms. Bytes are base64 in the JSON.
    """

    op: str
    source: bytes
    written: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class _HomeFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of the header ``delay-home`` of an envelope, or of a record that waits for its home.

    Attributes:
        v: format version.
        op: ``schedule``, ``cancel`` or ``fire``.
        source: ``delay-source``, the place where the user wrote the record.
        written: its append time there, epoch milliseconds.
        settles: in an envelope, the offset in ``shard`` that it settles; in a waiting record, the
            offset of an earlier waiting record that it contains; or ``SETTLES_NOTHING``.
        shard: ``topic:partition`` from which an envelope was sent; empty in a waiting record.
        carried: earlier records that wait inside a waiting record.
    """

    v: int
    op: str
    source: bytes
    written: int
    settles: int = SETTLES_NOTHING
    shard: str = ""
    carried: tuple[_Carried, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_HomeFields).decode


def homebound(
    kind: int, record_id: bytes, source: bytes, written_ms: int, original: Original
) -> Sent:
    """Return a user's record as it is sent to the home partition of its id. A cancel or fire keeps
    only operation and id.

    Args:
        kind: ``SCHEDULE``, ``CANCEL`` or ``FIRE`` of ``entry``.
        record_id: the id.
        source: ``delay-source``, the place where the user wrote the record.
        written_ms: its append time, epoch milliseconds.
        original: its key, value and headers.
    """
    if kind != SCHEDULE:
        original = (None, None, [(DELAY_OP, _OPS[kind].encode()), (DELAY_ID, record_id)])
    return Sent(kind, source, written_ms, original)


def write_envelope(
    topic: str, home: int, secret: bytes, sent: Sent, settles: int, shard: str
) -> Original:
    """Return the envelope of a record, to be appended to partition ``home`` of the delay topic.

    Args:
        topic: the delay topic; the signature is bound to it and to ``home``.
        home: the partition.
        secret: the cluster secret.
        sent: the record.
        settles: the offset of ``shard`` that the envelope settles, or ``SETTLES_NOTHING``.
        shard: ``topic:partition`` where the record lies.
    """
    fields = _HomeFields(
        ENVELOPE_VERSION, _OPS[sent.kind], sent.source, sent.written_ms, settles, shard
    )
    return _SIGNER.signed(f"{topic}:{home}", secret, _encode(fields), sent.original)


def read_envelope(
    topic: str, partition: int, secrets: Sequence[bytes], original: Original
) -> Sent | None:
    """Return the record in an envelope, ``original``, that lies in ``partition`` of the delay topic
    ``topic``; None: none of ``secrets`` signed it for this partition, or it can't be read.
    """
    arrived = _arrived(_SIGNER.verified(f"{topic}:{partition}", secrets, original))
    return None if arrived is None else arrived.sent


def read_claimed_envelope(original: Original) -> Arrived | None:
    """Return the content of an envelope without a check of its signature, for readers that don't
    have the cluster secret; None: it can't be read.
    """
    return _arrived(_SIGNER.claimed(original))


def _arrived(found: tuple[bytes, Original] | None) -> Arrived | None:
    fields = None if found is None else _fields(found[0])
    if found is None or fields is None:
        return None
    sent = Sent(_KINDS[fields.op], fields.source, fields.written, found[1])
    return Arrived(sent, fields.settles, fields.shard)


def waiting_payload(
    home: tuple[str, int], record_id: bytes, group: Group, since_ms: int, attempt: int, took: int
) -> Payload:
    """Return the payload of a record that is requeued while its home partition can't be written to.
    Its target is that partition.

    Args:
        home: the delay topic and the home partition.
        record_id: the id of all records of ``group``.
        group: the records that wait, at least one, in the order in which users wrote them.
        since_ms: due time of the payload: when the last of them began to wait, epoch milliseconds.
        attempt: number of the next attempt to send them home: 1 plus the number of waits.
        took: offset of an earlier waiting record that is settled by being part of ``group``, or
            ``SETTLES_NOTHING``.
    """
    *before, last = group
    carried = tuple([_carried(one) for one in before])
    fields = _HomeFields(
        ENVELOPE_VERSION, _OPS[last.kind], last.source, last.written_ms, took, carried=carried
    )
    key, value, own = last.original
    headers: list[Header] = [*own, (DELAY_HOME, _encode(fields))]
    return (*home, key, value, headers, since_ms, (record_id, last.source, attempt, None))


def waiting_group(payload: Payload) -> Group:
    """Return the records in a payload that ``waiting_payload`` built, in the order in which users
    wrote them. Such a payload has its own delay topic as target, which no user's record can have.

    Raises:
        StoreError: the payload can't be read, although its checksum or signature was right.
    """
    return _waiting(payload)[0]


def taken_along(payload: Payload) -> int:
    """Return the offset of the earlier waiting record that the waiting record with ``payload``
    settles by containing it, or ``SETTLES_NOTHING``. Raises ``StoreError`` as ``waiting_group``
    does.
    """
    return _waiting(payload)[1]


def _waiting(payload: Payload) -> tuple[Group, int]:
    _, _, key, value, headers, _, _ = payload
    name, text = headers[-1] if headers else ("", None)
    fields = _fields(text or b"") if name == DELAY_HOME else None
    if fields is None:
        raise StoreError(f"a record that waits for its home has no {DELAY_HOME} that can be read")
    last = Sent(_KINDS[fields.op], fields.source, fields.written, (key, value, headers[:-1]))
    before = [
        Sent(_KINDS[one.op], one.source, one.written, (one.key, one.value, one.headers))
        for one in fields.carried
    ]
    return (*before, last), fields.settles


def _carried(sent: Sent) -> _Carried:
    key, value, headers = sent.original
    return _Carried(_OPS[sent.kind], sent.source, sent.written_ms, key, value, headers)


def _fields(text: bytes) -> _HomeFields | None:
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    ops = {fields.op, *[one.op for one in fields.carried]}
    return fields if fields.v == ENVELOPE_VERSION and ops <= _KINDS.keys() else None
