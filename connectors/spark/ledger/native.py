"""Rows of the ledger by column expressions: what nearly all records are.

A source record is read here if its headers are a time in digits, a target that the cluster has,
perhaps an id, and headers of its own, or if it is a cancel; a delivery or an outcome, if it has the
headers that the service gives every one. The others are marked, and ``sources`` and ``outputs``
read them. Both readers make the same rows (``tests/spark/test_readers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.decode import key_hash
from connectors.spark.common.frames import or_false
from connectors.spark.ledger.facts import DELIVERED, OUTCOME, SOURCE
from connectors.spark.ledger.kinds import OUTCOME_KINDS, OUTCOME_NAMES
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import (
    COLUMNS,
    LEDGER,
    NO_ID,
    NO_SHARD,
    SCHEMA,
    TYPES,
    Ledger,
    LedgerRow,
)
from connectors.spark.ledger.sources import SourceRows
from delayservice.contract import names
from delayservice.contract.aliases import KNOWN
from delayservice.contract.contracts import (
    MAX_DELAY_MS_MAX,
    PAST_DUE_DELIVER,
    UNITS_VERSION,
    Contract,
)
from delayservice.contract.draft import CANCEL_OP
from delayservice.contract.entry import CANCEL, SCHEDULE
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import PLAIN_DIGITS_MAX
from delayservice.contract.targets import Allowlist
from delayservice.contract.times import DUE_STOP_MS, FIRST_READINGS, UNIT_READINGS
from delayservice.contract.user_record import FIRE_SINCE, PARTITION_BY_KEY

COMPLETE: Final = 0
HASHED: Final = 1
DOUBTFUL: Final = 2
ORDINARY: Final = 3
"""Values of ``reading``: the row is complete; it lacks the hash of its key, and where ids have
homes it may be of a record that has to go home; the record has to be read in Python; it is an
output of no delay service, and is only counted."""

RECORD: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""Columns of records, as ``topics.ROW_SCHEMA``; ``value_hash`` long may stand beside them, for
values of which only the hash was kept."""

_SPECIAL: Final = sorted(KNOWN | names.HOME_NAMES)
_TOLD: Final = (
    names.DELAY_AT,
    names.DELAY_AFTER,
    names.DELAY_TARGET_TOPIC,
    names.DELAY_ID,
    names.DELAY_OP,
)
"""Headers that say something in a record that is read here."""
_DIGITS_MAX: Final = 18
_ODD_IN_NAMES: Final = ("\0", "\N{REPLACEMENT CHARACTER}")
"""Java shows what is not UTF-8 as the second, and the service's client cuts names at the first."""
_ID_AND_OP: Final = 2

_Batches: TypeAlias = Iterable[pa.RecordBatch]


def ledger_of(classified: DataFrame, ledger: Ledger, *, of_sources: bool) -> DataFrame:
    """Return rows of ``LEDGER`` for records that were classified.

    Args:
        classified: as ``classified_sources`` or ``classified_outputs`` gives them. They are read
            twice: unless that is cheap, write or persist them first.
        ledger: what to read by.
        of_sources: whether they are source records.
    """
    complete = classified.where(sf.col("reading") == COMPLETE).select(*COLUMNS)
    return complete.unionByName(read_in_python(classified, ledger, of_sources=of_sources))


def read_in_python(classified: DataFrame, ledger: Ledger, *, of_sources: bool) -> DataFrame:
    """Return rows of ``LEDGER`` for the records that column expressions could not finish."""
    read = (SourceRows(ledger) if of_sources else OutputRows(ledger)).of
    rest = classified.where(sf.col("reading").isin(HASHED, DOUBTFUL))
    return rest.select(*COLUMNS, "key", "reading", "record").mapInArrow(
        _Rest(read, _homes(ledger)).rows, LEDGER
    )


