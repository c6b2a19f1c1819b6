"""A source record once it is read: plain tuples, because millions of them pass through."""

from __future__ import annotations

from typing import Any, TypeAlias

from delayservice.contract.names import Header

SCHEDULE = 0
"""A user's record to be delivered later."""
COPY = 1
"""The service's own rolled or parked copy of one, its signature verified."""
CANCEL = 2
"""Cancels the pending record of its id."""
INVALID = 3
"""Breaks the contract: to be dead-lettered."""
FIRE = 4
"""Delivers the pending record of its id now."""
CONTROL_LOST = 5
"""In place of a record that marked another one in the store, and is no longer in the log: a cancel,
a replacement or a fire."""
HOMEBOUND = 6
"""A user's valid record with an id whose home is another partition: to be sent there."""

OFFSET_MAX = 2**63 - 1
"""The largest offset that a partition can have."""

Headers: TypeAlias = list[Header]

Original: TypeAlias = tuple[bytes | None, bytes | None, Headers]
"""``(key, value, headers)`` of a source record as it was written."""

Refusal: TypeAlias = tuple[str, str] | tuple[str, str, int, bytes]
"""``(code, detail)`` of an ``INVALID`` entry; the code is one of ``codes.EXPLANATIONS``. Of what
has come home also the due time 0 and its source."""

Foreign: TypeAlias = tuple[int, int, int]
"""``(kind, written_ms, home)`` of a ``HOMEBOUND`` entry: SCHEDULE, CANCEL or FIRE, its timestamp,
and the partition where its id is at home."""

Entry: TypeAlias = tuple[int, int, int, bytes | None, Any, Any]
"""``(offset, kind, key_ms, id, payload, extra)``.

=========  =====================  ==========  =============  ==================
kind       key_ms                 id          payload        extra
=========  =====================  ==========  =============  ==================
SCHEDULE   min(due, roll time)    or None     ``Payload``    None
COPY       at_ms                  or None     ``Payload``    base: int, rule 12
CANCEL     0                      bytes       ``Original``   source or None
FIRE       0                      bytes       ``Original``   source or None
HOMEBOUND  0                      bytes       ``Original``   ``Foreign``
INVALID    0                      None        ``Original``   ``Refusal``
*_LOST     0                      None        ``Original``   None
=========  =====================  ==========  =============  ==================

A ``source`` is the ``delay-source`` of a record that has come home.

The last two columns depend on the kind, which no type checker narrows in an unpacked tuple, and a
class per kind would cost more than the whole short way of ``record``: hence ``Any``, here and
nowhere else.

``key_ms`` of the first two is at least 1, so their keys are above ``cursor.START_KEY``. Below the
payload's ``due_ms`` it is a roll time; only a parked copy has one above it.
"""

UNREADABLE: Headers = [("", None)]
"""Stands, by identity, for headers that the client library could not hand over.

Kafka's header names are UTF-8 by protocol, yet a broker takes any bytes. The first
``Message.headers()`` of confluent-kafka 2.16.1 then raises ``SystemError`` (its cause is the
``UnicodeDecodeError``); a second one returns a tuple with a null pointer in it, so call it once.
"""

Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers | None]
"""``(offset, timestamp_ms, key, value, headers)`` as a consumer hands them over."""
