"""``delayservice bench``: its options. What each bench does is in ``delayservice.dev.bench``."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from delayservice.settings import workers_default

# Help is read more often than anything runs: what is heavy is imported when it does.
# ruff: noqa: PLC0415

EPILOG = (
    "Examples: [bold]delayservice bench whole --json[/]\n\n"
    "[bold]delayservice bench steady --rate 5000 --store rocksdb[/]\n\n"
    "Exit status 0 only when nothing was lost, doubled, early or altered."
)

_BENCHES = Literal["passthrough", "whole", "burst", "steady", "pending", "restart", "idle", "soak"]


def bench(
    name: Annotated[_BENCHES, typer.Argument(metavar="NAME", help=", ".join(get_args(_BENCHES)))],
    *,
    store: Annotated[
        Literal["wheel", "rocksdb", "memory"],
        typer.Option(help="Where pending records are kept."),
    ] = "wheel",
    delivery: Annotated[
        Literal["exactly_once", "at_least_once"], typer.Option(help="What a crash may cost.")
    ] = "exactly_once",
    n: Annotated[
        int | None,
        typer.Option(
            "--n", min=1, help="Records of a round (passthrough, whole, burst, pending, restart)."
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value, 24 at least.")] = 100,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of the delay topic and the target.")
    ] = 4,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            default_factory=workers_default,
            show_default="one per core, 4 at most",
            help="Worker processes of the service.",
        ),
    ],
    rate: Annotated[
        int | None, typer.Option(min=1, help="Records a second (steady, pending, soak).")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="How long (steady, pending, idle, soak).")
    ] = None,
    delay_ms: Annotated[
        tuple[int, int],
        typer.Option(metavar="MIN MAX", help="Delays (steady, pending, soak)."),
    ] = (5_000, 15_000),
    spread_s: Annotated[
        int,
        typer.Option(
            min=0, help="Window of due times (pending); 0: what the store holds, 14 days at most."
        ),
    ] = 0,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Repetitions (passthrough, whole, burst).")
    ] = None,
    transaction_records: Annotated[
        int, typer.Option(min=1, help="Records in a transaction of the bench passthrough.")
    ] = 5_000,
    judge_beside: Annotated[
        bool,
        typer.Option(
            "--judge-beside/--judge-after",
            help="Judge while passthrough runs, as with the service; or not before it is done.",
        ),
    ] = True,
    warm_up: Annotated[
        bool, typer.Option(help="Do everything once before, unmeasured: a fresh broker is slow.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of due times and contents.")] = 20_260_101,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", help="A cluster, instead of an embedded one.")
    ] = "",
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A setting of the service."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Measure the service: rate, CPU, memory and lateness, with every record judged.

    On a real cluster that is started for it, or on yours with --bootstrap.
    """
    from delayservice.dev.bench import options as asked
    from delayservice.dev.bench.run import run

    options = asked.Options(
        bench=name,
        store=store,
        delivery=delivery,
        n=n or asked.RECORDS.get(name, 0),
        size=size,
        partitions=partitions,
        workers=workers,
        rate_per_s=rate or asked.RATE_PER_S.get(name, 0),
        seconds=seconds or asked.SECONDS.get(name, 0),
        delay_ms=delay_ms,
        spread_s=spread_s,
        rounds=rounds or asked.ROUNDS.get(name, 1),
        transaction_records=transaction_records,
        judge_beside=judge_beside,
        warm_up=warm_up,
        seed=seed,
        sets=tuple(sets or ()),
        bootstrap=bootstrap,
    )
    raise typer.Exit(run(options, as_json=as_json))
