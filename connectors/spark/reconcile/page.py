"""Makes the page of a comparison: which copies differ, at which due times, and the repair plan."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

from matplotlib.axes import Axes
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.page import (
    BAD,
    Chart,
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
from connectors.spark.reconcile.repair_plan import RepairStep
from delayservice.replicas.digest import SLOT_MS

COPIES_MAX: Final = 40
COLUMNS: Final = 48
STEPS_MAX: Final = 100
_ROW_INCHES: Final = 0.22
_AXIS_INCHES: Final = 1.0
_TICKS: Final = 5
_PALEST: Final = 0.3
_AGREE: Final = "Every copy that was compared holds what the others hold, and nothing is missing."
_HEADINGS: Final = {
    0: "All copies agree",
    EXIT_FINDINGS: "Copies differ",
    EXIT_UNJUDGED: "Not all copies were compared",
}
_DIFFER: Final = "Which copy is right is what the delay topics say, not what most copies hold."
_REPAIR: Final = (
    "Each step has a node put a range aside and read it again from the delay topic. Look at it "
    "first: delayservice spark repair {} shows what it would do, and does it with --yes."
)


@dataclass(frozen=True, slots=True)
class Heat:
    """Number of findings by copy (row) and range of due times (column). ``start_ms``: start of the
    first column, epoch ms.
    """

    copies: tuple[tuple[str, str, int], ...]
    counts: tuple[tuple[int, ...], ...]
    start_ms: int
    width_ms: int
    left_out: int
    """Number of copies that are not shown, as they have fewer findings than those shown."""


def heat(found: DataFrame) -> Heat | None:
    """Return the numbers for the heat map; None: no finding names a node and a slot."""
    placed = found.where("slot_start_ms > 0 and node is not null")
    first, last = placed.agg(sf.min("slot_start_ms"), sf.max("slot_start_ms")).collect()[0]
    if first is None:
        return None
    slots = (last - first) // SLOT_MS + 1
    width_ms = SLOT_MS * -(-slots // COLUMNS)
    column = sf.floor((sf.col("slot_start_ms") - first) / width_ms).cast("int")
    by_copy = placed.groupBy(*COPY).count().orderBy(sf.desc("count"), *COPY)
    worst = [row[:3] for row in by_copy.limit(COPIES_MAX).collect()]
    shown = found.sparkSession.createDataFrame(worst, "node string, topic string, partition int")
    cells = placed.join(sf.broadcast(shown), COPY).groupBy(*COPY, column.alias("column")).count()
    counts = {copy: [0] * COLUMNS for copy in worst}
    for node, topic, partition, at, count in cells.collect():
        counts[node, topic, partition][at] = count
    copies = tuple(sorted(counts))
    left_out = by_copy.count() - len(copies)
    rows = tuple(tuple(counts[copy]) for copy in copies)
    return Heat(copies, rows, first, width_ms, left_out)


def page(result: ReconcileResult, where: Heat | None) -> str:
    passed = f"{result.counts.slots_passed} slots became due while this ran; what differed there"
    notes = [f"{passed} is left out."] if result.counts.slots_passed else []
    sections = [_findings(result, where)] if result.findings else []
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
        ("digest rows", counts.slot_rows),
        ("slots held against the log", counts.slots_differing),
        ("shards not compared", counts.uncompared),
        ("records that the log can't judge", counts.unjudged),
        ("steps of the plan", len(result.plan.steps)),
        ("seconds", round(result.seconds, 1)),
    ]


def _findings(result: ReconcileResult, where: Heat | None) -> PageSection:
    kinds = list(result.findings.items())
    charts = [bars("Findings by kind", ("kind", "findings"), kinds, colour=BAD)]
    charts += [] if where is None else [heat_map(where)]
    return PageSection("Findings", charts=charts, tables=[_sample(result)])


def heat_map(where: Heat) -> Chart:
    names = [f"{node} {topic}:{partition}" for node, topic, partition in where.copies]
    cells = [
        (row, at, count)
        for row, counts in enumerate(where.counts)
        for at, count in enumerate(counts)
        if count
    ]
    note = f"A column is {where.width_ms // SLOT_MS} min wide. Darker is more."
    if where.left_out:
        note += f" {where.left_out} copies with fewer findings are left out."
    table = Table(
        "Where copies differ, by the time at which records are due",
        ("copy", "from (UTC)", "findings"),
        [(names[row], _column(where, at), count) for row, at, count in cells],
        note,
    )

    def draw(axes: Axes) -> None:
        most = max(count for _, _, count in cells)
        for row, at, count in cells:
            alpha = _PALEST + (1 - _PALEST) * log(1 + count) / log(1 + most)
            axes.barh(row, 1, 1, at, align="edge", color=BAD, alpha=alpha, linewidth=0)
        axes.set_xlim(0, COLUMNS)
        axes.set_ylim(len(names), 0)
        axes.set_yticks([row + 0.5 for row in range(len(names))], names)
        ticks = [COLUMNS * tick // (_TICKS - 1) for tick in range(_TICKS)]
        axes.set_xticks(ticks, [_column(where, at)[5:] for at in ticks], rotation=20)
        axes.set_xlabel("due, UTC")
        axes.grid(visible=False)

    return Chart(table, draw, _AXIS_INCHES + _ROW_INCHES * len(names))


def _column(where: Heat, at: int) -> str:
    return moment(where.start_ms + at * where.width_ms)


def _sample(result: ReconcileResult) -> Table:
    columns = ("kind", "node", "shard", "offset", "due or slot (UTC)", "what")
    rows = [
        (
            row["kind"],
            row["node"],
            f"{row['topic']}:{row['partition']}",
            row["offset"],
            _when(row["key_ms"], row["slot_start_ms"]),
            row["detail"],
        )
        for row in result.sample
    ]
    total = sum(result.findings.values())
    note = f"{len(rows)} of {total} findings; all are in {result.paths['findings']}."
    return Table("The first findings", columns, rows, note)


def _when(key_ms: int | None, slot_ms: int | None) -> str | None:
    time_ms = slot_ms if key_ms is None else key_ms
    return moment(time_ms) if time_ms else None


def _repair(result: ReconcileResult) -> PageSection:
    columns = ("node", "step", "shard", "from (UTC)", "to (UTC)", "offsets", "why")
    rows = [
        (step.node, step.command, f"{step.topic}:{step.partition}", *_bounds(step), step.why)
        for step in result.plan.steps[:STEPS_MAX]
    ]
    left = len(result.plan.steps) - len(rows)
    note = f"{left} more are in plan.json." if left else ""
    lead = _REPAIR.format(result.paths["plan"])
    return PageSection("Repair", lead, tables=[Table("The repair plan", columns, rows, note)])


def _bounds(step: RepairStep) -> tuple[str | None, str | None, str]:
    if step.command == "rebuild_copy":
        return None, None, "all"
    offsets = f"{step.first_offset} to {step.stop_offset}"
    return moment(step.start_ms), moment(step.stop_ms), offsets


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
