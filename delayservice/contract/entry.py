"""Types of a decoded source record: plain tuples, because there are millions of them."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeAlias

from delayservice.contract.names import Header

# A user's record that is to be delivered later.
SCHEDULE = 0
# Requeued by the service, or a schedule's next occurrence; its signature is right.
COPY = 1
CANCEL = 2
# Breaks the contract and is dead-lettered.
INVALID = 3
# Delivers the pending record of its id now.
FIRE = 4
# Stands for a cancel, replacement or fire that retention has deleted from the log after a stored
# record was marked with its offset.
CONTROL_EXPIRED = 5
# A user's valid record whose id has its home in another partition, to which it is sent.
HOMEBOUND = 6
# A user's record that is scheduled when H passes it if no record of its id is pending then.
ABSENT = 7

OFFSET_MAX = 2**63 - 1

Headers: TypeAlias = list[Header]

TOPIC_NAME: Final = r"[A-Za-z0-9._-]{1,249}"
_PLACE: Final = re.compile(rf"({TOPIC_NAME}):(\d{{1,9}}):(\d{{1,18}})(?:#\d{{1,19}})?", re.ASCII)


class RecordPlace(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class NewRecord(NamedTuple):
    """Record that is to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def read_place(text: str) -> RecordPlace | None:
    """Return the place in ``topic:partition:offset``, perhaps with ``#n``, the number of an
    occurrence; None: another form.
    """
    found = _PLACE.fullmatch(text)
    return None if found is None else RecordPlace(found[1], int(found[2]), int(found[3]))


# (key, value, headers) of a source record as it was written.
Original: TypeAlias = tuple[bytes | None, bytes | None, Headers]

# (code, detail); from an envelope (code, detail, 0, delay-source), the last arguments of
# ``UndeliveredOutputs.dead_letter``; 0: no due time.
Refusal: TypeAlias = tuple[str, str] | tuple[str, str, int, bytes]

# (kind, append time in epoch ms, home partition of its id).
Foreign: TypeAlias = tuple[int, int, int]

Entry: TypeAlias = tuple[int, int, int, bytes | None, Any, Any]
"""Decoded source record: ``(offset, kind, key_ms, id, payload, extra)``.

===============  ===================  =============  ============  ==============
kind             key_ms               id             payload       extra
===============  ===================  =============  ============  ==============
SCHEDULE         min(due, roll time)  bytes or None  ``Payload``   None
COPY             time in its header   bytes or None  ``Payload``   base
CANCEL           0                    bytes          ``Original``  source or None
FIRE             0                    bytes          ``Original``  source or None
HOMEBOUND        0                    bytes          ``Original``  ``Foreign``
ABSENT           0                    bytes          ``Original``  ``Payload``
INVALID          0                    None           ``Original``  ``Refusal``
CONTROL_EXPIRED  0                    None           ``Original``  log start
===============  ===================  =============  ============  ==============

``key_ms`` is in epoch ms. ``id`` is the ``delay-id``. ``source`` is the ``delay-source`` of a
record that came in an envelope, else None. ``base`` is the first offset at which a record of the
same id cancels a requeued one (design rule 12). Log start: the first offset that H does not skip.

The last two columns depend on the kind, which no type checker narrows in an unpacked tuple, and a
class per kind would take longer than reading a plain record in ``record``: hence ``Any``, here and
nowhere else.

``key_ms`` of ``SCHEDULE`` and ``COPY`` is at least 1, so their keys are above ``cursor.START_KEY``.
A ``key_ms`` below the payload's ``due_ms`` is a roll time; one above it is the end of a wait after
the due time."""

# Compared by identity: headers that the client library can't decode. Kafka's header names are UTF-8
# by protocol, yet a broker accepts any bytes. confluent-kafka 2.16.1 raises ``SystemError`` for a
# name that is not UTF-8, and cuts a name at a zero byte.
UNREADABLE: Headers = [("", None)]


def scheduled(entry: Entry) -> Any:  # noqa: ANN401  # see above
    """Return the ``Payload`` of a user's record that is to be delivered; None: another kind."""
    _, kind, _, _, payload, extra = entry
    return payload if kind == SCHEDULE else extra if kind == ABSENT else None


# (offset, append time in epoch ms, key, value, headers) as a consumer received it.
PolledRecord: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers | None]
