"""The headers of a dead letter, which describe the record that it carries."""

from __future__ import annotations

from typing import Final

from delayservice.contract.codec import Payload
from delayservice.contract.entry import Headers, Original
from delayservice.contract.names import Header
from delayservice.contract.recurrence import recurrence_of

_LARGE_BYTES: Final = 500_000
"""Size of a value, or of all headers, bytes, above which a record's exact size is checked."""


def asked_again(payload: Payload) -> Original:
    """Return key, value and headers of a payload, with its input headers, so that a dead letter
    can be replayed.
    """
    target, partition, key, value, headers, due_ms, meta = payload
    asked: list[Header] = [
        *headers,
        ("delay-at", b"%d" % due_ms),
        ("delay-target-topic", target.encode()),
    ]
    recurrence = recurrence_of(meta)
    if recurrence is not None:
        asked += recurrence.headers()
    if partition >= 0:
        asked.append(("delay-target-partition", b"%d" % partition))
    if meta is not None and meta[0] is not None:
        asked.append(("delay-id", meta[0]))
    if meta is not None and meta[3] is not None:
        asked.append(("delay-expires-at", b"%d" % meta[3]))
    return key, value, asked


def without_content(original: Original) -> tuple[Original, str]:
    """Return a record without its content, for a dead letter that would be too large, and the text
    to put before its detail.
    """
    _, value, headers = original
    held = sum(len(part or b"") for _, part in headers) + len(value or b"")
    told = (
        f"its key, value and headers ({held:,} bytes) are left out, for the dead-letter "
        f"topic refused them; read them at the source; "
    )
    return (None, None, []), told


def is_large(value: bytes | None, headers: Headers) -> bool:
    """Return whether a record is so large that its topic may refuse it."""
    if value is not None and len(value) > _LARGE_BYTES:
        return True
    return bool(headers) and sum([len(text or b"") for _, text in headers]) > _LARGE_BYTES
