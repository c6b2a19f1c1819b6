"""Development commands that are added to ``delayservice``: dev, demo, bench, spark drill."""

from __future__ import annotations

import contextlib
import io
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from delay_devtools.bench.options import Bench, DeliveryMode, Options, Store, usual
from delayservice.commands import smoke, spark
from delayservice.commands.options import JsonOption, with_options
from delayservice.commands.spark_session import (
    EXIT_FINDINGS,
    STATUS,
    SessionOptions,
    require_extra,
)
from delayservice.config.settings import workers_default

# Heavy modules are imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

BENCH_EPILOG = (
    "Examples: [bold]delayservice bench whole --json[/]\n\n"
    "[bold]delayservice bench steady --rate 5000 --store rocksdb[/]\n\n"
    "[bold]delayservice bench peers --plot lateness.svg[/] (the same load on RocketMQ and NATS as "
    "well; fetches 90 MB of jars and builds NATS the first time; needs a JDK and Go)\n\n"
    "Exit status 0 only if no record was lost, duplicated, early or altered (peers: by this "
    "service)."
)

_Name = Annotated[Bench, typer.Argument(metavar="NAME", help=", ".join(get_args(Bench)))]
_Store = Annotated[Store, typer.Option(help="Where pending records are kept.")]
_Delivery = Annotated[DeliveryMode, typer.Option(help="Guarantee for deliveries.")]
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
    float | None, typer.Option(min=1, help="Duration in seconds (steady, pending, idle, soak).")
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
        min=0, help="Window of due times in s (pending); 0: the roll window, 14 days at most."
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
        help="Check records while passthrough copies them, or afterwards.",
    ),
]
_Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Turn on ids, expiries, level topics, and limits that are never reached.",
    ),
]
_WarmUp = Annotated[
    bool, typer.Option(help="Make an unmeasured run first, as a new broker is slow.")
]
_Seed = Annotated[int, typer.Option(help="Seed of due times and contents.")]
_Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", help="Use this cluster instead of an embedded one.")
]
_Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A setting of the service."),
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Plot of lateness to write, SVG or PNG by its suffix (peers)."
    ),
]


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
    as_json: JsonOption = False,
) -> None:
    """Measure rate, CPU, memory, lateness and failover of the service, and check every record.

    It starts a Kafka cluster, or uses the one that --bootstrap names.
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


def demo(
    *,
    records: Annotated[int, typer.Option(min=1, help="Number of records to send.")] = 20_000,
    kills: Annotated[
        int | None,
        typer.Option(min=0, help="Number of kills of a node.", show_default="3; of one node 5"),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(min=1, max=6, help="Nodes, each beside a broker; one alone has no ZooKeeper."),
    ] = 3,
    store: _Store = "wheel",
    delivery: _Delivery = "exactly_once",
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and the service, kill and freeze nodes, and check every record.

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


CUTS_MAX: Final = 37
DRILL_EPILOG: Final = (
    "Examples: [bold]delayservice spark drill --json[/]"
    "\n\n[bold]delayservice spark drill --records 20000 --defects 64 -b localhost:9092 --keep[/]"
    f"\n\n{STATUS}"
)


@with_options
def drill(
    *,
    records: Annotated[
        int, typer.Option(min=1_000, help="Number of producers' records.")
    ] = 1_000_000,
    defects: Annotated[int, typer.Option(min=0, help="Number of defects of all kinds.")] = 300,
    cuts: Annotated[
        int,
        typer.Option(min=0, max=CUTS_MAX, help="Audits that follow while the history is written."),
    ] = 0,
    partitions: Annotated[int, typer.Option(min=2, help="Partitions of the delay topic.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of history and defects.")] = 20_260_101,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep topics and folders, and print where they are.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="Use this cluster instead of an embedded one.")
    ] = "",
    session: SessionOptions,
    as_json: JsonOption = False,
) -> None:
    """Inject defects into topics and copies, and check that audit and comparison find them all.

    Exit status 0 only if each defect was found with its offset, and nothing else.
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


def up(
    brokers: Annotated[int, typer.Option(min=1, help="Number of Kafka brokers.")] = 1,
    zookeepers: Annotated[int, typer.Option(min=0, help="Number of ZooKeeper servers.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of all files, which is kept and can be used again.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            envvar="DELAY_DEV_KAFKA", help="Version of Kafka: 4.3 or 3.9.", show_default="4.3"
        ),
    ] = None,
    keep: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--keep", help="Keep the temporary folder at the end.")
    ] = False,
    as_json: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--json", help="Print one JSON object instead of a panel.")
    ] = False,
) -> None:
    """Start Kafka and ZooKeeper, print their addresses, and stop them at Ctrl-C."""
    from delay_devtools.dev import keep_up

    keep_up(brokers, zookeepers, folder, kafka=kafka, keep=keep, as_json=as_json)


def first_record(
    *,
    after: Annotated[str, typer.Option(help="Delay of the first record: 5s, 1m, PT30S.")] = "5s",
    once: Annotated[
        bool, typer.Option("--once", help="End when the first record has arrived.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and a node, show that a delayed record arrives, and run until Ctrl-C."""
    from delay_devtools.dev import show_first

    raise typer.Exit(show_first(after, once=once, as_json=as_json))


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Exit status 0 only if no record was lost, duplicated or early.")(demo)
    app.command(epilog=BENCH_EPILOG)(bench)
    spark.app.command(epilog=DRILL_EPILOG)(drill)
    smoke.dev.command()(up)
    smoke.dev.command("try", epilog="Exit status 0 only if the record arrived.")(first_record)
