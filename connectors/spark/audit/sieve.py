"""Finds, without a join, the records without ids that were delivered correctly.

Within a block of neighbouring offsets, hashes of the settled records are compared with hashes of
the deliveries. If the two sets are equal, the block is *even*: all its settled records were
delivered correctly, as a hash covers offset, due time, content and target. Only sums of blocks are
kept of plain records; those of other blocks are read again, and matched with their outputs one by
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.rules import Rules
from connectors.spark.common.frames import arrow_schema
from connectors.spark.ledger.facts import DELIVERED, NEVER_MS, SOURCE
from connectors.spark.ledger.rows import LEDGER, NO_ID, NO_SHARD, SCHEMA
from delayservice.contract.entry import SCHEDULE

# Size of a block of neighbouring offsets that are compared together: 2 to this power.
BLOCK_BITS: Final = 8
BLOCK: Final = ["shard", "block"]

ROW: Final = 0
PLAIN: Final = 1
SUM: Final = 2
"""Values of ``part``: ``ROW``, a ledger row to match with others; ``PLAIN``, a ledger row of a
plain record or delivery; ``SUM``, what plain rows of a block that lie in one partition add up
to."""

SIFTED: Final = (
    f"part byte, {LEDGER}, is_passed boolean, is_settled boolean, is_counted boolean, "
    "fits_key boolean, block long, steps int, asked long, is_usual byte, sound int, waits int, "
    "last_place long"
)
"""Columns of sifted rows.

Of a ledger row: those of ``LEDGER``. Of a source record, by the cursors of its shard:
``is_passed``: whether H of the earlier one has passed it; ``is_settled``, ``is_counted``: whether
the earlier and the later one say that it is settled, if it has no id. Of an output: ``fits_key``:
whether it is in the partition that its key chooses, by the present number of partitions.

