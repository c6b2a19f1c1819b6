"""Archives records of a delay service as Parquet, to audit them after Kafka has deleted them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.audit.evidence import NO_PAST, EarlierCut, Evidence, decode, encode, gather
from connectors.spark.audit.options import AuditOptions, AuditResult
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.run import audited, cut_of
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import names_in, read_text, write_text
from connectors.spark.common.topics import ROW_SCHEMA, Place, Span, stream_topics
from connectors.spark.ledger.expressions import RECORD
from delayservice.base.errors import DelayServiceError
from delayservice.contract.names import COPY_NAMES, HOME_NAMES

ARCHIVE: Final = f"{ROW_SCHEMA}, value_hash long"
"""Columns of an archive, as a Spark schema: those of Kafka's records, and ``value_hash``, Spark's
``xxhash64`` of the value, which is kept even where the value is not; null: there is no value."""

VERSION: Final = 1


class BatchFacts(msgspec.Struct, frozen=True):
    """Facts about one batch: for each topic and partition the exclusive offset up to which the
    archive reaches after it; and cut and evidence, taken after it was written, as JSON
    (``audit.evidence.encode``).
    """

    ends: list[tuple[str, int, int]]
    cut: str
    v: int = VERSION

    def ends_by_place(self) -> dict[Place, int]:
        return {(topic, partition): end for topic, partition, end in self.ends}


class Archive:
    """Folder of an archive: batches of records, and a file of facts for each batch."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def folder(self, number: int) -> str:
        return f"{self._path}/records/batch={number:08d}"

    def commit(self, number: int, facts: BatchFacts) -> None:
        # The file of facts makes the batch part of the archive.
        text = msgspec.json.encode(facts).decode()
        write_text(f"{self._path}/batches/{number:08d}.json", text)

    def newest(self, before: int | None = None) -> BatchFacts | None:
        """Return the facts of the last complete batch, or of the last one before number
        ``before``.
        """
        numbers = [one for one in self.numbers() if before is None or one < before]
        return self._facts(numbers[-1]) if numbers else None

    def numbers(self) -> list[int]:
        # A batch without its file of facts is incomplete.
        return [int(name.partition(".")[0]) for name in names_in(f"{self._path}/batches")]

    def _facts(self, number: int) -> BatchFacts:
        path = f"{self._path}/batches/{number:08d}.json"
        try:
            found = msgspec.json.decode(read_text(path) or "", type=BatchFacts)
        except msgspec.MsgspecError as exc:
            raise DelayServiceError(f"{path} can't be read: {exc}") from exc
        if found.v != VERSION:
            raise DelayServiceError(f"{path} is of version {found.v}, and this reads {VERSION}")
        return found

    def cut(self) -> tuple[Cut, Evidence]:
        """Return the newest cut at which the archive can be judged, and its evidence.

        That is the cut of the newest batch after which the archive reached the ends of all logs at
        that cut. In the result, the ends are those that the archive reaches now, and the later
        cursors are those of the newest batch.

        Raises:
            DelayServiceError: the archive does not reach the ends of any cut yet, or a file can't
                be read.
        """
        facts = [self._facts(number) for number in self.numbers()]
        cuts = [decode(one.cut) for one in facts]
        ends = facts[-1].ends_by_place() if facts else {}
        for cut, evidence in reversed(cuts):
            if all(span.end <= ends.get(place, 0) for place, span in cut.spans.items()):
                return _joined((cut, evidence), cuts, ends)
        raise DelayServiceError(
            f"{self._path} does not reach any cut yet: let the archive write another batch"
        )

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all records, with the columns of ``ARCHIVE``."""
        paths = [self.folder(number) for number in self.numbers()]
        return spark.read.schema(ARCHIVE).parquet(*paths)


def _joined(
    chosen: tuple[Cut, Evidence], cuts: list[tuple[Cut, Evidence]], ends: Mapping[Place, int]
) -> tuple[Cut, Evidence]:
    # The cut keeps its place, but gets the newest cut's contracts and later cursors. Shards that
    # are not in the newest cut are left out.
    cut, evidence = chosen
    newest, (_, first) = cuts[-1][0], cuts[0]
    later = {shard.place: shard for shard in newest.shards}
    complete_ms: dict[Place, int] = {}
    for _, one in cuts:
        complete_ms |= one.complete_ms
    spans = {
        place: Span(first.spans[place].start if place in first.spans else 0, ends[place])
        for place in cut.spans
    }
    shards = tuple(
        replace(
            shard,
            later=later[shard.place].later,
            contracts=later[shard.place].contracts,
            span=spans[shard.place],
        )
        for shard in cut.shards
        if shard.place in later and later[shard.place].topic_id == shard.topic_id
    )
    others = {place: spans[place] for place in cut.others}
    whole = replace(cut, shards=shards, others=others)
    known = replace(evidence, spans=spans, complete_ms=complete_ms)
    return whole, known


def audit_archive(spark: SparkSession, options: AuditOptions, path: str) -> AuditResult:
    """Audit the records of the archive in the folder ``path``, write the results to ``options.out``
    and return them. The cluster is used only to publish them, if ``options.topic`` is given.

    Raises:
        DelayServiceError: the archive can't be read, or does not reach the ends of a cut yet; or a
            range of the options is of a shard that is not in the cut.
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

    def records(self, places: Iterable[Place]) -> DataFrame:
        topics = {topic for topic, _ in places}
        return self.records_kept.where(sf.col("topic").isin(*topics, ""))

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        del rules
        return decided


_RECORDS_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of an archive.

    Attributes:
        audit: the cluster and topics, as for an audit; ``out`` is the folder of the archive.
        interval_ms: time from batch to batch; 0: archive the records that exist now, and end.
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
        self._archive.commit(number, BatchFacts(ends, encode(cut, evidence)))

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
    known = decode(before.cut)[0].topic_ids
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
    _, evidence = decode(before.cut)
    return EarlierCut(before.ends_by_place(), evidence.starts, evidence.judged, evidence.seen_ms)
