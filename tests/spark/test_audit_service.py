"""What the real service did is found clean, whatever it did; and what is taken away is missed."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession

from connectors.spark.audit import AuditOptions, AuditResult, audit
from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import SECRET, WAIT_S, Bench, Header, Seen, now_ms

PARTITIONS = 2
WINDOW_MS = 3_000
LEVEL_MS = 500
CANCEL: Header = ("delay-op", b"cancel")
FIRE: Header = ("delay-op", b"fire")


class History:
    """What a service was asked for, until all of it is over.

    Attributes:
        bench: the topics.
        target: where all goes that can go.
        missing: a target that does not exist.
        level: a level topic.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.target = bench.target("all", PARTITIONS)
        self.missing = bench.target_name("missing")
        self.level = f"{bench.any}_1"
        self._ids = 0

    def play(self) -> None:
        """Ask for one of each, and many plain ones."""
        self._plain()
        self._named()
        self._refused()
        self._recurring()
        self._far()
        self._await_end()

    def _send(self, *headers: Header, key: bytes | None = None, delay_ms: int = 500) -> int:
        asked = [*self.bench.to(self.target, delay_ms), *headers, ("own", b"\x00\xff")]
        return self.bench.send(asked, key=key)[1]

    def _id(self) -> Header:
        self._ids += 1
        return ("delay-id", b"id-%d" % self._ids)

    def _plain(self) -> None:
        for number in range(600):
            self.bench.send_later(
                [*self.bench.to(self.target, number % 400), ("own", b"%d" % number)],
                key=b"key-%d" % number if number % 3 else None,
                value=b"%d" % number if number % 7 else None,
                partition=number % PARTITIONS,
            )
            self.bench.send_later(
                [("delay-target-topic", self.target)], topic=self.level, partition=number % 2
            )
        self.bench.producer.flush()
        self._send(("delay-target-partition", b"1"), key=b"key-1")
        self._send(("delay-target-key", b"other"), key=b"key-1")
        self._send(("delay-window-ms", b"400"))
        self._abort()

    def _abort(self) -> None:
        """A user's transaction that came to nothing: offsets without records."""
        producer = Producer(
            {"bootstrap.servers": self.bench.bootstrap, "transactional.id": self.target}
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        headers = self.bench.to(self.target, 100)
        producer.produce(self.bench.any, b"never", None, 0, headers=list(headers))
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)

    def _named(self) -> None:
        far_ms = 3_600_000
        cancelled, replaced, fired, twice = (self._id() for _ in range(4))
        for name in (cancelled, replaced, fired, twice):
            self._send(name, delay_ms=far_ms)
        self.bench.send([cancelled, CANCEL])
        self.bench.send([cancelled, CANCEL])
        self._send(replaced, delay_ms=200)
        self.bench.send([fired, FIRE])
        self._send(twice, delay_ms=far_ms)
        self.bench.send([twice, FIRE])
        self.bench.send([self._id(), FIRE])
        self._send(("delay-expires-at", b"%d" % (now_ms() - 1)), delay_ms=0)
        self._send(self._id(), delay_ms=far_ms)

    def _refused(self) -> None:
        self.bench.send([("delay-after", b"soon"), ("delay-target-topic", self.target)])
        for delay_ms in (1, WINDOW_MS + 1_500):
            self.bench.send(self.bench.to("elsewhere", delay_ms))
        self.bench.send([("delay-target-topic", b"elsewhere")], topic=self.level)
        self.bench.send([("delay-copy", b"{}"), ("delay-copy-mac", b"00")])
        self.bench.send(self.bench.to(self.missing, 100), key=b"gone")
        self.bench.send([("delay-target-topic", self.missing)], topic=self.level)

    def _recurring(self) -> None:
        self._send(("delay-every", b"1000"), ("delay-times", b"3"))
        cron: Header = ("delay-cron", b"* * * * * *")
        self.bench.send([("delay-target-topic", self.target), cron, ("delay-times", b"2")])
        endless = self._id()
        self._send(endless, ("delay-every", b"PT1S"))
        self._send(endless, ("delay-every", b"PT1H"), delay_ms=3_600_000)

    def _far(self) -> None:
        """Beyond the roll window: as copies, delivered and cancelled."""
        self._send(delay_ms=WINDOW_MS + 1_500)
        rolled = self._id()
        self._send(rolled, delay_ms=3_600_000)
        self.bench.await_match(self.bench.any, lambda one: is_copy_of(one, rolled))
        self.bench.send([rolled, CANCEL])

    def _await_end(self) -> None:
        """A record that was written last is rolled and delivered last."""
        self._send(("last", b""), delay_ms=WINDOW_MS + 3_000)
        self.bench.await_match(
            self.target, lambda one: any(name == "last" for name, _ in one.headers)
        )
        self.bench.await_match(
            self.bench.dead_letter, lambda one: one.header("delay-error") == "target-unknown", 2
        )


