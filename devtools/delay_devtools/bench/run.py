from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from delay_devtools.bench import benches, failover
from delay_devtools.bench.figures import Measured, is_good, report
from delay_devtools.bench.options import Options
from delay_devtools.bench.peers import run as peers
from delay_devtools.bench.stand import NODES, Servers, Stand, check, settings_of
from delay_devtools.cluster import EmbeddedCluster, started, undisturbed
from delay_devtools.shown import show_numbers
from delayservice.commands.console import out, print_json
from delayservice.config.settings import LogSettings
from delayservice.process import logs
from delayservice.smoke.progress import Steps, steps, stop_signals

_CASES: Final[Mapping[str, Callable[[Stand], Measured]]] = {
    "steady": benches.steady,
    "whole": benches.whole,
    "restart": benches.restart,
    "failover": failover.failover,
}


def run(options: Options) -> int:
    """Run a bench and print its results; return 0 only if no record was lost, early, altered or
    received without having been sent, and (exactly once) none was doubled.
    """
    check(options)
    # The service's code creates the topics, and would log that to standard output.
    logs.configure(LogSettings(level="warning"), "bench")
    console = Console(stderr=True)
    is_shown = not options.as_json or sys.stderr.isatty()
    with stop_signals(), steps(console, is_shown=is_shown) as shown:
        if options.bench == "peers":
            results = peers.run(options, shown)
        else:
            with _stand(options, shown) as stand:
                measured = _CASES[options.bench](stand)
    if options.bench == "peers":
        return peers.show(options, results)
    found = report(options, settings_of(options), measured)
    if options.as_json:
        print_json(found)
    else:
        show_numbers(out, options.bench, found)
    return 0 if is_good(found) else 1


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
