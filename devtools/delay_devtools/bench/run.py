from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import psutil
from rich.console import Console

from delay_devtools.bench import failover, paced, standing, stored
from delay_devtools.bench.figures import Figures, show
from delay_devtools.bench.options import Options, check
from delay_devtools.bench.peers import run as peers
from delay_devtools.bench.stand import Servers, Stand
from delay_devtools.cluster import EmbeddedCluster, started, undisturbed
from delayservice import __version__
from delayservice.config.settings import LogSettings
from delayservice.process import logs
from delayservice.smoke.progress import Steps, steps, stop_signals

# Function that runs a bench, fills the figures, and returns the number of records by lateness in ms
# (empty: lateness is not measured).
_Case: TypeAlias = Callable[[Stand, Figures], dict[int, int]]

_CASES: Final[Mapping[str, _Case]] = {
    "passthrough": stored.passthrough,
    "whole": stored.whole,
    "burst": stored.burst,
    "level": stored.level,
    "steady": paced.steady,
    "soak": paced.steady,
    "pending": paced.pending,
    "restart": standing.restart,
    "idle": standing.idle,
    "failover": failover.failover,
}


def run(options: Options, *, as_json: bool, plot: Path | None = None) -> int:
    """Run a bench and print its results; return 0 only if no record was lost, early, altered or
    received without having been sent, and (exactly once) none was doubled.
    """
    check(options)
    # The service's code creates the topics, and would log that to standard output.
    logs.configure(LogSettings(level="warning"), "bench")
    is_shown = not as_json or sys.stderr.isatty()
    if options.bench == "peers":
        peers.check_plot(plot)
        with stop_signals(), steps(Console(stderr=True), is_shown=is_shown) as shown:
            results = peers.run(options, shown)
        return peers.show(options, results, plot, as_json=as_json)
    figures = _figures(options)
    with (
        stop_signals(),
        steps(Console(stderr=True), is_shown=is_shown) as shown,
        _stand(options, shown) as stand,
    ):
        lateness_ms = _CASES[options.bench](stand, figures)
    show(figures, lateness_ms, as_json=as_json)
    return 0 if figures.is_good else 1


def _figures(options: Options) -> Figures:
    return Figures(
        bench=options.bench,
        store=None if options.bench in ("passthrough", "level") else options.store,
        delivery=options.delivery,
        size=options.size,
        partitions=options.partitions,
        nodes=options.nodes,
        workers=options.workers,
        seed=options.seed,
        cores=os.cpu_count(),
        version=__version__,
    )


@contextmanager
def _stand(options: Options, shown: Steps) -> Iterator[Stand]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="delay-bench-"))
        servers = Servers(options.bootstrap)
        if not options.bootstrap:
            # A broker beside each node, and ZooKeeper where it is needed.
            embedded = EmbeddedCluster(options.nodes, int(options.has_several))
            cluster = stack.enter_context(started(embedded, shown))
            brokers = [psutil.Process(pid) for pid in cluster.pids()]
            servers = Servers(cluster.bootstrap, cluster.zookeeper, brokers)
        stand = Stand(options, servers, Path(folder), shown)
        stand.check_cluster()
        if options.bootstrap:
            stack.callback(undisturbed, stand.clean_up)
        yield stand
