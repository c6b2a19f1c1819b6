"""Makes ledger rows with Spark's column expressions, for nearly all records.

A source record is read here if its headers are a time in digits, an existing target, perhaps an id,
and headers of its own, or if it is a cancel; a delivery or an outcome, if it has the headers that
the service always writes. Others are passed on as ``DOUBTFUL``, and read in Python by ``sources``
and ``outputs``. Both ways make the same rows (``tests/spark/test_readers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.frames import or_false, table
from connectors.spark.ledger.expressions import (
    COMPLETE,
    DOUBTFUL,
    HASHED,
    ODD_IN_NAMES,
    ORDINARY,
    classified,
    content,
    exact_number,
    has_in_names,
    has_readable_names,
    id_hash,
)
from connectors.spark.ledger.facts import DELIVERED, OUTCOME, OUTCOME_KINDS, OUTCOME_NAMES, SOURCE
from connectors.spark.ledger.rows import NO_SHARD, Ledger
from delayservice.contract import names
from delayservice.contract.contracts import MAX_DELAY_MS_MAX, PAST_DUE_DELIVER, Contract
from delayservice.contract.entry import CANCEL, SCHEDULE
from delayservice.contract.input_headers import CANCEL_OP
from delayservice.contract.names import is_reserved
from delayservice.contract.record import PARTITION_BY_KEY, PLAIN_DIGITS_MAX
from delayservice.contract.times import DUE_STOP_MS, SURELY_MS

# Headers of the service that have a meaning in records that this module reads.
_TOLD: Final = (
    names.DELAY_AT,
    names.DELAY_AFTER,
    names.DELAY_TARGET_TOPIC,
    names.DELAY_ID,
)
_ID_AND_OP: Final = 2


def classified_sources(records: DataFrame, ledger: Ledger) -> DataFrame:
    """Return one row for each source record: its ledger row if column expressions can read the
    record, else the whole record.

    Returns:
        As ``expressions.classified``; ``reading``: ``COMPLETE``, ``HASHED`` or ``DOUBTFUL``;
        ``key``, where Python must hash it; ``record``, the whole record, where Python must or may
        have to read it; else null.
    """
    # null, as all that is computed with it, where a sum might not be in range
    written_ms = sf.when(
        sf.col("timestamp_ms").between(1, MAX_DELAY_MS_MAX - 1), sf.col("timestamp_ms")
    )
    told_ms = exact_number(sf.col("time"), PLAIN_DIGITS_MAX)
    due_ms = sf.when(sf.col("is_after"), told_ms + written_ms).otherwise(told_ms)
    shards = table(records.sparkSession, _SHARD, _shards(ledger))
    read = (
        _parted(records)
        .withColumns({"delay_ms": due_ms - written_ms, "due_ms": sf.greatest(due_ms, sf.lit(1))})
        .withColumn("shard", sf.xxhash64(sf.concat_ws(":", "topic", "partition")))
        .join(sf.broadcast(shards), "shard", "left")
    )
    read = read.withColumn("kind", _kind_of_source(_allowed(ledger)))
    is_delayed = sf.col("kind") == SCHEDULE
    key = sf.when((sf.length("key") > 0) & is_delayed, sf.col("key"))
    may_be_away = sf.col("has_homes") & sf.col("id").isNotNull()
    reading = (
        sf.when(sf.col("kind").isNull(), DOUBTFUL)
        .when(key.isNotNull() | may_be_away, HASHED)
        .otherwise(COMPLETE)
    )
    return classified(
        read.withColumn("reading", reading.cast("byte")),
        role=SOURCE,
        key=key,
        is_doubtful=(sf.col("reading") == DOUBTFUL) | may_be_away,
        shard=sf.col("shard"),
        offset=sf.col("offset"),
        kind=sf.col("kind"),
        due_ms=sf.when(is_delayed, sf.col("due_ms")).otherwise(0),
        content=content(records, sf.when(is_delayed, sf.col("own")).otherwise(sf.col("headers"))),
        topic=sf.when(is_delayed, sf.xxhash64("target")).otherwise(-1),
        partition=sf.lit(PARTITION_BY_KEY),
        id_hash=id_hash(sf.col("id")),
        id=sf.col("id"),
    )


def _kind_of_source(targets: Sequence[str]) -> Column:
    # null where column expressions can't read the record
    has_id = sf.octet_length("id").between(1, sf.col("id_max"))
    is_read = sf.col("offset") >= sf.col("first")
    is_schedule = (
        ~has_in_names("own", _MARKS)
        & (has_id | (sf.col("id_at") == 0))
        & sf.col("target").isin(*targets)
        & ((sf.col("due_ms") >= SURELY_MS) | sf.col("is_after"))
        & sf.col("delay_ms").between(sf.col("min_ms"), sf.col("max_ms"))
        & is_read
    )
    other = sf.get("headers", _ID_AND_OP - sf.col("id_at"))
    is_cancel = (
        (sf.size("headers") == _ID_AND_OP)
        & (other["key"] == names.DELAY_OP)
        & (other["value"].cast("string") == CANCEL_OP)
        & has_id
        & is_read
    )
    return sf.when(or_false(is_schedule), SCHEDULE).when(or_false(is_cancel), CANCEL)


def _parted(records: DataFrame) -> DataFrame:
    """Return records with the values of their time, target and id headers as columns ``time``,
    ``target`` and ``id``; with the places of these headers, from 1 on, as ``time_at`` and so on;
    with ``is_after``, and with ``own``, all other headers of a schedule.

    It uses positions and slices of arrays only: Spark would interpret a function of each header.
    """
    at = {name: sf.array_position(sf.col("headers.key"), name).cast("int") for name in _TOLD}
    time_at = sf.greatest(at[names.DELAY_AT], at[names.DELAY_AFTER])
    found = {"time_at": time_at, "is_after": at[names.DELAY_AFTER] > 0}
    named = {"target": names.DELAY_TARGET_TOPIC, "id": names.DELAY_ID}
    found |= {f"{short}_at": at[name] for short, name in named.items()}
    values = {
        short: sf.get("headers", sf.col(f"{short}_at") - 1)["value"] for short in (*named, "time")
    }
    texts = {short: values[short].cast("string") for short in ("target", "time")}
    none = sf.array().cast("array<struct<key: string, value: binary>>")
    records = records.withColumn("headers", sf.coalesce("headers", none))
    return records.withColumns(found).withColumns({**values, **texts, "own": _own()})


def _own() -> Column:
    # null if the others don't stand together.
    target_at, time_at, id_at = (sf.col(f"{name}_at") for name in ("target", "time", "id"))
    told = sf.when(id_at > 0, 3).otherwise(2)
    first = sf.least(target_at, time_at, sf.nullif(id_at, sf.lit(0)))
    is_together = sf.greatest(target_at, time_at, id_at) - first == told - 1
    behind = sf.slice("headers", first + told, sf.size("headers"))
    own = sf.when(first == 1, behind).otherwise(
        sf.concat(sf.slice("headers", sf.lit(1), first - 1), behind)
    )
    return sf.when((target_at > 0) & (time_at > 0) & is_together, own)


# Parts of names, of which one is in each name that has a meaning; and characters for which the
# service can't read a name.
_MARKS: Final = ("delay", "DEL", "UNIQ_KEY", "schedule", *ODD_IN_NAMES)


# Columns with limits for the records of a shard from the source offset first on, to which its
# newest contract applies; _bounds returns the others, in this order.
_SHARD: Final = "shard long, first long, min_ms long, max_ms long, id_max int, has_homes boolean"


def _shards(ledger: Ledger) -> list[tuple[int, int, int, int, int, bool]]:
    # Records of level topics are read in Python.
    newest = {shard: ledger.contracts[place].entries() for place, shard in ledger.shards.items()}
    return [
        (shard, entries[-1][0] if len(entries) > 1 else 0, *_bounds(entries[-1][1]))
        for shard, entries in newest.items()
        if not entries[-1][1].level_ms
    ]


def _bounds(contract: Contract) -> tuple[int, int, int, bool]:
    """Return limits from a contract: the least and longest delay (ms) of a record that is not
    rolled, the longest id in bytes, and whether there are homes.
    """
    least_ms = -DUE_STOP_MS if contract.past_due == PAST_DUE_DELIVER else 0
    window_ms = contract.roll_window_ms - contract.roll_spread_ms
    longest_ms = min(window_ms, contract.max_delay_ms)
    return (least_ms, longest_ms, contract.id_bytes_max, bool(contract.id_partitions))


def _allowed(ledger: Ledger) -> list[str]:
    """Return the topics of the cluster that may be targets by their names; if there are none, an
    empty name.
    """
    delay_topics = {topic for topic, _ in ledger.shards}
    return [n for n in ledger.topics if not is_reserved(n) and n not in delay_topics] or [""]


def classified_deliveries(records: DataFrame, ledger: Ledger) -> DataFrame:
    """As ``classified_sources``, for records of target topics and the dead-letter topic. Dead
    letters are ``DOUBTFUL``; ``reading`` may be ``ORDINARY``.
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
            "due_ms": exact_number(due["value"].cast("string")),
        }
    ).withColumns({"settles": exact_number(sf.col("settled")), "shard": sf.xxhash64("shard_name")})
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
        & has_readable_names()
    )
    own = sf.slice("headers", 1, sf.greatest(sf.size("headers") - sf.col("tail"), sf.lit(0)))
    key = sf.when(sf.length("key") > 0, sf.col("key"))
    complete = sf.when(key.isNotNull(), HASHED).otherwise(COMPLETE)
    return classified(
        read.withColumn("reading", _reading_of_output(is_plain, complete)),
        role=DELIVERED,
        key=key,
        is_doubtful=sf.col("reading") == DOUBTFUL,
        offset=sf.col("settles"),
        due_ms=sf.col("due_ms"),
        content=content(records, own),
        id_hash=id_hash(sf.when(has_id, sf.get("headers", sf.size("headers") - 1)["value"])),
        **_place_of_output(),
    )


