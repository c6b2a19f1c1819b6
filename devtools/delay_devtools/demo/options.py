"""Options of ``delayservice dev demo``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from delayservice.commands.options import JsonOption


@dataclass(frozen=True, slots=True)
class DemoOptions:
    records: Annotated[int, typer.Option(min=1, help="Number of records to send.")] = 20_000
    kills: Annotated[
        int | None,
        typer.Option(min=0, help="Number of kills of a node.", show_default="3; of one node 5"),
    ] = None
    nodes: Annotated[
        int,
        typer.Option(min=1, max=6, help="Nodes, each beside a broker; one alone has no ZooKeeper."),
    ] = 3
    store: Annotated[
        Literal["wheel", "rocksdb", "memory"],
        typer.Option(help="Where pending records are kept."),
    ] = "wheel"
    delivery: Annotated[
        Literal["exactly_once", "at_least_once"], typer.Option(help="Guarantee for deliveries.")
    ] = "exactly_once"
    as_json: JsonOption = False

    @property
    def has_several(self) -> bool:
        return self.nodes > 1
