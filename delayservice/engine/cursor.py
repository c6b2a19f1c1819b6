"""The two-dimensional cursor ``(K, H)`` of a shard, which defines the settled records.

Source: design rules 1 and 2. A record at offset ``o`` with key ``k`` is settled iff
``(o < H and k <= K) or x < H``, where ``x`` is the offset of the record that cancels, replaces or
fires it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

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
