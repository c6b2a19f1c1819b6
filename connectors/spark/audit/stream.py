"""The streaming audit: sums by block, and the batch audit of blocks that are not at zero in time.

``applyInPandasWithState`` keeps the sums: ``transformWithStateInPandas`` of Spark 4.0 needs
RocksDB and protobuf on every executor, and asks Java for each value, for a state of four numbers.
What comes to it are sums already, a row for each block: pandas never sees a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from connectors.spark.audit import FINDING, AuditOptions, audit
from connectors.spark.audit.plan import OffsetRange
from connectors.spark.audit.sums import BLOCK_BITS, SUMS, Sums, merged
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import is_there, read_text, write_text
from connectors.spark.common.topics import Place, stream_topic
from connectors.spark.ledger.facts import (
    LETTER,
    OUTCOME,
)
from connectors.spark.ledger.rows import Ledger
from delayservice.core.cursor import OFFSET_MAX

SUSPECT: Final = "shard int, block long, balance long"
"""A block that is not at zero although all of it had to be settled by now."""
STATE: Final = "balance long, hash long, latest_ms long, tries int"

_TRIES_MAX: Final = 8
"""Then a block waits 256 times as long before it is looked at again."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of an audit that follows the topics.

    Attributes:
        audit: what to audit; its ``out`` holds results and the state of the stream.
        grace_ms: how long after the last key of a block it has to be at zero.
        trigger_ms: how often records are read.
        records_max: of one turn.
        from_start: begin at the start of the logs; otherwise with what is written from now on.
    """

    audit: AuditOptions
    grace_ms: int = 60_000
    trigger_ms: int = 10_000
    records_max: int = 500_000
    from_start: bool = False


def start_audit(spark: SparkSession, options: StreamOptions) -> StreamingQuery:
    """Begin, or go on where the last run with the same ``out`` stopped.

    Returns:
        The running query; the caller awaits or stops it.

    Raises:
        KafkaEdgeError: the cluster can't be read.
    """
    cut = take_cut(options.audit.client, options.audit.checkpoint, options.audit.choose)
    starts = _starts(spark, options, cut)
    return _Stream(spark, options, cut, starts).start()


def _starts(spark: SparkSession, options: StreamOptions, cut: Cut) -> dict[Place, int]:
    """First offsets of every log, the same in every run."""
    path = options.audit.path("stream/starts.json")
    kept = read_text(spark, path)
    if kept is not None:
        return {(topic, number): offset for topic, number, offset in json.loads(kept)}
    starts = cut.starts() if options.from_start else cut.ends()
    said = [[topic, number, offset] for (topic, number), offset in sorted(starts.items())]
    write_text(spark, path, json.dumps(said))
    return starts


def standing(spark: SparkSession, options: AuditOptions) -> dict[str, int]:
    """Return the number of findings by kind that drill-downs left in ``out``, in any run."""
    path = options.path("findings")
    if not is_there(spark, path):
        return {}
    found = spark.read.schema(FINDING).option("recursiveFileLookup", value=True).parquet(path)
    # A later drill of other blocks finds again what is in some of the same ones.
    by_kind = found.distinct().groupBy("kind").count().orderBy("kind").collect()
    return {row["kind"]: row["count"] for row in by_kind}


class _Stream:
    """One run."""

    def __init__(
        self, spark: SparkSession, options: StreamOptions, cut: Cut, starts: Mapping[Place, int]
    ) -> None:
        self._spark = spark
        self._options = options
        self._cut = cut
        self._starts = starts
        self._shards = [shard for shard in cut.shards if (shard.topic, shard.partition) in starts]
        self._others = [place for place in cut.others if place in starts]

    def start(self) -> StreamingQuery:
        """Begin to read."""
        sources = {(s.topic, s.partition): n for n, s in enumerate(self._shards)}
        ledger = Ledger(
            sources,
            {name: number for number, name in enumerate(sorted(self._cut.partitions))},
            {(s.topic, s.partition): s.contracts for s in self._shards},
            {number: (self._starts[place], OFFSET_MAX) for place, number in sources.items()},
            {s.topic: self._cut.partitions[s.topic] for s in self._shards},
            {self._options.audit.dead_letter: LETTER, self._options.audit.outcomes: OUTCOME},
            self._options.audit.secrets,
        )
        sums = Sums(ledger)
        rows = self._read(sources).mapInArrow(sums.of_sources, SUMS)
        rows = rows.unionAll(self._read(self._others).mapInArrow(sums.of_outputs, SUMS))
        rows = rows.repartition("shard", "block").mapInArrow(merged, SUMS)
        suspects = rows.groupBy("shard", "block").applyInPandasWithState(
            Watch(self._options.grace_ms).update,
            SUSPECT,
            STATE,
            "append",
            GroupStateTimeout.ProcessingTimeTimeout,
        )
        return (
            suspects.writeStream.outputMode("append")
            .queryName("delay audit")
            .trigger(processingTime=f"{self._options.trigger_ms} milliseconds")
            .option("checkpointLocation", self._options.audit.path("stream/state"))
            .foreachBatch(self._drill)
            .start()
        )

    def _read(self, places: Iterable[Place]) -> DataFrame:
        starts = {place: self._starts[place] for place in places}
        options = self._options
        return stream_topic(self._spark, options.audit.client, starts, options.records_max)

    def _drill(self, suspects: DataFrame, _: int) -> None:
        """Audit the blocks that are suspect, all of a shard's in one range: a row for each shard
        comes to the driver.
        """
        by_shard = suspects.groupBy("shard").agg(
            sf.min("block").alias("first"), sf.max("block").alias("last")
        )
        ranges = [self._range(*row) for row in by_shard.collect()]
        if ranges:
            self._audit(ranges)

    def _range(self, shard: int, first: int, last: int) -> OffsetRange:
        cut = self._shards[shard]
        start = max(first << BLOCK_BITS, self._starts[cut.topic, cut.partition])
        return OffsetRange(cut.topic, cut.partition, start, (last + 1) << BLOCK_BITS)

    def _audit(self, ranges: Sequence[OffsetRange]) -> None:
        options = self._options.audit
        drill = replace(options, out=options.path("stream/drill"), ranges=tuple(ranges))
        found = audit(self._spark, drill)
        for chosen in ranges:
            name = f"findings/drill={chosen.topic}-{chosen.partition}-{chosen.start}"
            of_range = self._spark.read.parquet(found.findings_path).where(
                f"topic = '{chosen.topic}' and partition = {chosen.partition}"
            )
            of_range.write.mode("overwrite").parquet(options.path(name))


class Watch:
    """Keeps the sums of a block, and says when it is suspect. Sent to the executors as it is."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms

    def update(
        self, key: tuple[int, int], parts: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterable[pd.DataFrame]:
        """Add what came; once it had to be at zero and is not, hand it over and wait again."""
        balance, hashed, latest_ms, tries = state.get if state.exists else (0, 0, 0, 0)
        if state.hasTimedOut:
            yield _suspect(key, balance)
            tries = min(tries + 1, _TRIES_MAX)
        else:
            for part in parts:
                balance += int(part["balance"].sum())
                hashed += int(part["hash"].sum())
                latest_ms = max(latest_ms, int(part["latest_ms"].max()))
            tries = 0
        if balance == 0 and hashed == 0:
            state.remove()
            return
        state.update((balance, hashed, latest_ms, tries))
        now_ms = state.getCurrentProcessingTimeMs()
        wait_ms = max(latest_ms - now_ms, 0) + (self._grace_ms << tries)
        state.setTimeoutDuration(wait_ms)


def _suspect(key: tuple[int, int], balance: int) -> pd.DataFrame:
    shard, block = key
    return pd.DataFrame({"shard": [shard], "block": [block], "balance": [balance]})
