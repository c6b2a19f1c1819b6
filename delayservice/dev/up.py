"""``delayservice dev up``: a cluster that lives until it is told to stop."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from delayservice.dev.cluster import EmbeddedCluster


def run(brokers: int, zookeepers: int, folder: Path | None, *, keep: bool, as_json: bool) -> None:
    """Start a cluster, print how to reach it, wait for Ctrl-C or SIGTERM, stop it.

    Args:
        brokers: how many Kafka brokers.
        zookeepers: how many ZooKeeper servers, 0 for none.
        folder: where everything is kept; None for a temporary folder.
        keep: keep the temporary folder at the end.
        as_json: print one JSON object on standard output instead of a panel.

    Raises:
        ClusterError: it did not start; nothing is left running.
    """
    console = Console(stderr=as_json)
    with _stop_signals():
        cluster = EmbeddedCluster(brokers, zookeepers, folder=folder, keep=keep)
        try:
            with console.status("Starting Kafka and ZooKeeper…"):
                cluster.start()
            _show(cluster, console, as_json=as_json)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            # A second Ctrl-C must not leave half a cluster behind.
            with _ignored_signals():
                cluster.stop()


def _show(cluster: EmbeddedCluster, console: Console, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "bootstrap": cluster.bootstrap,
            "zookeeper": cluster.zookeeper,
            "folder": str(cluster.folder),
            "pids": cluster.pids(),
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        return
    table = Table.grid(padding=(0, 2))
    table.add_row("Kafka", f"[bold]{cluster.bootstrap}[/]")
    table.add_row("ZooKeeper", f"[bold]{cluster.zookeeper or 'none'}[/]")
    table.add_row("Files", str(cluster.folder))
    console.print(Panel(table, title="Cluster is up", subtitle="Ctrl-C stops it", expand=False))
    # Unwrapped, so that it can be pasted whole.
    console.print("\nA service beside it, from another terminal:", highlight=False)
    hint = (
        f"  delayservice run --set kafka.bootstrap={cluster.bootstrap} "
        "--set 'targets.default.allow=*'"
    )
    console.print(hint, highlight=False, soft_wrap=True)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal stop the cluster as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    # SIGINT as well: a shell starts background commands with it ignored.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _ignored_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
