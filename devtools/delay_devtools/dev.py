"""``delayservice dev``: a cluster that runs until Ctrl-C, and a first delayed record.

``try`` starts a broker and a node, sends one record with the command that users type, and shows
what a plain ``read_committed`` consumer receives. Then both run until Ctrl-C, for experiments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from confluent_kafka import Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from delay_devtools.cluster import EmbeddedCluster, forget_settings, started
from delay_devtools.servers import LOOPBACK, free_ports
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import ClusterError
from delayservice.config.units import format_duration
from delayservice.contract import names
from delayservice.smoke.judge import KafkaSource
from delayservice.smoke.load import QUIET
from delayservice.smoke.progress import Steps, ignored_signals, steps, stop_signals


def keep_up(
    brokers: int,
    zookeepers: int,
    folder: Path | None,
    *,
    kafka: str | None,
    keep: bool,
    as_json: bool,
) -> None:
    console = Console(stderr=as_json, emoji=False)
    with stop_signals():
        try:
            cluster = EmbeddedCluster(brokers, zookeepers, folder=folder, keep=keep, kafka=kafka)
            with (
                steps(console, is_shown=console.is_terminal) as shown,
                started(cluster, shown),
            ):
                _show(cluster, console, as_json=as_json)
                while True:
                    signal.pause()
        except KeyboardInterrupt:
            pass


def _show(cluster: EmbeddedCluster, console: Console, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "bootstrap": cluster.bootstrap,
            "zookeeper": cluster.zookeeper,
            "folder": str(cluster.folder),
            "pids": cluster.pids(),
        }
        print(json.dumps(facts), flush=True)  # noqa: T201  # for programs
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


TARGET: Final = "orders"
PARTITIONS: Final = 4
# Limit for the lateness of the first record, in seconds, on a machine that has other work.
_ARRIVAL_S: Final = 60.0
_COMMAND_S: Final = 60.0
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class World:
    bootstrap: str
    metrics: str
    page: str
    config: str


@dataclass(frozen=True, slots=True)
class ShownArrival:
    place: str
    key: str
    value: str
    due_ms: int
    lateness_ms: int


def show_first(after_ms: int, *, once: bool, as_json: bool) -> int:
    console = Console(stderr=as_json, emoji=False)
    forgotten = forget_settings()
    started_s = time.monotonic()
    with stop_signals():
        try:
            with _world(console) as (world, service):
                # It joins no group, which would take time.
                source = KafkaSource({"bootstrap.servers": world.bootstrap}, [TARGET]).begin()
                _send(world, after_ms, console)
                arriving = _arrivals(source, service, after_ms / 1_000 + _ARRIVAL_S)
                first = next(arriving)
                seconds = time.monotonic() - started_s
                _tell(console, first)
                console.print(
                    f"From nothing to the first delayed record: {seconds:.0f} s", style="bold"
                )
                if as_json:
                    facts = {**asdict(world), **asdict(first), "seconds": seconds}
                    print(json.dumps(facts), flush=True)  # noqa: T201  # for programs
                if not once:
                    _invite(console, world, forgotten)
                    for arrival in arriving:
                        _tell(console, arrival)
        except KeyboardInterrupt:
            console.print("Stopped.", style="dim")
    return 0


# --- processes -----------------------------------------------------------------------------------


@contextmanager
def _world(console: Console) -> Iterator[tuple[World, ServiceProcess]]:
    with (
        steps(console, is_shown=console.is_terminal) as shown,
        tempfile.TemporaryDirectory(prefix="delay-try-") as folder,
        started(EmbeddedCluster(1, 0), shown) as cluster,
    ):
        world = _configure(cluster.bootstrap, Path(folder))
        with _serving(world, Path(folder), shown) as service:
            yield world, service


def _configure(bootstrap: str, folder: Path) -> World:
    metrics, page = (f"{LOOPBACK}:{port}" for port in free_ports(2))
    config = folder / "delayservice.toml"
    lines = (
        f"node.state_dir = {json.dumps(str(folder / 'state'))}",  # a TOML string is one of JSON
        f'kafka.bootstrap = "{bootstrap}"',
        f"topics.partitions = {PARTITIONS}",
        f'targets.default.allow = ["{TARGET}*"]',
        f'metrics.listen = "{metrics}"',
        f'admin.listen = "{page}"',
    )
    config.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return World(bootstrap, metrics, page, str(config))


@contextmanager
def _serving(world: World, folder: Path, shown: Steps) -> Iterator[ServiceProcess]:
    environment = {"DELAYSERVICE_CONFIG": world.config}
    with ServiceProcess([], folder / "node.log", environment=environment) as service:
        with shown.doing("Starting the delay service"):
            admin = AdminClient({"bootstrap.servers": world.bootstrap}, logger=QUIET)
            admin.create_topics([NewTopic(TARGET, PARTITIONS, 1)])[TARGET].result(_COMMAND_S)
            service.wait_serving(PARTITIONS)
        yield service
        with ignored_signals():
            service.stop()


# --- record and consumer -------------------------------------------------------------------------


def _send(world: World, after_ms: int, console: Console) -> None:
    words = ["send", "hello", "--after", format_duration(after_ms), "--target", TARGET]
    words += ["--key", "order-17"]
    console.print(
        f"$ delayservice {' '.join(words)}", style="bold", highlight=False, soft_wrap=True
    )
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "delayservice", *words],
        env={**os.environ, "DELAYSERVICE_CONFIG": world.config},
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"the record was not sent: {done.stderr.strip()}")
    console.print(done.stdout.rstrip(), highlight=False, soft_wrap=True)


def _arrivals(
    source: KafkaSource, service: ServiceProcess, first_s_max: float
) -> Iterator[ShownArrival]:
    deadline_s, is_first = time.monotonic() + first_s_max, True
    while True:
        messages = source.take(_POLL_S)
        now_ms = time.time_ns() // 1_000_000
        if not service.running:
            raise ClusterError(service.explain("has ended"))
        for message in messages:
            # Records of other producers have no due time.
            if names.DELAY_DUE_AT in dict(message.headers() or []):
                is_first = False
                yield _arrival(message, now_ms)
        if is_first and time.monotonic() > deadline_s:
            raise ClusterError(service.explain(f"delivered nothing within {first_s_max:.0f} s"))


def _arrival(message: Message, now_ms: int) -> ShownArrival:
    headers = dict(message.headers() or [])
    due_ms = int(headers[names.DELAY_DUE_AT] or 0)
    return ShownArrival(
        place=f"{message.topic()}:{message.partition()}:{message.offset()}",
        key=(message.key() or b"").decode(errors="replace"),
        value=(message.value() or b"").decode(errors="replace"),
        due_ms=due_ms,
        lateness_ms=now_ms - due_ms,
    )


# --- printing ------------------------------------------------------------------------------------


def _tell(console: Console, arrival: ShownArrival) -> None:
    due = datetime.fromtimestamp(arrival.due_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    # A record that was fired comes before it is due.
    when = "later" if arrival.lateness_ms >= 0 else "before that"
    console.print(f"{arrival.place}", style="bold green", end="", highlight=False)
    console.print(
        f"  key {arrival.key!r}, value {arrival.value!r}; due {due}, "
        f"in the consumer's hand {abs(arrival.lateness_ms)} ms {when}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _invite(console: Console, world: World, forgotten: Sequence[str]) -> None:
    # Without line breaks, so that commands can be pasted. Some variables of the environment would
    # override the configuration file.
    command = Path(sys.executable).with_name("delayservice")
    lines = (
        "",
        f"The page: http://{world.page}",
        "From another terminal:",
        *([f"  unset {' '.join(forgotten)}"] if forgotten else []),
        f"  export DELAYSERVICE_CONFIG={world.config}",
        f"  {command} send again --after 30s --target {TARGET} --id reminder-17",
        f"  {command} record list",
        f"  {command} record fire reminder-17",
        f"  {command} status",
        f"What arrives in {TARGET} is shown here. Ctrl-C ends it, and removes all of it.",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
