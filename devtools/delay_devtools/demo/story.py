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
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, judge
from delayservice.smoke.load import QUIET, Batch, Loaded, LoadPlan, load
from delayservice.smoke.progress import Steps, steps, stop_signals

DELAY_TOPIC: Final = "delay_topic_any"
TARGETS: Final = ("demo_orders", "demo_payments", "demo_reminders")
# Each partition of a transaction costs the brokers, which share the processors with all the rest.
TARGET_PARTITIONS: Final = 1
DELAY_MS_MAX: Final = 8_000
SEND_PER_S: Final = 1_000
SEED: Final = 20_260_101
SIZE: Final = 200
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
        self._client = {"bootstrap.servers": cluster.bootstrap}
        self._zookeeper = cluster.zookeeper
        self._folder = folder
        self._steps = steps
        self._admin = AdminClient({**self._client}, logger=QUIET)

    def play(self) -> DemoReport:
        self._create_topics()
        kills = self._choices.kills
        if kills is None:
            kills = _KILLS[self._choices.has_several]
        deeds = script(kills, has_several=self._choices.has_several)
        sets = sets_of(self._choices, self._bootstrap, self._zookeeper)
        nodes = [LocalNode(node_id, mine, self._folder, FAULT) for node_id, mine in sets.items()]
        with NodeGroup(nodes, SLICES) as group:
            with self._steps.doing("Starting the delay service"):
                group.start()
            self._warm_up()
            if self._choices.has_several:
                group.await_calm(_CALM_S)
            return self._play(group, deeds)

    def _play(self, group: NodeGroup, deeds: Sequence[tuple[Deed, bool]]) -> DemoReport:
        batch = Batch(b"the-demo", self._choices.records, SIZE, SEED, is_mixed=True)
        judging = JudgePlan(self._client, TARGETS, batch, has_arrivals=True)
        receiving = self._steps.bar("Receiving with read_committed", batch.wanted)
        sending = self._steps.bar("Sending", batch.n)
        with (
            Helper(judge, judging, receiving) as judge_,
            Helper(load, self._load(batch, len(deeds)), sending) as load_,
        ):
            started_ms = time.time() * 1_000
            load_.tell()
            director = self._director(group, judge_, load_)
            director.play(deeds, self._steps)
            judge_.tell(load_.expect(Loaded))
            verdict = judge_.expect(Verdict)
        # Read before the end: hand-overs while all nodes stop are not part of the report.
        events = tuple(group.slice_events())
        director.stop()
        return DemoReport(
            choices=self._choices,
            verdict=verdict,
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
        batch = Batch(b"warm-up.", WARM_UP_RECORDS, SIZE, SEED)
        targets = (WARM_UP_TOPIC,)
        loading = LoadPlan(self._client, DELAY_TOPIC, targets, batch, span_ms=WARM_UP_DELAY_MS_MAX)
        bar = self._steps.bar("Warming up", WARM_UP_RECORDS)
        with (
            Helper(judge, JudgePlan(self._client, targets, batch), bar) as judge_,
            Helper(load, loading) as load_,
        ):
            load_.tell()
            judge_.tell(load_.expect(Loaded))
            judge_.expect(Verdict)

    # --- during the faults ---------------------------------------------------------------------

    def _load(self, batch: Batch, deeds: int) -> LoadPlan:
        # Sending takes as long as the faults, and each fault has its part of the records.
        per_s = float(SEND_PER_S)
        if self._choices.has_several:
            per_s = min(per_s, batch.n / max(deeds * _DEED_S, 1.0))
        return LoadPlan(
            self._client,
            DELAY_TOPIC,
            TARGETS,
            batch,
            span_ms=DELAY_MS_MAX,
            per_s=per_s,
            part_records=math.ceil(batch.n / max(deeds, 1)),
        )

    def _director(self, group: NodeGroup, judge_: Helper, load_: Helper) -> Director:
        places = [(t, p) for t in TARGETS for p in range(TARGET_PARTITIONS)]

        def await_delivered() -> None:
            enough = judge_.count + _DELIVERED
            group.await_true(
                lambda: judge_.count >= min(enough, load_.count), "the successors deliver"
            )

        rng = random.Random(SEED)  # noqa: S311  # kill times that replay from a seed
        return Director(group, self._admin, places, load_.tell, await_delivered, rng)