class _Rest:
    """Finishes rows in Python. Sent to the executors as it is.

    Args:
        read: reads records from the start.
        homes: the partition of each shard, and among how many ids have their homes.
    """

    def __init__(
        self, read: Callable[[_Batches], _Batches], homes: dict[int, tuple[int, int]]
    ) -> None:
        self._read = read
        self._homes = homes

    def rows(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Yield rows of ``LEDGER``, of batches of them with ``key``, ``reading`` and ``record``."""
        for batch in batches:
            is_hashed = pc.equal(batch.column("reading"), HASHED)
            hashed, is_doubtful = batch.filter(is_hashed), pc.invert(is_hashed)
            if hashed.num_rows and self._homes:
                is_away = self._is_away(hashed)
                yield from self._read(_records(hashed.filter(is_away)))
                hashed = hashed.filter(pc.invert(is_away))
            if hashed.num_rows:
                yield _with_key_hashes(hashed)
            yield from self._read(_records(batch.filter(is_doubtful)))

    def _is_away(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which records have an id that is at home in another partition."""
        ids, shards = (batch.column(name).to_pylist() for name in ("id", "shard"))
        return pa.array(map(self._is_foreign, ids, shards))

    def _is_foreign(self, record_id: bytes | None, shard: int) -> bool:
        if record_id is None or shard not in self._homes:
            return False
        partition, count = self._homes[shard]
        return partition_for(record_id, count) != partition


def _records(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the records in the column ``record``, as batches that are not empty."""
    if not batch.num_rows:
        return []
    return [pa.RecordBatch.from_struct_array(batch.column("record"))]


def _with_key_hashes(batch: pa.RecordBatch) -> pa.RecordBatch:
    hashes = np.fromiter(map(key_hash, batch.column("key").to_pylist()), np.int32, batch.num_rows)
    arrays = [batch.column(name) for name in COLUMNS]
    arrays[COLUMNS.index("key_hash")] = pa.array(hashes)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _homes(ledger: Ledger) -> dict[int, tuple[int, int]]:
    newest = {place: held.entries()[-1][1] for place, held in ledger.contracts.items()}
    return {
        shard: (place[1], newest[place].id_partitions)
        for place, shard in ledger.shards.items()
        if newest[place].id_partitions
    }


# --- source records ------------------------------------------------------------------------------


def classified_sources(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return rows of source records that column expressions can read, and the others as they are.

    Args:
        records: ``RECORD``, of delay topics.
        ledger: what to read by.

    Returns:
        ``LEDGER``, ``reading``, ``key`` where that has to be hashed, and ``record``: the record
        where Python has to read it.
    """
    since_ms = sf.when(sf.col("is_after"), sf.col("timestamp_ms")).otherwise(0)
    shards = records.sparkSession.createDataFrame(_shards(ledger), _SHARD)
    read = (
        _parted(records)
        .withColumns({"since_ms": since_ms, "told_ms": _number(sf.col("time"), PLAIN_DIGITS_MAX)})
        .withColumn("due_ms", sf.greatest(sf.col("told_ms") + sf.col("since_ms"), sf.lit(1)))
        .withColumn("shard", sf.xxhash64(sf.concat_ws(":", "topic", "partition")))
        .join(sf.broadcast(shards), "shard", "left")
    )
    has_id = sf.octet_length("id").between(1, sf.col("id_max"))
    is_read = (sf.col("offset") >= sf.col("first")) & _has_readable_names()
    is_schedule = (
        _has_no_special("own")
        & (has_id | (sf.col("id_at") == 0))
        & sf.col("told_ms").isNotNull()
        & sf.col("target").isin(*_allowed(ledger))
        & sf.col("timestamp_ms").between(0, MAX_DELAY_MS_MAX - 1)
        & ((sf.col("due_ms") >= sf.col("surely_ms")) | (sf.col("since_ms") > 0))
        & (sf.col("due_ms") - sf.col("timestamp_ms")).between(sf.col("min_ms"), sf.col("max_ms"))
        & is_read
    )
    is_cancel = (
        (sf.size("headers") == _ID_AND_OP)
        & (sf.col("op") == CANCEL_OP)
        & sf.col("has_controls")
        & has_id
        & is_read
    )
    kind = sf.when(or_false(is_schedule), SCHEDULE).when(or_false(is_cancel), CANCEL)
    read = read.withColumn("kind", kind)
    is_delayed = sf.col("kind") == SCHEDULE
    key = sf.when((sf.length("key") > 0) & is_delayed, sf.col("key"))
    may_be_away = sf.col("has_homes") & sf.col("id").isNotNull()
    reading = (
        sf.when(sf.col("kind").isNull(), DOUBTFUL)
        .when(key.isNotNull() | may_be_away, HASHED)
        .otherwise(COMPLETE)
    )
    return _classified(
        read.withColumn("reading", reading.cast("byte")),
        key=key,
        is_doubtful=(sf.col("reading") == DOUBTFUL) | may_be_away,
        shard=sf.col("shard"),
        offset=sf.col("offset"),
        role=sf.lit(SOURCE),
        kind=sf.col("kind"),
        key_ms=sf.when(is_delayed, sf.col("due_ms")).otherwise(0),
        due_ms=sf.when(is_delayed, sf.col("due_ms")).otherwise(0),
        content=content(records, sf.when(is_delayed, sf.col("own")).otherwise(sf.col("headers"))),
        topic=sf.when(is_delayed, sf.xxhash64("target")).otherwise(-1),
        partition=sf.lit(PARTITION_BY_KEY),
        id_hash=_id_hash(sf.col("id")),
        id=sf.col("id"),
    )


def _parted(records: DataFrame) -> DataFrame:
    """Add what the headers of a schedule or a cancel say, and ``own``, its other headers.

    Positions and slices only: a function of each header would be called through an interpreter.
    """
    at = {name: sf.array_position(sf.col("headers.key"), name).cast("int") for name in _TOLD}
    time_at = sf.greatest(at[names.DELAY_AT], at[names.DELAY_AFTER])
    found = {"time_at": time_at, "is_after": at[names.DELAY_AFTER] > 0}
    named = {"target": names.DELAY_TARGET_TOPIC, "id": names.DELAY_ID, "op": names.DELAY_OP}
    found |= {f"{short}_at": at[name] for short, name in named.items()}
    values = {
        short: sf.get("headers", sf.col(f"{short}_at") - 1)["value"] for short in (*named, "time")
    }
    texts = {short: values[short].cast("string") for short in ("target", "op", "time")}
    return records.withColumns(found).withColumns({**values, **texts, "own": _own()})


def _own() -> Column:
    """Return the headers of a schedule but its target, its time and its id."""
    count = sf.size("headers")
    target_at, time_at, id_at = (sf.col(f"{name}_at") for name in ("target", "time", "id"))
    last_at = sf.when(id_at > 0, id_at).otherwise(count + 1)
    first, third = sf.least(target_at, time_at, last_at), sf.greatest(target_at, time_at, last_at)
    second = target_at + time_at + last_at - first - third
    between = [
        sf.slice("headers", start, sf.greatest(stop - start, sf.lit(0)))
        for start, stop in (
            (sf.lit(1), first),
            (first + 1, second),
            (second + 1, third),
            (third + 1, count + 1),
        )
    ]
    told = sf.when(id_at > 0, 3).otherwise(2)
    is_first = (first == 1) & (second == 2) & ((id_at == 0) | (third == 3))  # noqa: PLR2004
    own = sf.when(is_first, sf.slice("headers", told + 1, count)).otherwise(sf.concat(*between))
    return sf.when((target_at > 0) & (time_at > 0), own)


def _has_no_special(headers: str) -> Column:
    names_of = sf.col(f"{headers}.key")
    alone = ~sf.get(names_of, sf.lit(0)).isin(*_SPECIAL)
    several = ~sf.arrays_overlap(names_of, sf.array(*map(sf.lit, _SPECIAL)))
    count = sf.size(headers)
    return sf.when(count == 0, sf.lit(1) == 1).when(count == 1, alone).otherwise(several)


_SHARD: Final = (
    "shard long, first long, surely_ms long, min_ms long, max_ms long, id_max int, "
    "has_controls boolean, has_homes boolean"
)
"""How records of a shard are read, from the first offset of its newest contract on."""


def _shards(ledger: Ledger) -> list[tuple[int, int, int, int, int, int, bool, bool]]:
    """Return rows of ``_SHARD``. Nothing on a level topic is read by column expressions."""
    newest = {shard: ledger.contracts[place].entries() for place, shard in ledger.shards.items()}
    return [
        (shard, entries[-1][0] if len(entries) > 1 else 0, *_bounds(entries[-1][1]))
        for shard, entries in newest.items()
        if not entries[-1][1].level_ms
    ]


def _bounds(contract: Contract) -> tuple[int, int, int, int, bool, bool]:
    """Return the earliest number that surely is no number of seconds, the least and the longest
    delay of a record that is not rolled, the longest id, and whether there are controls and homes.
    """
    readings = UNIT_READINGS if contract.version >= UNITS_VERSION else FIRST_READINGS
    least_ms = -DUE_STOP_MS if contract.past_due == PAST_DUE_DELIVER else 0
    window_ms = contract.roll_window_ms - contract.roll_spread_ms
    longest_ms = min(window_ms, contract.max_delay_ms)
    has_controls = contract.version >= FIRE_SINCE
    homes = bool(contract.id_partitions)
    return (readings.surely_ms, least_ms, longest_ms, contract.id_bytes_max, has_controls, homes)


def _allowed(ledger: Ledger) -> list[str]:
    """Return the topics of the cluster that every newest contract allows."""
    rules = {
        (topic, ledger.contracts[topic, number].entries()[-1][1]) for topic, number in ledger.shards
    }
    lists = [Allowlist.of_contract(contract, topic) for topic, contract in rules]
    return [n for n in ledger.topics if all(one.denial(n) is None for one in lists)] or [""]


# --- outputs -------------------------------------------------------------------------------------


def classified_deliveries(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return rows of plain deliveries, and the others as they are; as ``classified_sources``.

    Args:
        records: ``RECORD``, of all topics but delay topics and the outcome topic.
        ledger: what to read by.
    """
    has_id = sf.get("headers.key", sf.size("headers") - 1) == names.DELAY_ID
    read = records.withColumn("tail", sf.when(or_false(has_id), 4).otherwise(3))
    due, source, settles = (
        sf.get("headers", sf.size("headers") - sf.col("tail") + n) for n in range(3)
    )
    named = source["value"].cast("string")
    read = read.withColumns(
        {
            "named": named,
            "shard_name": sf.substring_index(named, ":", 2),
            "settled": settles["value"].cast("string"),
            "due_ms": _number(due["value"].cast("string")),
        }
    ).withColumns({"settles": _number(sf.col("settled")), "shard": sf.xxhash64("shard_name")})
    sizes = sf.octet_length("shard_name") + sf.octet_length("settled") + 1
    is_plain = (
        (due["key"] == names.DELAY_DUE_AT)
        & (source["key"] == names.DELAY_SOURCE)
        & (settles["key"] == names.DELAY_SETTLES)
        & sf.col("due_ms").isNotNull()
        & (sf.octet_length("named") == sizes)
        & sf.endswith("named", "settled")
        & _settles(ledger)
        & ~sf.col("topic").isin(*ledger.roles, "")
        & _has_readable_names()
    )
    own = sf.slice("headers", 1, sf.greatest(sf.size("headers") - sf.col("tail"), sf.lit(0)))
    key = sf.when(sf.length("key") > 0, sf.col("key"))
    complete = sf.when(key.isNotNull(), HASHED).otherwise(COMPLETE)
    return _classified(
        read.withColumn("reading", _reading_of_output(is_plain, complete)),
        key=key,
        is_doubtful=sf.col("reading") == DOUBTFUL,
        role=sf.lit(DELIVERED),
        offset=sf.col("settles"),
        due_ms=sf.col("due_ms"),
        content=content(records, own),
        id_hash=_id_hash(sf.when(has_id, sf.get("headers", sf.size("headers") - 1)["value"])),
        **_place_of_output(),
    )


def classified_outcomes(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return rows of outcomes, and the others as they are; as ``classified_sources``.

    Args:
        records: ``RECORD``, of the outcome topic.
        ledger: what to read by.
    """
    told = {
        name: sf.get("headers", sf.array_position(sf.col("headers.key"), name).cast("int") - 1)
        for name in _OF_OUTCOME
    }
    read = records.withColumns(
        {name: sf.nvl(one["value"].cast("string"), sf.lit("")) for name, one in told.items()}
    )
    shard, settled = sf.col(names.DELAY_SHARD), sf.col(names.DELAY_SETTLES)
    source, by = sf.col(names.DELAY_SOURCE), sf.col(names.DELAY_SETTLED_BY)
    due = sf.col(names.DELAY_DUE_AT)
    settles = _number(settled)
    read = read.withColumns({"shard": sf.xxhash64(shard), "settles": settles})
    is_plain = (
        (sf.size(sf.array_distinct("headers.key")) == sf.size("headers"))
        & (sf.size(sf.array_except("headers.key", sf.array(*map(sf.lit, _OF_OUTCOME)))) == 0)
        & sf.col(names.DELAY_OUTCOME).isin(*OUTCOME_NAMES[1:])
        & sf.when(by == "", source == sf.concat_ws(":", shard, settled)).otherwise(
            (source == "") & _number(by).isNotNull()
        )
        & (_number(due).isNotNull() | (due == ""))
        & _settles(ledger)
    )
    kind = sf.lit(0)
    for name, number in OUTCOME_KINDS.items():
        kind = sf.when(sf.col(names.DELAY_OUTCOME) == name, number).otherwise(kind)
    return _classified(
        read.withColumn("reading", _reading_of_output(is_plain, sf.lit(COMPLETE))),
        key=sf.lit(None),
        is_doubtful=sf.col("reading") == DOUBTFUL,
        role=sf.lit(OUTCOME),
        kind=kind,
        offset=sf.col("settles"),
        due_ms=sf.coalesce(due.try_cast("bigint"), sf.lit(-1)),
        by=sf.coalesce(by.try_cast("bigint"), sf.lit(-1)),
        id_hash=_id_hash(told[names.DELAY_ID]["value"]),
        **_place_of_output(),
    )


_OF_OUTCOME: Final = (
    names.DELAY_OUTCOME,
    names.DELAY_SHARD,
    names.DELAY_SETTLES,
    names.DELAY_ID,
    names.DELAY_SOURCE,
    names.DELAY_DUE_AT,
    names.DELAY_SETTLED_BY,
)
"""Headers of an outcome that is read here. One with another header is read in Python."""


def _place_of_output() -> dict[str, Column]:
    place = {"partition": sf.col("partition"), "place": sf.col("offset")}
    return {"shard": sf.col("shard"), "topic": sf.xxhash64("topic"), **place}


def _number(text: Column, digits_max: int = _DIGITS_MAX) -> Column:
    """Return the number that digits give without leading zeros, which are read in Python; else
    null.
    """
    number = text.try_cast("bigint")
    is_exact = number.between(0, 10**digits_max - 1) & (number.cast("string") == text)
    return sf.when(is_exact, number)


def _settles(ledger: Ledger) -> Column:
    judged = sf.col("shard").isin(*ledger.shards.values(), NO_SHARD)
    return judged & sf.col("settles").isNotNull()


def _reading_of_output(is_plain: Column, complete: Column) -> Column:
    is_marked = sf.array_contains(sf.col("headers.key"), names.DELAY_SETTLES)
    reading = sf.when(or_false(is_plain), complete)
    reading = reading.when(~or_false(is_marked) & _has_readable_names(), ORDINARY)
    return reading.otherwise(DOUBTFUL).cast("byte")


# --- both ----------------------------------------------------------------------------------------


def content(records: DataFrame, own: Column) -> Column:
    """Return the hash of key, value and headers: ``rows.content_hash`` as an expression."""
    hashed = sf.when(sf.col("value").isNotNull(), sf.xxhash64("value"))
    if "value_hash" in records.columns:
        hashed = sf.coalesce(hashed, sf.col("value_hash"))
    return sf.xxhash64(sf.col("key").isNull(), sf.col("key"), hashed.isNull(), hashed, own)


def _id_hash(record_id: Column) -> Column:
    """Return ``rows.id_hash`` as an expression."""
    return sf.when(record_id.isNull(), NO_ID).otherwise(sf.xxhash64(record_id).bitwiseOR(sf.lit(1)))


def _has_readable_names() -> Column:
    joined = sf.array_join("headers.key", "")
    odd = [sf.contains(joined, sf.lit(text)) for text in _ODD_IN_NAMES]
    return ~or_false(odd[0] | odd[1])


def row_with(*kept: str, **given: Column) -> list[Column]:
    """Return the columns of a row of the ledger.

    Args:
        kept: columns that are taken as they are.
        given: other columns; those that are missing are as most rows have them.
    """
    usual = LedgerRow(0, 0, SOURCE)._asdict()
    columns = {name: sf.lit(value) for name, value in usual.items()}
    columns |= {name: sf.col(name) for name in kept} | given
    return [columns[name].cast(TYPES[name]).alias(name) for name in COLUMNS]


def _classified(
    read: DataFrame, *, key: Column, is_doubtful: Column, **columns: Column
) -> DataFrame:
    """Return the rows of what was read, nulls in place of the columns of what was not."""
    record = sf.struct(*(name for name in (*RECORD, "value_hash") if name in read.columns))
    is_read = sf.col("reading") <= HASHED
    row = row_with(at_ms=sf.col("timestamp_ms"), **columns)
    return read.select(
        *(sf.when(is_read, told).alias(name) for name, told in zip(COLUMNS, row, strict=True)),
        "reading",
        sf.when(sf.col("reading") == HASHED, key).cast("binary").alias("key"),
        sf.when(is_doubtful, record).alias("record"),
    )
