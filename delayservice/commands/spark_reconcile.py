"""``delayservice spark reconcile --follow``, which repeats comparisons, and ``spark repair``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from connectors.kafka.copies import RepairClient, cluster_id
from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from connectors.spark.reconcile.follow import Followed, FollowOptions, Repairs, follow
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Outcome, Plan, carry_out, decode_plan
from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.spark_session import Running, told_to_stop
from delayservice.config.settings import Settings
from delayservice.replicas.commands import Report

EXIT_FAILED = 1


def follow_copies(
    job: Running, options: ReconcileOptions, interval_s: float, repairs: int, *, as_json: bool
) -> int:
    """Compare copies every ``interval_s`` seconds until Ctrl-C or SIGTERM, printing one line each
    time. Nodes rebuild wrong copies, ``repairs`` times at most. Return the exit status.
    """
    asked = FollowOptions(reconcile=options, interval_s=interval_s, repairs_max=repairs)

    def heard(said: ReconcileResult | str, made: Repairs) -> None:
        if isinstance(said, str):
            err.print(f"{_now()} not compared, tried again: {said}", style="red", markup=False)
        elif as_json:
            told = {**said.to_json(), "shards": len(said.compared), "repairs": made.to_json()}
            print_json(told)
            sys.stdout.flush()  # so that a reader gets each line at once
        else:
            _show_result(said, made)

    with told_to_stop() as stop:
        return status_of(follow(job.spark, asked, stop, heard, job.say))


def _show_result(found: ReconcileResult, made: Repairs) -> None:
    what = ", ".join(f"{count:,} {kind}" for kind, count in found.findings.items())
    style = "bold red" if what else "green" if found.is_clean else "yellow"
    what = what or ("all equal" if found.is_clean else "nothing found")
    text = f"{_now()} {what}; {found.extent} in {found.seconds:,.0f} s"
    out.print(text, style=style, markup=False)
    for why, steps in made.left.items():
        out.print(f"         {steps:,} steps of the plan wait for you: {why}", markup=False)
    if made.made:
        limit = ", and no more are made" if made.has_stopped else ""
        out.print(f"         {made.made} of {made.allowed} repairs made{limit}", markup=False)


def _now() -> str:
    return time.strftime("%H:%M:%S", time.gmtime())


def status_of(done: Followed) -> int:
    # 3: the last comparison found a difference; else 1: one failed; else 4: the last one did not
    # compare all, or none was made; else 0.
    last = EXIT_UNJUDGED if done.last is None else done.last.status
    return EXIT_FAILED if done.failed and last != EXIT_FINDINGS else last


def repair_copies(
    settings: Settings, path: Path, *, is_dry: bool, timeout_s: float, as_json: bool
) -> bool:
    """Print a repair plan if ``is_dry``, else let the nodes carry it out, waiting at most
    ``timeout_s`` for the steps that are sent together. Return whether every step was carried out.

    Raises:
        PlanError: the file is no plan, or the plan is too old or for another cluster.
    """
    plan = decode_plan(_read(path))
    if is_dry:
        _show_plan(plan, as_json=as_json)
        return True
    client = settings.kafka.client_config("producer")
    desk = RepairClient(client, settings.topics.repairs)
    now_ms = time.time_ns() // 1_000_000
    outcome = carry_out(
        plan, desk, cluster_id(client), _progress, now_ms=now_ms, timeout_s=timeout_s
    )
    _show_outcome(plan, outcome, as_json=as_json)
    return outcome.is_complete


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise DelayServiceError(f"{path} can't be read: {exc.strerror or exc}") from exc


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    by_node = Counter(step.node for step in plan.steps)
    if as_json:
        print_json({"plan": plan.id, "steps": len(plan.steps), "nodes": dict(by_node)})
        return
    for step in plan.steps:
        place = f"{step.node}: rebuild {step.topic}:{step.partition}"
        out.print(f"{place}  {step.why}", markup=False)
    out.print(f"{len(plan.steps):,} steps; add --yes to have them carried out", style="bold")


def _progress(over: int, total: int, report: Report | None) -> None:
    if report is not None:
        said = f"{over} of {total}: {report.node} {report.status} {report.detail}"
        err.print(said, style="dim" if report.status == "done" else "red", markup=False)


def _show_outcome(plan: Plan, outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "plan": plan.id,
                "steps": len(plan.steps),
                "done": outcome.done,
                "failed": {str(number): why for number, why in outcome.failed.items()},
                "silent": list(outcome.silent),
            }
        )
        return
    out.print(f"{outcome.done:,} of {len(plan.steps):,} steps done", style="bold")
    for number, why in outcome.failed.items():
        out.print(f"step {number} failed: {why}", style="red", markup=False)
    for number in outcome.silent:
        node = plan.steps[number].node
        out.print(f"step {number}: {node} did not report in time", style="red", markup=False)