def is_copy_of(one: Seen, name: Header) -> bool:
    told = json.loads(one.header("delay-copy") or "{}")
    return bool(told) and base64.b64decode(told["id"] or "") == name[1]


@pytest.fixture(scope="module")
def history(
    cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    """All of it played, and the service gone."""
    sets = (
        "wheel.slots=60",
        "wheel.slot_ms=1s",
        f"delivery.roll_window_ms={WINDOW_MS}",
        "delivery.park_delays_ms=300",
        "topics.checkpoint_partitions=1",  # which all slices share
    )
    folder = tmp_path_factory.mktemp("audited")
    with Bench(cluster.bootstrap, folder, partitions=PARTITIONS, sets=sets) as bench:
        levels = (f"levels.prefix={bench.any}_", f"levels.delays_ms={LEVEL_MS}")
        service = bench.serve(*levels)
        history = History(bench)
        history.play()
        assert service.stop() == 0
        yield history


def audited(spark: SparkSession, history: History, out: Path, *secrets: bytes) -> AuditResult:
    bench = history.bench
    options = AuditOptions(
        client={"bootstrap.servers": bench.bootstrap},
        out=str(out),
        checkpoint=bench.checkpoint,
        dead_letter=bench.dead_letter,
        outcomes=bench.outcomes,
        allow=(f"to_{bench.run}_*",),
        secrets=secrets,
    )
    return audit(spark, options)


@pytest.mark.quick
@pytest.mark.parametrize("secrets", [(), (SECRET.encode(),)], ids=["believing", "verifying"])
def test_whatever_the_service_did_is_clean(
    spark: SparkSession, history: History, tmp_path: Path, secrets: tuple[bytes, ...]
) -> None:
    result = audited(spark, history, tmp_path, *secrets)
    assert not result.findings, [dict(r) for r in result.sample]
    counts = result.counts
    assert counts["delivered"] >= 1_200
    assert counts["copied"] >= 4
    assert counts["dead_lettered"] >= 5
    assert counts["given_an_outcome"] >= 9
    assert 0 < counts["pending"] <= 6
    assert "not_checkable" not in counts
    shards = {(shard.topic, shard.partition) for shard in result.cut.shards}
    topics = (history.bench.any, history.level)
    assert shards == {(topic, number) for topic in topics for number in range(PARTITIONS)}


def test_records_that_retention_deleted_are_counted_and_not_lost(
    spark: SparkSession, history: History, tmp_path: Path
) -> None:
    bench = history.bench
    places = [TopicPartition(history.target, 0, 50), TopicPartition(bench.any, 1, 20)]
    for future in bench.admin.delete_records(places).values():
        future.result(30)
    result = audited(spark, history, tmp_path)
    assert not result.findings, [dict(r) for r in result.sample]
    assert result.counts["not_checkable"] > 0
    assert result.counts["source_expired"] > 0


def test_deliveries_that_a_target_lost_with_the_end_of_its_log_are_named_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    count, kept = 40, 15
    with (
        EmbeddedCluster(brokers=1, zookeepers=0) as cluster,
        Bench(cluster.bootstrap, tmp_path, sets=("node.workers=1",)) as bench,
    ):
        service = bench.serve()
        history = History(bench)
        sent: list[int] = []
        for wave in (kept, count):  # transactions of their own
            while len(sent) < wave:
                sent.append(bench.send(bench.to(history.target, 0), key=b"one")[1])
            delivered = bench.read(history.target, wave)
        assert service.stop() == 0
        log = f"broker-1/data/{history.target}-{delivered[0].partition}"
        cluster.stop_broker(1)
        cut_log(cluster.folder / log, delivered[kept].offset)
        cluster.start_broker(1)
        result = audited(spark, history, tmp_path / "audit")
    assert result.findings == {"lost": count - kept}
    lost = result.findings_df(spark).collect()
    assert sorted(row["offset"] for row in lost) == sent[kept:]


def cut_log(folder: Path, end: int) -> None:
    """Remove all batches from an offset on from a stopped broker's log, which has one segment."""
    (segment,) = folder.glob("*.log")
    content, position = segment.read_bytes(), 0
    while True:
        first_offset, size = struct.unpack_from(">qi", content, position)
        if first_offset >= end:
            break
        position += struct.calcsize(">qi") + size
    segment.write_bytes(content[:position])
    for derived in folder.iterdir():
        if derived.suffix in {".index", ".timeindex", ".txnindex", ".snapshot"}:
            derived.unlink()