def classified_outcomes(records: DataFrame, ledger: Ledger) -> DataFrame:
    """As ``classified_deliveries``, for the records of the outcome topic."""
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
    settles = exact_number(settled)
    read = read.withColumns({"shard": sf.xxhash64(shard), "settles": settles})
    is_plain = (
        (sf.size(sf.array_distinct("headers.key")) == sf.size("headers"))
        & (sf.size(sf.array_except("headers.key", sf.array(*map(sf.lit, _OF_OUTCOME)))) == 0)
        & sf.col(names.DELAY_OUTCOME).isin(*OUTCOME_NAMES[1:])
        & sf.when(by == "", source == sf.concat_ws(":", shard, settled)).otherwise(
            (source == "") & exact_number(by).isNotNull()
        )
        & (exact_number(due).isNotNull() | (due == ""))
        & _settles(ledger)
    )
    kind = sf.lit(0)
    for name, number in OUTCOME_KINDS.items():
        kind = sf.when(sf.col(names.DELAY_OUTCOME) == name, number).otherwise(kind)
    return classified(
        read.withColumn("reading", _reading_of_output(is_plain, sf.lit(COMPLETE))),
        role=OUTCOME,
        key=sf.lit(None),
        is_doubtful=sf.col("reading") == DOUBTFUL,
        kind=kind,
        offset=sf.col("settles"),
        due_ms=sf.coalesce(due.try_cast("bigint"), sf.lit(-1)),
        by=sf.coalesce(by.try_cast("bigint"), sf.lit(-1)),
        id_hash=id_hash(told[names.DELAY_ID]["value"]),
        **_place_of_output(),
    )


# Headers of the outcomes that are read here; outcomes with any other header are DOUBTFUL.
_OF_OUTCOME: Final = (
    names.DELAY_OUTCOME,
    names.DELAY_SHARD,
    names.DELAY_SETTLES,
    names.DELAY_ID,
    names.DELAY_SOURCE,
    names.DELAY_DUE_AT,
    names.DELAY_SETTLED_BY,
)


def _place_of_output() -> dict[str, Column]:
    place = {"partition": sf.col("partition"), "place": sf.col("offset")}
    return {"shard": sf.col("shard"), "topic": sf.xxhash64("topic"), **place}


def _settles(ledger: Ledger) -> Column:
    judged = sf.col("shard").isin(*ledger.shards.values(), NO_SHARD)
    return judged & sf.col("settles").isNotNull()


def _reading_of_output(is_plain: Column, complete: Column) -> Column:
    is_marked = sf.array_contains(sf.col("headers.key"), names.DELAY_SETTLES)
    reading = sf.when(or_false(is_plain), complete)
    reading = reading.when(~or_false(is_marked) & has_readable_names(), ORDINARY)
    return reading.otherwise(DOUBTFUL).cast("byte")
