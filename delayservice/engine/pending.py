"""Types of pending records between the shard and its store.

Plain tuples, because there are millions of them (``bench whole``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

NO_MARK: Final = -1
"""Mark of a record that no other record has cancelled, replaced or fired."""

Frame: TypeAlias = tuple[int, int, int, bytes]
"""Pending record as a store keeps it: ``(key_ms, offset, mark, payload)``. ``key_ms`` is in epoch
ms, ``mark`` is the offset of the record that cancels, replaces or fires it, or ``NO_MARK``."""

Named: TypeAlias = tuple[bytes, int, int]
"""``(id, key_ms, offset)`` of a stored record that has a ``delay-id``; ``key_ms`` is in epoch
ms."""

Mark: TypeAlias = tuple[bytes, int, int, int]
"""``(id, key_ms, offset, mark)``: the user record at offset ``mark`` cancels, replaces or fires the
pending record with the key ``(key_ms, offset)``."""

Lump: TypeAlias = tuple[int, int, int]
"""``(start_ms, stop_ms, count)``: number of records in a stretch of time, epoch ms, ``stop_ms``
exclusive. A negative number corrects other counts of that stretch."""


@dataclass(slots=True)
class Additions:
    """Records, ids and marks that a store must append after source records were read, each list in
    the order of the source offsets.
    """

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
