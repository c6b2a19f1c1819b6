"""The bench ``peers``: this service, RocketMQ and NATS in turn, undisturbed and with a kill."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.table import Table

from delay_devtools.bench.figures import quantile
from delay_devtools.bench.helpers import Helper, Loaded, LoadEnd, judge, load, verdict_of
from delay_devtools.bench.peers import servers
from delay_devtools.bench.peers.servers import Peer
from delay_devtools.bench.stand import Names, Options, Servers, Stand, now_ms
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.cluster import EmbeddedCluster, started
from delay_devtools.shown import WRONG
from delayservice import __version__
from delayservice.commands.console import out, print_json
from delayservice.smoke.progress import Steps

_COLUMNS: Final = (
    *("system", "round", "n", "sent_per_s", "lost", "duplicated", "early", "altered", "resent"),
    *("lateness_ms_p50", "lateness_ms_p99", "lateness_ms_max"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one round, ``undisturbed`` or ``killed`` (while messages were sent).

    ``sent_per_s``: acknowledged messages; ``resent``: repeated attempts to send; ``restart_s``:
    time from the kill until the servers listened again.
    """

    system: str
    setup: str
    round: str
    verdict: BenchVerdict
    sent_per_s: float
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
        "sent_per_s": round(found.sent_per_s),
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


_WARM: Final = "warm"
_UNDISTURBED: Final = "undisturbed"
_KILLED: Final = "killed"
_ROUNDS: Final = (_WARM, _UNDISTURBED, _KILLED)
_WARM_UP_S: Final = 5.0
_WARM_UP_DELAY_MS: Final = (500, 2_000)
# Time without a message, once all have arrived, after which reading ends, in s; to detect
# duplicates.
_QUIET_S: Final = 5.0


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


def show(options: Options, results: Sequence[Result], *, as_json: bool) -> int:
    if as_json:
        found = {
            "bench": options.bench,
            "n": options.n,
            "rate_per_s": options.rate_per_s,
            "delay_ms": options.delay_ms,
            "size": options.size,
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
            setup=f"Kafka broker, node; {options.partitions} partitions",
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
    loading = stand.load(names, round_, batch)
    loading = replace(loading, rate_per_s=rate, after_ms=shortest, span_ms=longest - shortest)
    judging = replace(stand.judge(names, round_, batch), quiet_s=_QUIET_S)
    if peer.client:
        loading = replace(loading, client=peer.client, topic=f"bench_{round_}")
        judging = replace(judging, client=peer.client, topic=loading.topic)
    receiving = stand.steps.bar(f"{peer.name}, {round_}", n)
    with Helper(load, loading) as loader, Helper(judge, judging, receiving.at) as judge_process:
        loader.tell()
        restart_s = None
        if round_ == _KILLED:
            time.sleep(n / rate / 2)
            killed_s = time.monotonic()
            peer.restart()
            restart_s = round(time.monotonic() - killed_s, 1)
        loaded = loader.expect(Loaded)
        verdict = verdict_of(judge_process, LoadEnd(n, now_ms() + longest))
    sent_per_s = loaded.n / loaded.seconds
    return Result(peer.name, peer.setup, round_, verdict, sent_per_s, loaded.resent, restart_s)
