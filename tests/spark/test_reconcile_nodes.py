"""Two real nodes, one with a disk that lost something: found, repaired by the plan, clean again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.repairs import RepairDesk, cluster_id
from connectors.spark.reconcile.digests import Expected
from connectors.spark.reconcile.plan import carry_out, decode_plan
from connectors.spark.reconcile.run import ReconcileOptions, ReconcileResult, reconcile
from delayservice.dev.cluster import EmbeddedCluster
from delayservice.dev.drill.replicas import flip_byte
from delayservice.dev.service import ServiceProcess
from delayservice.store.shards import find_shards
from delayservice.store.wheel import Wheel
from delayservice.store.wheel.reading import load_state
from tests.integration.bench import Bench, await_true, now_ms

pytestmark = [pytest.mark.night, pytest.mark.timeout(900)]

RECORDS = 400
MINUTE_MS = 60_000
NODES = ("n1", "n2")
LOST, CHANGED = 1, 12


class Pair:
    """Two nodes of one cluster, with records that are due in the next hours, before any rolls."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.cluster = cluster
        root = f"/{folder.name}"
        sets = [f"zookeeper.hosts={cluster.zookeeper}", f"zookeeper.root={root}"]
        sets += ["digests.interval_ms=1s", "topics.checkpoint_partitions=1"]
        self.bench = Bench(cluster.bootstrap, folder, partitions=2, sets=sets)
        self.nodes = {"n1": self.start("n1")}
        self.nodes["n1"].wait_serving(2)
        self.nodes["n2"] = self.start("n2")
        target = self.bench.target("x")
        first_ms = now_ms() + 20 * MINUTE_MS
        for number in range(RECORDS):
            due_ms = first_ms + number * 10_000
            headers = [("delay-at", str(due_ms)), ("delay-target-topic", target)]
            if number % 10 == 0:
                headers.append(("delay-id", f"id-{number % 200}"))
            self.bench.send_later(headers, value=b"value-%d" % number)
        self.bench.producer.flush()

    def start(self, node: str) -> ServiceProcess:
        state = self.bench.folder / node
        sets = [f"node.node_id={node}", f"node.state_dir={state}"]
        return self.bench.start(*sets, log=f"{node}.log")

    def cuts(self) -> dict[str, dict[str, Any]]:
        """The newest cut row of the slice with records, of each node that has reported both: the
        other one, which is empty, has its checkpoints in the same partition.
        """
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for seen in self.bench.read_all(self.bench.digests):
            if seen.key is not None and seen.key.startswith(b"c/") and seen.value:
                row = json.loads(seen.value)
                found[row["node"], row["partition"]] = row
        return {node: found[node, 0] for node in NODES if {(node, 0), (node, 1)} <= found.keys()}

    def await_cuts(self, what: str, but_life: str = "") -> None:
        """Both have published the same cut of all records, and n2 not that of an earlier life."""

        def both() -> bool:
            cuts = self.cuts()
            return (
                cuts.keys() == set(NODES)
                and len({row["cut"] for row in cuts.values()}) == 1
                and all(row["h"] == RECORDS and not row["behind"] for row in cuts.values())
                and cuts["n2"]["life"] != but_life
            )

        await_true(both, what)

    def spoil_n2(self) -> None:
        """Its store forgets a record and changes another, without any damage to a checksum; and a
        byte of the last hour is flipped.
        """
        (folder,) = [
            shard for shard in find_shards(self.bench.folder / "n2") if shard.partition == 0
        ]
        store = Wheel(Path(folder.path)).shard(folder.shard, 0)
        store.open()
        frames = {frame[1]: frame for frame in store.scan((0, -1), 10**15)}
        for offset, spoilt in ((LOST, None), (CHANGED, frames[CHANGED][3].replace(b"va", b"VA"))):
            start_ms = frames[offset][0] // MINUTE_MS * MINUTE_MS
            kept = [f for f in frames.values() if 0 <= f[0] - start_ms < MINUTE_MS]
            kept = [f for f in kept if f[1] != offset]
            if spoilt is not None:
                kept.append((*frames[offset][:3], spoilt))
            store.rebuild(start_ms, start_ms + MINUTE_MS, sorted(kept))
        store.close()
        state = load_state(folder)
        assert state is not None
        flip_byte(folder, state.parts[-1].start_ms)

    def reconcile(self, spark: SparkSession, out: Path, **more: Any) -> ReconcileResult:
        return reconcile(
            spark,
            ReconcileOptions(
                client={"bootstrap.servers": self.cluster.bootstrap},
                out=str(out),
                checkpoint=self.bench.checkpoint,
                digests=self.bench.digests,
                repairs=self.bench.repairs,
                expected=Expected(nodes=NODES),
                min_partitions=2,
                **more,
            ),
        )


@pytest.fixture
def pair(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(cluster, tmp_path)
    with made.bench:
        yield made


def found(spark: SparkSession, result: ReconcileResult) -> set[tuple[object, ...]]:
    """``(kind, node, partition, offset)`` of every finding."""
    rows = spark.read.parquet(result.paths["findings"]).collect()
    return {(row["kind"], row["node"], row["partition"], row["offset"]) for row in rows}


def test_what_a_disk_lost_is_found_repaired_and_clean_again(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    pair.await_cuts("a cut of all records")
    before = pair.reconcile(spark, tmp_path / "before", deep=True)
    assert before.is_clean, before.sample
    life = pair.cuts()["n2"]["life"]
    assert pair.nodes["n2"].stop() == 0
    pair.spoil_n2()
    pair.nodes["n2"] = pair.start("n2")
    pair.await_cuts("a cut of what the spoilt disk holds", but_life=life)
    wrong = pair.reconcile(spark, tmp_path / "wrong")
    assert found(spark, wrong) == {
        ("missing", "n2", 0, LOST),
        ("different", "n2", 0, CHANGED),
        ("damaged", "n2", 0, None),
    }
    on_disk = pair.reconcile(
        spark, tmp_path / "disk", folders={node: str(tmp_path / node) for node in NODES}
    )
    # Of the empty slice a node that has never been stopped has written no horizon.
    assert found(spark, on_disk) - {("damaged", "n1", 1, None)} == found(spark, wrong)
    client = {"bootstrap.servers": pair.cluster.bootstrap}
    plan = decode_plan((tmp_path / "wrong" / "plan.json").read_bytes())
    outcome = carry_out(
        plan, RepairDesk(client, pair.bench.repairs), cluster_id(client), now_ms=now_ms()
    )
    assert outcome.is_complete, outcome
    assert outcome.done == len(plan.steps)
    pair.await_cuts("a cut after the repair")
    after = pair.reconcile(spark, tmp_path / "after", deep=True)
    assert after.is_clean, after.sample
    assert after.plan.steps == ()
