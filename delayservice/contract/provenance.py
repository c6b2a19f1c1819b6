"""The headers that the service adds: to what it delivers, and to what it dead-letters."""

from __future__ import annotations

from collections.abc import Sequence

from delayservice.contract.codec import Meta
from delayservice.contract.codes import printable
from delayservice.contract.entry import Headers
from delayservice.contract.names import (
    DELAY_ATTEMPT,
    DELAY_DUE_AT,
    DELAY_ERROR,
    DELAY_ERROR_DETAIL,
    DELAY_ID,
    DELAY_SETTLES,
    DELAY_SHARD,
    DELAY_SOURCE,
    Header,
)


class Provenance:
    """Provenance of one shard's outputs, its ``topic:partition:`` prepared once."""

    __slots__ = ("_prefix", "_shard")

    def __init__(self, topic: str, partition: int) -> None:
        """``topic`` and ``partition`` of the delay topic that the records come from."""
        self._shard = f"{topic}:{partition}".encode()
        self._prefix = self._shard + b":"

    def source(self, offset: int, meta: Meta | None) -> bytes:
        """``delay-source``: ``topic:partition:offset`` of the user's original record.

        Args:
            offset: source offset of the record or copy at hand.
            meta: its payload's meta, which names the original when this is a copy.
        """
        if meta is not None and meta[1] is not None:
            return meta[1]
        return self._prefix + b"%d" % offset

    def is_copy(self, offset: int, meta: Meta | None) -> bool:
        """Return whether the record at ``offset`` is a copy of one that lies elsewhere."""
        return self.source(offset, meta).split(b"#", 1)[0] != self._prefix + b"%d" % offset

    def elsewhere(self, meta: Meta | None) -> bytes | None:
        """Return where a record that has come home was written; None: it was written here."""
        source = None if meta is None else meta[1]
        if source is None or source.startswith(self._prefix):
            return None
        return source.partition(b"#")[0]

    def origin(self, offset: int) -> tuple[Header, Header]:
        """``delay-source`` and ``delay-settles`` of an output that settles a user's own record."""
        settles = b"%d" % offset
        return (DELAY_SOURCE, self._prefix + settles), (DELAY_SETTLES, settles)

    def settles(self, offset: int, source: bytes) -> Headers:
        """Which record an output settles: an offset of the partition that ``source`` lies in, or of
        another, which is named then: a record of a level topic was parked here.

        Args:
            offset: of the record or copy that the output settles.
            source: ``delay-source`` of the user's original.
        """
        settles: Header = (DELAY_SETTLES, b"%d" % offset)
        return (
            [settles] if source.startswith(self._prefix) else [settles, (DELAY_SHARD, self._shard)]
        )

    def headers(self, offset: int, due_ms: int, meta: Meta | None) -> Headers:
        """Return the headers to append to the own ones of the output that settles ``offset``.

        Args:
            offset: source offset of the record or copy that the output settles.
            due_ms: its due time, epoch milliseconds.
            meta: its payload's meta.
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
    """``delay-due-at`` of an output."""
    return DELAY_DUE_AT, b"%d" % due_ms


def provenance(topic: str, partition: int, offset: int, due_ms: int, meta: Meta | None) -> Headers:
    """``Provenance(topic, partition).headers(offset, due_ms, meta)``, for a single record."""
    return Provenance(topic, partition).headers(offset, due_ms, meta)


def dead_letter_headers(
    original: Sequence[Header] | None, code: str, detail: str, source: bytes
) -> Headers:
    """Headers of a dead letter: the original ones unchanged, then why and where from.

    Ours come last, so they count where an original header has the same name.

    Args:
        original: headers of the record as it was written.
        code: one of ``codes.EXPLANATIONS``.
        detail: for people; cut to ``codes.DETAIL_CHARS_MAX``, what is not printable replaced.
        source: ``delay-source`` of the user's original.

    Returns:
        A new list; the caller appends ``delay-settles``.
    """
    return [
        *(original or ()),
        (DELAY_ERROR, code.encode()),
        (DELAY_ERROR_DETAIL, printable(detail).encode()),
        (DELAY_SOURCE, source),
    ]
