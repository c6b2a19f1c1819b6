"""The bench ``peers``: this service, RocketMQ and NATS in turn, undisturbed, with a kill, and with
a burst.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from rich.table import Table

from delay_devtools.bench.figures import Figures, facts
from delay_devtools.bench.options import Options
from delay_devtools.bench.peers import clients, servers
from delay_devtools.bench.peers.servers import Peer
from delay_devtools.bench.sampling import rss_mib
from delay_devtools.bench.stand import Names, Servers, Stand
from delay_devtools.cluster import EmbeddedCluster, started
from delay_devtools.shown import WRONG
from delayservice import __version__
from delayservice.commands.console import out, print_json
from delayservice.commands.options import now_ms
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import Verdict, lateness
from delayservice.smoke.load import Loaded
from delayservice.smoke.progress import Steps
from delayservice.smoke.run import send_and_judge

_COLUMNS: Final = (
    *("system", "round", "n", "sent_per_s", "lost", "duplicated", "early", "altered", "resent"),
    *("drained_per_s", "rss_mib"),
)
_WARM: Final = "warm"
_UNDISTURBED: Final = "undisturbed"
_KILLED: Final = "killed"
_BURST: Final = "burst"
_ROUNDS: Final = (_WARM, _UNDISTURBED, _KILLED, _BURST)
_WARM_UP_S: Final = 5.0
_WARM_UP_DELAY_MS: Final = (500, 2_000)
# A burst has so many times as many messages, which are sent at this rate and due at one moment.
_BURST_TIMES: Final = 10
_BURST_PER_S: Final = 2_000
_LEAD_MS: Final = 5_000
# Time without a message, once all have arrived, after which reading ends, in s; to detect
# duplicates.
_QUIET_S: Final = 5.0


def run(options: Options, shown: Steps) -> list[Figures]:
    results: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="delay-bench-") as name:
        folder = Path(name)
        with started(EmbeddedCluster(1, 0, for_bench=True), shown) as cluster:
            stand = Stand(options, Servers(cluster.bootstrap), folder, shown)
            names = stand.round()
            with _service(stand, names, cluster) as peer:
                results += _measured(stand, names, peer)
        for system in (servers.rocketmq, servers.nats):
            with system(folder) as peer:
                results += _measured(stand, names, peer)
    return results


def show(options: Options, results: Sequence[Figures]) -> int:
    if options.as_json:
        asked = {"n": options.count, "rate_per_s": options.per_s, "delay_ms": options.delay_ms}
        print_json({**facts(options), **asked, "results": results})
    else:
        out.print(table(results))
        for system, setup in {one["system"]: one["setup"] for one in results}.items():
            out.print(f"{system}: {setup}", highlight=False)
    own = [one for one in results if str(one["system"]).startswith("this service")]
    return int(any(one[name] for one in own for name in WRONG))


def table(results: Sequence[Figures]) -> Table:
    made = Table(title="One schedule, one judge, one system after the other")
    for name in (*_COLUMNS, "lateness, ms: p50 / p99 / max"):
        made.add_column(name, justify="left" if name in _COLUMNS[:2] else "right")
    for one in results:
        late = " / ".join(_cell(name, one[name]) for name in lateness({}))
        made.add_row(*(_cell(name, one.get(name)) for name in _COLUMNS), late)
    return made


def _cell(name: str, value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value if value is not None else "—")
    return f"[bold red]{text}[/]" if name in WRONG and value else text


@contextmanager
def _service(stand: Stand, names: Names, cluster: EmbeddedCluster) -> Iterator[Peer]:
    options = stand.options
    with stand.service(names, stand.create(names, _ROUNDS)) as serving:

        def restart() -> None:
            serving.kill()
            cluster.stop_broker(1, kill=True)
            cluster.start_broker(1)
            serving.start()
            serving.await_serving(options.partitions)

        yield Peer(
            name=f"this service {__version__}",
            setup=f"Kafka broker, node; {options.partitions} partitions",
            client={},
            restart=restart,
            pids=lambda: [*cluster.pids(), *(process.pid for process in serving.processes)],
        )


def _measured(stand: Stand, names: Names, peer: Peer) -> Iterator[Figures]:
    # The first round is unmeasured: a server that has just started is slow.
    options = stand.options
    if options.warm_up:
        _round(stand, names, peer, _WARM, int(options.per_s * _WARM_UP_S))
    for name in (_UNDISTURBED, _KILLED):
        yield _round(stand, names, peer, name, options.count)
    yield _round(stand, names, peer, _BURST, options.count * _BURST_TIMES)


def _round(stand: Stand, names: Names, peer: Peer, round_: str, n: int) -> Figures:
    shortest, longest = _WARM_UP_DELAY_MS if round_ == _WARM else stand.options.delay_ms
    batch, rate = stand.batch(n), stand.options.per_s
    due_ms = now_ms() + _LEAD_MS + n * 1_000 // _BURST_PER_S
    loading = stand.load(names, round_, batch)
    if round_ == _BURST:
        loading = replace(loading, per_s=_BURST_PER_S, due_from_ms=due_ms, after_ms=0, span_ms=0)
    else:
        loading = replace(loading, per_s=rate, after_ms=shortest, span_ms=longest - shortest)
    judging = replace(stand.judge(names, round_, batch), quiet_s=_QUIET_S)
    if peer.client:
        topic = f"bench_{round_}"
        loading = replace(loading, client=peer.client, topic=topic, connect=clients.sink)
        judging = replace(judging, client=peer.client, topics=(topic,), connect=clients.source)
    restart_s: list[float] = []

    def kill(_load: Helper, _judge: Helper) -> None:
        if round_ == _KILLED:
            time.sleep(n / rate / 2)
            killed_s = time.monotonic()
            peer.restart()
            restart_s.append(round(time.monotonic() - killed_s, 1))

    with stand.steps.doing(f"{peer.name}, {round_}"):
        loaded, verdict = send_and_judge(loading, judging, stand.steps, kill)
    found = result(peer.name, peer.setup, round_, verdict, loaded)
    if round_ == _BURST:
        found["drained_per_s"] = round(verdict.delivered / (verdict.last_seen_s - due_ms / 1_000))
        found["rss_mib"] = round(rss_mib(map(psutil.Process, peer.pids())))
    return found | ({"restart_s": restart_s[0]} if restart_s else {})


def result(system: str, setup: str, round_: str, verdict: Verdict, loaded: Loaded) -> Figures:
    """Return the figures of a round: ``sent_per_s``: acknowledged messages; ``resent``: repeated
    attempts to send; ``restart_s``: from the kill until the servers listened again.
    """
    late = verdict.lateness_ms
    return {
        "system": system,
        "setup": setup,
        "round": round_,
        "n": verdict.n,
        "sent_per_s": round(loaded.n / loaded.seconds),
        **{name: getattr(verdict, name) for name in sorted(WRONG)},
        "early_ms_max": max(0, -min(late, default=0)),
        "resent": loaded.resent,
        **lateness(late),
    }
