"""``delayservice dev up``: a cluster that runs until Ctrl-C or SIGTERM."""

import json
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from delay_devtools.cluster import EmbeddedCluster
from delayservice.smoke.signals import ignored_signals, stop_signals


def run(
    brokers: int,
    zookeepers: int,
    folder: Path | None,
    *,
    kafka: str | None,
    keep: bool,
    as_json: bool,
) -> None:
    console = Console(stderr=as_json)
    with stop_signals():
        cluster = EmbeddedCluster(brokers, zookeepers, folder=folder, keep=keep, kafka=kafka)
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
            with ignored_signals():
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
