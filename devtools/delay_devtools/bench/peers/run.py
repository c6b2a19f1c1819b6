"""The bench ``peers``: this service, RocketMQ and NATS in turn, undisturbed and with a kill."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table

from delay_devtools.bench import wire
from delay_devtools.bench.figures import quantile
from delay_devtools.bench.load_process import Due
from delay_devtools.bench.options import Options
from delay_devtools.bench.passing import judge_plan, load_plan
from delay_devtools.bench.peers import servers
from delay_devtools.bench.peers.servers import Peer
from delay_devtools.bench.stand import Names, Servers, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.cluster import EmbeddedCluster, started
from delay_devtools.shown import WRONG
from delayservice import __version__
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.commands.console import out, print_json
from delayservice.smoke.progress import Steps

_COLUMNS: Final = (
    *("system", "round", "n", "lost", "duplicated", "early", "altered", "resent"),
    *("lateness_ms_p50", "lateness_ms_p99", "lateness_ms_max"),
)
_SIZE_INCHES: Final = (9, 4)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one round, ``undisturbed`` or ``killed`` (while messages were sent). ``resent``:
    repeated attempts to send; ``restart_s``: time from the kill until the servers listened again.
    """

    system: str
    setup: str
    round: str
    verdict: BenchVerdict
    resent: int | None = None
    restart_s: float | None = None

    @property
    def is_good(self) -> bool:
        return not any(getattr(self.verdict, name) for name in WRONG)


def as_object(found: Result) -> dict[str, object]:
    verdict = found.verdict
    late = verdict.lateness_ms
    return {
        "system": found.system,
        "setup": found.setup,
        "round": found.round,
        "n": verdict.n,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "early": verdict.early,
        "early_ms_max": max(0, -min(late, default=0)),
        "altered": verdict.altered,
        "strangers": verdict.strangers,
        "resent": found.resent,
        "restart_s": found.restart_s,
        "lateness_ms_p50": quantile(late, 0.5),
        "lateness_ms_p99": quantile(late, 0.99),
        "lateness_ms_max": quantile(late, 1.0),
    }


def table(results: Sequence[Result]) -> Table:
    made = Table(title="One schedule, one judge, one system after the other")
    for name in _COLUMNS:
        made.add_column(
            name.removeprefix("lateness_"), justify="left" if name in _COLUMNS[:2] else "right"
        )
    for found in results:
        row = as_object(found)
        made.add_row(*(_cell(name, row[name]) for name in _COLUMNS))
    return made


def _cell(name: str, value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value if value is not None else "—")
    return f"[bold red]{text}[/]" if name in WRONG and value else text


def _show_table(results: Sequence[Result]) -> None:
    out.print(table(results))
    for system, setup in {found.system: found.setup for found in results}.items():
        out.print(f"{system}: {setup}", highlight=False)


def share_by_lateness(late: Mapping[int, int]) -> tuple[list[int], list[float]]:
    times = sorted(late)
    total = sum(late.values())
    return times, [100 * below / total for below in accumulate(late[time] for time in times)]


def draw(results: Sequence[Result], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 (comes with the extra `spark` only)

    rounds = list(dict.fromkeys(found.round for found in results))
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    panels = figure.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
    for name, panel in zip(rounds, panels, strict=True):
        for found in results:
            late = found.verdict.lateness_ms
            if found.round == name and late:
                panel.step(*share_by_lateness(late), label=found.system, where="post")
        panel.set_xscale("symlog", linthresh=10)
        panel.set(title=name, xlabel="lateness in ms, negative: early", ylim=(0, 101))
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("messages delivered by then, %")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper center", ncols=len(labels))
    try:
        figure.savefig(path)
    except (OSError, ValueError) as exc:
        raise DelayServiceError(f"the plot was not written to {path}: {exc}") from exc


_WARM: Final = "warm"
_UNDISTURBED: Final = "undisturbed"
_KILLED: Final = "killed"
_ROUNDS: Final = (_WARM, _UNDISTURBED, _KILLED)
_WARM_UP_S: Final = 5.0
_WARM_UP_DELAY_MS: Final = (500, 2_000)
# Time without a message, once all have arrived, after which reading ends, in s; to detect
# duplicates.
_QUIET_S: Final = 5.0
_STALL_S: Final = 30.0
_START_S: Final = 5.0


def run(options: Options, shown: Steps) -> list[Result]:
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="delay-bench-") as name:
        folder = Path(name)
        embedded = EmbeddedCluster(1, 0)
        with started(embedded, shown) as cluster:
            stand = Stand(options, Servers(cluster.bootstrap), folder, shown)
            names = stand.round()
            with _service(stand, names, cluster) as peer:
                results += _measured(stand, names, peer)
        for system in (servers.rocketmq, servers.nats):
            with system(folder) as peer:
                results += _measured(stand, names, peer)
    return results