Of a ``SUM``: ``shard`` and ``block``; ``role``, ``topic`` and ``partition`` of its rows; ``steps``:
settled records minus deliveries; ``asked``: their hashes, as exclusive or; ``is_usual``: 0 if a row
is neither; ``sound``: settled records; ``waits``: pending ones; ``at_ms``: time of the first
delivery, epoch ms; ``place`` and ``last_place``: offsets of the first and last row in the
partition."""

FLAGS: Final = ("is_passed", "is_settled", "is_counted", "fits_key")

_SCHEMA: Final = arrow_schema(SIFTED)
# Number of plain rows that are added up together: with scattered due times, neighbours in a target
# are of many blocks.
_ROWS_SUMMED: Final = 262_144

_NUMBERS: Final = (
    *("shard", "offset", "role", "kind", "key_ms", "due_ms", "at_ms", "content", "topic"),
    *("partition", "place", "key_hash", "id_hash"),
)

_Ints: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


def sift(rows: DataFrame, rules: Rules) -> DataFrame:
    """Return ledger rows as sifted rows, without sums."""
    return rows.mapInArrow(Sieve(rules, adds_up=False).rows, SIFTED)


def blocks_of(sums: DataFrame) -> DataFrame:
    """Return one row for each block: ``is_even``: whether each plain record of the block is either
    pending or correctly delivered, and it has no other deliveries; ``sound``, ``pending``: number
    of settled and of pending records; ``at_ms``: time of its first delivery, epoch ms, or null.
    """
    is_even = (sf.sum("steps") == 0) & (sf.bit_xor("asked") == 0) & (sf.min("is_usual") == 1)
    return sums.groupBy(*BLOCK).agg(
        is_even.alias("is_even"),
        sf.sum("sound").alias("sound"),
        sf.sum("waits").alias("pending"),
        sf.min("at_ms").alias("at_ms"),
    )


def counted(blocks: DataFrame) -> tuple[int, int]:
    row = blocks.agg(sf.sum("sound"), sf.sum("pending")).collect()[0]
    return row[0] or 0, row[1] or 0


def in_blocks(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    block = sf.shiftright("offset", BLOCK_BITS).alias("block")
    chosen = sf.broadcast(blocks.select(*BLOCK))
    return rows.withColumn("block", block).join(chosen, BLOCK, "left_semi").select(*rows.columns)


class Sieve:
    """Adds up plain ledger rows by block, unless ``adds_up`` is false; passes all others on."""

    def __init__(self, rules: Rules, *, adds_up: bool) -> None:
        self._rules = rules
        self._adds_up = adds_up
        self._shards = _Lookup({shard: at for at, shard in enumerate(rules.shards)})
        own = rules.shards.values()
        self._first = _cursors((one.earlier.key, one.earlier.offset) for one in own)
        self._last = _cursors((one.later.key, one.later.offset) for one in own)
        self._partitions = _Lookup({topic: rules.partitions[topic] for topic in rules.read})
        self._held: list[dict[str, _Ints]] = []

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield sifted rows; ``batches``: ledger rows."""
        held = 0
        for batch in batches:
            told = {name: _ints(batch, name) for name in _NUMBERS}
            flags = self._flags(told)
            plain = _is_plain(batch, told)
            if not plain.all():
                yield _of_part(ROW, batch, flags, ~plain)
            if plain.any() and not self._adds_up:
                yield _of_part(PLAIN, batch, flags, plain)
            elif plain.any():
                steps = self._steps(told, flags)
                self._held.append({name: column[plain] for name, column in steps.items()})
                held += int(np.count_nonzero(plain))
            if held > _ROWS_SUMMED:
                yield self._sums()
                held = 0
        if held:
            yield self._sums()

    def _flags(self, told: Mapping[str, _Ints]) -> dict[str, _Bools]:
        at, is_known = self._shards.of(told["shard"])
        offset, key_ms = told["offset"], told["key_ms"]
        is_settled, is_counted = (
            # As Cursor.has_settled.
            is_known
            & (offset < h[at])
            & ((key_ms < k_ms[at]) | ((key_ms == k_ms[at]) & (offset <= k_at[at])))
            for k_ms, k_at, h in (self._first, self._last)
        )
        counts, is_read = self._partitions.of(told["topic"])
        hashed = told["key_hash"]
        is_chosen = is_read & (hashed % np.maximum(counts, 1) == told["partition"])
        return {
            "is_passed": is_known & (offset < self._first[2][at]),
            "is_settled": is_settled,
            "is_counted": is_counted,
            "fits_key": (hashed < 0) | is_chosen,
        }

    def _steps(self, told: Mapping[str, _Ints], flags: Mapping[str, _Bools]) -> dict[str, _Ints]:
        rules = self._rules
        is_source = told["role"] == SOURCE
        is_due = is_source & flags["is_counted"]
        since_ms = np.maximum(told["key_ms"], told["at_ms"])
        is_waiting = is_source & ~flags["is_settled"] & (since_ms >= rules.overdue_since_ms)
        late_ms = NEVER_MS if rules.late_ms is None else rules.late_ms
        after_ms = told["at_ms"] - told["due_ms"]
        is_in_time = (after_ms >= -rules.early_ms) & (after_ms <= late_ms)
        is_delivery = ~is_source & is_in_time & flags["fits_key"]
        step = is_due.astype(np.int64) - is_delivery
        asked = _mixed(told["offset"], told["due_ms"], told["content"], told["topic"])
        return {
            "shard": told["shard"],
            "block": told["offset"] >> BLOCK_BITS,
            "role": told["role"],
            # The place of a source record is its shard and offset.
            "topic": np.where(is_source, 0, told["topic"]),
            "partition": np.where(is_source, 0, told["partition"]),
            "place": np.where(is_source, told["offset"], told["place"]),
            "steps": step,
            "asked": np.where(step != 0, asked, 0),
            "is_usual": (is_due | is_waiting | is_delivery).astype(np.int64),
            "sound": is_due.astype(np.int64),
            "waits": (is_source & ~is_due).astype(np.int64),
            "at_ms": told["at_ms"],
        }

    def _sums(self) -> pa.RecordBatch:
        told = {name: np.concatenate([one[name] for one in self._held]) for name in self._held[0]}
        self._held.clear()
        by = ("partition", "topic", "role", "block", "shard")
        order = np.lexsort([told[name] for name in by])
        told = {name: column[order] for name, column in told.items()}
        is_next = np.zeros(len(order), bool)
        is_next[0] = True
        for name in by:
            is_next[1:] |= told[name][1:] != told[name][:-1]
        first = np.flatnonzero(is_next)
        made = {name: told[name][first] for name in by}
        for name in ("steps", "sound", "waits"):
            made[name] = np.add.reduceat(told[name], first)
        made["asked"] = np.bitwise_xor.reduceat(told["asked"], first)
        made["is_usual"] = np.minimum.reduceat(told["is_usual"], first)
        made["at_ms"] = np.minimum.reduceat(told["at_ms"], first)
        made["place"] = np.minimum.reduceat(told["place"], first)
        made["last_place"] = np.maximum.reduceat(told["place"], first)
        made["part"] = np.full(len(first), SUM)
        arrays = {name: pa.array(column, pa.int64()) for name, column in made.items()}
        # Only deliveries have a time.
        is_delivery = pa.array(made["role"] != SOURCE)
        arrays["at_ms"] = pc.if_else(is_delivery, arrays["at_ms"], None)
        return _filled(arrays, len(first))


