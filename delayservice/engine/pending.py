"""The shapes in which pending records travel between the shard and its store.

Plain tuples, because millions of them pass through (``bench whole`` pays for that).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

NO_MARK: Final = -1

Frame: TypeAlias = tuple[int, int, int, bytes]
"""``(key_ms, offset, mark, payload)``; ``mark`` is the offset that cancels or replaces the record,
or ``NO_MARK``."""

Named: TypeAlias = tuple[bytes, int, int]
"""``(id, key_ms, offset)`` of a stored record that bears a ``delay-id``."""

Mark: TypeAlias = tuple[bytes, int, int, int]
"""``(id, key_ms, offset, mark)``: the record ``(key_ms, offset)`` of this id is marked by ``mark``.
"""

Lump: TypeAlias = tuple[int, int, int]
"""``(start_ms, stop_ms, count)``: a count for ``[start_ms, stop_ms)``, without their places."""


@dataclass(slots=True)
class Additions:
    """The records that a run of source records adds to a store, in offset order."""

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
