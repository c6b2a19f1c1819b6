"""Compares copies with the log, record by record: takes data frames, returns findings.

Works on the session of the given data frames, Spark Connect included. ``docs/reconcile.md``
describes the findings. *Pending by the log*: pending according to the delay topic's records.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.frames import arrow_schema
from delayservice.replicas.digest import SLOT_MS

FINDINGS_VERSION: Final = 1
"""Version of the format ``FINDING``."""

FINDING: Final = (
    "kind string, node string, topic string, partition int, slot_start_ms bigint, "
    "slot_stop_ms bigint, offset bigint, key_ms bigint, detail string"
)
"""Columns of a finding. Times are epoch ms; ``detail`` is a text for users; columns that do not
apply are null."""
OF_RECORDS: Final = ("missing", "extra", "different")
"""Kinds of findings about records: a copy lacks one, has one too many, or has other content."""

HELD: Final = (
    "node string, topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint"
)
"""Columns of a pending record in a copy; ``payload_hash`` as in ``stored.DDL``."""
LOGGED: Final = "topic string, partition int, key_ms bigint, offset bigint, payload_hash bigint"
COPIES: Final = "node string, topic string, partition int, log_start bigint"
"""Columns of a copy to compare. ``log_start``: first offset of the shard's log; records of the copy
with lower offsets can't be judged, and are ignored."""

SHARD: Final = ["topic", "partition"]
COPY: Final = ["node", *SHARD]
SLOT: Final = [*SHARD, "slot_start_ms"]
PLACE: Final = ["node", *SLOT]
_RECORD: Final = [*PLACE, "key_ms", "offset"]

_DETAIL: Final = {
    "missing": "the log has it pending, the copy has not",
    "extra": "the copy has it pending; by the log it is cancelled, replaced or was never written",
    "different": "the copy has it with other content than the log",
}


def compare(held: DataFrame, logged: DataFrame, copies: DataFrame) -> DataFrame:
    """Return a finding for each pending record of the log that a copy lacks (``missing``) or has
    with another content (``different``), and for each that only a copy has (``extra``).

    Args:
        held: records of all copies, columns ``HELD``, pending at the shard's cursor: offsets below
            H with keys above K, without records that an offset below H cancels.
        logged: records that are pending by the log at the same cursor, columns ``LOGGED``.
        copies: copies to compare, columns ``COPIES``, each once. With a column ``slot_start_ms``,
            only those slots are compared.

    Returns:
        Columns of ``FINDING``.
    """
    scope = [name for name in PLACE if name in copies.columns]
    ours = logged.transform(with_slot).join(copies, [name for name in scope if name != "node"])
    theirs = held.transform(with_slot).join(copies, scope).where("offset >= log_start")
    kind = (
        sf.when(sf.col("payload_hash").isNull(), "missing")
        .when(sf.col("log_payload").isNull(), "extra")
        .when(sf.col("payload_hash") != sf.col("log_payload"), "different")
    )
    return (
        ours.select(*_RECORD, sf.col("payload_hash").alias("log_payload"))
        .join(theirs.select(*_RECORD, "payload_hash"), _RECORD, "full")
        .withColumn("kind", kind)
        .where("kind is not null")
        .withColumn("detail", _by_kind(_DETAIL))
        .transform(as_findings)
    )


def with_slot(records: DataFrame) -> DataFrame:
    """Return records with the column ``slot_start_ms``, the minute of their key, epoch ms."""
    return records.withColumn("slot_start_ms", sf.col("key_ms") - sf.col("key_ms") % SLOT_MS)


def as_findings(slots: DataFrame) -> DataFrame:
    # offset and key_ms are null if the rows lack them.
    unknown = sf.lit(None).cast("bigint")
    told = {"slot_stop_ms": sf.col("slot_start_ms") + SLOT_MS, "offset": unknown, "key_ms": unknown}
    told |= {name: sf.col(name) for name in slots.columns}
    return slots.select(*(told[name].alias(name) for name in arrow_schema(FINDING).names))


def _by_kind(texts: dict[str, str]) -> Column:
    pairs = [sf.lit(text) for pair in texts.items() for text in pair]
    return sf.element_at(sf.create_map(*pairs), sf.col("kind"))
