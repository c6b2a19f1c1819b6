"""Options of ``delayservice dev demo``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from delayservice.commands.options import JsonOption


@dataclass(frozen=True, slots=True)
class DemoOptions:
    records: Annotated[int, typer.Option(min=1)] = 20_000
    """Number of records to send."""
    kills: Annotated[int | None, typer.Option(min=0, show_default="3; of one node 5")] = None
    """Number of kills of a node."""
    nodes: Annotated[int, typer.Option(min=1, max=6)] = 3
    """Nodes, each beside a broker; one alone has no ZooKeeper."""
    store: Literal["wheel", "rocksdb", "memory"] = "wheel"
    """Where pending records are kept."""
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """Guarantee for deliveries."""
    as_json: JsonOption = False

    @property
    def has_several(self) -> bool:
        return self.nodes > 1
