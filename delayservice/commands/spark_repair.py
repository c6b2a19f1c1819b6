"""``delayservice spark repair``: prints a repair plan, or lets the nodes carry it out."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from connectors.kafka.copies import RepairDesk, cluster_id
from connectors.spark.reconcile.repair_plan import Outcome, Plan, carry_out, decode_plan
from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.config.settings import Settings
from delayservice.replicas.commands import Report


def run(settings: Settings, path: Path, *, is_dry: bool, timeout_s: float, as_json: bool) -> bool:
    """Print a repair plan if ``is_dry``, else let the nodes carry it out.

    Args:
        settings: settings of the cluster.
        path: plan that a comparison wrote.
        is_dry: whether only to print the plan.
        timeout_s: longest wait for reports on the steps that are sent together, in s.
        as_json: whether to print JSON.

    Returns:
        Whether every step was carried out; True also if ``is_dry``.

    Raises:
        PlanError: the file is no plan, or the plan is too old or for another cluster.
        DelayServiceError: the file can't be read.
        KafkaEdgeError: the cluster does not answer.
    """
    plan = decode_plan(_read(path))
    if is_dry:
        _show(plan, as_json=as_json)
        return True
    client = settings.kafka.client_config("producer")
    desk = RepairDesk(client, settings.topics.repairs)
    now_ms = time.time_ns() // 1_000_000
    outcome = carry_out(
        plan, desk, cluster_id(client), _progress, now_ms=now_ms, timeout_s=timeout_s
    )
    _tell(plan, outcome, as_json=as_json)
    return outcome.is_complete


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise DelayServiceError(f"{path} can't be read: {exc.strerror or exc}") from exc


def _show(plan: Plan, *, as_json: bool) -> None:
    by_node = Counter(step.node for step in plan.steps)
    if as_json:
        print_json({"plan": plan.id, "steps": len(plan.steps), "nodes": dict(by_node)})
        return
    for step in plan.steps:
        place = f"{step.node}: {step.command} {step.topic}:{step.partition}"
        keys = f"keys [{step.start_ms}, {step.stop_ms}) ms"
        out.print(f"{place} {keys}  {step.why}", markup=False)
    out.print(f"{len(plan.steps):,} steps; add --yes to have them carried out", style="bold")


def _progress(over: int, total: int, report: Report | None) -> None:
    if report is not None:
        said = f"{over} of {total}: {report.node} {report.status} {report.detail}"
        err.print(said, style="dim" if report.status == "done" else "red", markup=False)


def _tell(plan: Plan, outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "plan": plan.id,
                "steps": len(plan.steps),
                "done": outcome.done,
                "frames": outcome.frames,
                "failed": {str(number): why for number, why in outcome.failed.items()},
                "silent": list(outcome.silent),
            }
        )
        return
    out.print(f"{outcome.done:,} of {len(plan.steps):,} steps done", style="bold", end="")
    out.print(f", {outcome.frames:,} records read again")
    for number, why in outcome.failed.items():
        out.print(f"step {number} failed: {why}", style="red", markup=False)
    for number in outcome.silent:
        node = plan.steps[number].node
        out.print(f"step {number}: {node} did not report in time", style="red", markup=False)
