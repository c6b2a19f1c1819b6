"""Cancellers, looked up for the records that they decide about: pending ones that bear an id.

A record whose key is beyond K is settled if and only if H has passed its canceller: the first user
record of its id at or after its base (rules 1 and 13 of ``docs/design.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.judge import (
    CERTAIN,
    IF_MARKED,
    IF_OTHER,
    IF_UNMARKED,
    UNLESS_MARKED,
)
from connectors.spark.decode import readers, rows_of, runs, without_collector
from connectors.spark.topics import Place
from delayservice.core.contract import Contracts
from delayservice.core.storing import bearing_ids, is_user_record

NAMES: Final = "shard int, record_id binary, at long"
"""User records that bear an id."""


@dataclass(frozen=True, slots=True)
class Names:
    """Makes rows of ``NAMES``. Sent to the executors as it is."""

    shards: Mapping[Place, int]
    contracts: Mapping[Place, Contracts]
    secrets: Sequence[bytes] = ()

    def of_sources(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The records of delay topics that cancel, replace or fire."""
        reading = readers(self.contracts, self.secrets)
        with without_collector():
            for batch in batches:
                for topic, partition, part in runs(batch):
                    reader = reading.get((topic, partition))
                    if reader is None:
                        continue
                    named = [
                        (record_id, entry[0])
                        for record_id, entry in bearing_ids(reader.read(rows_of(part)))
                        if is_user_record(entry)
                    ]
                    yield _batch(self.shards[topic, partition], named)


def _batch(shard: int, named: Sequence[tuple[bytes, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([shard] * len(named), pa.int32()),
            pa.array([record_id for record_id, _ in named], pa.binary()),
            pa.array([at for _, at in named], pa.int64()),
        ],
        names=["shard", "record_id", "at"],
    )


def decided(candidates: DataFrame, names: DataFrame, shards: DataFrame) -> DataFrame:
    """Those of ``candidates`` that are findings, once their cancellers are known.

    Args:
        candidates: rows of ``audit_verdicts.JUDGED`` that are not certain.
        names: rows of ``NAMES``.
        shards: ``shard``, ``earlier_h`` and ``later_h`` of each.
    """
    marks = (
        candidates.join(names, ["shard", "record_id"])
        .where(sf.col("at") >= sf.col("base"))
        .groupBy("shard", "offset")
        .agg(sf.min("at").alias("mark"))
    )
    judged = candidates.join(marks, ["shard", "offset"], "left").join(
        sf.broadcast(shards.select("shard", "earlier_h", "later_h")), "shard"
    )
    mark, when = sf.col("mark"), sf.col("when")
    was_passed = sf.coalesce(mark < sf.col("earlier_h"), sf.lit(False))  # noqa: FBT003  # a literal
    is_passed = sf.coalesce(mark < sf.col("later_h"), sf.lit(False))  # noqa: FBT003  # as above
    is_other = sf.coalesce(mark != sf.col("claim"), sf.lit(True))  # noqa: FBT003  # as above
    return judged.where(
        (when == CERTAIN)
        | ((when == IF_MARKED) & was_passed)
        | ((when == IF_UNMARKED) & ~was_passed)
        | ((when == UNLESS_MARKED) & ~is_passed)
        | ((when == IF_OTHER) & is_other)
    ).drop("mark", "earlier_h", "later_h")
