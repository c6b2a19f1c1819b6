"""A message of another broker, as the judge reads one of Kafka."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Received:
    """Delivered message.

    Attributes:
        key_bytes: key of the record.
        value_bytes: value of the record.
    """

    key_bytes: bytes
    value_bytes: bytes

    def key(self) -> bytes:
        """Return the key."""
        return self.key_bytes

    def value(self) -> bytes:
        """Return the value."""
        return self.value_bytes

    def error(self) -> None:
        """Return None: these clients recover from errors by themselves."""