class _Lookup:
    """Whole numbers by hash, for whole columns."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        keys = sorted(numbers)
        self._keys = np.array(keys, np.int64)
        self._numbers = np.array([numbers[key] for key in keys], np.int64)

    def of(self, hashes: _Ints) -> tuple[_Ints, _Bools]:
        """Return the numbers, and which hashes are known; the number of another is any."""
        if not len(self._keys):
            return np.zeros_like(hashes), np.zeros(len(hashes), bool)
        at = np.minimum(np.searchsorted(self._keys, hashes), len(self._keys) - 1)
        return self._numbers[at], self._keys[at] == hashes


def _cursors(told: Iterable[tuple[tuple[int, int], int]]) -> tuple[_Ints, ...]:
    rows = [(*key, offset) for key, offset in told] or [(0, 0, 0)]
    return tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))


def _is_plain(batch: pa.RecordBatch, told: Mapping[str, _Ints]) -> _Bools:
    # Without further facts (more), and without a target partition that the record names.
    is_source = (told["role"] == SOURCE) & (told["kind"] == SCHEDULE) & (told["partition"] < 0)
    is_of_plain = is_source | (told["role"] == DELIVERED)
    has_more = pc.is_valid(batch.column("more")).to_numpy(zero_copy_only=False)
    is_one = (told["id_hash"] == NO_ID) & (told["shard"] != NO_SHARD)
    found: _Bools = is_of_plain & ~has_more & is_one
    return found


def _ints(batch: pa.RecordBatch, name: str) -> _Ints:
    column: _Ints = batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return column


def _mixed(*columns: _Ints) -> _Ints:
    # Hashes of rows by 64 bits: the last step of MurmurHash3 after each column.
    hashed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashed = (hashed ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(33)
        hashed *= np.uint64(0xFF51AFD7ED558CCD)
        hashed ^= hashed >> np.uint64(33)
    return hashed.view(np.int64)


def _of_part(
    part: int, rows: pa.RecordBatch, flags: Mapping[str, _Bools], is_theirs: _Bools
) -> pa.RecordBatch:
    chosen = rows if is_theirs.all() else rows.filter(pa.array(is_theirs))
    arrays = {name: chosen.column(name) for name in SCHEMA.names}
    arrays |= {name: pa.array(column[is_theirs]) for name, column in flags.items()}
    count = chosen.num_rows
    return _filled(arrays | {"part": pa.array(np.full(count, part))}, count)


def _filled(arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    columns = [
        arrays[kind.name].cast(kind.type) if kind.name in arrays else pa.nulls(count, kind.type)
        for kind in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
