"""Parts of ``delayservice spark reconcile``: repeated comparisons, repairs, and what is shown."""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import replace

from connectors.kafka.copies import RepairClient
from connectors.spark.common.session import EXIT_UNJUDGED
from connectors.spark.common.topics import native_options
from connectors.spark.reconcile.follow import (
    ANSWER_TIMEOUT_S,
    IS_OVER_LIMIT,
    Following,
    RepairPolicy,
)
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Plan, carry_out
from delayservice.commands.console import err, out, say
from delayservice.commands.spark_session import (
    Running,
    followed_status,
    repeat,
    show_findings,
    told_to_stop,
)


def follow_copies(job: Running, options: ReconcileOptions, interval_ms: int, repairs: int) -> int:
    """Compare copies at intervals until Ctrl-C or SIGTERM, printing one line each time. Nodes
    rebuild wrong copies, ``repairs`` times at most. Return the exit status.
    """
    with told_to_stop() as stop:
        following = Following(job.spark, options, stop, repairs, job.say)

        def step() -> None:
            found = following.step()
            shards, made = len(found.compared), following.policy.to_json()
            result = {**found.to_json(), "shards": shards, "repairs": made}
            job.emit(result, partial(_show_interval, found, following.policy))

        failed = repeat(job, interval_ms, step, stop)
    last = following.last
    return followed_status(EXIT_UNJUDGED if last is None else last.status, failed=failed)


def repair_copies(
    job: Running, options: ReconcileOptions, plan: Plan, repairs: int
) -> RepairPolicy:
    """Have the nodes carry out the first ``repairs`` steps of a plan, and print which failed.
    Return the counts.
    """
    chosen = plan.steps[:repairs]
    done = RepairPolicy(repairs, len(chosen), len(chosen))
    if not chosen:
        return done
    if len(chosen) < len(plan.steps):
        done.left[IS_OVER_LIMIT] = len(plan.steps) - len(chosen)
    job.say("having nodes rebuild their copies")
    nodes = RepairClient(native_options(options.client), options.repairs)
    whys = dict.fromkeys(range(len(chosen)), "it did not report in time")
    for report in carry_out(replace(plan, steps=chosen), nodes, ANSWER_TIMEOUT_S):
        whys[report.step] = report.detail
    for step, why in zip(chosen, whys.values(), strict=True):
        if why:
            say(err, f"{step.node} did not rebuild {step.topic}:{step.partition}: {why}", "red")
        done.failed -= not why
    return done


def _show_interval(found: ReconcileResult, repairs: RepairPolicy) -> None:
    what = ", ".join(f"{count:,} {kind}" for kind, count in found.findings.items())
    style = "bold red" if what else "green" if found.is_clean else "yellow"
    what = what or ("all equal" if found.is_clean else "nothing found")
    now = time.strftime("%H:%M:%S", time.gmtime())
    text = f"{now} {what}; {found.extent} in {found.seconds:,.0f} s"
    out.print(text, style=style, markup=False)
    _show_repairs(repairs)


def show_result(found: ReconcileResult, repairs: RepairPolicy) -> None:
    out.print(f"{found.extent} in {found.seconds:,.0f} s")
    for note in found.notes:
        err.print(f"not compared: {note}", style="yellow", markup=False)
    if found.status != EXIT_UNJUDGED:
        show_findings(found.findings, found.sample, found.paths["findings"])
    out.print(f"page {found.paths['report']}\nplan {found.paths['plan']}", markup=False)
    _show_repairs(repairs)


def _show_repairs(repairs: RepairPolicy) -> None:
    for why, steps in repairs.left.items():
        out.print(f"         {steps:,} steps of the plan wait for you: {why}", markup=False)
    if repairs.made:
        limit = ", and no more are made" if repairs.has_stopped else ""
        out.print(f"         {repairs.made} of {repairs.allowed} repairs made{limit}", markup=False)
