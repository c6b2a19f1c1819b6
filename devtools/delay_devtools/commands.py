"""``delayservice dev``: commands for development, which a clone has and no wheel."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import typer

from delay_devtools.bench import Bench
from delayservice.commands.console import EXIT_FINDINGS
from delayservice.commands.options import Duration, JsonOption, with_options
from delayservice.commands.spark_session import (
    STATUS,
    SessionOptions,
    require_extra,
)

# Heavy modules are imported when the command runs, so that help is shown at once.
# ruff: noqa: PLC0415

BENCH_EPILOG = (
    "Examples: [bold]delayservice dev bench whole --json[/]\n\n"
    "[bold]delayservice dev bench steady --rate 5000 --set node.store=rocksdb[/]\n\n"
    "[bold]delayservice dev bench peers[/] (the same load on RocketMQ and NATS as "
    "well; fetches 90 MB of jars and builds NATS the first time; needs a JDK and Go)\n\n"
    "Exit status 0 only if no record was lost, duplicated, early or altered (peers: by this "
    "service)."
)

# Defaults of options that depend on the bench.
_N: Final = {"whole": 400_000, "restart": 1_000_000, "peers": 2_000}
_RATE_PER_S: Final = {"peers": 200}
_ROUNDS: Final = {"failover": 10}


def bench(
    name: Annotated[Bench, typer.Argument(metavar="NAME", help=", ".join(get_args(Bench)))],
    *,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            min=1,
            help="Records of a round (whole, restart, peers).",
            show_default="400000; restart: 1000000; peers: 2000",
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Records a second (steady, failover, peers); 0: steady measures an idle node.",
            show_default="2000; peers: 200",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Duration in seconds (steady).")] = 30,
    delay_ms: Annotated[
        tuple[int, int],
        typer.Option(metavar="MIN MAX", help="Delays in ms (steady, failover, peers)."),
    ] = (1_000, 10_000),
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Repetitions (whole), kills of a node (failover).",
            show_default="3; failover: 10",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of the delay topic and the target.")
    ] = 4,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value, 24 at least.")] = 100,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Turn on ids, expiries, level topics, and limits that are never reached.",
        ),
    ] = False,
    warm_up: Annotated[
        bool, typer.Option(help="Make an unmeasured run first, as a new broker is slow.")
    ] = True,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="Use this cluster instead of an embedded one.")
    ] = "",
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A setting of the service."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure rate, CPU, memory, lateness and failover of the service, and check every record.

    It starts a Kafka cluster, or uses the one that --bootstrap names.
    """
    from delay_devtools.bench.run import run
    from delay_devtools.bench.stand import Options

    options = Options(
        bench=name,
        n=n or _N.get(name, 1),
        rounds=rounds or _ROUNDS.get(name, 3),
        rate_per_s=_RATE_PER_S.get(name, 2_000) if rate is None else rate,
        seconds=seconds,
        delay_ms=delay_ms,
        partitions=partitions,
        size=size,
        warm_up=warm_up,
        full=full,
        sets=tuple(sets or ()),
        bootstrap=bootstrap,
    )
    raise typer.Exit(run(options, as_json=as_json))


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
    store: Annotated[
        Literal["wheel", "rocksdb", "memory"],
        typer.Option(help="Where pending records are kept."),
    ] = "wheel",
    delivery: Annotated[
        Literal["exactly_once", "at_least_once"], typer.Option(help="Guarantee for deliveries.")
    ] = "exactly_once",
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


DRILL_EPILOG: Final = (
    "Examples: [bold]delayservice dev drill --json[/]"
    "\n\n[bold]delayservice dev drill --records 1000 --defects 138 --follow --keep[/]"
    f"\n\n{STATUS}"
)


@with_options
def drill(
    *,
    records: Annotated[
        int, typer.Option(min=0, help="Number of plain records beside those of the stories.")
    ] = 1_000_000,
    defects: Annotated[int, typer.Option(min=0, help="Number of defects of all kinds.")] = 300,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also judge the records by an audit that follows.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of stories and defects.")] = 20_260_101,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep archive and stores, and print where they are.")
    ] = False,
    session: SessionOptions,
    as_json: JsonOption = False,
) -> None:
    """Spoil what the service did and its stores, and check that audit and comparison find it.

    Exit status 0 only if each defect was found at its place, and nothing else.
    """
    require_extra()
    from delay_devtools.drill.run import DrillOptions, judged, prepared, show

    options = DrillOptions(records, defects, seed, keep, follow)
    with (
        session.running("drill", as_json=as_json) as job,
        prepared(options, job.spark, job.say) as made,
    ):
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


@with_options
def first_record(
    *,
    after_ms: Annotated[Duration, typer.Option(help="Delay of the first record.")] = 5_000,
    once: Annotated[
        bool, typer.Option("--once", help="End when the first record has arrived.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and a node, show that a delayed record arrives, and run until Ctrl-C."""
    from delay_devtools.dev import show_first

    raise typer.Exit(show_first(after_ms, once=once, as_json=as_json))


def add_to(app: typer.Typer) -> None:
    dev = typer.Typer(
        help="Local clusters, demo, measurements: from a clone.", no_args_is_help=True
    )
    dev.command()(up)
    dev.command("try", epilog="Exit status 0 only if the record arrived.")(first_record)
    dev.command(epilog="Exit status 0 only if no record was lost, duplicated or early.")(demo)
    dev.command(epilog=BENCH_EPILOG)(bench)
    dev.command(epilog=DRILL_EPILOG)(drill)
    app.add_typer(dev, name="dev")
