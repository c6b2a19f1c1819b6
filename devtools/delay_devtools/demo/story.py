"""The demo from the first broker to the verdict.

Cluster and nodes start, and records are sent. Then nodes are killed, most of them in an open
transaction whose outputs are at the broker already; one is frozen and resumed when others own its
slices, and one is stopped with SIGTERM and started again. Finally every record is read back and
compared.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    NewTopic,
)
from rich.console import Console

from delay_devtools.cluster import EmbeddedCluster, started
from delay_devtools.demo.acts import FAULT, Director, script
from delay_devtools.demo.options import DemoOptions
from delay_devtools.demo.report import DemoReport, show
from delay_devtools.nodes import LocalNode, NodeGroup, sets_of_several
from delay_devtools.servers import ANY_PORTS
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict
from delayservice.smoke.load import QUIET, Batch, LoadPlan
from delayservice.smoke.progress import Steps, steps, stop_signals
from delayservice.smoke.run import send_and_judge

SLICES: Final = 4
_TARGETS: Final = ("demo_orders", "demo_payments", "demo_reminders")
# Each partition of a transaction costs the brokers, which share the processors with all the rest.
_TARGET_PARTITIONS: Final = 1
_DELAY_TOPIC: Final = "delay_topic_any"
_DELAY_MS_MAX: Final = 8_000
_SEND_PER_S: Final = 1_000
_SEED: Final = 20_260_101
_SIZE: Final = 200
_WARM_UP_TOPIC: Final = "demo_warm_up"
_WARM_UP_RECORDS: Final = 3_000
_WARM_UP_DELAY_MS_MAX: Final = 3_000
_REPLICATION_MAX: Final = 3
# Session timeout of ZooKeeper, in s, short for a demo: time until a dead node is noticed.
_SESSION_S: Final = 2
# Default number of kills; the key is whether there are several nodes, where a kill takes longer.
_KILLS: Final = {True: 3, False: 5}
# Estimate of the shortest time that a fault takes with several nodes, in s; records are sent
# meanwhile.
_DEED_S: Final = 8.0
# Time without a change of owner before the faults begin, in s; longer than an owner waits before it
# hands a slice to the node that is preferred for it.
_CALM_S: Final = 5.0


def run(options: DemoOptions) -> int:
    """Run the demo; return 0 only if no record was lost, doubled, early or altered, and every
    frozen node logged the loss of its slices after it was resumed.
    """
    console = Console(stderr=options.as_json, emoji=False)
    started_s = time.monotonic()
    with (
        stop_signals(),
        steps(console) as shown,
        tempfile.TemporaryDirectory(prefix="delay-demo-") as folder,
    ):
        embedded = EmbeddedCluster(options.nodes, int(options.has_several))
        with started(embedded, shown) as cluster:
            report = _Story(options, cluster, Path(folder), shown).play()
    seconds = time.monotonic() - started_s
    if not options.as_json:
        show(console, report, seconds)
    print(json.dumps(report.summary(seconds)))  # noqa: T201  # the machine-readable last line
    return 0 if report.is_good else 1


def sets_of(options: DemoOptions, bootstrap: str, zookeeper: str) -> dict[str, list[str]]:
    """Return the settings of each node, by node name: n1 is beside broker 1, and so on.

    They equal those of docker-compose.yml, except for the differences that a test lists.
    """
    sets = [
        f"kafka.bootstrap={bootstrap}",
        f"topics.partitions={SLICES}",
        f"node.store={options.store}",
        f"delivery.mode={options.delivery}",
        "targets.default.allow=demo_*",
        *ANY_PORTS,
    ]
    if not options.has_several:
        return {"n1": sets}
    sets += sets_of_several(zookeeper, "/demo")
    # All nodes share this machine: a second worker each would only slow the others.
    sets += [f"zookeeper.session_timeout_s={_SESSION_S}", "node.workers=1"]
    return {
        f"n{number}": [*sets, f"node.broker_id={number}"] for number in range(1, options.nodes + 1)
    }


class _Story:
    def __init__(
        self, options: DemoOptions, cluster: EmbeddedCluster, folder: Path, steps: Steps
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._client = {"bootstrap.servers": cluster.bootstrap}
        self._folder = folder
        self._steps = steps

    def play(self) -> DemoReport:
        options = self._options
        self._create_topics()
        sets = sets_of(options, self._cluster.bootstrap, self._cluster.zookeeper)
        nodes = [LocalNode(node_id, mine, self._folder, FAULT) for node_id, mine in sets.items()]
        with NodeGroup(nodes, SLICES) as group:
            with self._steps.doing("Starting the delay service"):
                group.start()
            # A broker that has just started is slow for some seconds.
            warm_up = Batch(b"warm-up.", _WARM_UP_RECORDS, _SIZE, _SEED)
            self._send(warm_up, (_WARM_UP_TOPIC,), span_ms=_WARM_UP_DELAY_MS_MAX)
            if options.has_several:
                group.await_calm(_CALM_S)
            return self._play(group)

    def _play(self, group: NodeGroup) -> DemoReport:
        options = self._options
        kills = _KILLS[options.has_several] if options.kills is None else options.kills
        deeds = script(kills, has_several=options.has_several)
        batch = Batch(b"the-demo", options.records, _SIZE, _SEED, is_mixed=True)
        # Sending takes as long as the faults, and each fault has its part of the records.
        per_s = float(_SEND_PER_S)
        if options.has_several:
            per_s = min(per_s, batch.n / max(len(deeds) * _DEED_S, 1.0))
        director = Director(group)
        started_ms = time.time() * 1_000
        verdict = self._send(
            batch,
            _TARGETS,
            partial(director.play, deeds, self._steps),
            span_ms=_DELAY_MS_MAX,
            per_s=per_s,
            part_records=math.ceil(batch.n / max(len(deeds), 1)),
        )
        # Read before the end: hand-overs while all nodes stop are not part of the report.
        events = group.slice_events()
        director.stop()
        return DemoReport(options, verdict, started_ms, director.acts, director.missed, events)

    def _send(
        self,
        batch: Batch,
        targets: tuple[str, ...],
        meanwhile: Callable[[Helper, Helper], None] = lambda _load, _judge: None,
        **plan: Any,  # noqa: ANN401 (fields of LoadPlan)
    ) -> Verdict:
        loading = LoadPlan(self._client, _DELAY_TOPIC, targets, batch, **plan)
        judging = JudgePlan(self._client, targets, batch, has_arrivals=batch.is_mixed)
        return send_and_judge(loading, judging, self._steps, meanwhile)[1]

    def _create_topics(self) -> None:
        replication = min(self._options.nodes, _REPLICATION_MAX)
        names = (*_TARGETS, _WARM_UP_TOPIC)
        new = [NewTopic(name, _TARGET_PARTITIONS, replication) for name in names]
        admin = AdminClient({**self._client}, logger=QUIET)
        for future in admin.create_topics(new, operation_timeout=30).values():
            future.result(30)
