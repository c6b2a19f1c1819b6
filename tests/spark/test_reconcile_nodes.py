"""Two real nodes, one with a disk that lost something: found, repaired, clean again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.copies import RepairClient, cluster_id
from connectors.spark.reconcile.digests import Expected
from connectors.spark.reconcile.follow import (
    IS_OVER_LIMIT,
    IS_OWNERS,
    Followed,
    FollowOptions,
    Repairs,
    follow,
)
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import carry_out, decode_plan
from connectors.spark.reconcile.run import reconcile
from connectors.spark.reconcile.store_source import reach_of
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.drill.copies import flip_byte
from delay_devtools.service import ServiceProcess
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import each_store
from tests.integration.bench import Bench, await_true, now_ms
from tests.rocks import LoneRocks
from tests.spark.copies_world import start_of_file
from tests.wheels import LoneStore

pytestmark = [pytest.mark.night, pytest.mark.timeout(900)]

RECORDS = 400
MINUTE_MS = 60_000
NODES = ("n1", "n2")
LOST, CHANGED, CHANGED_NAMED = 1, 12, 390
"""Offsets; the last one bears an id, which its digest is of."""
INTERVALS_MAX = 12
SYNC_S_MAX = 120.0
"""Twice the age that a durable horizon may reach."""


class Pair:
    """Two nodes of one cluster, with records that are due in the next hours, before any rolls."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path, store: str) -> None:
        self.cluster = cluster
        self.store = store
        root = f"/{folder.name}"
        sets = [f"zookeeper.hosts={cluster.zookeeper}", f"zookeeper.root={root}"]
        sets += ["digests.interval_ms=1s", "topics.checkpoint_partitions=1", f"node.store={store}"]
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

    def await_cuts(self, what: str, node: str = "", but_life: str = "") -> None:
        """Both have published the same cut of all records, one of them as the owner; a node not
        that of an earlier life.
        """

        def both() -> bool:
            cuts = self.cuts()
            return (
                cuts.keys() == set(NODES)
                and len({row["cut"] for row in cuts.values()}) == 1
                and all(row["h"] == RECORDS and not row["behind"] for row in cuts.values())
                and {row["role"] for row in cuts.values()} == {"owner", "replica"}
                and (not node or cuts[node]["life"] != but_life)
            )

        await_true(both, what)

    def with_role(self, role: str) -> str:
        (node,) = [node for node, row in self.cuts().items() if row["role"] == role]
        return node

    def restart(self, node: str, meanwhile: Callable[[str], None]) -> None:
        """Stop a node, do something to its disk, and start it again."""
        life = self.cuts()[node]["life"]
        assert self.nodes[node].stop() == 0
        meanwhile(node)
        self.nodes[node] = self.start(node)
        self.await_cuts("a cut of what the spoilt disk holds", node, life)

    def folder_of(self, node: str) -> ShardFolder:
        state = self.bench.folder / node
        (folder,) = [shard for shard, _ in each_store(state) if shard.partition == 0]
        return folder

    def has_horizon(self, node: str) -> bool:
        """Return whether the disk holds every record, as of the last periodic sync."""
        state = self.bench.folder / node
        return [stop for one, stop in reach_of(state) if one.partition == 0] == [RECORDS]

    def spoil(self, node: str) -> None:
        """Its store forgets a record and changes two others, without any damage to a checksum."""
        folder = self.folder_of(node)
        made: type[LoneStore | LoneRocks] = LoneStore if self.store == "wheel" else LoneRocks
        store = made(Path(folder.path), place=(folder.shard, 0))
        store.open()
        frames = {frame[1]: frame for frame in store.scanner().frames((0, -1), 10**15)}
        for offset in (LOST, CHANGED, CHANGED_NAMED):
            start_ms = frames[offset][0] // MINUTE_MS * MINUTE_MS
            kept = [f for f in frames.values() if 0 <= f[0] - start_ms < MINUTE_MS]
            kept = [f for f in kept if f[1] != offset]
            if offset != LOST:
                kept.append((*frames[offset][:3], frames[offset][3].replace(b"va", b"VA")))
            store.rebuild(start_ms, start_ms + MINUTE_MS, sorted(kept))
        store.close()

    def damage(self, node: str) -> None:
        """A byte of the last hour is flipped, too."""
        self.spoil(node)
        folder = self.folder_of(node)
        flip_byte(folder, start_of_file(folder, -1))

    def options(self, out: Path, **more: Any) -> ReconcileOptions:
        return ReconcileOptions(
            client={"bootstrap.servers": self.cluster.bootstrap},
            out=str(out),
            checkpoint=self.bench.checkpoint,
            digests=self.bench.digests,
            repairs=self.bench.repairs,
            expected=Expected(nodes=NODES),
            min_partitions=2,
            **more,
        )

    def follow(
        self, spark: SparkSession, out: Path, heard: Callable[[ReconcileResult, Repairs], bool]
    ) -> Followed:
        """Compare, and repair once at most, until ``heard`` says that it is enough."""
        stop, seen = threading.Event(), list[ReconcileResult]()

        def each(result: ReconcileResult | str, repairs: Repairs) -> None:
            assert not isinstance(result, str), result
            seen.append(result)
            if heard(result, repairs) or len(seen) == INTERVALS_MAX:
                stop.set()

        compared = self.options(out, deep=True, topic=self.bench.audit)
        asked = FollowOptions(reconcile=compared, interval_s=2, repairs_max=1)
        done = follow(spark, asked, stop, each)
        assert done.intervals < INTERVALS_MAX, seen[-1].sample
        return done

    def published(self) -> list[dict[str, Any]]:
        return [json.loads(seen.value or b"") for seen in self.bench.read_all(self.bench.audit)]


