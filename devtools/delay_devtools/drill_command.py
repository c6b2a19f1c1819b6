"""Options of ``delayservice spark drill``; its work is in ``delay_devtools.drill``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from delayservice.commands.options import JsonOption, with_options
from delayservice.commands.spark_session import (
    EXIT_FINDINGS,
    STATUS,
    SessionOptions,
    require_extra,
)

# ruff: noqa: PLC0415  # help is read more often than anything runs

CUTS_MAX: Final = 37
DRILL_EPILOG: Final = (
    "Examples: [bold]delayservice spark drill --json[/]"
    "\n\n[bold]delayservice spark drill --records 20000 --defects 64 -b localhost:9092 --keep[/]"
    f"\n\n{STATUS}"
)


@with_options
def drill(
    *,
    records: Annotated[int, typer.Option(min=1_000, help="That producers write.")] = 1_000_000,
    defects: Annotated[int, typer.Option(min=0, help="Of all kinds together.")] = 300,
    cuts: Annotated[
        int,
        typer.Option(min=0, max=CUTS_MAX, help="At so many an audit that follows judges as well."),
    ] = 0,
    partitions: Annotated[int, typer.Option(min=2, help="Of the delay topic.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the history and its defects.")] = 20_260_101,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave topics and folders, and say where they are.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="A cluster, instead of one started for it.")
    ] = "",
    session: SessionOptions,
    as_json: JsonOption = False,
) -> None:
    """Inject defects into topics and copies, and see whether audit and comparison find them all.

    Exit status 0 only if each was found with its offset, and nothing else.
    """
    require_extra()
    from delay_devtools.drill.run import DrillOptions, judged, prepared, show

    options = DrillOptions(records, defects, seed, bootstrap, keep, partitions, cuts=cuts)
    is_shown = not as_json or sys.stderr.isatty()
    with ExitStack() as stack:
        if cuts:
            job = stack.enter_context(session.running("drill", as_json=as_json))
        made = stack.enter_context(
            prepared(options, job.spark if cuts else None, is_shown=is_shown)
        )
        if not cuts:
            job = stack.enter_context(session.running("drill", as_json=as_json))
        verdict = judged(made, job.spark, job.say)
        show(verdict, made, as_json=as_json)
    raise typer.Exit(0 if verdict.is_good else EXIT_FINDINGS)
