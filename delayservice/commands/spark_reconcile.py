"""``delayservice spark reconcile --follow``, which repeats comparisons, and ``spark repair``."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path

from connectors.kafka.clients import admin_client
from connectors.kafka.copies import RepairClient, cluster_id
from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from connectors.spark.reconcile.follow import Following, RepairPolicy
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Plan, carry_out, decode_plan
from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.spark_session import Running, repeat, show_findings, told_to_stop
from delayservice.config.settings import Settings
from delayservice.replicas.commands import Report

EXIT_FAILED = 1


def follow_copies(job: Running, options: ReconcileOptions, interval_ms: int, repairs: int) -> int:
    """Compare copies at intervals until Ctrl-C or SIGTERM, printing one line each time. Nodes
    rebuild wrong copies, ``repairs`` times at most. Return the exit status.
    """
    with told_to_stop() as stop:
        following = Following(job.spark, options, stop, repairs, job.say)

        def step() -> None:
            found = following.step()
            if isinstance(found, str):
                raise DelayServiceError(f"not compared: {found}")
            if found is not None:
                shards, made = len(found.compared), following.policy.to_json()
                result = {**found.to_json(), "shards": shards, "repairs": made}
                job.emit(result, partial(_show_interval, found, following.policy))

        repeat(job, interval_ms, step, stop)
    return status_of(following.failures, following.last)


def _show_interval(found: ReconcileResult, repairs: RepairPolicy) -> None:
    what = ", ".join(f"{count:,} {kind}" for kind, count in found.findings.items())
    style = "bold red" if what else "green" if found.is_clean else "yellow"
    what = what or ("all equal" if found.is_clean else "nothing found")
    now = time.strftime("%H:%M:%S", time.gmtime())
    text = f"{now} {what}; {found.extent} in {found.seconds:,.0f} s"
    out.print(text, style=style, markup=False)
    for why, steps in repairs.left.items():
        out.print(f"         {steps:,} steps of the plan wait for you: {why}", markup=False)
    if repairs.made:
        limit = ", and no more are made" if repairs.has_stopped else ""
        out.print(f"         {repairs.made} of {repairs.allowed} repairs made{limit}", markup=False)


def show_result(found: ReconcileResult) -> None:
    out.print(f"{found.extent} in {found.seconds:,.0f} s")
    for note in found.notes:
        err.print(f"not compared: {note}", style="yellow", markup=False)
    if found.status != EXIT_UNJUDGED:
        show_findings(found.findings, found.sample, found.paths["findings"])
    out.print(f"page {found.paths['report']}\nplan {found.paths['plan']}", markup=False)


def status_of(failures: int, last: ReconcileResult | None) -> int:
    # 3: the last comparison found a difference; else 1: one failed; else 4: the last one did not
    # compare all, or none was made; else 0.
    status = EXIT_UNJUDGED if last is None else last.status
    return EXIT_FAILED if failures and status != EXIT_FINDINGS else status


def repair_copies(
    settings: Settings, path: Path, *, is_dry: bool, timeout_s: float, as_json: bool
) -> bool:
    """Print a repair plan if ``is_dry``, else let the nodes carry it out, waiting at most
    ``timeout_s`` for the steps that are sent together. Return whether every step was carried out.

    Raises:
        PlanError: the file is no plan, or the plan is too old or for another cluster.
    """
    try:
        plan = decode_plan(path.read_bytes())
    except OSError as exc:
        raise DelayServiceError(f"{path} can't be read: {exc.strerror or exc}") from exc
    if is_dry:
        _show_plan(plan, as_json=as_json)
        return True
    client = settings.kafka.client_config("producer")
    plan.check(cluster_id(admin_client(client)), time.time_ns() // 1_000_000)
    reports: dict[int, Report] = {}
    for one in carry_out(plan, RepairClient(client, settings.topics.repairs), timeout_s):
        reports[one.step] = one
        said = f"{len(reports)} of {len(plan.steps)}: {one.node} {one.status} {one.detail}"
        err.print(said, style="dim" if one.status == "done" else "red", markup=False)
    failed = {n: one.detail for n, one in reports.items() if one.status != "done"}
    silent = [n for n in range(len(plan.steps)) if n not in reports]
    _show_outcome(plan, failed, silent, as_json=as_json)
    return not failed and not silent


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    by_node = Counter(step.node for step in plan.steps)
    if as_json:
        print_json({"plan": plan.id, "steps": len(plan.steps), "nodes": dict(by_node)})
        return
    for step in plan.steps:
        place = f"{step.node}: rebuild {step.topic}:{step.partition}"
        out.print(f"{place}  {step.why}", markup=False)
    out.print(f"{len(plan.steps):,} steps; add --yes to have them carried out", style="bold")


def _show_outcome(plan: Plan, failed: dict[int, str], silent: list[int], *, as_json: bool) -> None:
    steps, done = len(plan.steps), len(plan.steps) - len(failed) - len(silent)
    if as_json:
        told = {"plan": plan.id, "steps": steps, "done": done, "silent": silent}
        print_json({**told, "failed": {str(number): why for number, why in failed.items()}})
        return
    out.print(f"{done:,} of {steps:,} steps done", style="bold")
    for number, why in failed.items():
        out.print(f"step {number} failed: {why}", style="red", markup=False)
    for number in silent:
        node = plan.steps[number].node
        out.print(f"step {number}: {node} did not report in time", style="red", markup=False)
