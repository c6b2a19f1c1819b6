"""Options of ``delayservice dev bench``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

import typer

from delayservice.commands.options import JsonOption

Bench: TypeAlias = Literal["steady", "whole", "restart", "failover", "peers"]

# Defaults of options that depend on the bench.
_N: Final = {"whole": 400_000, "restart": 1_000_000, "peers": 2_000}
_RATE: Final = {"peers": 200}
_ROUNDS: Final = {"failover": 10}


@dataclass(frozen=True, slots=True)
class Options:
    bench: Annotated[Bench, typer.Argument(metavar="NAME", help=", ".join(get_args(Bench)))]
    n: Annotated[
        int | None,
        typer.Option("--n", min=1, show_default="400000; restart: 1000000; peers: 2000"),
    ] = None
    """Records of a round (whole, restart, peers)."""
    rate: Annotated[int | None, typer.Option(min=0, show_default="2000; peers: 200")] = None
    """Records a second (steady, failover, peers); 0: steady measures an idle node."""
    seconds: Annotated[float, typer.Option(min=1)] = 30
    """Duration in seconds (steady)."""
    burst: bool = False
    """All records are due within one later second (steady)."""
    delay_ms: Annotated[tuple[int, int], typer.Option("--delay-ms", metavar="MIN MAX")] = (
        1_000,
        10_000,
    )
    """Delays in ms (steady, failover, peers)."""
    rounds: Annotated[int | None, typer.Option(min=1, show_default="3; failover: 10")] = None
    """Repetitions (whole), kills of a node (failover)."""
    partitions: Annotated[int, typer.Option(min=1)] = 4
    """Partitions of the delay topic and the target."""
    size: Annotated[int, typer.Option(min=1)] = 100
    """Bytes of a value, 24 at least."""
    full: bool = False
    """Turn on ids, expiries, level topics, and limits that are never reached."""
    warm_up: Annotated[bool, typer.Option("--warm-up/--no-warm-up")] = True
    """Make an unmeasured run first, as a new broker is slow."""
    bootstrap: Annotated[str, typer.Option("--bootstrap", "-b")] = ""
    """Use this cluster instead of an embedded one."""
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE")] = None
    """Setting of the service; repeatable."""
    as_json: JsonOption = False

    @property
    def count(self) -> int:
        return self.n or _N.get(self.bench, 1)

    @property
    def per_s(self) -> int:
        return _RATE.get(self.bench, 2_000) if self.rate is None else self.rate

    @property
    def repetitions(self) -> int:
        return self.rounds or _ROUNDS.get(self.bench, 3)
