"""Reads an archive (records of a delay service in Parquet) from its folder, and audits it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit import snapshot
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.options import AuditOptions
from connectors.spark.audit.result import AuditResult
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.run import audited
from connectors.spark.common.cut import Cut
from connectors.spark.common.files import names_in, read_text, write_text
from connectors.spark.common.topics import ROW_SCHEMA, Place, Span
from delayservice.base.errors import DelayServiceError

ARCHIVE: Final = f"{ROW_SCHEMA}, value_hash long"
"""Columns of an archive, as a Spark schema: those of Kafka's records, and ``value_hash``, Spark's
``xxhash64`` of the value, which is kept even where the value is not; null: there is no value."""

VERSION: Final = 1


class BatchFacts(msgspec.Struct, frozen=True):
    """Facts about one batch: for each topic and partition the exclusive offset up to which the
    archive reaches after it; and cut and evidence, taken after it was written, as JSON
    (``snapshot.encode``).
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
        cuts = [snapshot.decode(one.cut) for one in facts]
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
