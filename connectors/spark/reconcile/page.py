"""Makes the page of a comparison: which copies differ, at which due times, and the repair plan."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.page import (
    BAD,
    HtmlPage,
    PageSection,
    Table,
    bars,
    moment,
    write_page,
)
from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from connectors.spark.reconcile.compare import COPY
from connectors.spark.reconcile.options import ReconcileResult
from delayservice.replicas.digest import HOUR_MS

HOURS_MAX: Final = 100
STEPS_MAX: Final = 100
_AGREE: Final = "Every copy that was compared holds what the others hold, and nothing is missing."
_HEADINGS: Final = {
    0: "All copies agree",
    EXIT_FINDINGS: "Copies differ",
    EXIT_UNJUDGED: "Not all copies were compared",
}
_DIFFER: Final = "Which copy is right is what the delay topics say, not what most copies hold."
_REPAIR: Final = (
    "Each step has a node rebuild its copy of a shard from the delay topic. Look at it first: "
    "delayservice spark repair {} shows what it would do, and does it with --yes."
)


def page(result: ReconcileResult, found: DataFrame) -> str:
    """Return the page of a comparison; ``found``: its findings, columns ``compare.FINDING``."""
    passed = f"{result.counts.passed} findings became due while this ran, and are left out."
    notes = [passed] if result.counts.passed else []
    sections = [_findings(result, found)] if result.findings else []
    sections += [_repair(result)] if result.plan.steps else []
    return write_page(
        HtmlPage(
            title="Copies compared",
            heading=_HEADINGS[result.status],
            lead=f"Compared at {moment(result.plan.made_ms)} UTC. Cluster {result.plan.cluster}. "
            f"{_AGREE if result.is_clean else ''}",
            facts=_facts(result),
            warnings=[_DIFFER] if result.findings else [],
            notes=[*notes, *(f"Not compared: {note}." for note in result.notes)],
            sections=[*sections, _copies(result)],
            footer=f"Plan {result.plan.id}. Findings: {result.paths['findings']}.",
        )
    )


def _facts(result: ReconcileResult) -> list[tuple[str, object]]:
    counts = result.counts
    return [
        ("findings", sum(result.findings.values())),
        ("shards", len(result.compared)),
        ("copies compared", sum(len(one.nodes) for one in result.compared)),
        ("records compared", counts.records),
        ("of pending", counts.pending),
        ("digest rows", counts.hour_rows),
        ("hours held against the log", counts.hours_differing),
        ("shards not compared", counts.uncompared),
        ("records that the log can't judge", counts.unjudged),
        ("steps of the plan", len(result.plan.steps)),
        ("seconds", round(result.seconds, 1)),
    ]


def _findings(result: ReconcileResult, found: DataFrame) -> PageSection:
    kinds = list(result.findings.items())
    chart = bars("Findings by kind", ("kind", "findings"), kinds, colour=BAD)
    return PageSection("Findings", charts=[chart], tables=[_hours(found), _sample(result)])


def _hours(found: DataFrame) -> Table:
    hour = (sf.col("start_ms") - sf.col("start_ms") % HOUR_MS).alias("hour_ms")
    by_hour = found.where("start_ms > 0 and node is not null").groupBy(*COPY, hour).count()
    worst = by_hour.orderBy(sf.desc("count"), *COPY, "hour_ms").limit(HOURS_MAX).collect()
    rows = [
        (f"{node} {topic}:{partition}", moment(hour_ms), count)
        for node, topic, partition, hour_ms, count in sorted(worst)
    ]
    return Table(
        "Where copies differ, by the hour in which records are due",
        ("copy", "hour (UTC)", "findings"),
        rows,
        f"At most {HOURS_MAX} hours, those with the most findings.",
    )


def _sample(result: ReconcileResult) -> Table:
    columns = ("kind", "node", "shard", "offset", "due or hour (UTC)", "what")
    rows = [
        (
            row["kind"],
            row["node"],
            f"{row['topic']}:{row['partition']}",
            row["offset"],
            _when(row["key_ms"], row["start_ms"]),
            row["detail"],
        )
        for row in result.sample
    ]
    total = sum(result.findings.values())
    note = f"{len(rows)} of {total} findings; all are in {result.paths['findings']}."
    return Table("The first findings", columns, rows, note)


def _when(key_ms: int | None, start_ms: int | None) -> str | None:
    time_ms = start_ms if key_ms is None else key_ms
    return moment(time_ms) if time_ms else None


def _repair(result: ReconcileResult) -> PageSection:
    steps = result.plan.steps
    rows = [(step.node, f"{step.topic}:{step.partition}", step.why) for step in steps[:STEPS_MAX]]
    left = len(steps) - len(rows)
    note = f"{left} more are in plan.json." if left else ""
    table = Table("Copies to rebuild", ("node", "shard", "why"), rows, note)
    return PageSection("Repair", _REPAIR.format(result.paths["plan"]), tables=[table])


def _copies(result: ReconcileResult) -> PageSection:
    columns = ("shard", "cut", "cut written (UTC)", "H", "compared from (UTC)", "copies")
    rows = [
        (
            f"{one.topic}:{one.partition}",
            one.cut,
            None if one.cut_ms is None else moment(one.cut_ms),
            one.cursor.offset,
            moment(one.from_ms) if one.from_ms else None,
            ", ".join(one.nodes),
        )
        for one in result.compared
    ]
    absent = [
        (f"{one.topic}:{one.partition}", node or None, kind, why)
        for one in result.compared
        for kind, said in (("behind", one.behind), ("silent", one.silent))
        for node, why in sorted(said.items())
    ]
    tables = [Table("What was compared, and at which checkpoint", columns, rows)]
    if absent:
        names = ("shard", "node", "kind", "why")
        tables.insert(0, Table("Copies that could not be compared", names, absent))
    return PageSection("Copies", tables=tables)
