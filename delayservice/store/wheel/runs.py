"""Reader of rows (records and marks) from slot files, with caches of block headers and of blocks
that several shards share. The generation is the number of a shard's store, by which its rows are
found in a block.
"""

from __future__ import annotations

import sys
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from delayservice.store.wheel.block import Block, Body, walk_blocks

if TYPE_CHECKING:
    from delayservice.store.base import Frame
    from delayservice.store.files import Files

FOLDER: Final = "slots"

# Largest number of slots whose block headers are cached.
_INDEXED_MAX: Final = 64

_PLACE_BITS: Final = 32


@lru_cache(maxsize=4096)
def file_name(start_ms: int) -> str:
    """Return the name of a slot's file: its start (epoch ms) in UTC, as
    ``2026-11-21T02-00-10.000``.
    """
    t = time.gmtime(start_ms // 1000)
    day = f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}"
    return f"{day}T{t.tm_hour:02d}-{t.tm_min:02d}-{t.tm_sec:02d}.{start_ms % 1000:03d}"


class Index:
    """Block headers of one slot's file, with an index of the blocks of each shard."""

    __slots__ = ("_runs", "blocks", "size")

    def __init__(self) -> None:
        # Number of bytes at the start of the file whose block headers are known.
        self.size = 0
        self.blocks: list[Block] = []
        self._runs: array[int] = array("Q")  # generation and index in ``blocks``, sorted

    def extend(self, blocks: list[Block]) -> None:
        first = len(self.blocks)
        self.blocks += blocks
        runs = [
            (generation << _PLACE_BITS) + place
            for place, block in enumerate(blocks, first)
            for generation in block.generations
        ]
        self._runs = array("Q", sorted([*self._runs, *runs]))
        self.size = blocks[-1].end if blocks else self.size

    def of(self, generation: int, floor: int) -> list[Block]:
        low = bisect_left(self._runs, generation << _PLACE_BITS)
        high = bisect_left(self._runs, (generation + 1) << _PLACE_BITS, low)
        places = [run & ((1 << _PLACE_BITS) - 1) for run in self._runs[low:high]]
        return [self.blocks[at] for at in places if self.blocks[at].position >= floor]


class RunReader:
    """Reader of rows (records and marks) from the slot files of a wheel; each call is for one
    shard.

    The block headers of a slot are read once for all shards, and so is a block that several shards
    share, while they are cached.

    Args:
        bodies_bytes_max: memory for cached blocks that several shards share, in bytes.
        indexed_max: largest number of slots whose block headers are cached.
    """

    def __init__(
        self, path: str, files: Files, bodies_bytes_max: int, indexed_max: int = _INDEXED_MAX
    ) -> None:
        self._path = path
        self._files = files
        self._bodies_bytes_max = bodies_bytes_max
        self._indexed_max = indexed_max
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        self._bodies: OrderedDict[Block, Body] = OrderedDict()
        # Memory of the cached blocks, in bytes.
        self.kept_bytes = 0

    def path_of(self, start_ms: int) -> str:
        return f"{self._path}/{FOLDER}/{file_name(start_ms)}"

    def blocks(self, start_ms: int, size: int, generation: int, floor: int) -> list[Block]:
        """Return the headers of the blocks between the bytes ``floor`` and ``size`` of a slot's
        file that hold rows of a shard.

        Raises:
            BlockDamagedError, OSError: the file is damaged or missing.
        """
        index = self._indexes.get(start_ms)
        if index is None:
            index = self._indexes[start_ms] = Index()
            if len(self._indexes) > self._indexed_max:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(start_ms)
        if index.size < size:
            read = partial(self._files.read_at, self.path_of(start_ms))
            found: list[Block] = []
            try:
                found.extend(walk_blocks(read, start_ms, index.size, size))
            finally:
                index.extend(found)
        return index.of(generation, floor)

    def good_blocks(self, start_ms: int, generation: int, floor: int) -> list[Block]:
        """Return the headers of a shard's blocks from byte position ``floor`` up to the damage for
        which the last call of ``blocks`` for this slot raised an error.
        """
        return self._indexes[start_ms].of(generation, floor)

    def rows(
        self,
        start_ms: int,
        block: Block,
        generation: int,
        after_ms: int = -1,
        upto_ms: int = sys.maxsize,
    ) -> list[Frame]:
        """Return the rows of a shard in a block, in key order, with ``after_ms <= key_ms <=
        upto_ms``, epoch ms; raises as ``blocks``.
        """
        body = self._bodies.get(block)
        if body is None:
            data = self._files.read_at(self.path_of(start_ms), block.body_position, block.length)
            body = Body(start_ms, block, data)
            if len(block.generations) > 1:
                self._keep(block, body)
        else:
            self._bodies.move_to_end(block)
        return body.rows(*block.run(generation), after_ms, upto_ms)

    def _keep(self, block: Block, body: Body) -> None:
        self._bodies[block] = body
        self.kept_bytes += block.length
        while self.kept_bytes > self._bodies_bytes_max:
            self.kept_bytes -= self._bodies.popitem(last=False)[0].length

    def forget(self, start_ms: int) -> None:
        """Drop the slot's block headers, because its file was removed or replaced."""
        self._indexes.pop(start_ms, None)

    def reopen(self, start_ms: int) -> None:
        """Drop the slot's block headers, and close all files: they may have been replaced."""
        self.forget(start_ms)
        self._files.close()

    def close(self) -> None:
        self._files.close()
        self._indexes.clear()
        self._bodies.clear()
        self.kept_bytes = 0
