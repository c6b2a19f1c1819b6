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
from delayservice.contract.entry import ABSENT, CANCEL, FIRE, SCHEDULE, Original
from delayservice.contract.input_headers import CANCEL_OP, FIRE_OP, SCHEDULE_OP
from delayservice.contract.names import DELAY_HOME, DELAY_HOME_MAC, DELAY_ID, DELAY_OP, Header
from delayservice.contract.signing import Signer

ENVELOPE_VERSION: Final = 1

# Its record was settled when it began to wait inside a later record of its id.
SETTLES_NOTHING: Final = -1

_OPS: Final = {SCHEDULE: SCHEDULE_OP, ABSENT: "absent", CANCEL: CANCEL_OP, FIRE: FIRE_OP}
_KINDS: Final = {name: kind for kind, name in _OPS.items()}
_SIGNER: Final = Signer(b"delay-home 1", DELAY_HOME, DELAY_HOME_MAC)


class Sent(NamedTuple):
    """Record of a user that is sent to the home partition of its id. ``source`` is its
    ``delay-source``, ``written_ms`` its append time there in epoch ms, from which its delay counts.
    """

    kind: int
    source: bytes
    written_ms: int
    original: Original


# In the order in which they were written.
Group: TypeAlias = tuple[Sent, ...]


class Arrived(NamedTuple):
    """Content of an envelope, sent from ``shard`` (``topic:partition``), whose record ``settles``
    the envelope settles (an offset, or ``SETTLES_NOTHING``).
    """

    sent: Sent
    settles: int
    shard: str


class _HomeFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of the header ``delay-home`` of an envelope, or of a record that waits for its home.
    ``op`` is ``schedule``, ``absent``, ``cancel`` or ``fire``; ``written`` is in epoch ms. A
    waiting record has no ``shard``, ``settles`` an earlier waiting record, and contains
    ``carried``.
    """

    v: int
    op: str
    source: bytes
    written: int
    settles: int = SETTLES_NOTHING
    shard: str = ""
    carried: Group = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_HomeFields).decode


def homebound(
    kind: int, record_id: bytes, source: bytes, written_ms: int, original: Original
) -> Sent:
    """Return a user's record as it is sent home. A cancel or fire keeps only operation and id."""
    if kind not in (SCHEDULE, ABSENT):
        original = (None, None, [(DELAY_OP, _OPS[kind].encode()), (DELAY_ID, record_id)])
    return Sent(kind, source, written_ms, original)


def write_envelope(
    topic: str, home: int, secret: bytes, sent: Sent, settles: int, shard: str
) -> Original:
    """Return a record's envelope, to be appended to partition ``home`` of the delay topic, to which
    its signature is bound. ``settles``: offset in ``shard``, or ``SETTLES_NOTHING``.
    """
    fields = _HomeFields(
        ENVELOPE_VERSION, _OPS[sent.kind], sent.source, sent.written_ms, settles, shard
    )
    return _SIGNER.signed(f"{topic}:{home}", secret, _encode(fields), sent.original)


def read_envelope(
    topic: str, partition: int, secrets: Sequence[bytes], original: Original
) -> Sent | None:
    """Return the record in an envelope at this partition; None: no secret signed it for that."""
    arrived = _arrived(_SIGNER.verified(f"{topic}:{partition}", secrets, original))
    return None if arrived is None else arrived.sent


def read_claimed_envelope(original: Original) -> Arrived | None:
    """Return an envelope's content with its signature unchecked; None: it can't be read."""
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
    """Return the payload of ``group``, requeued while its home partition can't be written to.

    ``since_ms``: when its last record began to wait, epoch ms, the payload's due time. ``attempt``:
    number of the next attempt, 1 plus the number of waits. ``took``: offset of an earlier waiting
    record that this one settles by containing it, or ``SETTLES_NOTHING``.
    """
    *before, last = group
    fields = _HomeFields(
        ENVELOPE_VERSION, _OPS[last.kind], last.source, last.written_ms, took, carried=tuple(before)
    )
    key, value, own = last.original
    headers: list[Header] = [*own, (DELAY_HOME, _encode(fields))]
    return (*home, key, value, headers, since_ms, (record_id, last.source, attempt, None))


def waiting_group(payload: Payload) -> Group:
    """Return the records in a payload of ``waiting_payload``, in the order of writing; raise
    ``StoreError`` if it can't be read. Its target is its own delay topic, which no user's record
    can have.
    """
    return _waiting(payload)[0]


def taken_along(payload: Payload) -> int:
    """Return the offset of the waiting record that this one settles, or ``SETTLES_NOTHING``."""
    return _waiting(payload)[1]


def _waiting(payload: Payload) -> tuple[Group, int]:
    _, _, key, value, headers, _, _ = payload
    name, text = headers[-1] if headers else ("", None)
    fields = _fields(text or b"") if name == DELAY_HOME else None
    if fields is None:
        raise StoreError(f"a record that waits for its home has no {DELAY_HOME} that can be read")
    last = Sent(_KINDS[fields.op], fields.source, fields.written, (key, value, headers[:-1]))
    return (*fields.carried, last), fields.settles


def _fields(text: bytes) -> _HomeFields | None:
    try:
        fields = _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
    kinds = [one.kind for one in fields.carried]
    is_known = fields.op in _KINDS and all(kind in _OPS for kind in kinds)
    return fields if fields.v == ENVELOPE_VERSION and is_known else None
