"""What a scenario knows: what is to be sent, what the broker acknowledged, what was found.

Plain facts and the contract's header names; nothing of the service is imported, so that what it
believes about itself can't colour the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Header: TypeAlias = tuple[str, bytes | None]
Op: TypeAlias = Literal["schedule", "absent", "cancel", "fire"]

UID: Final = "fault-uid"
"""Header that identifies a record to the checker, the first of its own headers."""

ADDED: Final = frozenset(
    {
        "delay-due-at",
        "delay-source",
        "delay-settles",
        "delay-shard",
        "delay-id",
        "delay-attempt",
        "delay-fired-by",
    }
)
"""Headers that the service may add to what it delivers (``docs/header-contract.md``)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One record that a producer writes.

    ``times`` is the number of occurrences, each ``delay_ms`` after the one before; 0: it does not
    recur. ``against`` is the uid of the earlier record of the same name that this one cancels,
    fires, replaces, or is kept out by.
    """

    uid: bytes
    partition: int
    key: bytes | None
    value: bytes | None
    own: tuple[Header, ...]
    delay_ms: int
    target: str
    name: bytes | None = None
    against: bytes | None = None
    op: Op = "schedule"
    times: int = 0

    @property
    def is_control(self) -> bool:
        return self.op in {"cancel", "fire"}

    @property
    def arrivals(self) -> tuple[bytes, ...]:
        """Return the uids of what is delivered if nothing stops it."""
        if self.is_control:
            return ()
        numbers = range(1, self.times + 1)
        return tuple(b"%s#%d" % (self.uid, number) for number in numbers) or (self.uid,)

    def headers(self) -> list[Header]:
        """Return the record's own headers and those of the contract."""
        headers = list(self.own)
        if self.name is not None:
            headers.append(("delay-id", self.name))
        if self.is_control:
            return [*headers, ("delay-op", self.op.encode())]
        if self.op == "absent":
            headers.append(("delay-if", b"absent"))
        if self.times:
            headers.append(("delay-times", b"%d" % self.times))
        when = "delay-every" if self.times else "delay-after"
        return [
            *headers,
            (when, b"%d" % self.delay_ms),
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
        """Return its (first) due time, epoch milliseconds."""
        return self.appended_ms + self.step.delay_ms

    def place(self, topic: str) -> bytes:
        """Return where it was written, as ``delay-source`` has it."""
        return b"%s:%d:%d" % (topic.encode(), self.step.partition, self.offset)


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
        """Return the uid of the record; of an occurrence with its number."""
        uid = self.header(UID)
        _, sign, number = (self.header("delay-source") or b"").partition(b"#")
        return None if uid is None else uid + sign + number
