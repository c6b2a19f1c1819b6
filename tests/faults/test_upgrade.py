"""Nodes of an older version and of this one share a cluster: slices change hands in both orders.

The code of older versions is taken from the repository's own history.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Message, Producer

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.nodes import SECRET
from delay_devtools.service import ServiceProcess
from tests.faults.conftest import Scenario
from tests.faults.facts import UID, Acked, Step
from tests.faults.node import Node, Place
from tests.faults.stage import Script, Stage
from tests.faults.watch import Watch
from tests.integration.bench import await_true, now_ms

pytestmark = pytest.mark.fault

WITHOUT_CLAIMS = "ecac7eee013e4da02deb57ac3ffcfd9210791ac7"
"""One transactional id for each slice; checkpoints of version 1, contracts of version 2."""
CONTRACTS_3 = "fa1b8a98a56beed38cb5f9555368361b2530108a"
"""The last commit that knows no contracts of version 4."""
ROOT = Path(__file__).parents[2]
SLICES = 4
SESSION_S = 4
RECORDS = 16_000
PER_S = 200

VERSION_4 = 4
UNIT, UNIT_MS = b"30s", 30_000
KEYS = 300
"""Records whose keys are compared in each phase."""


def unpacked(commit: str, folder: Path) -> Path:
    """Unpack the service of an older version."""
    packed = subprocess.run(
        ["git", "archive", commit, "delayservice", "connectors", "ha"],  # noqa: S607  # by PATH
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def without_claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpacked(WITHOUT_CLAIMS, tmp_path_factory.mktemp("without_claims"))
    # It reads ISO 8601 durations with a package that is not installed any more; no setting has one.
    (folder / "isodate.py").touch()
    return folder


@pytest.fixture(scope="module")
def contracts_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(CONTRACTS_3, tmp_path_factory.mktemp("contracts_3"))


class Nodes:
    """Two nodes, each of either version, over several lives."""

    def __init__(self, cluster: EmbeddedCluster, without_claims: Path, folder: Path) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._without_claims = without_claims
        self._folder = folder
        self.running: dict[str, ServiceProcess] = {}

    def start(self, name: str, *, is_new: bool) -> ServiceProcess:
        """Begin a life; what ran under the name has ended."""
        old = str(self._without_claims)
        service = ServiceProcess(
            [
                f"kafka.bootstrap={self._cluster.bootstrap}",
                f"zookeeper.hosts={self._cluster.zookeeper}",
                f"zookeeper.session_timeout_s={SESSION_S}",
                "node.workers=1",
                f"node.node_id={name}",
                f"node.state_dir={self._folder / name}",
                f"node.cluster_secret={SECRET}",
                "targets.default.allow=orders",
                "metrics.listen=127.0.0.1:0",
                "admin.listen=127.0.0.1:0",
            ],
            self._folder / f"{name}.log",
            wrapper=[] if is_new else ["env", "-C", old],
            environment={} if is_new else {"PYTHONPATH": old},
        )
        self.running[name] = service
        return service

    def close(self) -> None:
        """Leave nothing behind."""
        for service in self.running.values():
            service.kill()


@pytest.fixture
def nodes(without_claims: Path, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster())
        running = Nodes(cluster, without_claims, tmp_path)
        stack.callback(running.close)
        yield running


@pytest.mark.parametrize("seed", [1, 2])
def test_versions_take_slices_from_each_other_and_nothing_is_lost_or_doubled(
    nodes: Nodes, seed: int
) -> None:
    rng = Random(seed)
    first = nodes.start("a", is_new=False)
    first.wait_serving(SLICES)
    asked = f"-b {nodes.bootstrap} --records {RECORDS} --per-s {PER_S} --delay-ms-max 8000"
    load = subprocess.Popen(
        [sys.executable, "-m", "delayservice", "smoke", "--json", *asked.split()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    nodes.start("b", is_new=False)
    pause = threading.Event()  # the schedule of the seed, not a wait for anything
    pause.wait(10)
    nodes.running["a"].stop()
    upgraded = nodes.start("a", is_new=True)
    for _ in range(6):
        pause.wait(rng.uniform(1, 8))
        name, service = rng.choice(sorted(nodes.running.items()))
        how = rng.choice(("kill", "kill", "freeze", "stop"))
        if how == "freeze":
            service.freeze()
            pause.wait(SESSION_S + 3)
            service.thaw()
            continue
        service.kill() if how == "kill" else service.stop()
        nodes.start(name, is_new=rng.random() < 0.6)
    for name in sorted(nodes.running):
        nodes.running[name].kill()
        upgraded = nodes.start(name, is_new=True)
    await_true(lambda: upgraded.events("took_over"), "the new version serves", 120)
    told, _ = load.communicate(timeout=300)
    verdict = json.loads(told.splitlines()[-1])
    assert verdict["sent"] == verdict["delivered"] == RECORDS
    assert (verdict["lost"], verdict["duplicated"], verdict["early"]) == (0, 0, 0)


class Keys:
    """What nodes say of the keys of pending records."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._said: dict[tuple[int, int], dict[str, int]] = {}
        """By partition and offset: the key of each node that named one, epoch milliseconds."""

    def agreed(self) -> int:
        """Ask every node; return how many records all of them have named by now.

        Raises:
            AssertionError: two nodes have different keys for one record.
        """
        for node in self._stage.nodes:
            for record in _pending(node):
                said = self._said.setdefault((record["partition"], record["offset"]), {})
                said[node.node_id] = record["next_ms"]
        differing = {o: said for o, said in self._said.items() if len(set(said.values())) > 1}
        assert not differing, sorted(differing.items())[:5]
        return sum(len(said) == len(self._stage.nodes) for said in self._said.values())

    def await_agreed(self, more: int) -> None:
        """Until so many more records were named by all nodes."""
        enough = self.agreed() + more
        self._stage.await_true(lambda: self.agreed() >= enough, f"{more} more keys are known")


