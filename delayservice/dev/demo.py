"""``make demo``: the main job on real Kafka, with the service killed again and again, and judged.

Cluster up, service up, records out, SIGKILL several times: most of them while a transaction is open
whose outputs are at the broker already, then every record is read back and compared.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
    OffsetSpec,
)
from rich.console import Console

from delayservice.dev.cluster import EmbeddedCluster
from delayservice.dev.demo_report import Kill, Report, show
from delayservice.dev.judge import QUIET, Judge
from delayservice.dev.load import Planned, plan
from delayservice.dev.progress import Steps, steps
from delayservice.dev.service import ServiceProcess
from delayservice.dev.signals import stop_signals
from delayservice.errors import ClusterError

DELAY_TOPIC: Final = "delay_topic_any"
TARGETS: Final = ("demo_orders", "demo_payments", "demo_reminders")
TARGET_PARTITIONS: Final = 4
SLICES: Final = 4
DELAY_MS_MAX: Final = 8_000
SEND_PER_S: Final = 1_000
SEED: Final = 20_260_101
WARM_UP_TOPIC: Final = "demo_warm_up"
WARM_UP_RECORDS: Final = 3_000


def run(*, records: int, kills: int, store: str, delivery: str) -> int:
    """Run the demo; 0 only if nothing was lost, doubled, early or altered."""
    console = Console()
    started_s = time.monotonic()
    with (
        stop_signals(),
        steps(console) as shown,
        tempfile.TemporaryDirectory(prefix="delay-demo-") as folder,
    ):
        with shown.doing("Starting Kafka and ZooKeeper"):
            cluster = EmbeddedCluster()
            cluster.start()
        try:
            demo = _Demo(cluster.bootstrap, Path(folder), shown, store=store, delivery=delivery)
            report = demo.run(records, kills)
        finally:
            with shown.doing("Stopping everything"):
                cluster.stop()
    seconds = time.monotonic() - started_s
    show(console, report, seconds)
    print(json.dumps(report.summary(seconds)))  # noqa: T201  # the machine-readable last line
    return 0 if report.verdict.is_good else 1


class _Demo:
    """The cluster is up; the rest of the story."""

    def __init__(
        self, bootstrap: str, folder: Path, steps: Steps, *, store: str, delivery: str
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._steps = steps
        self._store = store
        self._delivery = delivery
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)
        self._rng = random.Random(SEED)  # noqa: S311  # kill times that replay from a seed
        self._service: ServiceProcess | None = None
        self._sent: list[tuple[Planned, int]] = []
        self._failed: list[str] = []
        self._warmed_up = 0

    def run(self, records: int, kills: int) -> Report:
        new = [NewTopic(name, TARGET_PARTITIONS, 1) for name in (*TARGETS, WARM_UP_TOPIC)]
        for future in self._admin.create_topics(new).values():
            future.result(30)
        judge = Judge(self._bootstrap, TARGETS)
        faults = [self._fault(number) for number in range(kills)]
        receiving = self._steps.bar("Receiving with read_committed", records)
        sending = threading.Thread(target=self._send, args=(records,), name="load")
        try:
            with self._steps.doing("Starting the delay service"):
                self._start("")
            self._warm_up(WARM_UP_RECORDS, 3_000)
            if faults:
                self._restart(faults[0])
                self._warm_up(WARM_UP_RECORDS // 10, 0)  # few transactions: the fault counts them
            sending.start()
            with judge.reading(receiving.at):
                killed = self._kill_again_and_again(faults)
                sending.join()
            if self._failed:
                raise ClusterError(f"{len(self._failed)} records were not sent: {self._failed[0]}")
            judge.read_to_end(records, receiving.at)
            self._stop()
            verdict = judge.verdict(self._sent)
        finally:
            if self._service is not None:
                self._service.kill()
            judge.close()
        return Report(records, verdict, self._sent, tuple(killed), self._delivery, self._store)

    # --- load ----------------------------------------------------------------------------------

    def _warm_up(self, records: int, delay_ms_max: int) -> None:
        """A Java broker that started a moment ago is slow for some seconds, which would be all that
        a short demo measures. These records have a topic of their own and are not judged.
        """
        bar = self._steps.bar("Warming up", records)
        producer = Producer({"bootstrap.servers": self._bootstrap}, logger=QUIET)
        for planned in plan(records, (WARM_UP_TOPIC,), delay_ms_max, SEED + records):
            producer.produce(DELAY_TOPIC, planned.value, headers=list(planned.to_send()))
        producer.flush()
        before = self._warmed_up
        self._warmed_up += records
        judge = Judge(self._bootstrap, (WARM_UP_TOPIC,))
        try:
            judge.read_to_end(self._warmed_up, lambda seen: bar.at(seen - before))
        finally:
            judge.close()

    def _send(self, records: int) -> None:
        """All records at a steady rate, by a producer that is not ours."""
        bar = self._steps.bar("Sending", records)
        config = {"bootstrap.servers": self._bootstrap, "linger.ms": 5, "acks": "all"}
        producer = Producer(config, logger=QUIET)
        started_s = time.monotonic()
        pace = threading.Event()
        for number, planned in enumerate(plan(records, TARGETS, DELAY_MS_MAX, SEED)):
            ahead_s = started_s + number / SEND_PER_S - time.monotonic()
            if ahead_s > 0:
                producer.poll(0)
                pace.wait(ahead_s)
            producer.produce(
                DELAY_TOPIC,
                planned.value,
                planned.key,
                headers=list(planned.to_send()),
                on_delivery=partial(self._note, planned),
            )
            if number % 100 == 0:
                bar.at(len(self._sent))
        producer.flush()
        bar.at(len(self._sent))

    def _note(self, planned: Planned, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(str(error))
        else:
            self._sent.append((planned, message.timestamp()[1]))  # type: ignore[attr-defined]

    # --- kills ---------------------------------------------------------------------------------

    def _fault(self, kill: int) -> str:
        """Three of every five kills happen inside an open transaction with its outputs flushed: the
        worker stops itself there and is then killed from outside. The others come at random.
        """
        inside = kill % 5 in (0, 2, 3)
        return f"flushed:stop:{self._rng.randrange(40, 120)}" if inside else ""

    def _start(self, fault: str) -> ServiceProcess:
        """A new life of the service, serving."""
        sets = [
            f"kafka.bootstrap={self._bootstrap}",
            f"topics.partitions={SLICES}",
            f"node.state_dir={self._folder / 'state'}",
            f"node.store={self._store}",
            f"delivery.mode={self._delivery}",
            "targets.default.allow=demo_*",
            "metrics.listen=127.0.0.1:0",
        ]
        self._service = ServiceProcess(sets, self._folder / "service.log", fault=fault)
        self._service.wait_serving(SLICES)
        return self._service

    def _restart(self, fault: str) -> None:
        self._stop()
        self._start(fault)

    def _stop(self) -> None:
        status = self._service.stop() if self._service is not None else 1
        if status:
            raise ClusterError(f"the service ended with status {status} after SIGTERM")

    def _kill_again_and_again(self, faults: list[str]) -> list[Kill]:
        killed: list[Kill] = []
        bar = self._steps.bar("Killing the service with SIGKILL", len(faults))
        for number, fault in enumerate(faults):
            service = self._service
            if service is None:
                raise ClusterError("there is no service to kill: start it first")
            how = "at a random moment"
            if fault:
                how = "in an open transaction" if service.wait_stopped() else "no transaction came"
            else:
                threading.Event().wait(self._rng.uniform(1.0, 2.5))
            uncommitted = self._uncommitted()
            at_ms = _now_ms()
            service.kill()
            self._start(faults[number + 1] if number + 1 < len(faults) else "")
            killed.append(Kill(at_ms, how, uncommitted, _now_ms()))
            bar.at(number + 1)
        return killed

    def _uncommitted(self) -> int:
        """Offsets between the last stable offset and the high watermark of the target topics: what
        open transactions have at the broker. Asked from outside; the service has no part in it.
        """
        places = [TopicPartition(t, p) for t in TARGETS for p in range(TARGET_PARTITIONS)]
        ends = [
            self._ends(places, isolation)
            for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        ]
        return ends[0] - ends[1]

    def _ends(self, places: list[TopicPartition], isolation: IsolationLevel) -> int:
        asked = self._admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},  # type: ignore[no-untyped-call]
            isolation_level=isolation,
        )
        return sum(future.result(30).offset for future in asked.values())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
