"""Pauses by operators, of deliveries to a target or of a delay topic, as JSON.

A record of the pauses topic has the key ``target:NAME`` or ``topic:NAME``; a null value ends the
pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

Kind: TypeAlias = Literal["target", "topic"]
KINDS: Final[tuple[Kind, ...]] = ("target", "topic")


class Paused(NamedTuple):
    """What an operator paused: target topics that match the shell-style pattern ``name`` (kind
    ``target``), or the delay topic ``name`` (kind ``topic``).
    """

    kind: Kind
    name: str


class Pause(msgspec.Struct, frozen=True):
    """When (epoch ms) and why a pause began, and who asked for it."""

    at_ms: int
    reason: str = ""
    by: str = ""


def encode_key(paused: Paused) -> bytes:
    return f"{paused.kind}:{paused.name}".encode()


def decode_key(key: bytes | None) -> Paused | None:
    """Return what a record of the pauses topic pauses; None: the kind is unknown here."""
    kind, _, name = (key or b"").decode("utf-8", "replace").partition(":")
    return next((Paused(known, name) for known in KINDS if known == kind and name), None)


encode_pause = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Pause).decode


def decode_pause(value: bytes) -> Pause:
    """Return a pause; a value that can't be read counts as a pause that began at 0."""
    try:
        return _decode(value)
    except (msgspec.DecodeError, ValueError):
        return Pause(0, "written by another version, or by hand")


class Pauses:
    """All pauses at one moment. Immutable."""

    def __init__(self, pauses: Mapping[Paused, Pause] = MappingProxyType({})) -> None:
        self.all = MappingProxyType(dict(pauses))
        self._topics = frozenset(name for kind, name in pauses if kind == "topic")
        self._targets = [(p.name, pause) for p, pause in pauses.items() if p.kind == "target"]

    def holds(self, topic: str) -> bool:
        return topic in self._topics

    def why(self, target: str) -> str | None:
        """Return why deliveries to a target are paused, as text; None: they are not paused."""
        for pattern, pause in self._targets:
            if fnmatchcase(target, pattern):
                return f"deliveries to {pattern} are paused: {pause.reason or 'no reason given'}"
        return None
