"""``delayservice spark reconcile --follow``: repeated comparisons, one line each."""

from __future__ import annotations

import sys
import time

from connectors.spark.common.session import EXIT_FINDINGS, EXIT_UNJUDGED
from connectors.spark.reconcile.follow import Followed, FollowOptions, Repairs, follow
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from delayservice.commands.console import err, out, print_json
from delayservice.commands.spark_session import Running, told_to_stop

EXIT_FAILED = 1


def run(
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
            _show(said, made)

    with told_to_stop() as stop:
        return status_of(follow(job.spark, asked, stop, heard, job.say))


def _show(found: ReconcileResult, made: Repairs) -> None:
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
    """Return the exit status after repeated comparisons: 3: the last one found a difference; else
    1: a comparison failed; else 4: the last one did not compare all, or none was made; else 0.
    """
    last = EXIT_UNJUDGED if done.last is None else done.last.status
    return EXIT_FAILED if done.failed and last != EXIT_FINDINGS else last
