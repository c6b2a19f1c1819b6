"""Reports the lateness of deliveries, the pending records, and all other outcomes.

Spark counts everything, and the driver gets a limited number of rows. All groups are in Parquet.
The ledger is not read: it has neither sizes nor what fired a record, and its content hashes cost
more than the few headers that are read here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit import AuditOptions
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import write_text
from connectors.spark.common.frames import arrow_schema, kept, last_header
from connectors.spark.common.log_times import offsets_at
from connectors.spark.common.pending import LogPart, PendingColumns, sift, uncancelled
from connectors.spark.common.progress import Say
from connectors.spark.common.topics import Span, read_topic
from connectors.spark.report.page import (
    HOUR_MS,
    HOURS_MAX,
    NOTHING_LATE,
    Count,
    Lateness,
    LoadStep,
    PendingTotals,
    ReportFacts,
    page,
)
from delayservice.config.units import DAY_MS, MINUTE_MS
from delayservice.contract import names
from delayservice.contract.entry import Entry

# Accuracy of percentile_approx: the rank of a quantile is wrong by 1 in 1,000 at most.
_ACCURACY: Final = 1_000
_QUANTILES: Final = [0.5, 0.9, 0.99]

FORECAST_STEPS_MAX: Final = 1_440
_STEPS_MS: Final = (MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
_SECOND_MS: Final = 1_000
_NAMES_MAX: Final = 50
_TASKS_MIN: Final = 8


def _load_of(entry: Entry) -> tuple[int, str, int]:
    _, _, key_ms, _, (target, _, key, value, _, due_ms, _), _ = entry
    # A parked copy has its next attempt in its key, a rolled one its roll.
    return max(due_ms, key_ms), target, len(key or b"") + len(value or b"")


LOAD: Final = PendingColumns(arrow_schema("send_ms bigint, target string, bytes bigint"), _load_of)
"""Columns of a pending record: ``send_ms``, the later of its due time and its key, epoch ms; its
target; and the bytes of its key and value."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        audit: the cluster and topics, as for an audit; ``out`` is the folder of the report.
        since_ms, until_ms: reported period by the records' timestamps, epoch ms, ``until_ms``
            exclusive; None: from the start of the logs, until now.
        top: number of targets in the tables, those with the most records.
    """

    audit: AuditOptions
    since_ms: int | None = None
    until_ms: int | None = None
    horizon_ms: int = DAY_MS
    top: int = 20

    @property
    def step_ms(self) -> int:
        fit = (step for step in _STEPS_MS if self.horizon_ms <= step * FORECAST_STEPS_MAX)
        return next(fit, _STEPS_MS[-1])


def report(spark: SparkSession, options: ReportOptions, say: Say) -> ReportFacts:
    """Count records, and write ``report.html``, ``report.json`` and the Parquet data sets
    ``lateness`` and ``forecast`` into the report's folder.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options is missing.
    """
    began_s = time.monotonic()
    say("taking a cut of all logs")
    audit = options.audit
    cut = take_cut(audit.client, audit.checkpoint, audit.choose)
    logs = _Logs(spark, options, cut)
    say("lateness of what was delivered")
    late = kept(_grouped(logs.delivered()), audit.path("lateness"))
    targets = late.where("target is not null")
    hours = late.where("hour_ms is not null").orderBy(sf.desc("hour_ms")).limit(HOURS_MAX).collect()
    whole = late.where("target is null and hour_ms is null").collect()
    say("what is pending")
    seconds = kept(logs.load(), audit.path("forecast"))
    end_ms = cut.taken_ms + options.horizon_ms
    say("outcomes and dead letters")
    found = ReportFacts(
        since_ms=options.since_ms,
        until_ms=options.until_ms,
        whole=_lateness("all", whole[0]) if whole else NOTHING_LATE,
        targets=tuple(_lateness(row["target"], row) for row in _largest(targets, options.top)),
        targets_total=targets.count(),
        hours=tuple(_lateness(row["hour_ms"], row) for row in reversed(hours)),
        waiting=_totals(seconds, cut.taken_ms, end_ms),
        horizon_ms=options.horizon_ms,
        step_ms=options.step_ms,
        forecast=_forecast(seconds, cut.taken_ms, end_ms, options.step_ms),
        pending_targets=_counts(seconds, "target", options.top),
        outcomes=logs.named(audit.outcomes, "delay-outcome"),
        letters=logs.named(audit.dead_letter, names.DELAY_ERROR),
        seconds=round(time.monotonic() - began_s, 3),
        cut=cut,
    )
    write_text(audit.path("report.json"), json.dumps(found.to_json(), ensure_ascii=False))
    write_text(audit.path("report.html"), page(found))
    return found


@dataclass(frozen=True, slots=True)
class _Logs:
    spark: SparkSession
    options: ReportOptions
    cut: Cut

    def _read(self, topics: Collection[str], *, since_ms: int | None = None) -> DataFrame:
        client = self.options.audit.client
        spans = {place: span for place, span in self.cut.spans.items() if place[0] in topics}
        if since_ms is not None and spans:
            later = offsets_at(client, spans.keys(), since_ms)
            spans = {p: Span(max(s.start, later.get(p, s.end)), s.end) for p, s in spans.items()}
        return read_topic(self.spark, client, spans)

    def _outputs(self, topics: Collection[str]) -> DataFrame:
        since_ms, until_ms = self.options.since_ms, self.options.until_ms
        records = self._read(topics, since_ms=since_ms)
        if since_ms is not None:
            records = records.where(sf.col("timestamp_ms") >= since_ms)
        if until_ms is not None:
            records = records.where(sf.col("timestamp_ms") < until_ms)
        return records

    def named(self, topic: str, header: str) -> tuple[Count, ...]:
        """Count the records of a topic by the value of a header."""
        said = self._outputs([topic]).select(_text(header).alias("name"), sf.expr("1 AS records"))
        return _counts(said.where("name IS NOT NULL"), "name", _NAMES_MAX)

    def delivered(self) -> DataFrame:
        """Return ``target, hour_ms, bytes, fired, late_ms`` of each delivery; ``late_ms`` is null
        for a fired record.
        """
        audit, cut = self.options.audit, self.cut
        beside = {audit.dead_letter, audit.outcomes, *cut.delay_topics}
        targets = {topic for topic, _ in cut.spans if topic not in beside}
        outputs = self._outputs(targets).withColumn("source", _text(names.DELAY_SOURCE))
        # Another service may deliver to the same topics.
        own = outputs.where(sf.substring_index("source", ":", 2).isin(*cut.served))
        delivered = own.select(
            sf.col("topic").alias("target"),
            sf.col("timestamp_ms").alias("at_ms"),
            _text(names.DELAY_DUE_AT).try_cast("long").alias("due_ms"),
            _text(names.DELAY_FIRED_BY).isNotNull().alias("fired"),
            (_bytes("key") + _bytes("value")).alias("bytes"),
            sf.substring_index("source", "#", 1).alias("place"),
        ).where("due_ms IS NOT NULL")
        written = self._read(cut.delay_topics).select(
            sf.concat_ws(":", "topic", "partition", "offset").alias("place"),
            sf.col("timestamp_ms").alias("written_ms"),
        )
        # A record that was due before it was written could be delivered from its writing on.
        armed_ms = sf.greatest("due_ms", sf.coalesce("written_ms", "due_ms"))
        return delivered.join(written, "place", "left").select(
            "target",
            (sf.floor(armed_ms / HOUR_MS) * HOUR_MS).alias("hour_ms"),
            "bytes",
            "fired",
            sf.when(~sf.col("fired"), sf.col("at_ms") - armed_ms).alias("late_ms"),
        )

    def load(self) -> DataFrame:
        """Return the pending ``records`` and ``bytes`` by ``second_ms`` and ``target``."""
        audit = self.options.audit
        parts = {
            s.place: LogPart(s.contracts, s.span.start, s.span.end, s.later)
            for s in self.cut.shards
        }
        sifted = sift(self.spark, audit.client, parts, LOAD, audit.secrets, _TASKS_MIN)
        second_ms = (sf.floor(sf.col("send_ms") / _SECOND_MS) * _SECOND_MS).alias("second_ms")
        records = sf.count("*").alias("records")
        return uncancelled(sifted).groupBy(second_ms, "target").agg(records, _sum("bytes"))


def _text(header: str) -> Column:
    return last_header(header).cast("string")


def _sum(name: str) -> Column:
    return sf.coalesce(sf.sum(name), sf.lit(0)).alias(name)


def _bytes(column: str) -> Column:
    return sf.coalesce(sf.octet_length(column), sf.lit(0)).cast("long")


def _grouped(delivered: DataFrame) -> DataFrame:
    return delivered.groupingSets([["target"], ["hour_ms"], []], "target", "hour_ms").agg(
        sf.count("*").alias("records"),
        _sum("bytes"),
        sf.count_if(sf.col("late_ms") < 0).alias("early"),
        sf.count_if("fired").alias("fired"),
        sf.percentile_approx("late_ms", _QUANTILES, _ACCURACY).alias("quantiles_ms"),
        sf.max("late_ms").alias("max_ms"),
    )


def _lateness(name: str | int, row: Row) -> Lateness:
    p50_ms, p90_ms, p99_ms = row["quantiles_ms"] or (None, None, None)
    sums = (row["records"], row["bytes"], row["early"], row["fired"])
    return Lateness(name, *sums, p50_ms, p90_ms, p99_ms, row["max_ms"])


def _totals(seconds: DataFrame, now_ms: int, end_ms: int) -> PendingTotals:
    records, second_ms = sf.col("records"), sf.col("second_ms")
    overdue = sf.when(second_ms + _SECOND_MS <= now_ms, records).otherwise(0).alias("overdue")
    beyond = sf.when(second_ms >= end_ms, records).otherwise(0).alias("beyond")
    sums = [_sum(name) for name in ("records", "bytes", "overdue", "beyond")]
    (row,) = seconds.select("*", overdue, beyond).agg(*sums, sf.max("second_ms")).collect()
    return PendingTotals(*row)


def _forecast(seconds: DataFrame, now_ms: int, end_ms: int, step_ms: int) -> tuple[LoadStep, ...]:
    # Overdue records are in the first step.
    due = seconds.where(sf.col("second_ms") < end_ms)
    sums = due.groupBy("second_ms").agg(_sum("records"), _sum("bytes"))
    at_ms = sf.greatest(sf.col("second_ms"), sf.lit(now_ms))
    start_ms = (sf.floor(at_ms / step_ms) * step_ms).alias("start_ms")
    peak = sf.max("records").alias("peak_per_s")
    steps = sums.groupBy(start_ms).agg(_sum("records"), _sum("bytes"), peak)
    rows = steps.orderBy("start_ms").limit(FORECAST_STEPS_MAX + 1).collect()
    return tuple(LoadStep(*row) for row in rows)


def _largest(groups: DataFrame, most: int) -> list[Row]:
    return groups.orderBy(sf.desc("records")).limit(most).collect()


def _counts(rows: DataFrame, by: str, most: int) -> tuple[Count, ...]:
    groups = rows.groupBy(by).agg(_sum("records"))
    return tuple(Count(*row) for row in _largest(groups, most))
