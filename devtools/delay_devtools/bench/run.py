from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from delay_devtools.bench import benches, failover
from delay_devtools.bench.figures import Figures, show
from delay_devtools.bench.peers import run as peers
from delay_devtools.bench.stand import NODES, Options, Servers, Stand, check
from delay_devtools.cluster import EmbeddedCluster, started, undisturbed
from delayservice.config.settings import LogSettings
from delayservice.process import logs
from delayservice.smoke.progress import Steps, steps, stop_signals

_CASES: Final[Mapping[str, Callable[[Stand, Figures], None]]] = {
    "steady": benches.steady,
    "whole": benches.whole,
    "restart": benches.restart,
    "failover": failover.failover,
}


def run(options: Options, *, as_json: bool) -> int:
    """Run a bench and print its results; return 0 only if no record was lost, early, altered or
    received without having been sent, and (exactly once) none was doubled.
    """
    check(options)
    # The service's code creates the topics, and would log that to standard output.
    logs.configure(LogSettings(level="warning"), "bench")
    is_shown = not as_json or sys.stderr.isatty()
    if options.bench == "peers":
        with stop_signals(), steps(Console(stderr=True), is_shown=is_shown) as shown:
            results = peers.run(options, shown)
        return peers.show(options, results, as_json=as_json)
    settings = options.settings("127.0.0.1:1")
    figures = Figures(
        bench=options.bench,
        delivery=settings.delivery.mode,
        store=settings.node.store,
        partitions=options.partitions,
        workers=settings.node.workers,
        size=options.size,
        cores=os.cpu_count(),
    )
    with (
        stop_signals(),
        steps(Console(stderr=True), is_shown=is_shown) as shown,
        _stand(options, shown) as stand,
    ):
        _CASES[options.bench](stand, figures)
    show(figures, as_json=as_json)
    return 0 if figures.is_good else 1


@contextmanager
def _stand(options: Options, shown: Steps) -> Iterator[Stand]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="delay-bench-"))
        servers = Servers(options.bootstrap)
        if not options.bootstrap:
            # A broker beside each node, and ZooKeeper where it is needed.
            is_several = options.bench == "failover"
            embedded = EmbeddedCluster(NODES if is_several else 1, int(is_several), for_bench=True)
            cluster = stack.enter_context(started(embedded, shown))
            brokers = [psutil.Process(pid) for pid in cluster.pids()]
            servers = Servers(cluster.bootstrap, cluster.zookeeper, brokers)
        stand = Stand(options, servers, Path(folder), shown)
        stand.check_cluster()
        if options.bootstrap:
            stack.callback(undisturbed, stand.clean_up)
        yield stand
