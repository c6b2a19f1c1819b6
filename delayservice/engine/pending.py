"""Types of pending records between the shard and its store.

Plain tuples, because there are millions of them (``bench whole``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

NO_MARK: Final = -1

Frame: TypeAlias = tuple[int, int, int, bytes]
"""``(key_ms, offset, mark, payload)``; ``mark`` is the offset that cancels or replaces the record,
or ``NO_MARK``."""

Named: TypeAlias = tuple[bytes, int, int]
"""``(id, key_ms, offset)`` of a stored record that has a ``delay-id``."""

Mark: TypeAlias = tuple[bytes, int, int, int]
"""``(id, key_ms, offset, mark)``: ``mark`` is the canceller of the record ``(key_ms, offset)``."""

Lump: TypeAlias = tuple[int, int, int]
"""``(start_ms, stop_ms, count)``: number of records in ``[start_ms, stop_ms)``, or a correction."""


@dataclass(slots=True)
class Additions:
    """Frames, ids and marks that a run of source records adds to a store, in offset order."""

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