@pytest.fixture(params=["wheel", "rocksdb"])
def pair(
    request: pytest.FixtureRequest, cluster: EmbeddedCluster, tmp_path: Path
) -> Iterator[Pair]:
    made = Pair(cluster, tmp_path, request.param)
    with made.bench:
        made.await_cuts("a cut of all records")
        yield made


only_wheels = pytest.mark.parametrize("pair", ["wheel"], indirect=True)


def found(spark: SparkSession, result: ReconcileResult) -> set[tuple[object, ...]]:
    """``(kind, node, partition, offset)`` of every finding."""
    rows = spark.read.parquet(result.paths["findings"]).collect()
    return {(row["kind"], row["node"], row["partition"], row["offset"]) for row in rows}


def spoilt(node: str) -> set[tuple[object, ...]]:
    return {
        ("missing", node, 0, LOST),
        ("different", node, 0, CHANGED),
        ("different", node, 0, CHANGED_NAMED),
    }


@only_wheels
def test_what_a_disk_lost_is_found_repaired_and_clean_again(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    before = reconcile(spark, pair.options(tmp_path / "before", deep=True))
    assert before.is_clean, before.sample
    assert 0 < before.counts.records <= before.counts.pending <= RECORDS
    node = pair.with_role("replica")
    pair.restart(node, pair.damage)
    damaged = {("damaged", node, 0, None)}
    shallow = reconcile(spark, pair.options(tmp_path / "shallow"))
    assert found(spark, shallow) == damaged | spoilt(node) - {
        ("different", node, 0, CHANGED_NAMED)  # its id is right
    }
    wrong = reconcile(spark, pair.options(tmp_path / "wrong", deep=True))
    assert found(spark, wrong) == damaged | spoilt(node)
    for one in NODES:
        await_true(partial(pair.has_horizon, one), f"a durable horizon of {one}", SYNC_S_MAX)
    folders = {node: str(tmp_path / node) for node in NODES}
    on_disk = reconcile(spark, pair.options(tmp_path / "disk", folders=folders))
    # Of the empty slice a node that has never been stopped has written no horizon.
    assert {one for one in found(spark, on_disk) if one[2] == 0} == found(spark, wrong)
    client = {"bootstrap.servers": pair.cluster.bootstrap}
    made = decode_plan((tmp_path / "wrong" / "plan.json").read_bytes())
    outcome = carry_out(
        made, RepairClient(client, pair.bench.repairs), cluster_id(client), now_ms=now_ms()
    )
    assert outcome.is_complete, outcome
    assert outcome.done == len(made.steps)
    pair.await_cuts("a cut after the repair")
    after = reconcile(spark, pair.options(tmp_path / "after", deep=True))
    assert after.is_clean, after.sample
    assert after.plan.steps == ()


def test_a_replica_is_repaired_by_itself_and_once_the_limit_is_reached_no_more(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    node = pair.with_role("replica")
    pair.restart(node, pair.spoil)
    clean = list[ReconcileResult]()

    def heard(result: ReconcileResult, repairs: Repairs) -> bool:
        if result.is_clean and not clean:
            clean.append(result)
            assert (repairs.made, repairs.failed, repairs.has_stopped) == (1, 0, True)
            done = {event["command"] for event in pair.nodes[node].events("command_done")}
            assert done == {"scan", "rebuild"}
            pair.restart(node, pair.spoil)
            return False
        if not clean:
            assert found(spark, result) == spoilt(node)
            return False
        return not result.is_clean

    done = pair.follow(spark, tmp_path / "out", heard)
    assert done.last is not None
    assert found(spark, done.last) == spoilt(node)
    assert (done.repairs.made, done.failed) == (1, 0)
    assert done.repairs.left == {IS_OVER_LIMIT: len(done.last.plan.steps)}
    said = pair.published()
    assert {one["finding"] for one in said if one["kind"] == "copy_finding"} == {
        "missing",
        "different",
    }
    summaries = [one for one in said if one["kind"] == "reconcile"]
    assert len(summaries) == done.intervals
    assert any(one["clean"] for one in summaries)
    assert summaries[-1]["repairs"]["stopped"] is True
    assert summaries[-1]["findings"] == {"missing": 1, "different": 2}


@only_wheels
def test_the_owners_copy_is_found_wrong_and_never_touched(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    node = pair.with_role("owner")
    pair.restart(node, pair.spoil)
    await_true(lambda: pair.cuts()[node]["role"] == "owner", "the slice comes back to its node")
    pair.await_cuts("a cut of the owner that has come back")
    done = pair.follow(spark, tmp_path / "out", lambda result, _: not result.is_clean)
    assert done.last is not None
    assert found(spark, done.last) == spoilt(node)
    assert done.repairs.left == {IS_OWNERS: len(done.last.plan.steps)}
    assert done.repairs.made == 0
    # Not even where the plan is sent by hand.
    client = {"bootstrap.servers": pair.cluster.bootstrap}
    outcome = carry_out(
        done.last.plan,
        RepairClient(client, pair.bench.repairs),
        cluster_id(client),
        now_ms=now_ms(),
    )
    assert outcome.done == 0
    assert all("this node delivers" in why for why in outcome.failed.values())
    assert not list(pair.nodes[node].events("command_done"))
