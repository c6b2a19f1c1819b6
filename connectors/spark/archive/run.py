"""Writes new records of a delay service's topics into an archive, by Structured Streaming.

A batch is stored as a folder of Parquet with its records, and a file of facts: the offset up to
which the batch reads each log, and a cut that is taken after that. Spark's own checkpoint records
which batches are done; a repeated batch replaces its folder and file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.archive.reading import Archive, BatchFacts
from connectors.spark.audit import snapshot
from connectors.spark.audit.evidence import NO_PAST, EarlierCut, gather
from connectors.spark.audit.options import AuditOptions
from connectors.spark.audit.run import cut_of
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import read_text
from connectors.spark.common.topics import stream_topics
from connectors.spark.ledger.expressions import RECORD
from delayservice.base.errors import DelayServiceError
from delayservice.contract.names import COPY_NAMES, HOME_NAMES

_RECORDS_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of an archive.

    Attributes:
        audit: the cluster, and the topics to read, as for an audit; ``out`` is the folder of the
            archive.
        interval_ms: time from the start of a batch to that of the next, in ms; 0: archive the
            records that exist now, and end.
        values: whether to keep all values; otherwise hashes replace them, except in requeued
            records and envelopes.
    """

    audit: AuditOptions
    interval_ms: int = 60_000
    values: bool = False


def start_archive(spark: SparkSession, options: ArchiveOptions) -> StreamingQuery:
    """Start to write an archive, or continue where the last process with the same ``out`` stopped.
    The caller awaits or stops the query.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options does not exist.
        DelayServiceError: a topic was created again since the archive was begun.
    """
    audit = options.audit
    cut = cut_of(audit)
    _check_topics(Archive(audit.out).newest(), cut, audit.out)
    topics = sorted({topic for topic, _ in cut.spans})
    records = stream_topics(spark, audit.client, topics, _RECORDS_MAX)
    writer = (
        records.select(*_kept(options))
        .writeStream.queryName("delay archive")
        .option("checkpointLocation", audit.path("state"))
        .foreachBatch(_Batches(options).write)
    )
    if options.interval_ms:
        return writer.trigger(processingTime=f"{options.interval_ms} milliseconds").start()
    return writer.trigger(availableNow=True).start()


def _kept(options: ArchiveOptions) -> list[Column]:
    # value is null without options.values, except in requeued records and envelopes.
    is_kept = sf.exists("headers", lambda one: one["key"].isin(*COPY_NAMES, *HOME_NAMES))
    value = sf.col("value") if options.values else sf.when(is_kept, sf.col("value"))
    hashed = sf.when(sf.col("value").isNotNull(), sf.xxhash64("value"))
    made = {"value": value.alias("value"), "value_hash": hashed.alias("value_hash")}
    return [made.get(name, sf.col(name)) for name in (*RECORD, "value_hash")]


class _Batches:
    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._archive = Archive(options.audit.out)

    def write(self, records: DataFrame, number: int) -> None:
        ends = self._ends(number)
        records.sortWithinPartitions("topic", "partition", "offset").write.mode(
            "overwrite"
        ).parquet(self._archive.folder(number))
        audit = self._options.audit
        before = self._archive.newest(number)
        cut = cut_of(replace(audit, targets=()))
        known_ids = _check_topics(before, cut, audit.out)
        evidence = gather(audit.client, cut, _past(before))
        cut = replace(cut, topic_ids={**known_ids, **cut.topic_ids})
        self._archive.commit(number, BatchFacts(ends, snapshot.encode(cut, evidence)))

    def _ends(self, number: int) -> list[tuple[str, int, int]]:
        # Spark writes the ends of the batch into this file before the batch begins.
        path = self._options.audit.path(f"state/offsets/{number}")
        lines = (read_text(path) or "").splitlines()
        try:
            told = json.loads(lines[-1])
            return [(t, int(p), end) for t, ends in told.items() for p, end in ends.items()]
        except (IndexError, ValueError, AttributeError) as exc:
            raise DelayServiceError(
                f"{path} does not say how far batch {number} reads ({exc}): is it of another "
                "version of Spark?"
            ) from exc


def _check_topics(before: BatchFacts | None, cut: Cut, out: str) -> Mapping[str, str]:
    # Of a topic that was created again, the archive holds records of the former one under the same
    # offsets, and Spark would go on at an offset of it.
    if before is None:
        return {}
    known = snapshot.decode(before.cut)[0].topic_ids
    for topic, topic_id in sorted(cut.topic_ids.items()):
        if known.get(topic, topic_id) != topic_id:
            raise DelayServiceError(
                f"topic {topic} was deleted and created again since the archive in {out} was "
                "begun, and it holds what the former one had: write to another folder from now on"
            )
    return known


def _past(before: BatchFacts | None) -> EarlierCut:
    if before is None:
        return NO_PAST
    _, evidence = snapshot.decode(before.cut)
    return EarlierCut(before.ends_by_place(), evidence.starts, evidence.judged, evidence.seen_ms)
