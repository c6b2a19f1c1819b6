"""Archives records of a delay service as Parquet, to audit them after Kafka has deleted them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.log_ends import EARLIEST, offsets_of
from connectors.spark.audit.evidence import EarlierCut, Evidence, gather
from connectors.spark.audit.options import AuditOptions, AuditResult
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.run import audited, cut_of
from connectors.spark.common.clients import admin_of
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import delete, names_in, read_bytes, write_bytes
from connectors.spark.common.frames import table
from connectors.spark.common.topics import (
    ROW_SCHEMA,
    Place,
    Span,
    read_topic,
)
from connectors.spark.ledger.expressions import RECORD
from delayservice.base.errors import DelayServiceError
from delayservice.contract.contracts import Contracts
from delayservice.contract.names import COPY_NAMES, HOME_NAMES

ARCHIVE: Final = f"{ROW_SCHEMA}, value_hash long"
"""Columns of an archive, as a Spark schema: those of Kafka's records, and ``value_hash``, Spark's
``xxhash64`` of the value, which is kept even where the value is not; null: there is no value."""

VERSION: Final = 1


class Batch(msgspec.Struct, frozen=True):
    """The last batch of an archive: up to its cut, all that was captured can be judged.

    Attributes:
        number: number of the batch, from 0 on.
        ends: exclusive offset up to which the archive holds each log that was ever captured.
        cut: the cut up to which this batch was written; its logs begin where the archive does.
        evidence: evidence for the whole archive, gathered after the batch was written.
    """

    number: int
    ends: Mapping[Place, int]
    cut: Cut
    evidence: Evidence
    v: int = VERSION


_NONE: Final = Batch(-1, {}, Cut(0, (), {}, {}), Evidence({}, {}, {}, {}, {}, {}))


class Archive:
    """Folder of an archive: batches of records, and a manifest that completes each batch."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def folder(self, number: int) -> str:
        return f"{self._path}/records/batch={number:08d}"

    def commit(self, batch: Batch) -> None:
        data = msgspec.msgpack.encode(batch, enc_hook=Contracts.to_json)
        folder = f"{self._path}/batches"
        write_bytes(f"{folder}/{batch.number:08d}.msgpack", data)
        # The one before is still there for a reader that has just listed them.
        for name in names_in(folder)[:-2]:
            delete(f"{folder}/{name}")

    def newest(self) -> Batch:
        """Return the last complete batch, or an empty one before the first.

        Raises:
            DelayServiceError: its manifest can't be read.
        """
        names = names_in(f"{self._path}/batches")
        if not names:
            return _NONE
        path = f"{self._path}/batches/{names[-1]}"
        try:
            found = msgspec.msgpack.decode(
                read_bytes(path) or b"", type=Batch, dec_hook=_contracts_of
            )
        except msgspec.MsgspecError as exc:
            raise DelayServiceError(f"{path} can't be read: {exc}") from exc
        if found.v != VERSION:
            raise DelayServiceError(f"{path} is of version {found.v}, and this reads {VERSION}")
        return found

    def cut(self) -> tuple[Cut, Evidence]:
        """Return the cut at which the archive can be judged, and its evidence.

        Raises:
            DelayServiceError: no batch is complete, or its manifest can't be read.
        """
        batch = self._complete()
        return batch.cut, batch.evidence

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the records of all complete batches, with the columns of ``ARCHIVE``."""
        records = spark.read.schema(f"{ARCHIVE}, batch int").parquet(f"{self._path}/records")
        return records.where(sf.col("batch") <= self._complete().number).drop("batch")

    def _complete(self) -> Batch:
        batch = self.newest()
        if batch is _NONE:
            raise DelayServiceError(f"{self._path} holds no complete batch of an archive")
        return batch


def _contracts_of(kind: type, told: object) -> Contracts:
    del kind  # there is no other class of our own
    return Contracts.from_json(told)


def audit_archive(spark: SparkSession, options: AuditOptions, path: str) -> AuditResult:
    """Audit the records of the archive in the folder ``path``, write the results to ``options.out``
    and return them. The cluster is used only to publish them, if ``options.topic`` is given.

    Raises:
        DelayServiceError: the archive can't be read; or a range of the options is of a shard that
            is not in its cut.
        KafkaEdgeError: the results can't be published.
    """
    began_s = time.monotonic()
    archive = Archive(path)
    cut, evidence = archive.cut()
    return audited(spark, options, cut, evidence, ArchivedLogs(archive.read(spark)), began_s)


@dataclass(frozen=True, slots=True)
class ArchivedLogs:
    """Logs of an archive. Retention in Kafka does not affect them."""

    records_kept: DataFrame

    def records(self, spans: Mapping[Place, Span]) -> DataFrame:
        kept = self.records_kept
        asked = [(*place, span.start, span.end) for place, span in spans.items()]
        columns = "topic string, partition int, start long, stop long"
        chosen = table(kept.sparkSession, columns, asked)
        is_asked = (sf.col("offset") >= sf.col("start")) & (sf.col("offset") < sf.col("stop"))
        read = kept.join(sf.broadcast(chosen), ["topic", "partition"]).where(is_asked)
        return read.select(*kept.columns)

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        del rules
        return decided


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of an archive.

    Attributes:
        audit: the cluster and topics, as for an audit; ``out`` is the folder of the archive.
        values: whether to keep all values; otherwise hashes replace them, except in requeued
            records and envelopes.
    """

    audit: AuditOptions
    values: bool = False


