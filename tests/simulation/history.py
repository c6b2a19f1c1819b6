"""What users wrote, what became of it, and the words for a broken promise."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayservice.core.entry import Headers

SCHEDULE, CANCEL, INVALID, COPY = "schedule", "cancel", "invalid", "copy"


class ViolationError(AssertionError):
    """The service broke a promise."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One record as its user meant it, kept apart from what was written."""

    op: str
    record_id: bytes | None = None
    due_ms: int = 0
    expires_ms: int | None = None
    target: str = ""
    key: bytes | None = None
    value: bytes | None = None
    own: tuple[tuple[str, bytes | None], ...] = ()
    code: str = ""

    def headers(self) -> Headers:
        """Own headers around the service's, as producers do."""
        asked: Headers = []
        if self.op == SCHEDULE:
            asked.append(("delay-at", b"%d" % self.due_ms))
            asked.append(("delay-target-topic", self.target.encode()))
        if self.op == CANCEL:
            asked.append(("delay-op", b"cancel"))
        if self.record_id is not None:
            asked.append(("delay-id", self.record_id))
        if self.expires_ms is not None:
            asked.append(("delay-expires-at", b"%d" % self.expires_ms))
        return [*self.own[:1], *asked, *self.own[1:]]


@dataclass(slots=True)
class Placed:
    """A committed record of a delay topic: a user's wish, or a copy of one.

    ``origin`` is the offset of the user's record, ``at_ms`` what the copy's key says.
    """

    offset: int
    wish: Wish
    timestamp_ms: int
    origin: int
    at_ms: int = 0
    attempt: int = 1
    outcome: str = ""
    by: int = -1

    @property
    def op(self) -> str:
        """What it is: a copy, or what the user wished."""
        return COPY if self.origin != self.offset else self.wish.op


@dataclass(slots=True)
class ShardHistory:
    """One delay topic's partition as the oracle knows it: records by offset, and the cursor."""

    topic: str
    placed: dict[int, Placed] = field(default_factory=dict)
    key: tuple[int, int] = (0, 0)
    h: int = 0
    contracts: list[tuple[int, int, int]] = field(default_factory=list)
    """``(from_offset, roll_window_ms, roll_spread_ms)``."""

    def window_ms(self, offset: int) -> int:
        """How long after its timestamp the record at an offset is rolled."""
        _, window_ms, spread_ms = self.contracts[0]
        for start, *parameters in self.contracts:
            if start <= offset:
                window_ms, spread_ms = parameters
        return window_ms - int((spread_ms + 1) * (offset * 2_654_435_761 % 2**32) / 2**32)

    def key_of(self, record: Placed) -> tuple[int, int]:
        """Rule 2."""
        op = record.op
        if op == COPY:
            return (record.at_ms, record.offset)
        if op != SCHEDULE:
            return (0, record.offset)
        roll_ms = record.timestamp_ms + self.window_ms(record.offset)
        return (max(min(record.wish.due_ms, roll_ms), 1), record.offset)

    def canceller_of(self, record: Placed) -> int | None:
        """The user record that ends this chain if nothing else does: the next of its id."""
        if record.wish.record_id is None or record.op in (CANCEL, INVALID):
            return None
        later = (
            other.offset
            for other in self.placed.values()
            if other.offset > record.origin
            and other.origin == other.offset
            and other.wish.op != INVALID
            and other.wish.record_id == record.wish.record_id
        )
        return min(later, default=None)