def _pending(node: Node) -> list[dict[str, Any]]:
    url = node.told_now("admin_served")[-1]["url"]
    asked = f"http://{url}/v1/pending?limit=1000&beyond_window=true"
    with urllib.request.urlopen(asked, timeout=10) as answer:
        records: list[dict[str, Any]] = json.load(answer)["records"]
    return records


class Agreed(NamedTuple):
    """The contracts of one slice in one checkpoint, and when it was committed."""

    slice_no: int
    committed_ms: int
    contracts: dict[int, dict[str, Any]]
    """By first offset."""

    @property
    def newest(self) -> dict[str, Any]:
        """The contract that begins last."""
        return self.contracts[max(self.contracts)]


class Checkpoints:
    """All checkpoints of a stage, as they are committed."""

    def __init__(self, stage: Stage) -> None:
        self._delay_topic = stage.delay_topic
        self._watch = Watch(stage.cluster.bootstrap, [stage.checkpoint])
        self._watch.start()
        self._found: list[Agreed] = []
        self._read = 0

    def agreed(self) -> list[Agreed]:
        """Return the contracts of each checkpoint so far, in the order of each slice."""
        fresh = self._watch.found[self._read :]
        self._read += len(fresh)
        for record in fresh:
            told = json.loads(record.value or b"{}")
            shard = told.get("shards", {}).get(self._delay_topic)
            if shard is not None:
                contracts = {one["from"]: one["contract"] for one in shard["contracts"]}
                self._found.append(Agreed(told["slice"], record.written_ms, contracts))
        return self._found

    def newest(self) -> dict[int, Agreed]:
        """Return what was committed last, by slice."""
        return {one.slice_no: one for one in self.agreed()}

    def close(self) -> None:
        """Read no more."""
        self._watch.close()


