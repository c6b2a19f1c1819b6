"""Types of pending records between the shard and its store.

Plain tuples, because there are millions of them (``bench whole``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

# No other record has cancelled, replaced or fired it.
NO_MARK: Final = -1

# (key_ms, offset, mark, payload) as a store keeps it. ``mark`` is the offset of the record that
# cancels, replaces or fires it, or ``NO_MARK``.
Frame: TypeAlias = tuple[int, int, int, bytes]

# (id, key_ms, offset) of a stored record that has a ``delay-id``.
Named: TypeAlias = tuple[bytes, int, int]

# (id, key_ms, offset, mark): the user record at ``mark`` settles the one at this key.
Mark: TypeAlias = tuple[bytes, int, int, int]

# (start_ms, stop_ms, count): records in a stretch of time, epoch ms, ``stop_ms`` exclusive. A
# negative number corrects other counts of that stretch.
Lump: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Additions:
    """Records, ids and marks that a store must append, each list in the order of offsets."""

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
