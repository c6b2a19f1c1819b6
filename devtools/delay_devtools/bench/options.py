"""Options of ``delayservice dev bench``. Light, as help is shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

import typer

from delayservice.commands.options import JsonOption, SetOption, flag

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
        typer.Option(
            "--n",
            min=1,
            help="Records of a round (whole, restart, peers).",
            show_default="400000; restart: 1000000; peers: 2000",
        ),
    ] = None
    rate: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Records a second (steady, failover, peers); 0: steady measures an idle node.",
            show_default="2000; peers: 200",
        ),
    ] = None
    seconds: Annotated[float, typer.Option(min=1, help="Duration in seconds (steady).")] = 30
    burst: Annotated[
        bool, flag("--burst", "All records are due within one later second (steady).")
    ] = False
    delay_ms: Annotated[
        tuple[int, int],
        typer.Option(metavar="MIN MAX", help="Delays in ms (steady, failover, peers)."),
    ] = (1_000, 10_000)
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repetitions (whole), kills of a node (failover).",
            show_default="3; failover: 10",
        ),
    ] = None
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of the delay topic and the target.")
    ] = 4
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value, 24 at least.")] = 100
    full: Annotated[
        bool,
        flag("--full", "Turn on ids, expiries, level topics, and limits that are never reached."),
    ] = False
    warm_up: Annotated[
        bool, typer.Option(help="Make an unmeasured run first, as a new broker is slow.")
    ] = True
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="Use this cluster instead of an embedded one.")
    ] = ""
    sets: SetOption = None
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