def capture(spark: SparkSession, options: ArchiveOptions) -> Batch:
    """Write the records from the end of the last batch to a cut that is taken now, and return the
    batch. If no record has come, the last batch gets the new cut.

    A killed process leaves a folder without a manifest, which the next one replaces.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options does not exist.
        DelayServiceError: a topic was created again since the archive was begun.
    """
    audit = options.audit
    archive = Archive(audit.out)
    before = archive.newest()
    cut = _with_known_topics(cut_of(audit), before, audit.out)
    number = before.number
    spans = {place: _after(span, before.ends.get(place, 0)) for place, span in cut.spans.items()}
    count = sum(span.end - span.start for span in spans.values())
    if count or before is _NONE:
        number += 1
        records = read_topic(spark, audit.client, spans).select(*_kept(options))
        records.write.mode("overwrite").parquet(archive.folder(number))
    # Retention may have deleted records before they were read: what is missing is known only now.
    starts = offsets_of(admin_of(audit.client), cut.spans.keys(), EARLIEST)
    cut = _spanning(cut, {place: _after(span, starts[place]) for place, span in cut.spans.items()})
    old = before.evidence
    past = EarlierCut(before.ends, old.starts, old.judged, old.seen_ms)
    batch = _joined(before, number, cut, gather(audit.client, cut, past))
    archive.commit(batch)
    return batch


def _after(span: Span, start: int) -> Span:
    return Span(min(max(span.start, start), span.end), span.end)


def _spanning(cut: Cut, spans: Mapping[Place, Span]) -> Cut:
    shards = tuple(replace(shard, span=spans[shard.place]) for shard in cut.shards)
    return replace(cut, shards=shards, others={place: spans[place] for place in cut.others})


def _joined(before: Batch, number: int, cut: Cut, evidence: Evidence) -> Batch:
    # Logs begin where the archive does, and what retention took before an earlier batch is missing
    # for ever.
    first = {**evidence.spans, **before.evidence.spans}
    cut = _with_deleted_targets(cut, before.cut)
    spans = {place: replace(span, start=first[place].start) for place, span in cut.spans.items()}
    complete_ms = {**before.evidence.complete_ms, **evidence.complete_ms}
    return Batch(
        number,
        {**before.ends, **{place: span.end for place, span in spans.items()}},
        _spanning(cut, spans),
        replace(
            evidence,
            spans=spans,
            complete_ms=complete_ms,
            policies={**before.evidence.policies, **evidence.policies},
        ),
    )


def _with_deleted_targets(cut: Cut, before: Cut) -> Cut:
    # The archive still holds what was delivered to them.
    gone = {place: span for place, span in before.others.items() if place[0] not in cut.partitions}
    counts = {topic: before.partitions[topic] for topic, _ in gone}
    return replace(cut, others={**gone, **cut.others}, partitions={**counts, **cut.partitions})


def _kept(options: ArchiveOptions) -> list[Column]:
    # value is null without options.values, except in requeued records and envelopes.
    is_kept = sf.exists("headers", lambda one: one["key"].isin(*COPY_NAMES, *HOME_NAMES))
    value = sf.col("value") if options.values else sf.when(is_kept, sf.col("value"))
    hashed = sf.when(sf.col("value").isNotNull(), sf.xxhash64("value"))
    made = {"value": value.alias("value"), "value_hash": hashed.alias("value_hash")}
    return [made.get(name, sf.col(name)) for name in (*RECORD, "value_hash")]


def _with_known_topics(cut: Cut, before: Batch, out: str) -> Cut:
    # Of a topic that was created again, the archive holds records of the former one under the same
    # offsets.
    known = before.cut.topic_ids
    for topic, topic_id in sorted(cut.topic_ids.items()):
        if known.get(topic, topic_id) != topic_id:
            raise DelayServiceError(
                f"topic {topic} was deleted and created again since the archive in {out} was "
                "begun, and it holds what the former one had: write to another folder from now on"
            )
    return replace(cut, topic_ids={**known, **cut.topic_ids})