def check_plot(plot: Path | None) -> None:
    if plot is not None and find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib: `pip install matplotlib`, or leave it out")


def show(options: Options, results: Sequence[Result], plot: Path | None, *, as_json: bool) -> int:
    if plot is not None:
        draw(results, plot)
    if as_json:
        found = {
            "bench": options.bench,
            "n": options.n,
            "rate_per_s": options.rate_per_s,
            "delay_ms": options.delay_ms,
            "size": options.size,
            "seed": options.seed,
            "cores": os.cpu_count(),
            "version": __version__,
        }
        print_json(found | {"results": [as_object(result) for result in results]})
    else:
        _show_table(results)
    own = [result for result in results if result.system.startswith("this service")]
    return 0 if all(result.is_good for result in own) else 1


@contextmanager
def _service(stand: Stand, names: Names, cluster: EmbeddedCluster) -> Iterator[Peer]:
    options = stand.options
    with stand.service(names, stand.create(names, _ROUNDS)) as serving:

        def restart() -> None:
            serving.stop()
            cluster.stop_broker(1, kill=True)
            cluster.start_broker(1)
            serving.restart_killed()
            serving.await_serving()

        yield Peer(
            name=f"this service {__version__}",
            setup=f"Kafka broker, node; {options.delivery}, {options.partitions} partitions",
            client={},
            restart=restart,
        )


def _measured(stand: Stand, names: Names, peer: Peer) -> Iterator[Result]:
    # The first round is unmeasured: a server that has just started is slow.
    options = stand.options
    if options.warm_up:
        _round(stand, names, peer, _WARM, int(options.rate_per_s * _WARM_UP_S), _WARM_UP_DELAY_MS)
    for name in (_UNDISTURBED, _KILLED):
        yield _round(stand, names, peer, name, options.n, options.delay_ms)


def _round(
    stand: Stand, names: Names, peer: Peer, round_: str, n: int, delay_ms: tuple[int, int]
) -> Result:
    rate = stand.options.rate_per_s
    shortest, longest = delay_ms
    batch = stand.batch(n)
    last_due_ms = now_ms() + int((_START_S + n / rate) * 1_000) + longest
    due = Due(span_ms=longest - shortest, after_ms=shortest)
    loading = load_plan(stand, names, round_, batch, due, rate_per_s=rate)
    judging = judge_plan(stand, names, round_, batch, last_due_ms)
    judging = msgspec.structs.replace(judging, quiet_s=_QUIET_S, stall_s=_STALL_S)
    if peer.client:
        loading = msgspec.structs.replace(loading, client=peer.client, topic=f"bench_{round_}")
        judging = msgspec.structs.replace(judging, client=peer.client, topic=loading.topic)
    receiving = stand.steps.bar(f"{peer.name}, {round_}", n)
    with (
        stand.helper("load", loading) as loader,
        stand.helper("judge", judging, receiving.at) as judge,
    ):
        loader.tell(wire.GO)
        restart_s = None
        if round_ == _KILLED:
            time.sleep(n / rate / 2)
            killed_s = time.monotonic()
            peer.restart()
            restart_s = round(time.monotonic() - killed_s, 1)
        loader.expect(wire.DONE)
        resent = loader.expect(wire.TRACE).count if peer.client else None
        verdict = judge.result(wire.DONE, BenchVerdict)
    return Result(peer.name, peer.setup, round_, verdict, resent, restart_s)
