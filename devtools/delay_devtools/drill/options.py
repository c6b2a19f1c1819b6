"""Options of ``delayservice dev drill``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class DrillOptions:
    records: Annotated[int, typer.Option(min=0)] = 1_000_000
    """Number of plain records beside those of the stories."""
    defects: Annotated[int, typer.Option(min=0)] = 300
    """Number of defects of all kinds."""
    seed: int = 20_260_101
    """Seed of stories and defects."""
    keep: bool = False
    """Keep archive and stores, and print where they are."""
    follow: bool = False
    """Also judge the records by an audit that follows."""
