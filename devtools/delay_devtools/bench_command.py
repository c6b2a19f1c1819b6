"""Options of ``delayservice bench``; the benches are in ``delay_devtools.bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from delay_devtools.bench.options import Bench, DeliveryMode, Options, Store, usual
from delayservice.config.settings import workers_default

# Heavy modules are imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

EPILOG = (
    "Examples: [bold]delayservice bench whole --json[/]\n\n"
    "[bold]delayservice bench steady --rate 5000 --store rocksdb[/]\n\n"
    "[bold]delayservice bench peers --plot lateness.svg[/] (the same load on RocketMQ and NATS as "
    "well; fetches 90 MB of jars and builds NATS the first time; needs a JDK and Go)\n\n"
    "Exit status 0 only when nothing was lost, doubled, early or altered (peers: by this service)."
)

_Name = Annotated[Bench, typer.Argument(metavar="NAME", help=", ".join(get_args(Bench)))]
_Store = Annotated[Store, typer.Option(help="Where pending records are kept.")]
_Delivery = Annotated[DeliveryMode, typer.Option(help="What a crash may cost.")]
_N = Annotated[
    int | None,
    typer.Option(
        "--n",
        min=1,
        help="Records of a round (passthrough, whole, burst, pending, restart, peers).",
    ),
]
_Size = Annotated[int, typer.Option(min=1, help="Bytes of a value, 24 at least.")]
_Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Partitions of the delay topic and the target.",
        show_default="4; of idle on several nodes 64",
    ),
]
_Nodes = Annotated[
    int | None,
    typer.Option(
        min=1, max=9, help="Nodes of the service (idle, failover).", show_default="1; failover: 3"
    ),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Worker processes of a node.",
        show_default="one per core, 4 at most; of several nodes 1",
    ),
]
_Rate = Annotated[
    int | None,
    typer.Option(min=1, help="Records a second (steady, pending, soak, failover, peers)."),
]
_Seconds = Annotated[
    float | None, typer.Option(min=1, help="How long (steady, pending, idle, soak).")
]
_DelayMs = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="MIN MAX",
        help="Delays in ms (steady, pending, soak, failover, peers).",
        show_default="5000 15000; failover: 0 2000; peers: 1000 10000",
    ),
]
_SpreadS = Annotated[
    int,
    typer.Option(
        min=0, help="Window of due times (pending); 0: what the store holds, 14 days at most."
    ),
]
_Rounds = Annotated[
    int | None, typer.Option(min=1, help="Repetitions (passthrough, whole, burst).")
]
_Trials = Annotated[
    int | None,
    typer.Option(min=1, help="Kills of a node (failover).", show_default="50"),
]
_TransactionRecords = Annotated[
    int, typer.Option(min=1, help="Records in a transaction of the bench passthrough.")
]
_JudgeBeside = Annotated[
    bool,
    typer.Option(
        "--judge-beside/--judge-after",
        help="Judge while passthrough runs, as with the service; or not before it is done.",
    ),
]
_Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Every feature: ids and expiries, limits too high to matter, level topics.",
    ),
]
_WarmUp = Annotated[
    bool, typer.Option(help="Do everything once before, unmeasured: a fresh broker is slow.")
]
_Seed = Annotated[int, typer.Option(help="Of due times and contents.")]
_Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", help="A cluster, instead of an embedded one.")
]
_Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A setting of the service."),
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a plot of lateness, SVG or PNG by its ending (peers)."
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]


def bench(
    name: _Name,
    *,
    store: _Store = "wheel",
    delivery: _Delivery = "exactly_once",
    n: _N = None,
    size: _Size = 100,
    partitions: _Partitions = None,
    nodes: _Nodes = None,
    workers: _Workers = None,
    rate: _Rate = None,
    seconds: _Seconds = None,
    delay_ms: _DelayMs = None,
    spread_s: _SpreadS = 0,
    rounds: _Rounds = None,
    trials: _Trials = None,
    transaction_records: _TransactionRecords = 5_000,
    judge_beside: _JudgeBeside = True,
    warm_up: _WarmUp = True,
    full: _Full = False,
    seed: _Seed = 20_260_101,
    bootstrap: _Bootstrap = "",
    sets: _Sets = None,
    plot: _Plot = None,
    as_json: _AsJson = False,
) -> None:
    """Measure the service: rate, CPU, memory, lateness and failover, with every record judged.

    On a real cluster that is started for it, or on yours with --bootstrap.
    """
    from delay_devtools.bench.run import run

    own = usual(name, nodes)
    nodes = nodes or own.nodes
    options = Options(
        bench=name,
        store=store,
        delivery=delivery,
        n=n or own.n,
        size=size,
        partitions=partitions or own.partitions,
        nodes=nodes,
        # Several nodes share this machine: a second worker each would only slow the others.
        workers=workers or (workers_default() if nodes == 1 else 1),
        rate_per_s=rate or own.rate_per_s,
        seconds=seconds or own.seconds,
        delay_ms=delay_ms or own.delay_ms,
        spread_s=spread_s,
        rounds=rounds or own.rounds,
        trials=trials or own.trials,
        transaction_records=transaction_records,
        judge_beside=judge_beside,
        warm_up=warm_up,
        full=full,
        seed=seed,
        sets=tuple(sets or ()),
        bootstrap=bootstrap,
    )
    raise typer.Exit(run(options, as_json=as_json, plot=plot))
