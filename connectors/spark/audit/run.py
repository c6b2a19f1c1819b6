"""The delivery audit: each settled record must have exactly one settlement, the right one.

``engine`` does the work in steps from cut to cut. ``audit`` makes one step, from the start of the
logs to now; ``Following`` makes further ones. The driver gets counts and sample rows only.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.spark.audit.carried_state import CarriedState
from connectors.spark.audit.engine import SMALL, Engine, FoundRows, KafkaLogs, Logs, StepResult
from connectors.spark.audit.evidence import (
    NO_PAST,
    EarlierCut,
    Evidence,
    gather,
    overdue_since_ms,
    rules_of,
)
from connectors.spark.audit.local import judged_here
from connectors.spark.audit.options import SAMPLE_ROWS, AuditOptions, AuditResult, OffsetRange
from connectors.spark.audit.rules import OPEN
from connectors.spark.audit.state import AuditManifest, LogPosition, State, StoredRun
from connectors.spark.audit.verdicts import FINDING
from connectors.spark.common.clients import read_logs
from connectors.spark.common.cut import Cut, take_cut
from connectors.spark.common.files import (
    delete,
    is_there,
    names_in,
    read_text,
    write_parquet,
    write_text,
)
from connectors.spark.common.frames import arrow_schema, counts_by, kept, table
from connectors.spark.common.sink import name_for, publish
from connectors.spark.ledger.rows import Ledger, name_hash
from delayservice.base import faults
from delayservice.base.errors import DelayServiceError, InvalidRequestError

NO_CHECKPOINT: Final = "no_checkpoint"
NO_EVIDENCE: Final = "no_evidence"
SOURCE_DELETED: Final = "source_deleted"
"""Reasons not to judge offsets, besides those in ``rules``. ``NO_CHECKPOINT``: no checkpoint covers
them; ``NO_EVIDENCE``: retention may have deleted outputs of all of them; ``SOURCE_DELETED``:
retention has deleted the records before they were read."""


def audit(spark: SparkSession, options: AuditOptions) -> AuditResult:
    """Audit a cluster in its current state, write the results to ``options.out``, and return
    them.

    Raises:
        KafkaEdgeError: the cluster can't be read, a topic named in the options does not exist, or
            the results can't be published.
        DelayServiceError: a range of the options is of a shard that no checkpoint names.
    """
    began_s = time.monotonic()
    return audit_at(spark, options, cut_of(options), began_s)


def audit_at(
    spark: SparkSession, options: AuditOptions, cut: Cut, began_s: float | None = None
) -> AuditResult:
    """As ``audit``, at a cut that was taken before.

    Raises:
        InvalidRequestError: the cut leaves out a topic that an audit needs.
    """
    began_s = time.monotonic() if began_s is None else began_s
    cut = replace(cut, dead_letter=options.dead_letter, outcomes=options.outcomes)
    read = {topic for topic, _ in cut.others}
    if missing := {cut.dead_letter, cut.outcomes, *options.targets} - read:
        raise InvalidRequestError(
            f"the cut leaves out {', '.join(sorted(missing))}: take it with cut_of(options)"
        )
    evidence = gather(options.client, cut)
    logs = KafkaLogs(spark, options.client, evidence)
    return audited(spark, options, cut, evidence, logs, began_s)


def audited(
    spark: SparkSession,
    options: AuditOptions,
    cut: Cut,
    evidence: Evidence,
    logs: Logs,
    began_s: float,
) -> AuditResult:
    """Audit ``logs`` at a cut, write the results, and publish them if ``options.topic``
    is given.
    """
    _check_ranges(cut, options)
    rules = rules_of(cut, evidence, options.strictness)
    work = options.path("work")
    ledger = Ledger.of(cut, options.secrets)
    with _planned_for(spark, evidence):
        step = Engine(spark, logs, work, cut, evidence, rules, ledger).run()
        found = _written(_in_ranges(step.found, options), options.path("findings"))
        unjudged = _written(_in_ranges(step.unjudged, options), options.path("unjudged"))
        result = _result(options, cut, evidence, NO_PAST, step.counts, found, unjudged, began_s)
    delete(work)
    write_text(result.summary_path, _text(result))
    if options.topic is not None:
        sender = (name_for("audit", options.out), None)
        rows = spark.read.schema(FINDING).parquet(result.findings_path)
        told = _published(result.to_json())
        publish(options.client, options.topic, sender, ("finding", rows), told)
    return result


def _published(summary: Mapping[str, object]) -> dict[str, object]:
    # They hold every shard, of which there may be thousands, and a record must stay small.
    return {name: said for name, said in summary.items() if name not in ("cut", "judged")}


def cut_of(options: AuditOptions) -> Cut:
    """Take a cut of the cluster now, and return it.

    Raises:
        KafkaEdgeError: the cluster can't be read, or a topic named in the options does not exist.
    """
    cut = take_cut(
        options.client, options.checkpoint, options.choose, expected=options.delay_topics
    )
    return replace(cut, dead_letter=options.dead_letter, outcomes=options.outcomes)


class Following:
    """An audit that goes on from cut to cut and keeps its state in ``options.out``.

    Args:
        options: options of the audit; ``out`` holds the findings and the state.
        from_start: whether the first cut judges the records that are in the logs already; otherwise
            only those written after it.

    Raises:
        DelayServiceError: the stored state can't be read.
        InvalidRequestError: the options limit the audit to ranges of offsets.
    """

    def __init__(
        self, spark: SparkSession, options: AuditOptions, *, from_start: bool = True
    ) -> None:
        if options.ranges:
            raise InvalidRequestError("an audit that follows judges all offsets: name no ranges")
        self._spark = spark
        self._options = options
        self._from_start = from_start
        self._state = State(spark, options.path("state"))
        self.manifest = self._state.newest()
        self._state.recover(self.manifest)
        self._is_concluded = not self.manifest.number

    def step(self) -> AuditResult:
        """Judge the records since the last cut, store the new state, publish the findings, and
        return the result.

        Raises:
            KafkaEdgeError: the cluster can't be read, or a topic named in the options does not
                exist.
        """
        newest = self._state.newest()
        if newest.number > self.manifest.number:  # the step that wrote it failed after that
            self.manifest, self._is_concluded = newest, False
        if not self._is_concluded:
            self._conclude()
        began_s = time.monotonic()
        cut = cut_of(self._options)
        before = self.manifest
        number = before.number + 1
        past = before.past(cut.topic_ids)
        if not before.number and not self._from_start:
            past = _from_now(cut)
        evidence = gather(self._options.client, cut, past)
        rules = rules_of(cut, evidence, self._options.strictness, past)
        work = self._options.path(f"state/{number:08d}/work")
        runs, dropped = list(before.runs), 0
        if gone := [name_hash(name) for name in before.deleted(cut)]:
            runs, dropped = self._state.without(runs, gone, number, before.due_ms)
        held = CarriedState(self._state, runs, before, cut.taken_ms, rules, work)
        ledger = Ledger.of(cut, self._options.secrets)
        step: StepResult[DataFrame] | StepResult[FoundRows] | None
        step = judged_here(partial(read_logs, self._options.client), evidence, rules, ledger, held)
        if step is None:
            logs = KafkaLogs(self._spark, self._options.client, evidence)
            step = Engine(self._spark, logs, work, cut, evidence, rules, ledger).run(held)
        found = self._write_interval(step.found, "findings", number)
        unjudged = self._write_interval(step.unjudged, "unjudged", number)
        result = _result(
            self._options, cut, evidence, past, step.counts, found, unjudged, began_s, dropped
        )
        delete(work)
        faults.point("audit_judged")
        manifest = _manifest(before, cut, evidence, self._options, step.runs, result, held.due_ms)
        write_text(self._state.summary_path(number), _text(result))
        self._state.commit(manifest, before)
        faults.point("audit_committed")
        self.manifest, self._is_concluded = manifest, False
        self._conclude()
        return result

    def _conclude(self) -> None:
        # If a process was killed before this, the next one does it first.
        options, number = self._options, self.manifest.number
        text = read_text(self._state.summary_path(number)) or "{}"
        write_text(options.path("summary.json"), text)
        if options.topic is not None:
            path, found = self._of_interval("findings", number), table(self._spark, FINDING)
            if is_there(path):
                found = self._spark.read.schema(FINDING).parquet(path)
            sender = (name_for("audit", self.manifest.audit), number)
            begun = options.path("state/published")
            told = _published(json.loads(text))
            publish(options.client, options.topic, sender, ("finding", found), told, begun)
        faults.point("audit_published")
        self._is_concluded = True

    def _write_interval(self, rows: DataFrame | FoundRows, kind: str, number: int) -> _Written:
        # An interval without rows has a folder only where no other has one: readers by SQL learn
        # the columns from it.
        path = self._of_interval(kind, number)
        written = _written(rows, path)
        if not written.by_kind and len(names_in(self._options.path(kind))) > 1:
            delete(path)
        return written

    def _of_interval(self, kind: str, number: int) -> str:
        return self._options.path(f"{kind}/interval={number:08d}")


@contextmanager
def _planned_for(spark: SparkSession, evidence: Evidence) -> Iterator[None]:
    # Adaptive planning starts a job for each shuffle and each broadcast.
    few = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    if evidence.offsets > SMALL:
        few = {}
    before = {name: str(spark.conf.get(name)) for name in few}
    try:
        for name, value in few.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _text(result: AuditResult) -> str:
    return json.dumps(result.to_json(), indent=2) + "\n"


def _from_now(cut: Cut) -> EarlierCut:
    ends = {place: span.end for place, span in cut.spans.items()}
    shards = {shard.place: shard.span.end for shard in cut.shards}
    return EarlierCut(ends=ends, starts=shards, judged=shards)


def _manifest(
    before: AuditManifest,
    cut: Cut,
    evidence: Evidence,
    options: AuditOptions,
    runs: tuple[StoredRun, ...],
    result: AuditResult,
    due_ms: int,
) -> AuditManifest:
    logs = tuple(
        LogPosition(
            *place,
            cut.topic_ids.get(place[0], ""),
            span.end,
            evidence.seen_ms.get(place, -1),
            evidence.starts.get(place, -1),
            evidence.judged.get(place, -1),
        )
        for place, span in sorted(cut.spans.items())
    )
    # This cut has looked again at what an open transaction hid, and what no checkpoint covered.
    final = {why: n for why, n in before.unjudged.items() if why not in (OPEN, NO_CHECKPOINT)}
    return AuditManifest(
        number=before.number + 1,
        taken_ms=cut.taken_ms,
        overdue_ms=overdue_since_ms(cut, options.strictness),
        due_ms=due_ms,
        logs=logs,
        runs=runs,
        findings=dict(Counter(before.findings) + Counter(result.findings)),
        unjudged=dict(Counter(final) + Counter(result.unjudged)),
        audit=before.audit or uuid.uuid4().hex,
    )


def _check_ranges(cut: Cut, options: AuditOptions) -> None:
    unknown = sorted({one.place for one in options.ranges} - {s.place for s in cut.shards})
    if unknown:
        topic, partition = unknown[0]
        known = ", ".join(shard.name for shard in cut.shards) or "none"
        raise DelayServiceError(
            f"{topic}:{partition} is no shard that the checkpoint knows; it knows {known}"
        )


def _in_ranges(found: DataFrame, options: AuditOptions) -> DataFrame:
    if not options.ranges:
        return found
    is_asked: Column = sf.lit(False)  # noqa: FBT003  # a literal of Spark's
    for one in options.ranges:
        is_here = (sf.col("topic") == one.topic) & (sf.col("partition") == one.partition)
        is_asked |= is_here & sf.col("offset").between(one.start, one.stop - 1)
    return found.where(is_asked)


def _result(
    options: AuditOptions,
    cut: Cut,
    evidence: Evidence,
    past: EarlierCut,
    counts: Mapping[str, int],
    found: _Written,
    unjudged: _Written,
    began_s: float,
    dropped: int = 0,
) -> AuditResult:
    judged = tuple(_judged_ranges(cut, evidence, past, options))
    seconds = time.monotonic() - began_s
    records = counts.get("sources", 0)
    return AuditResult(
        findings=found.by_kind,
        unjudged={**unjudged.by_kind, **_unread(cut, evidence, past, judged, dropped)},
        judged=judged,
        counts=counts,
        records=records,
        outputs=counts.get("outputs", 0),
        seconds=seconds,
        rows_per_s=records / seconds,
        findings_path=options.path("findings"),
        unjudged_path=options.path("unjudged"),
        summary_path=options.path("summary.json"),
        sample=found.sample,
        unjudged_sample=unjudged.sample,
        cut=cut,
        ranges=tuple(options.ranges),
    )


def _judged_ranges(
    cut: Cut, evidence: Evidence, past: EarlierCut, options: AuditOptions
) -> Iterator[OffsetRange]:
    # Offsets whose outputs were not deleted, that no earlier cut has read, and that the options ask
    # for. A range may be empty.
    asked = {one.place: one for one in options.ranges}
    for shard in cut.shards:
        one = asked.get(shard.place, OffsetRange(*shard.place))
        if asked and shard.place not in asked:
            continue
        start = max(evidence.judged[shard.place], past.ends.get(shard.place, 0), one.start)
        stop = min(shard.span.end, one.stop)
        yield replace(one, start=min(start, stop), stop=stop)


def _unread(
    cut: Cut, evidence: Evidence, past: EarlierCut, judged: tuple[OffsetRange, ...], dropped: int
) -> dict[str, int]:
    unserved = sum(cut.unserved.values())
    found = {NO_CHECKPOINT: unserved} if unserved or not cut.shards else {}
    gaps = [
        evidence.spans[shard.place].start - past.ends[shard.place]
        for shard in cut.shards
        if shard.place in past.ends
    ]
    if deleted := dropped + sum(gap for gap in gaps if gap > 0):
        found[SOURCE_DELETED] = deleted
    held = sum(shard.span.end - shard.span.start for shard in cut.shards)
    if held and not past.ends and not any(one.start < one.stop for one in judged):
        found[NO_EVIDENCE] = held
    return found


class _Written(NamedTuple):
    """What was written: the number of rows by kind, and the first ones."""

    by_kind: Mapping[str, int]
    sample: tuple[Mapping[str, Any], ...]


def _written(rows: DataFrame | FoundRows, path: str) -> _Written:
    """Write findings or unjudged records as Parquet, in place of what is there."""
    place = ("topic", "partition", "offset")
    if isinstance(rows, Sequence):
        write_parquet(path, pa.Table.from_pylist(list(rows), arrow_schema(FINDING)))
        by_kind = Counter(row["kind"] for row in rows)
        first = sorted(rows, key=itemgetter(*place))[:SAMPLE_ROWS]
        return _Written(dict(sorted(by_kind.items())), tuple(first))
    found = kept(rows, path)
    counts = counts_by("kind", found)
    sample = found.orderBy(*place).limit(SAMPLE_ROWS).collect() if counts else ()
    return _Written(counts, tuple(row.asDict() for row in sample))
