"""The two-dimensional cursor ``(K, H)`` of a shard, which defines the settled records.

Source: design rules 1 and 2. A record at offset ``o`` with key ``k`` is settled iff
``(o < H and k <= K) or x < H``, where ``x`` is the offset of the record that cancels, replaces or
fires it. The types of pending records, between a shard and its store, are plain tuples because
there are millions of them (``bench whole``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from delayservice.contract.entry import OFFSET_MAX

# (when a record is to be settled in epoch ms, source offset): the order of pending records.
Key: TypeAlias = tuple[int, int]

# At or above the key ``(0, offset)`` of every control and invalid record, so that those are settled
# as H passes them, and below the keys of all other records.
START_KEY: Key = (0, OFFSET_MAX)


class Cursor(NamedTuple):
    """Position ``(K, H)`` of a shard: ``key`` is K, ``offset`` is H."""

    key: Key = START_KEY
    offset: int = 0

    def has_settled(self, key: Key, mark: int) -> bool:
        """Return whether the record with this key and mark is settled."""
        return (key[1] < self.offset and key <= self.key) or 0 <= mark < self.offset


# No other record has cancelled, replaced or fired it.
NO_MARK: Final = -1

# (key_ms, offset, mark, payload) as a store keeps it. ``mark`` is the offset of the record that
# cancels, replaces or fires it, or ``NO_MARK``.
Frame: TypeAlias = tuple[int, int, int, bytes]

# (target topic, hour in which a record is due beyond the roll window, in epoch ms, or 0; whether it
# is parked): records that ``census.Census`` counts together.
Group: TypeAlias = tuple[str, int, bool]

# Of a record that was marked before it was known.
NO_GROUP: Final[Group] = ("", 0, False)

# (id, key_ms, offset, group) of a stored record that has a ``delay-id``.
Named: TypeAlias = tuple[bytes, int, int, Group]

# (id, key_ms, offset, mark): the user record at ``mark`` settles the one at this key.
Mark: TypeAlias = tuple[bytes, int, int, int]

# (seen_by, key_ms, offset): the ``ABSENT`` record at ``seen_by`` found the one at this key pending.
Sighting: TypeAlias = tuple[int, int, int]

# (start_ms, stop_ms, count): records in a stretch of time, epoch ms, ``stop_ms`` exclusive.
CountRange: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Additions:
    """What a store must append, each list in the order of offsets."""

    frames: list[Frame] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
