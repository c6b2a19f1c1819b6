"""Reports the lateness of deliveries, the pending records, and all other outcomes.

Spark counts everything, and the driver gets a limited number of rows. All groups are in Parquet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit import AuditOptions
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import write_text
from connectors.spark.common.frames import arrow_schema, kept, last_header
from connectors.spark.common.log_times import offsets_at
from connectors.spark.common.pending import LogPart, PendingColumns, sift, uncancelled
from connectors.spark.common.progress import Say
from connectors.spark.common.topics import TASK_RECORDS, Span, read_topic
from connectors.spark.report.page import (
    DELAY_BOUNDS,
    DELAY_LONGER,
    DELAY_RECURRING,
    DELAY_UNKNOWN,
    DELAYS,
    HOUR_MS,
    HOURS_MAX,
    LATENESS_BOUNDS_MS,
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

QUANTILES: Final = (0.5, 0.9, 0.99)
# Accuracy of percentile_approx: the rank of a quantile is wrong by 1 in 1,000 at most.
_ACCURACY: Final = 1_000

FORECAST_STEPS_MAX: Final = 1_440
_STEPS_MS: Final = (MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
_SECOND_MS: Final = 1_000
_NAMES_MAX: Final = 50
_TASKS_MIN: Final = 8
_BY_TARGET, _BY_HOUR, _BY_DELAY, _WHOLE = 0b011, 0b101, 0b110, 0b111
"""Values of Spark's ``grouping_id`` over target, hour and class of delays: the bit of a column is 1
if the rows are not grouped by it."""


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
    work = _Work(spark, options, cut)
    say("lateness of what was delivered")
    lateness = work.lateness()
    say("what is pending")
    waiting, forecast, pending_targets = work.load()
    say("outcomes and dead letters")
    found = ReportFacts(
        since_ms=options.since_ms,
        until_ms=options.until_ms,
        **lateness,
        waiting=waiting,
        horizon_ms=options.horizon_ms,
        step_ms=work.step_ms,
        forecast=forecast,
        pending_targets=pending_targets,
        outcomes=work.named(audit.outcomes, "delay-outcome"),
        letters=work.named(audit.dead_letter, names.DELAY_ERROR),
        seconds=round(time.monotonic() - began_s, 3),
        cut=cut,
    )
    write_text(audit.path("report.json"), json.dumps(found.to_json(), ensure_ascii=False))
    write_text(audit.path("report.html"), page(found))
    return found


class _Work:
    def __init__(self, spark: SparkSession, options: ReportOptions, cut: Cut) -> None:
        self._spark = spark
        self._options = options
        self._audit = options.audit
        self._cut = cut
        steps = (step for step in _STEPS_MS if options.horizon_ms <= step * FORECAST_STEPS_MAX)
        self.step_ms = next(steps, _STEPS_MS[-1])

    def _read(self, topics: Collection[str], *, since_ms: int | None = None) -> DataFrame:
        spans = {place: span for place, span in self._cut.spans.items() if place[0] in topics}
        if since_ms is not None and spans:
            later = offsets_at(self._audit.client, spans.keys(), since_ms)
            spans = {p: Span(max(s.start, later.get(p, s.end)), s.end) for p, s in spans.items()}
        tasks = self._tasks(sum(span.end - span.start for span in spans.values()))
        return read_topic(self._spark, self._audit.client, spans, tasks)

    def _tasks(self, records: int) -> int:
        return max(_TASKS_MIN, records // TASK_RECORDS + 1)

    def _outputs(self, topics: Collection[str]) -> DataFrame:
        options = self._options
        records = self._read(topics, since_ms=options.since_ms)
        if options.since_ms is not None:
            records = records.where(sf.col("timestamp_ms") >= options.since_ms)
        if options.until_ms is not None:
            records = records.where(sf.col("timestamp_ms") < options.until_ms)
        return records

    def lateness(self) -> dict[str, Any]:
        """Write the data set ``lateness``; return the fields of ``ReportFacts`` that it fills."""
        delivered = self._delivered()
        groups = delivered.groupingSets(
            [["target"], ["hour_ms"], ["delay"], []], "target", "hour_ms", "delay"
        ).agg(sf.grouping_id().alias("group"), *_figures())
        found = kept(groups, self._audit.path("lateness"))
        targets = found.where(f"group = {_BY_TARGET}")
        largest = targets.orderBy(sf.desc("records")).limit(self._options.top)
        hours = found.where(f"group = {_BY_HOUR}").orderBy(sf.desc("hour_ms")).limit(HOURS_MAX)
        delays = {row["delay"]: row for row in found.where(f"group = {_BY_DELAY}").collect()}
        whole = found.where(f"group = {_WHOLE}").collect()
        return {
            "whole": _lateness("all", whole[0]) if whole else NOTHING_LATE,
            "targets": tuple(_lateness(row["target"], row) for row in largest.collect()),
            "targets_total": targets.count(),
            "hours": tuple(_lateness(row["hour_ms"], row) for row in reversed(hours.collect())),
            "delays": tuple(_lateness(name, delays[name]) for name in DELAYS if name in delays),
        }

    def _delivered(self) -> DataFrame:
        # Lateness is null for a fired record.
        beside = {self._audit.dead_letter, self._audit.outcomes, *self._cut.delay_topics}
        targets = {topic for topic, _ in self._cut.spans if topic not in beside}
        outputs = self._outputs(targets).withColumn("source", _text(names.DELAY_SOURCE))
        place = sf.split("source", ":")
        # Another service may deliver to the same topics.
        is_own = sf.substring_index("source", ":", 2).isin(*self._cut.served)
        delivered = outputs.where(is_own).select(
            sf.col("topic").alias("target"),
            sf.col("timestamp_ms").alias("at_ms"),
            _text(names.DELAY_DUE_AT).try_cast("long").alias("due_ms"),
            _text(names.DELAY_FIRED_BY).isNotNull().alias("fired"),
            (_bytes("key") + _bytes("value")).alias("bytes"),
            sf.try_element_at(place, sf.lit(1)).alias("topic"),
            sf.try_element_at(place, sf.lit(2)).try_cast("int").alias("partition"),
            sf.substring_index(sf.try_element_at(place, sf.lit(3)), "#", 1)
            .try_cast("long")
            .alias("offset"),
            sf.col("source").contains("#").alias("recurring"),
        )
        written = self._read(self._cut.delay_topics).select(
            "topic", "partition", "offset", sf.col("timestamp_ms").alias("written_ms")
        )
        known = delivered.where("due_ms IS NOT NULL").join(
            written, ["topic", "partition", "offset"], "left"
        )
        # A record that was due before it was written could be delivered from its writing on.
        armed_ms = sf.greatest("due_ms", sf.coalesce("written_ms", "due_ms"))
        return known.select(
            "target",
            (sf.floor(armed_ms / HOUR_MS) * HOUR_MS).alias("hour_ms"),
            _delay().alias("delay"),
            "bytes",
            "fired",
            sf.when(~sf.col("fired"), sf.col("at_ms") - armed_ms).alias("late_ms"),
        )

    def load(self) -> tuple[PendingTotals, tuple[LoadStep, ...], tuple[Count, ...]]:
        """Write the data set ``forecast``, pending records by second and target."""
        options, now_ms = self._options, self._cut.taken_ms
        parts = {
            s.place: LogPart(s.contracts, s.span.start, s.span.end, s.later)
            for s in self._cut.shards
        }
        sifted = sift(
            self._spark, self._audit.client, parts, LOAD, self._audit.secrets, self._tasks(0)
        )
        waiting = uncancelled(sifted)
        second_ms = (sf.floor(sf.col("send_ms") / _SECOND_MS) * _SECOND_MS).alias("second_ms")
        load = waiting.groupBy(second_ms, "target").agg(
            sf.count("*").alias("records"), sf.sum("bytes").alias("bytes")
        )
        seconds = kept(load, self._audit.path("forecast"))
        end_ms = now_ms + options.horizon_ms
        (row,) = seconds.agg(
            *_sums(),
            sf.sum(sf.when(sf.col("second_ms") + _SECOND_MS <= now_ms, sf.col("records"))).alias(
                "overdue"
            ),
            sf.sum(sf.when(sf.col("second_ms") >= end_ms, sf.col("records"))).alias("beyond"),
            sf.max("second_ms").alias("last_ms"),
        ).collect()
        targets = seconds.groupBy("target").agg(sf.sum("records").alias("records"))
        largest = targets.orderBy(sf.desc("records")).limit(options.top).collect()
        return (
            PendingTotals(
                records=row["records"] or 0,
                bytes=row["bytes"] or 0,
                overdue=row["overdue"] or 0,
                beyond=row["beyond"] or 0,
                last_ms=row["last_ms"],
            ),
            self._forecast(seconds, end_ms),
            tuple(Count(one["target"], one["records"]) for one in largest),
        )

    def _forecast(self, seconds: DataFrame, end_ms: int) -> tuple[LoadStep, ...]:
        # Overdue records are in the first step.
        now_ms, step_ms = self._cut.taken_ms, self.step_ms
        sums = seconds.where(sf.col("second_ms") < end_ms).groupBy("second_ms").agg(*_sums())
        at_ms = sf.greatest(sf.col("second_ms"), sf.lit(now_ms))
        start_ms = (sf.floor(at_ms / step_ms) * step_ms).alias("start_ms")
        steps = sums.groupBy(start_ms).agg(*_sums(), sf.max("records").alias("peak"))
        rows = steps.orderBy("start_ms").limit(FORECAST_STEPS_MAX + 1).collect()
        return tuple(LoadStep(r["start_ms"], r["records"], r["bytes"], r["peak"]) for r in rows)

    def named(self, topic: str, header: str) -> tuple[Count, ...]:
        """Return the number of records by value of a header, the 50 most frequent values first."""
        said = self._outputs([topic]).select(_text(header).alias("name")).where("name IS NOT NULL")
        rows = said.groupBy("name").count().orderBy(sf.desc("count")).limit(_NAMES_MAX).collect()
        return tuple(Count(row["name"], row["count"]) for row in rows)


def _text(header: str) -> Column:
    return last_header(header).cast("string")


def _sums() -> list[Column]:
    return [sf.sum(name).alias(name) for name in ("records", "bytes")]


def _bytes(column: str) -> Column:
    return sf.coalesce(sf.octet_length(column), sf.lit(0)).cast("long")


def _delay() -> Column:
    delay_ms = sf.col("due_ms") - sf.col("written_ms")
    found = sf.when(sf.col("recurring"), DELAY_RECURRING).when(delay_ms.isNull(), DELAY_UNKNOWN)
    for name, bound_ms in DELAY_BOUNDS:
        found = found.when(delay_ms <= bound_ms, name)
    return found.otherwise(DELAY_LONGER)


def _histogram() -> Column:
    late_ms, bounds = sf.col("late_ms"), LATENESS_BOUNDS_MS
    between = [(late_ms > low) & (late_ms <= high) for low, high in pairwise(bounds)]
    classes = [late_ms <= bounds[0], *between, late_ms > bounds[-1]]
    return sf.array(*(sf.count_if(one) for one in classes))


def _figures() -> list[Column]:
    quantiles = sf.percentile_approx("late_ms", list(QUANTILES), _ACCURACY)
    return [
        sf.count("*").alias("records"),
        sf.sum("bytes").alias("bytes"),
        sf.count_if(sf.col("late_ms") < 0).alias("early"),
        sf.count_if("fired").alias("fired"),
        quantiles.alias("quantiles_ms"),
        sf.max("late_ms").alias("max_ms"),
        _histogram().alias("histogram"),
    ]


def _lateness(name: str | int, row: Row) -> Lateness:
    p50_ms, p90_ms, p99_ms = row["quantiles_ms"] or (None, None, None)
    return Lateness(
        name=name,
        records=row["records"],
        bytes=row["bytes"] or 0,
        early=row["early"],
        fired=row["fired"],
        p50_ms=p50_ms,
        p90_ms=p90_ms,
        p99_ms=p99_ms,
        max_ms=row["max_ms"],
        histogram=tuple(row["histogram"]),
    )
