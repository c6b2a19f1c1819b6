"""Options of ``delayservice demo``; its work is in ``delay_devtools.demo``."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated, Literal

import typer

from delayservice.commands.options import JsonOption

# ruff: noqa: PLC0415  # help is read more often than anything runs


def demo(
    *,
    records: Annotated[int, typer.Option(min=1, help="Records to send.")] = 20_000,
    kills: Annotated[
        int | None,
        typer.Option(min=0, help="Times a node is killed.", show_default="3; of one node 5"),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=6, help="Nodes, each beside a broker; 1 has no ZooKeeper.")
    ] = 3,
    store: Annotated[
        Literal["wheel", "rocksdb", "memory"],
        typer.Option(help="Where pending records are kept."),
    ] = "wheel",
    delivery: Annotated[
        Literal["exactly_once", "at_least_once"], typer.Option(help="What a crash may cost.")
    ] = "exactly_once",
    as_json: JsonOption = False,
) -> None:
    """Start real Kafka and the service, kill and freeze its nodes, and judge what arrives.

    The last line is one JSON object with the result; with --json it is the only one.
    """
    from delay_devtools.demo.choices import Choices
    from delay_devtools.demo.story import run as run_demo

    shown = io.StringIO() if as_json else sys.stdout
    with contextlib.redirect_stdout(shown):
        exit_status = run_demo(Choices(records, kills, nodes, store, delivery))
    if isinstance(shown, io.StringIO):
        print(*shown.getvalue().splitlines()[-1:])  # noqa: T201 (JSON as it is)
    raise typer.Exit(exit_status)
