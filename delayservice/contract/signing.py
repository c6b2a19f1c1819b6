"""Signatures of records that the service itself appends to a delay topic.

Without a signature, any producer of the delay topic could forge such a record, and have it
delivered past the target allowlist. The signature covers topic and partition, so that it is invalid
elsewhere. It does not detect the same bytes appended a second time to the same partition; a client
that can do that may write to the delay topic anyway.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Final

from delayservice.contract.entry import Headers, Original

_DIGEST: Final = "sha256"
_LENGTH = struct.Struct(">q")
_NULL_LENGTH = _LENGTH.pack(-1)


class Signer:
    """Writer and reader of two headers: a text of the service, and its HMAC-SHA256 in hex. The
    signed bytes contain ``domain``, so that kinds of records can't be exchanged.
    """

    def __init__(self, domain: bytes, text_name: str, mac_name: str) -> None:
        self._domain = domain
        self._names = [text_name, mac_name]

    def signed(self, place: str, secret: bytes, text: bytes, record: Original) -> Original:
        """Return the record with text and signature as the last two headers. ``place`` is the
        ``topic:partition`` to which it is to be appended.
        """
        key, value, own = record
        parts = (text, self._mac(secret, place, text, record))
        return key, value, [*own, *zip(self._names, parts, strict=True)]

    def verified(
        self, place: str, secrets: Sequence[bytes], signed: Original
    ) -> tuple[bytes, Original] | None:
        """Return the text, and the record without both headers; None: not signed for ``place``."""
        found = self.claimed(signed)
        if found is None:
            return None
        text, record = found
        mac = signed[2][-1][1] or b""
        macs = (self._mac(secret, place, text, record) for secret in secrets)
        return found if any(hmac.compare_digest(one, mac) for one in macs) else None

    def claimed(self, signed: Original) -> tuple[bytes, Original] | None:
        """Return ``(text, record)`` as ``verified`` does, without a check of the signature."""
        key, value, headers = signed
        own, last = headers[:-2], headers[-2:]
        if [name for name, _ in last] != self._names:
            return None
        if any(name in self._names for name, _ in own) or last[0][1] is None or last[1][1] is None:
            return None
        return last[0][1], (key, value, own)

    def _mac(self, secret: bytes, place: str, text: bytes, record: Original) -> bytes:
        key, value, own = record
        parts = [self._domain, place.encode(), text, key, value, *_flat(own)]
        message = b"".join([_with_length(part) for part in parts])
        return hmac.digest(secret, message, _DIGEST).hex().encode("ascii")


def _flat(headers: Headers) -> list[bytes | None]:
    return [part for name, text in headers for part in (name.encode(), text)]


# With its length in front, so that two different records never have the same signed bytes.
def _with_length(part: bytes | None) -> bytes:
    return _NULL_LENGTH if part is None else _LENGTH.pack(len(part)) + part
