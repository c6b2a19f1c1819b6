"""The page of a comparison: which copies differ, where in time, and what would repair them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Final

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.common.html import BAD, FIGURE_INCHES, Plot, Table, moment, render, style, svg
from connectors.spark.common.plots import bars
from connectors.spark.reconcile.compare import COPY
from connectors.spark.reconcile.plan import Step
from connectors.spark.reconcile.slots import KINDS
from delayservice.core.digest import SLOT_MS

if TYPE_CHECKING:
    from connectors.spark.reconcile.run import ReconcileResult

COPIES_MAX: Final = 40
COLUMNS: Final = 48
STEPS_MAX: Final = 100
_ROW_INCHES: Final = 0.22
_AXIS_INCHES: Final = 1.0
_TICKS: Final = 5
_PALEST: Final = 0.3


@dataclass(frozen=True, slots=True)
class Heat:
    """Findings over time: of each copy (node, topic, partition), a count by column.

    ``start_ms`` is where the first column begins, each is ``width_ms`` wide.
    """

    copies: tuple[tuple[str, str, int], ...]
    counts: tuple[tuple[int, ...], ...]
    start_ms: int
    width_ms: int
    left_out: int
    """Copies with fewer findings than those that are shown."""


def heat(found: DataFrame) -> Heat | None:
    """Findings that have a place in time; None: there are none."""
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
    """The page, one HTML file."""
    return render(
        "reconcile.html",
        result=result,
        made_ms=result.plan.made_ms,
        facts=_facts(result),
        plots=[*_kinds(result), *([] if where is None else [_heat_plot(where)])],
        sample=_sample(result),
        copies=_copies(result),
        absent=_absent(result),
        steps=_steps(result.plan.steps),
        notes=result.notes,
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
        ("records that the log can't judge", counts.unjudged),
        ("steps of the plan", len(result.plan.steps)),
        ("seconds", round(result.seconds, 1)),
    ]


def _kinds(result: ReconcileResult) -> list[Plot]:
    found = [(kind, result.findings[kind]) for kind in KINDS if kind in result.findings]
    if not found:
        return []
    caption = "Findings by kind"
    image = bars([kind for kind, _ in found], [count for _, count in found], caption, colour=BAD)
    return [Plot(caption, image, Table(caption, ("kind", "findings"), found))]


def _heat_plot(where: Heat) -> Plot:
    caption = "Where copies differ, by the time at which records are due"
    minutes = where.width_ms // SLOT_MS
    note = f"A column is {minutes} min wide. Darker is more."
    if where.left_out:
        note += f" {where.left_out} copies with fewer findings are left out."
    rows = [
        (f"{node} {topic}:{partition}", moment(where.start_ms + at * where.width_ms), count)
        for (node, topic, partition), counts in zip(where.copies, where.counts, strict=True)
        for at, count in enumerate(counts)
        if count
    ]
    table = Table(caption, ("copy", "from (UTC)", "findings"), rows, note)
    return Plot(f"{caption}. {note}", heat_map(where, caption), table)


def heat_map(where: Heat, label: str) -> Markup:
    """A row for each copy, a column for each stretch of time; the more findings the darker."""
    height = _AXIS_INCHES + _ROW_INCHES * len(where.copies)
    most = max(max(counts) for counts in where.counts)
    with style():
        figure = Figure(figsize=(FIGURE_INCHES[0], height), layout="constrained")
        axes = figure.add_subplot()
        for row, counts in enumerate(where.counts):
            for at, count in enumerate(counts):
                if count:
                    share = log(1 + count) / log(1 + most)
                    alpha = _PALEST + (1 - _PALEST) * share
                    cell = Rectangle((at, row), 1, 1, facecolor=BAD, alpha=alpha, linewidth=0)
                    axes.add_patch(cell)
        axes.set_xlim(0, COLUMNS)
        axes.set_ylim(len(where.copies), 0)
        axes.set_yticks(
            [row + 0.5 for row in range(len(where.copies))],
            [f"{node} {topic}:{partition}" for node, topic, partition in where.copies],
        )
        ticks = [COLUMNS * tick // (_TICKS - 1) for tick in range(_TICKS)]
        texts = [moment(where.start_ms + at * where.width_ms)[5:] for at in ticks]
        axes.set_xticks(ticks, texts, rotation=20)
        axes.set_xlabel("due, UTC")
        axes.grid(visible=False)
        return svg(figure, label)


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
    note = (
        f"{len(rows)} of {total} findings; all are in {result.paths['findings']}." if rows else ""
    )
    return Table("The first findings", columns, rows, note)


def _when(key_ms: int | None, slot_ms: int | None) -> str | None:
    time_ms = slot_ms if key_ms is None else key_ms
    return moment(time_ms) if time_ms else None


def _copies(result: ReconcileResult) -> Table:
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
    return Table("What was compared, and at which checkpoint", columns, rows)


def _absent(result: ReconcileResult) -> Table:
    rows = [
        (f"{one.topic}:{one.partition}", node or None, kind, why)
        for one in result.compared
        for kind, said in (("behind", one.behind), ("silent", one.silent))
        for node, why in sorted(said.items())
    ]
    return Table("Copies that could not be compared", ("shard", "node", "kind", "why"), rows)


def _steps(steps: Sequence[Step]) -> Table:
    columns = ("node", "shard", "from (UTC)", "to (UTC)", "offsets", "why")
    rows = [
        (
            step.node,
            f"{step.topic}:{step.partition}",
            moment(step.start_ms),
            moment(step.stop_ms),
            f"{step.first_offset} to {step.stop_offset}",
            step.why,
        )
        for step in steps[:STEPS_MAX]
    ]
    left = len(steps) - len(rows)
    return Table("The repair plan", columns, rows, f"{left} more are in plan.json." if left else "")
