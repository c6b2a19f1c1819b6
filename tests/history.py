"""What users and the service write to topics, record by record, by ``docs/header-contract.md``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from delayservice.contract.codec import Payload
from delayservice.contract.requeue import write_copy

Header: TypeAlias = tuple[str, bytes | None]
SECRET = b"the cluster's secret"


class History(ABC):
    """Topics of one service; each method appends one record and returns its offset."""

    delay: str
    target = "to_a"
    other = "to_b"
    dead_letter = "delay_dead_letter"
    outcomes = "delay_outcomes"

    @abstractmethod
    def write(
        self,
        topic: str,
        at_ms: int,
        headers: Sequence[Header],
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int = 0,
    ) -> int: ...

    def source(
        self,
        at_ms: int,
        due_ms: int,
        *more: Header,
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int = 0,
        target: str = "",
    ) -> int:
        named = (target or self.target).encode()
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", named), *more]
        return self.write(self.delay, at_ms, headers, value, key, partition)

    def control(self, at_ms: int, name: bytes, op: bytes) -> int:
        return self.write(self.delay, at_ms, [("delay-id", name), ("delay-op", op)], None)

    def delivery(
        self,
        at_ms: int,
        offset: int,
        due_ms: int,
        *more: Header,
        topic: str = "",
        origin: str = "",
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int = 0,
        to: int = 0,
    ) -> int:
        """Append a delivery that settles ``offset`` of ``partition`` to partition ``to``."""
        told = self.told(offset, due_ms, origin, partition)
        return self.write(topic or self.target, at_ms, [*told, *more], value, key, to)

    def told(self, offset: int, due_ms: int, origin: str = "", partition: int = 0) -> list[Header]:
        """Return the headers of a delivery that settles ``offset`` of ``partition``."""
        return [
            ("delay-due-at", b"%d" % due_ms),
            ("delay-source", self._source(origin, offset, partition)),
            ("delay-settles", b"%d" % offset),
        ]

    def outcome(
        self,
        at_ms: int,
        name: str,
        offset: int,
        by: int | None = None,
        *more: Header,
        partition: int = 0,
    ) -> int:
        told = [
            ("delay-outcome", name.encode()),
            ("delay-shard", f"{self.delay}:{partition}".encode()),
            ("delay-settles", b"%d" % offset),
            *more,
        ]
        told += [] if by is None else [("delay-settled-by", b"%d" % by)]
        return self.write(self.outcomes, at_ms, told, None)

    def letter(
        self,
        at_ms: int,
        offset: int,
        code: str,
        headers: Sequence[Header] = (),
        value: bytes | None = b"value",
        detail: bytes = b"why",
        *more: Header,
        origin: str = "",
    ) -> int:
        """Append a dead letter of a record that had ``headers``; ``code``: empty if it has none."""
        why = [("delay-error", code.encode()), ("delay-error-detail", detail)] if code else []
        told = [
            ("delay-source", self._source(origin, offset)),
            ("delay-settles", b"%d" % offset),
        ]
        return self.write(self.dead_letter, at_ms, [*headers, *why, *told, *more], value)

    def requeue(
        self,
        at_ms: int,
        settles: int,
        due_ms: int,
        *,
        base: int,
        name: bytes | None = None,
        origin: str = "",
        expires_ms: int | None = None,
        recur: bytes | None = None,
        attempt: int = 1,
        secret: bytes = SECRET,
        value: bytes = b"value",
        target: str = "",
        partition: int = 0,
    ) -> int:
        """Append a requeued record, as the service signs it."""
        source = self._source(origin, settles)
        meta = (name, source, attempt, expires_ms)
        payload: Payload = (
            *(target or self.target, -1, None, value, [], due_ms),
            meta if recur is None else (*meta, recur),
        )
        key, content, headers = write_copy(
            *(self.delay, partition, secret),
            settles=settles,
            source=source,
            base=base,
            at_ms=due_ms,
            payload=payload,
        )
        return self.write(self.delay, at_ms, headers, content, key, partition)

    def _source(self, origin: str, offset: int, partition: int = 0) -> bytes:
        return (origin or f"{self.delay}:{partition}:{offset}").encode()