def write_with_units(stage: Stage) -> list[Acked]:
    """Write a record to each slice whose delay has a unit, and await the acknowledgements."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "acks": "all"})
    acked: list[Acked] = []

    def note(step: Step, _error: KafkaError | None, message: Message) -> None:
        acked.append(Acked(step, message.offset() or 0, message.timestamp()[1]))

    for number in range(stage.script.slices):
        uid = uuid.uuid4().bytes
        step = Step(uid, number, b"key", b"value", ((UID, uid),), UNIT_MS, stage.targets[0])
        headers: list[tuple[str, str | bytes | None]] = [
            (name, UNIT if name == "delay-after" else value) for name, value in step.headers()
        ]
        producer.produce(
            stage.delay_topic,
            step.value,
            step.key,
            number,
            headers=headers,
            on_delivery=partial(note, step),
        )
    assert producer.flush(30) == 0
    assert len(acked) == stage.script.slices
    return acked


def replace_nodes(stage: Stage, nodes: Sequence[Node]) -> None:
    """Stop nodes at once, and start them with this version when others have taken their slices."""
    for node in nodes:
        assert node.stop() == 0
    stage.await_served()
    for node in nodes:
        node.place = Place()
        # Other settings than the old nodes have, so that owners begin contracts.
        node.start("delivery.max_delay_ms=1000d")
    for node in nodes:
        stage.await_true(node.serves, f"{node.node_id} has taken its part of the work")


def test_no_contract_of_version_4_begins_before_all_nodes_know_it(
    scenario: Scenario, contracts_3: Path
) -> None:
    old = Place(["env", "-C", str(contracts_3)], {"PYTHONPATH": str(contracts_3)})
    # Reserved by a pattern, which takes contracts of version 3.
    sets = ("topics.discover=true", "topics.pattern=later_*", "placement.replicas=all")
    script = Script(sets=sets, places=dict.fromkeys((1, 2, 3), old))
    with (
        scenario.play(script, nodes_min=3) as stage,
        closing(Checkpoints(stage)) as checkpoints,
    ):
        *upgraded, last = stage.nodes
        keys = Keys(stage)
        keys.await_agreed(KEYS)
        # Together at last: meanwhile the old node owns everything.
        for nodes in ([upgraded[0]], [upgraded[1]], upgraded):
            replace_nodes(stage, nodes)
            begun = [one for each in checkpoints.agreed() for one in each.contracts.values()]
            assert {one["version"] for one in begun} == {VERSION_4 - 1}
            keys.await_agreed(KEYS)
        assert len({one["max_delay_ms"] for one in begun}) == 2, "old and new nodes began some"
        stage.refused |= {one.step.uid for one in write_with_units(stage)}
        stage.await_written(stage.script.per_s)

        upgraded_ms = now_ms()
        replace_nodes(stage, [last])
        for node in upgraded:  # so that every slice is taken over once more
            replace_nodes(stage, [node])

        def all_begin() -> bool:
            newest = checkpoints.newest().values()
            return all(one.newest["version"] == VERSION_4 for one in newest)

        stage.await_true(all_begin, "every slice has a contract of version 4")
        for number, one in checkpoints.newest().items():
            stage.await_true(
                partial(_is_written, stage, number, max(one.contracts)),
                f"slice {number} has records that are read by version 4",
            )
        stage.history.acked += write_with_units(stage)
        keys.await_agreed(KEYS)
        _judge_beginnings(stage, checkpoints.agreed(), upgraded_ms)
    letters = [one for one in stage.watch.found if one.topic == stage.dead_letter]
    assert {one.header("delay-error") for one in letters} == {b"time-invalid"}


def _is_written(stage: Stage, slice_no: int, offset: int) -> bool:
    recent = stage.history.acked[-2 * stage.script.per_s :]
    return any(one.step.partition == slice_no and one.offset >= offset for one in recent)


def _judge_beginnings(stage: Stage, found: Sequence[Agreed], upgraded_ms: int) -> None:
    """Every contract of version 4 was committed when all nodes knew it, begins above what was
    written before, and has no allowlist.
    """
    first: dict[tuple[int, int], Agreed] = {}
    for one in found:
        for start, contract in one.contracts.items():
            if contract["version"] == VERSION_4:
                assert not contract.keys() & {"allow", "reserved"}
                first.setdefault((one.slice_no, start), one)
    assert {number for number, _ in first} == set(range(stage.script.slices))
    for (number, start), one in first.items():
        assert one.committed_ms >= upgraded_ms
        before = (
            acked.offset
            for acked in stage.history.acked
            if acked.step.partition == number and acked.appended_ms < one.committed_ms
        )
        assert start > max(before), f"slice {number}: {start} was written already"
