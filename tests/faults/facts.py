"""What a scenario knows: what is to be sent, what the broker acknowledged, what was found.

Plain facts and the contract's header names; nothing of the service is imported, so that what it
believes about itself can't colour the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]

UID: Final = "fault-uid"
"""Header that identifies a record to the checker, the first of its own headers."""

ADDED: Final = frozenset(
    {"delay-due-at", "delay-source", "delay-settles", "delay-id", "delay-attempt"}
)
"""Headers that the service may add to what it delivers (``docs/header-contract.md``)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One record that a producer writes.

    ``delay_ms`` is None for a cancel. ``against`` is the uid of the earlier record, of the same
    name and partition, that this one cancels or replaces.
    """

    uid: bytes
    partition: int
    key: bytes | None
    value: bytes | None
    own: tuple[Header, ...]
    delay_ms: int | None
    target: str
    name: bytes | None = None
    against: bytes | None = None

    def headers(self) -> list[Header]:
        """Return the record's own headers and those of the contract."""
        named: list[Header] = [] if self.name is None else [("delay-id", self.name)]
        if self.delay_ms is None:
            return [*self.own, *named, ("delay-op", b"cancel")]
        return [
            *self.own,
            *named,
            ("delay-after", b"%d" % self.delay_ms),
            ("delay-target-topic", self.target.encode()),
        ]


@dataclass(frozen=True, slots=True)
class Acked:
    """A step that all in-sync replicas have: where, and when by the broker's clock."""

    step: Step
    offset: int
    appended_ms: int

    @property
    def due_ms(self) -> int:
        """Return its due time, or of a cancel the time of its append, epoch milliseconds."""
        return self.appended_ms + (self.step.delay_ms or 0)


@dataclass(frozen=True, slots=True)
class Found:
    """A record that a ``read_committed`` consumer read.

    ``written_ms`` is the broker's append time, ``seen_ms`` when the consumer had it in hand.
    """

    topic: str
    partition: int
    offset: int
    written_ms: int
    seen_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    def header(self, name: str) -> bytes | None:
        """Return the last header of this name: the service adds its headers at the end."""
        return next((value for known, value in reversed(self.headers) if known == name), None)

    @property
    def uid(self) -> bytes | None:
        """Return the uid of the record."""
        return self.header(UID)
