"""Types of pending records between the shard and its store.

Plain tuples, because there are millions of them (``bench whole``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

NO_MARK: Final = -1
"""Mark of a record that no other one has cancelled, replaced or fired."""

Frame: TypeAlias = tuple[int, int, int, bytes]
"""``(key_ms, offset, mark, payload)`` of a pending record. ``mark`` is the offset of the record
that cancels, replaces or fires it, or ``NO_MARK``."""

Named: TypeAlias = tuple[bytes, int, int]
"""``(id, key_ms, offset)`` of a stored record that has a ``delay-id``."""

Mark: TypeAlias = tuple[bytes, int, int, int]
"""``(id, key_ms, offset, mark)``: the user record at offset ``mark`` cancels, replaces or fires the
pending record ``(key_ms, offset)``."""

Lump: TypeAlias = tuple[int, int, int]
"""``(start_ms, stop_ms, count)``: number of records in ``[start_ms, stop_ms)``, or a correction."""


@dataclass(slots=True)
class Additions:
    """Frames, ids and marks that a run of source records adds to a store, in offset order."""

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
