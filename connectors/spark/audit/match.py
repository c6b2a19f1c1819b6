"""Joins source records with the outputs that settle them, into pairs, and judges the usual pairs.

Functions take and return data frames, on the session of the input, and need no Kafka.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from connectors.spark.audit.rules import Rules
from connectors.spark.audit.sieve import FLAGS
from connectors.spark.common.frames import or_false
from connectors.spark.ledger.expressions import row_with
from connectors.spark.ledger.facts import (
    DELIVERED,
    NAMED,
    NEVER_MS,
    OUTCOME,
    OUTCOME_KINDS,
    REMEMBERED,
    SOURCE,
)
from connectors.spark.ledger.rows import COLUMNS, NO_ID, NO_SHARD
from delayservice.contract.entry import CANCEL, SCHEDULE

SOUND: Final = 0
PENDING: Final = 1
ODD: Final = 2
UNMATCHED: Final = 3
"""Values of ``status``. ``SOUND``: a record with its one output, without errors; ``PENDING``: a
record that needs no output yet; ``ODD``: a pair that Python must judge; ``UNMATCHED``: an output
without a known record."""

_CANCELLED, _REPLACED = OUTCOME_KINDS["cancelled"], OUTCOME_KINDS["replaced"]
_NOT_PENDING: Final = OUTCOME_KINDS["not_pending"]
_KEY: Final = ("shard", "offset")
_SIDES: Final = {"s_": "is_source", "o_": "not is_source"}


def match(rows: DataFrame, rules: Rules) -> DataFrame:
    """Return one row for each pair of a record and an output that settles it. If one of them is
    missing, its columns are null. Rows of role ``NAMED`` or shard ``NO_SHARD`` are left out.

    ``rows`` are sifted (``sieve.SIFTED``); for each record there must be all its rows and all those
    of its id.

    Returns:
        ``shard``, ``offset``, ``status``; ``s_*``: columns of the source record; ``o_*``: columns
        of the output.
    """
    is_source = sf.col("role").isin(SOURCE, REMEMBERED)
    paired = rows.where((sf.col("shard") != NO_SHARD) & (sf.col("role") != NAMED))
    sources, outputs = (
        paired.where(told).select(*_KEY, *_prefixed(prefix))
        for prefix, told in (("s_", is_source), ("o_", ~is_source))
    )
    counted = outputs.withColumn("outputs", sf.count("*").over(Window.partitionBy(*_KEY)))
    joined = sources.join(counted, list(_KEY), "full")
    told = joined.withColumns({"family": family("s_id_hash"), "status": _status(rules)})
    named = rows.where(sf.col("role") == NAMED).select("shard", family().alias("family"))
    named = named.distinct().withColumn("is_named", sf.lit(1))
    told = told.join(named, ["shard", "family"], "left")
    return _with_ids_judged(told).select(
        *_KEY, "status", *(f"{p}{name}" for p in _SIDES for name in COLUMNS if name not in _KEY)
    )


def family(id_hash: str = "id_hash") -> Column:
    """Return a column of ledger rows: the same number for all records of an id in a shard. A record
    without an id is a family of its own: all of them would be a huge one.
    """
    has_id = sf.col(id_hash) != NO_ID
    return sf.when(has_id, sf.col(id_hash)).otherwise(sf.xxhash64("offset"))


def _prefixed(prefix: str) -> list[Column]:
    told = (*COLUMNS, *FLAGS)
    return [sf.col(name).alias(prefix + name) for name in told if name not in _KEY]


def _status(rules: Rules) -> Column:
    # A record with an id is SOUND only below H of the earlier cursor. Other records of the id are
    # not regarded here.
    has_id = sf.col("s_id_hash") != NO_ID
    is_passed = ~has_id | sf.col("s_is_passed")
    is_simple = (sf.col("s_role") == SOURCE) & sf.col("s_more").isNull()
    is_settled = is_simple & is_passed & (sf.col("outputs") == 1) & sf.col("o_more").isNull()
    is_delayed = sf.col("s_kind") == SCHEDULE
    is_pending = ~sf.col("s_is_settled") & (
        sf.greatest("s_key_ms", "s_at_ms") >= rules.overdue_since_ms
    )
    waits = is_simple & is_delayed & sf.col("o_role").isNull() & is_pending
    is_sound = is_settled & ((is_delayed & _is_delivered_well(rules)) | (has_id & _is_outcome()))
    return (
        sf.when(or_false(is_sound), SOUND)
        .when(or_false(waits), PENDING)
        .when(sf.col("s_role").isNull(), UNMATCHED)
        .otherwise(ODD)
    )


def _is_delivered_well(rules: Rules) -> Column:
    late_ms = NEVER_MS if rules.late_ms is None else rules.late_ms
    due_ms, at_ms = sf.col("s_due_ms"), sf.col("o_at_ms")
    named = sf.col("s_partition")
    is_in_its_partition = sf.when(named >= 0, named == sf.col("o_partition")).otherwise(
        sf.col("o_fits_key")
    )
    return (
        (sf.col("o_role") == DELIVERED)
        & (sf.col("s_content") == sf.col("o_content"))
        & (sf.col("s_topic") == sf.col("o_topic"))
        & (due_ms == sf.col("o_due_ms"))
        & is_in_its_partition
        & (at_ms >= due_ms - rules.early_ms)
        & (at_ms - sf.greatest(due_ms, "s_at_ms") <= late_ms)
        & sf.col("s_is_counted")
    )


def _is_outcome() -> Column:
    told = sf.col("o_kind")
    is_cancelled = told.isin(_CANCELLED, _REPLACED) & (sf.col("o_by") > sf.col("offset"))
    of_cancel = told.isin(_CANCELLED, _NOT_PENDING)
    by_kind = sf.when(sf.col("s_kind") == SCHEDULE, is_cancelled).when(
        sf.col("s_kind") == CANCEL, of_cancel
    )
    return (sf.col("o_role") == OUTCOME) & by_kind


def _with_ids_judged(pairs: DataFrame) -> DataFrame:
    # If one pair of an id is neither SOUND nor PENDING, or does not fit the other records of the
    # id, or if there is a NAMED row of the id, all SOUND and PENDING pairs of the id become ODD.
    of_id = Window.partitionBy("shard", "family")
    in_order = of_id.orderBy("offset")
    columns = ("offset", "s_kind", "s_at_ms", "o_role", "o_kind", "o_by", "s_is_passed")
    both = sf.struct(*columns)
    read = pairs.withColumns(
        {"next": sf.lead(both).over(in_order), "last": sf.lag(both).over(in_order)}
    )
    is_usual = sf.col("status").isin(SOUND, PENDING) & sf.col("is_named").isNull()
    is_right = or_false(is_usual & _is_as_demanded())
    is_settled = sf.col("status") <= PENDING
    status = sf.when(is_settled & ~sf.every("is_right").over(of_id), ODD).otherwise(
        sf.col("status")
    )
    return read.withColumn("is_right", is_right).withColumn("status", status.cast("byte"))


def _is_as_demanded() -> Column:
    # A pending record fits if no record of the id follows it; a delivery, if it was written before
    # the next record of the id.
    following, before = sf.col("next"), sf.col("last")
    is_alone = following.isNull()
    by_next = (sf.col("o_by") == following["offset"]) & following["s_is_passed"]
    wanted = sf.when(following["s_kind"] == CANCEL, _CANCELLED).when(
        following["s_kind"] == SCHEDULE, _REPLACED
    )
    is_cancelled = by_next & (sf.col("o_kind") == wanted)
    is_in_time = is_alone | (sf.col("o_at_ms") <= following["s_at_ms"])
    has_settled_one = or_false((before["o_role"] == OUTCOME) & (before["o_by"] == sf.col("offset")))
    is_cancel_right = (sf.col("o_kind") == _CANCELLED) == has_settled_one
    return (
        sf.when(sf.col("s_id_hash") == NO_ID, sf.lit(1) == 1)
        .when(sf.col("status") == PENDING, is_alone)
        .when(sf.col("s_kind") == CANCEL, is_cancel_right)
        .when(sf.col("o_role") == DELIVERED, is_in_time)
        .otherwise(is_cancelled)
    )


def unpaired(matched: DataFrame) -> DataFrame:
    """Return pairs as ledger rows, with their family; a record with several outputs once for each
    of them.
    """
    rows = [_row(prefix) for prefix in _SIDES]
    return (
        matched.select(
            sf.explode(sf.array(*rows)).alias("row"), family("s_id_hash").alias("family")
        )
        .select("row.*", "family")
        .where("role is not null")
    )


def of_records(matched: DataFrame) -> DataFrame:
    return matched.select(_row("s_").alias("row")).select("row.*")


def _row(prefix: str) -> Column:
    return sf.struct(
        *(sf.col(name if name in _KEY else prefix + name).alias(name) for name in COLUMNS)
    )


def remembered(sound: DataFrame) -> DataFrame:
    told = sound.select(_row("o_").alias("row")).select("row.*")
    kept = (*_KEY, "at_ms", "topic", "partition", "place")
    return told.select(*row_with(*kept, role=sf.lit(REMEMBERED), kind=sf.col("role")))
