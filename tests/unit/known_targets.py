"""What a test lets be known of target topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from delayservice.contract.targets import Allowlist
from delayservice.engine.outcome import Output, Target

Value = TypeVar("Value")


def some(value: Value | None) -> Value:
    """Return a value that is not None, such as the output of a record that need not wait."""
    assert value is not None
    return value


def any_target(delay_topic: str) -> Allowlist:
    return Allowlist(delay_topic, ["*"])


class KnownTargets:
    """Targets that are writable, but for those in ``why``, with the reason as code and detail."""

    def __init__(
        self, why: dict[Target, tuple[str, str]] | None = None, writable: Collection[Target] = ()
    ) -> None:
        self.writable = set(writable)
        self.small: Collection[str] = ()
        self.reserved: list[Output] = []
        self.why = {} if why is None else why
        self.expected: set[Target] = set()

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        return self.why.get(target)

    def refusal(self, *_: object) -> tuple[str, str] | None:
        return None

    def reserve(self, outputs: Iterable[Output]) -> None:
        self.reserved += outputs

    def expect(self, targets: Collection[Target]) -> None:
        self.expected.update(targets)
