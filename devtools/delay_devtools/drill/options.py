"""Options of ``delayservice dev drill``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from delayservice.commands.options import flag


@dataclass(frozen=True, slots=True)
class DrillOptions:
    records: Annotated[
        int, typer.Option(min=0, help="Number of plain records beside those of the stories.")
    ] = 1_000_000
    defects: Annotated[int, typer.Option(min=0, help="Number of defects of all kinds.")] = 300
    seed: Annotated[int, typer.Option(help="Seed of stories and defects.")] = 20_260_101
    keep: Annotated[bool, flag("--keep", "Keep archive and stores, and print where they are.")] = (
        False
    )
    follow: Annotated[
        bool, flag("--follow", "Also judge the records by an audit that follows.")
    ] = False
