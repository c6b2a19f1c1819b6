"""Makes the page of a comparison: which copies differ, and at which due times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.page import HtmlPage, PageSection, Table, moment, write_page
from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from connectors.spark.reconcile.compare import COPY
from connectors.spark.reconcile.options import ReconcileResult
from delayservice.replicas.digest import HOUR_MS

HOURS_MAX: Final = 100
_HEADINGS: Final = {
    0: "All copies agree",
    EXIT_FINDINGS: "Copies differ",
    EXIT_UNJUDGED: "Not all copies were compared",
}
_DIFFER: Final = "Which copy is right is what the delay topics say, not what most copies hold."
_REPAIR: Final = (
    "The plan, {1}, has {0} copies rebuilt from their delay topics. delayservice spark reconcile "
    "--repair {0} compares again and carries it out."
)


def page(result: ReconcileResult, found: DataFrame) -> str:
    """Return the page of a comparison; ``found``: its findings, columns ``compare.FINDING``."""
    counts = {**result.findings, **asdict(result.counts)}
    steps = len(result.plan.steps)
    repair = [_REPAIR.format(steps, result.paths["plan"])] if steps else []
    return write_page(
        HtmlPage(
            title="Copies compared",
            heading=_HEADINGS[result.status],
            lead=f"{result.extent} in {result.seconds:,.1f} s, at {moment(result.plan.made_ms)} "
            "UTC.",
            facts=[(name.replace("_", " "), count) for name, count in counts.items()],
            warnings=[_DIFFER] if result.findings else [],
            notes=[*repair, *(f"Not compared: {note}." for note in result.notes)],
            sections=[_findings(result, found), _copies(result)],
            footer=f"Plan {result.plan.id}. Findings: {result.paths['findings']}.",
        )
    )


def _findings(result: ReconcileResult, found: DataFrame) -> PageSection:
    hour = (sf.col("start_ms") - sf.col("start_ms") % HOUR_MS).alias("hour_ms")
    by_hour = found.where("start_ms > 0 and node is not null").groupBy(*COPY, hour).count()
    worst = by_hour.orderBy(sf.desc("count"), *COPY, "hour_ms").limit(HOURS_MAX).collect()
    hours = Table(
        f"By the hour in which records are due, the {HOURS_MAX} worst",
        ("node", "shard", "hour (UTC)", "findings"),
        [(node, f"{t}:{p}", moment(hour_ms), n) for node, t, p, hour_ms, n in sorted(worst)],
    )
    columns = ("kind", "node", "topic", "partition", "offset", "detail")
    rows = [[row[name] for name in columns] for row in result.sample]
    return PageSection("Findings", [hours, Table("The first ones", columns, rows)])


def _copies(result: ReconcileResult) -> PageSection:
    rows = []
    for one in result.compared:
        compared = dict.fromkeys(one.nodes, f"at checkpoint {one.cut}")
        for kind, said in (("compared", compared), ("behind", one.behind), ("silent", one.silent)):
            rows += [(f"{one.topic}:{one.partition}", kind, n, said[n]) for n in sorted(said)]
    return PageSection("Copies", [Table("By shard", ("shard", "", "node", ""), rows)])
