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
from typer.testing import CliRunner

from connectors.spark.reconcile.digests import Expected
from connectors.spark.reconcile.follow import IS_OVER_LIMIT, Following
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.run import reconcile
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.drill.copies import flip_byte
from delay_devtools.service import ServiceProcess
from delayservice.commands.spark import app
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
LOST, CHANGED, CHANGED_NAMED = 1, 12, 210
"""Offsets; the last one bears an id, which its digest is of, and is due more than an hour after the
others and before the last record, which is damaged."""
STEPS_MAX = 12
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
        sets.append("wheel.slots=2160")  # six hours
        sets.append("delivery.id_partitions=1")  # all records stay where they are written
        self.bench = Bench(cluster.bootstrap, folder, partitions=2, sets=sets)
        self.nodes = {"n1": self.start("n1")}
        self.nodes["n1"].wait_serving(2)
        self.nodes["n2"] = self.start("n2")
        target = self.bench.target("x")
        first_ms = now_ms() + 20 * MINUTE_MS
        for number in range(RECORDS):
            due_ms = first_ms + number * 30_000
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
        stores = [store for one, store in each_store(state) if one.partition == 0]
        return [getattr(store, "stop_offset", None) for store in stores] == [RECORDS]

    def spoil(self, node: str) -> None:
        """Its store forgets a record and changes two others, without any damage to their
        checksums.
        """
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
        if self.store == "wheel":  # and a byte of the last hour is flipped
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


def found(spark: SparkSession, result: ReconcileResult) -> set[tuple[object, ...]]:
    """``(kind, node, partition, offset)`` of every finding."""
    rows = spark.read.parquet(result.paths["findings"]).collect()
    return {(row["kind"], row["node"], row["partition"], row["offset"]) for row in rows}


def test_wrong_copies_of_running_nodes_and_on_disks_are_found_and_replicas_rebuilt(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    node = pair.with_role("replica")
    pair.restart(node, pair.spoil)
    lost = {("missing", node, 0, LOST), ("different", node, 0, CHANGED)}
    named = {("different", node, 0, CHANGED_NAMED)}
    damaged = {("damaged", node, 0, None)} if pair.store == "wheel" else set()
    shallow = reconcile(spark, pair.options(tmp_path / "shallow"))
    assert found(spark, shallow) == damaged | lost  # the id of the other one is right
    for one in NODES:
        await_true(partial(pair.has_horizon, one), f"a durable horizon of {one}", SYNC_S_MAX)
    folders = {node: str(tmp_path / node) for node in NODES}
    on_disk = reconcile(spark, pair.options(tmp_path / "disk", folders=folders))
    # Of the empty slice a node that has never been stopped has written no horizon.
    assert {one for one in found(spark, on_disk) if one[2] == 0} == damaged | lost | named

    options = pair.options(tmp_path / "out", deep=True, topic=pair.bench.audit)
    following = Following(spark, options, threading.Event(), repairs_max=1)
    policy = following.policy

    def step_until(is_so: Callable[[ReconcileResult], bool]) -> ReconcileResult:
        for _ in range(STEPS_MAX):
            result = following.step()
            if is_so(result):
                return result
        pytest.fail(f"that is not so after {STEPS_MAX} comparisons: {following.last}")

    wrong = step_until(lambda _: policy.made == 1)
    assert found(spark, wrong) == damaged | lost | named
    assert (policy.failed, policy.has_stopped) == (0, True)
    commands = {event["command"] for event in pair.nodes[node].events("command_done")}
    assert commands >= {"scan", "rebuild"}
    clean = step_until(lambda result: result.is_clean)
    assert 0 < clean.counts.records <= clean.counts.pending <= RECORDS

    pair.restart(node, pair.spoil)
    again = step_until(lambda result: not result.is_clean)
    assert found(spark, again) == damaged | lost | named
    assert (policy.made, policy.left) == (1, {IS_OVER_LIMIT: len(again.plan.steps)})
    words = ["reconcile", "--deep", "--repair", "9", "--out", str(tmp_path / "once"), "--json"]
    words += [word for node in NODES for word in ("--node", node)]
    words += [word for setting in pair.bench.settings() for word in ("--set", setting)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3, done.output
    repairs = json.loads(done.stdout.splitlines()[-1])["repairs"]
    assert (repairs["made"], repairs["failed"]) == (len(again.plan.steps), 0)
    step_until(lambda result: result.is_clean)

    said = pair.published()
    told = {one["finding"] for one in said if one["kind"] == "copy_finding"}
    assert told == {kind for kind, *_ in damaged | lost}
    summaries = [one for one in said if one["kind"] == "reconcile"]
    assert summaries[0]["findings"] == again.findings
    assert summaries[-1]["clean"] is True
    assert [one["repairs"]["stopped"] for one in summaries] == [True] * len(summaries)
