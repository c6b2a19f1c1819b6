"""The demo from the first broker to the verdict.

Cluster and nodes start, and records are sent. Then nodes are killed, most of them in an open
transaction whose outputs are at the broker already; one is frozen and resumed when others own its
slices, and one is stopped with SIGTERM and started again. Finally every record is read back and
compared.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)
from rich.console import Console

from delay_devtools.cluster import EmbeddedCluster, started
from delay_devtools.demo.acts import FAULT, Director, script
from delay_devtools.demo.choices import SLICES, Choices, sets_of
from delay_devtools.demo.report import DemoReport, show
from delay_devtools.demo.timeline import Deed
from delay_devtools.nodes import LocalNode, NodeGroup
from delayservice.smoke.judge import Judge
from delayservice.smoke.progress import Steps, steps, stop_signals
from delayservice.smoke.sending import QUIET, Sending, plan

DELAY_TOPIC: Final = "delay_topic_any"
TARGETS: Final = ("demo_orders", "demo_payments", "demo_reminders")
TARGET_PARTITIONS: Final = 4
DELAY_MS_MAX: Final = 8_000
SEND_PER_S: Final = 1_000
SEED: Final = 20_260_101
WARM_UP_TOPIC: Final = "demo_warm_up"
WARM_UP_RECORDS: Final = 3_000
WARM_UP_DELAY_MS_MAX: Final = 3_000
_REPLICATION_MAX: Final = 3
# Default number of kills; the key is whether there are several nodes, where a kill takes longer.
_KILLS: Final = {True: 3, False: 5}
# Estimate of the shortest time that a fault takes with several nodes, in s; records are sent
# meanwhile.
_DEED_S: Final = 8.0
# Time without a change of owner before the faults begin, in s; longer than an owner waits before it
# hands a slice to the node that is preferred for it.
_CALM_S: Final = 5.0
_DELIVERED: Final = 500


def run(choices: Choices) -> int:
    """Run the demo; return 0 only if no record was lost, doubled, early or altered, and every
    frozen node logged the loss of its slices after it was resumed.
    """
    console = Console()
    started_s = time.monotonic()
    with (
        stop_signals(),
        steps(console) as shown,
        tempfile.TemporaryDirectory(prefix="delay-demo-") as folder,
    ):
        embedded = EmbeddedCluster(choices.nodes, int(choices.has_several))
        with started(embedded, shown) as cluster:
            report = _Story(choices, cluster, Path(folder), shown).play()
    seconds = time.monotonic() - started_s
    show(console, report, seconds)
    print(json.dumps(report.summary(seconds)))  # noqa: T201  # the machine-readable last line
    return 0 if report.is_good else 1


class _Story:
    def __init__(
        self, choices: Choices, cluster: EmbeddedCluster, folder: Path, steps: Steps
    ) -> None:
        self._choices = choices
        self._bootstrap = cluster.bootstrap
        self._zookeeper = cluster.zookeeper
        self._folder = folder
        self._steps = steps
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=QUIET)

    def play(self) -> DemoReport:
        self._create_topics()
        kills = self._choices.kills
        if kills is None:
            kills = _KILLS[self._choices.has_several]
        deeds = script(kills, has_several=self._choices.has_several)
        judge = Judge(self._bootstrap, TARGETS)
        sets = sets_of(self._choices, self._bootstrap, self._zookeeper)
        nodes = [LocalNode(node_id, mine, self._folder, FAULT) for node_id, mine in sets.items()]
        with NodeGroup(nodes, SLICES) as group:
            try:
                with self._steps.doing("Starting the delay service"):
                    group.start()
                self._warm_up()
                if self._choices.has_several:
                    group.await_calm(_CALM_S)
                return self._play(group, judge, deeds)
            finally:
                judge.close()

    def _play(
        self, group: NodeGroup, judge: Judge, deeds: Sequence[tuple[Deed, bool]]
    ) -> DemoReport:
        records = self._choices.records
        sending = self._sending(len(deeds))
        receiving = self._steps.bar("Receiving with read_committed", records)
        started_ms = time.time() * 1_000
        sending.start()
        director = self._director(group, judge, sending)
        with judge.reading(receiving.at):
            director.play(deeds, self._steps)
            sending.finish()
        judge.read_to_end(records, receiving.at)
        # Read before the end: hand-overs while all nodes stop are not part of the report.
        events = tuple(group.slice_events())
        director.stop()
        return DemoReport(
            choices=self._choices,
            verdict=judge.verdict(sending.sent),
            sent=len(sending.sent),
            started_ms=started_ms,
            acts=tuple(director.acts),
            missed=tuple(director.missed),
            events=events,
        )

    # --- before the faults ---------------------------------------------------------------------

    def _create_topics(self) -> None:
        replication = min(self._choices.nodes, _REPLICATION_MAX)
        names = (*TARGETS, WARM_UP_TOPIC)
        new = [NewTopic(name, TARGET_PARTITIONS, replication) for name in names]
        for future in self._admin.create_topics(new, operation_timeout=30).values():
            future.result(30)

    def _warm_up(self) -> None:
        # A broker that has just started is slow for some seconds.
        bar = self._steps.bar("Warming up", WARM_UP_RECORDS)
        load = plan(WARM_UP_RECORDS, (WARM_UP_TOPIC,), WARM_UP_DELAY_MS_MAX, SEED + 1)
        sending = Sending(self._bootstrap, DELAY_TOPIC, load, math.inf, WARM_UP_RECORDS, bar)
        sending.start()
        sending.finish()
        judge = Judge(self._bootstrap, (WARM_UP_TOPIC,))
        try:
            judge.read_to_end(WARM_UP_RECORDS, bar.at)
        finally:
            judge.close()

    # --- during the faults ---------------------------------------------------------------------

    def _sending(self, deeds: int) -> Sending:
        # Sending takes as long as the faults.
        records, per_s = self._choices.records, float(SEND_PER_S)
        if self._choices.has_several:
            per_s = min(per_s, records / max(deeds * _DEED_S, 1.0))
        load = plan(records, TARGETS, DELAY_MS_MAX, SEED)
        part = math.ceil(records / max(deeds, 1))
        bar = self._steps.bar("Sending", records)
        return Sending(self._bootstrap, DELAY_TOPIC, load, per_s, part, bar)

    def _director(self, group: NodeGroup, judge: Judge, sending: Sending) -> Director:
        places = [(t, p) for t in TARGETS for p in range(TARGET_PARTITIONS)]

        def await_delivered() -> None:
            enough = judge.seen + _DELIVERED
            group.await_true(
                lambda: judge.seen >= min(enough, len(sending.sent)), "the successors deliver"
            )

        rng = random.Random(SEED)  # noqa: S311  # kill times that replay from a seed
        return Director(group, self._admin, places, sending.go_on, await_delivered, rng)
