"""Headers that the service adds to delivered records, and the content of dead letters.

An *output* is a record that the service writes to settle a source record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayservice.contract.codec import Meta, Payload
from delayservice.contract.codes import printable
from delayservice.contract.entry import Headers, Original
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

_LARGE_BYTES: Final = 500_000
"""Size in bytes of a value, or of all header values together, above which the exact size of the
record is checked."""


class Provenance:
    """Builder of the headers of one shard's outputs that name the source record."""

    __slots__ = ("_prefix", "_shard")

    def __init__(self, topic: str, partition: int) -> None:
        """Prepare for the outputs of ``partition`` of the delay topic ``topic``."""
        self._shard = f"{topic}:{partition}".encode()
        self._prefix = self._shard + b":"

    def source(self, offset: int, meta: Meta | None) -> bytes:
        """Return ``delay-source``: ``topic:partition:offset`` of the record as the user wrote it.

        Args:
            offset: source offset of the record.
            meta: meta of the record's payload, which names the user's record if this one was
                requeued.
        """
        if meta is not None and meta[1] is not None:
            return meta[1]
        return self._prefix + b"%d" % offset

    def is_copy(self, offset: int, meta: Meta | None) -> bool:
        """Return whether the record at source offset ``offset`` was requeued or came in an
        envelope, so that the user wrote it at another place, which its ``meta`` names.
        """
        return self.source(offset, meta).split(b"#", 1)[0] != self._prefix + b"%d" % offset

    def elsewhere(self, meta: Meta | None) -> bytes | None:
        """Return ``delay-source``, without the number of an occurrence, of a record of this shard
        that the user wrote to another shard; None: the user wrote it to this shard. ``meta``: meta
        of the record's payload.
        """
        source = None if meta is None else meta[1]
        if source is None or source.startswith(self._prefix):
            return None
        return source.partition(b"#")[0]

    def origin(self, offset: int) -> tuple[Header, Header]:
        """Return the headers ``delay-source`` and ``delay-settles`` for the output of a record that
        a user wrote to this shard at source offset ``offset``.
        """
        settles = b"%d" % offset
        return (DELAY_SOURCE, self._prefix + settles), (DELAY_SETTLES, settles)

    def settles(self, offset: int, source: bytes) -> Headers:
        """Return the header ``delay-settles`` with ``offset``. If the user wrote the record to
        another shard, such as a level topic's, add ``delay-shard``, which names this shard.

        Args:
            offset: source offset of the record that the output settles.
            source: ``delay-source`` of the record as the user wrote it.
        """
        settles: Header = (DELAY_SETTLES, b"%d" % offset)
        return (
            [settles] if source.startswith(self._prefix) else [settles, (DELAY_SHARD, self._shard)]
        )

    def headers(self, offset: int, due_ms: int, meta: Meta | None) -> Headers:
        """Return the headers that a delivery adds to the record's own headers: due time, source and
        settled offset; also id and attempt, if the record has an id or was tried before.

        Args:
            offset: source offset of the record that is delivered.
            due_ms: its due time, epoch milliseconds.
            meta: meta of its payload.
        """
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
    """Return the header ``delay-due-at``; ``due_ms`` is in epoch milliseconds."""
    return DELAY_DUE_AT, b"%d" % due_ms


def dead_letter_headers(
    original: Sequence[Header] | None, code: str, detail: str, source: bytes
) -> Headers:
    """Return the headers of a dead letter: the record's headers, then code, detail and source.

    The last header of a name counts, so a header of the record does not hide an added one.

    Args:
        original: headers of the record as it was written; None: it has none.
        code: one of ``codes.EXPLANATIONS``.
        detail: why, as text for people; ``codes.printable`` is applied to it.
        source: ``delay-source`` of the record as the user wrote it.

    Returns:
        A new list; the caller appends ``delay-settles``.
    """
    return [
        *(original or ()),
        (DELAY_ERROR, code.encode()),
        (DELAY_ERROR_DETAIL, printable(detail).encode()),
        (DELAY_SOURCE, source),
    ]


def asked_again(payload: Payload) -> Original:
    """Return key, value and headers of a pending record for its dead letter. Input headers for the
    same due time, target, id, expiry and recurrence are added, so that the dead letter can be
    replayed.
    """
    target, partition, key, value, headers, due_ms, meta = payload
    asked: list[Header] = [
        *headers,
        (DELAY_AT, b"%d" % due_ms),
        (DELAY_TARGET_TOPIC, target.encode()),
    ]
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
    """Return ``(None, None, [])``, as key, value and headers of a dead letter that would be too
    large with those of ``original``, and a text to put before the dead letter's detail, which says
    that they were left out.
    """
    _, value, headers = original
    held = sum(len(part or b"") for _, part in headers) + len(value or b"")
    told = (
        f"its key, value and headers ({held:,} bytes) are left out, for the dead-letter "
        f"topic refused them; read them at the source; "
    )
    return (None, None, []), told


def is_large(value: bytes | None, headers: Headers) -> bool:
    """Return whether the value, or all header values together, have over 500,000 bytes, so that a
    topic may refuse the record as too large.
    """
    if value is not None and len(value) > _LARGE_BYTES:
        return True
    return bool(headers) and sum([len(text or b"") for _, text in headers]) > _LARGE_BYTES
