"""Headers that the service adds to delivered records, and the content of dead letters.

An *output* is a record that the service writes to settle a source record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayservice.contract.backoff import backoff_of
from delayservice.contract.codec import Meta, Payload
from delayservice.contract.codes import printable
from delayservice.contract.entry import Headers, Original
from delayservice.contract.input_headers import own_headers
from delayservice.contract.names import (
    DELAY_AT,
    DELAY_ATTEMPT,
    DELAY_DUE_AT,
    DELAY_ERROR,
    DELAY_ERROR_DETAIL,
    DELAY_EXPIRES_AT,
    DELAY_ID,
    DELAY_SETTLES,
    DELAY_SHARD,
    DELAY_SOURCE,
    DELAY_TARGET_PARTITION,
    DELAY_TARGET_TOPIC,
    Header,
)
from delayservice.contract.recurrence import recurrence_of

# Above these bytes of value or header values, the record's exact size is checked.
LARGE_BYTES: Final = 500_000


class Provenance:
    __slots__ = ("_prefix", "_shard")

    def __init__(self, topic: str, partition: int) -> None:
        self._shard = f"{topic}:{partition}".encode()
        self._prefix = self._shard + b":"

    def source(self, offset: int, meta: Meta | None) -> bytes:
        """Return ``delay-source``: ``topic:partition:offset`` where the user wrote it."""
        if meta is not None and meta[1] is not None:
            return meta[1]
        return self._prefix + b"%d" % offset

    def elsewhere(self, meta: Meta | None) -> bytes | None:
        """Return ``delay-source``, without an occurrence's number, if written to another shard."""
        source = None if meta is None else meta[1]
        if source is None or source.startswith(self._prefix):
            return None
        return source.partition(b"#")[0]

    def origin(self, offset: int) -> tuple[Header, Header]:
        """Return ``delay-source`` and ``delay-settles`` of a record that a user wrote to this
        shard.
        """
        settles = b"%d" % offset
        return (DELAY_SOURCE, self._prefix + settles), (DELAY_SETTLES, settles)

    def settles(self, offset: int, source: bytes) -> Headers:
        """Return ``delay-settles``, and ``delay-shard`` if the user wrote the record to another
        shard.
        """
        settles: Header = (DELAY_SETTLES, b"%d" % offset)
        return (
            [settles] if source.startswith(self._prefix) else [settles, (DELAY_SHARD, self._shard)]
        )

    def headers(self, offset: int, due_ms: int, meta: Meta | None) -> Headers:
        """Return the headers that a delivery adds to the record's; ``due_ms`` is in epoch ms."""
        if meta is None:
            settles = b"%d" % offset
            return [  # in one piece, for every plain record goes through it (``bench whole``)
                (DELAY_DUE_AT, b"%d" % due_ms),
                (DELAY_SOURCE, self._prefix + settles),
                (DELAY_SETTLES, settles),
            ]
        source = self.source(offset, meta)
        added: list[Header] = [
            due_header(due_ms),
            (DELAY_SOURCE, source),
            *self.settles(offset, source),
        ]
        if meta[0] is not None:
            added.append((DELAY_ID, meta[0]))
        if meta[2] > 1:
            added.append((DELAY_ATTEMPT, b"%d" % meta[2]))
        return added


def due_header(due_ms: int) -> Header:
    return DELAY_DUE_AT, b"%d" % due_ms


def dead_letter_headers(
    original: Sequence[Header] | None, code: str, detail: str, source: bytes
) -> Headers:
    """Return the headers of a dead letter, a new list: the record's, then code, detail, source. The
    last header of a name counts, so a header of the record does not hide an added one.
    """
    return [
        *(original or ()),
        (DELAY_ERROR, code.encode()),
        (DELAY_ERROR_DETAIL, printable(detail).encode()),
        (DELAY_SOURCE, source),
    ]


def to_input_headers(payload: Payload) -> Original:
    """Return a pending record's content with the input headers that ask for the same delivery, so
    that its dead letter can be replayed.
    """
    target, partition, key, value, headers, due_ms, meta = payload
    backoff = backoff_of(headers)
    if backoff is None:
        asked = [*headers, (DELAY_AT, b"%d" % due_ms)]
    else:
        failed = backoff._replace(retries=backoff.retries - 1)
        asked = [*own_headers(headers), *failed.asked(), due_header(due_ms)]
    asked.append((DELAY_TARGET_TOPIC, target.encode()))
    recurrence = recurrence_of(meta)
    if recurrence is not None:
        asked += recurrence.headers()
    if partition >= 0:
        asked.append((DELAY_TARGET_PARTITION, b"%d" % partition))
    if meta is not None and meta[0] is not None:
        asked.append((DELAY_ID, meta[0]))
    if meta is not None and meta[3] is not None:
        asked.append((DELAY_EXPIRES_AT, b"%d" % meta[3]))
    return key, value, asked


def without_content(original: Original) -> tuple[Original, str]:
    """Return empty content for a dead letter that would be too large, and text for its detail."""
    _, value, headers = original
    held = sum(len(part or b"") for _, part in headers) + len(value or b"")
    told = (
        f"its key, value and headers ({held:,} bytes) are left out, for the dead-letter "
        f"topic refused them; read them at the source; "
    )
    return (None, None, []), told


def is_large(value: bytes | None, headers: Headers) -> bool:
    """Return whether a topic may refuse value or header values as too large."""
    if value is not None and len(value) > LARGE_BYTES:
        return True
    return bool(headers) and sum([len(text or b"") for _, text in headers]) > LARGE_BYTES
