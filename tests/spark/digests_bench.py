"""How long a comparison by digests takes: rows in a real topic, read by a real reconcile.

    python -m tests.spark.digests_bench --rows 5000000

Prints one JSON object; on a machine that others use, go by the CPU time of Spark's JVM. The rows
are of 64 shards on 3 nodes, in minute slots of as many hours as it takes; 20 slots of one node are
spoilt, and have to be found.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator

import msgspec
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from connectors.spark.common.session import open_session
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.run import reconcile
from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import HOUR_MS, SLOTS, HourRow
from delayservice.replicas.digest_rows import CopyId, CutFacts, DigestRow, cut_row, hour_row
from tests.described import topic_id_of

SHARDS = 64
NODES = ("n1", "n2", "n3")
SPOILT = 20


def rows_of(
    place: CopyId, hours: int, first_ms: int, spoilt: set[int], now_ms: int
) -> Iterator[DigestRow]:
    """The digest rows of one copy: of a shard, the same on every node but for what is spoilt."""
    chance = random.Random(place.partition)
    count = hashed = 0
    for number in range(hours):
        slots = []
        for index in range(SLOTS):
            slot = (index, chance.randrange(1, 400), chance.getrandbits(64))
            if number * SLOTS + index in spoilt:
                slot = (index, slot[1] - 1, slot[2] ^ 1)
            slots.append(slot)
            count += slot[1]
            hashed += slot[2]
        yield hour_row(place, 0, HourRow(first_ms + number * HOUR_MS, slots))
    facts = CutFacts(
        cut=0,
        cut_ms=now_ms,
        epoch=1,
        commit=1,
        cursor=Cursor((now_ms, 0), 1),
        stored=1,
        from_ms=now_ms,
        totals=(hours, count, hashed % 2**64),
        pending=count,
        scanned_ms=0,
        behind=False,
        role="replica",
        store="wheel",
        damaged=(),
        at_ms=now_ms,
    )
    yield cut_row(place, facts)


def fill(bootstrap: str, hours: int) -> dict[str, str]:
    """Topics by what they are for, filled."""
    suffix = uuid.uuid4().hex[:8]
    names = {kind: f"{kind}_{suffix}" for kind in ("delay", "checkpoint", "digests", "repairs")}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = {"delay": SHARDS, "checkpoint": SHARDS}
    new = [NewTopic(names[kind], partitions.get(kind, 1), 1) for kind in names]
    for made in admin.create_topics(new, operation_timeout=30).values():
        made.result(30)
    options = {"bootstrap.servers": bootstrap}
    topic_id = topic_id_of(admin, names["delay"])
    producer = Producer(
        {**options, "enable.idempotence": True, "linger.ms": 50, "compression.type": "zstd"}
    )
    now_ms = int(time.time() * 1_000)
    contracts = Contracts([(0, Contract())])
    for number in range(SHARDS):
        shard = ShardCheckpoint(topic_id, Cursor((now_ms, 0), 1), contracts)
        written = Checkpoint(number, "n1", 1, "", {names["delay"]: shard}, 1, Tenure("w", 0))
        value = encode_checkpoint(written)
        producer.produce(names["checkpoint"], value, b"%d" % number, number)
        producer.produce(names["delay"], msgspec.json.encode(number), partition=number)
        for node in NODES:
            place = CopyId(node, names["delay"], topic_id, number, "1")
            spoilt = set(range(7, 7 + SPOILT * 11, 11)) if (node, number) == ("n2", 5) else set()
            first_ms = (now_ms // HOUR_MS + 1) * HOUR_MS
            for key, row in rows_of(place, hours, first_ms, spoilt, now_ms):
                while True:
                    try:
                        producer.produce(names["digests"], row, key)
                        break
                    except BufferError:
                        producer.poll(1)
        producer.poll(0)
    producer.flush()
    return names


def jvm_of(spark: SparkSession) -> int:
    """Process id of a local session's JVM."""
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def cpu_s(process: int) -> float:
    """Processor time that a process has taken."""
    spent = psutil.Process(process).cpu_times()
    return spent.user + spent.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="digest rows: slots of copies")
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    hours = arguments.rows // (SHARDS * len(NODES) * SLOTS) + 1
    with EmbeddedCluster() as cluster, tempfile.TemporaryDirectory() as out:
        began_s = time.monotonic()
        names = fill(cluster.bootstrap, hours)
        filled_s = time.monotonic() - began_s
        spark = open_session("bench", master=arguments.master)
        began_s = time.monotonic()
        steps: list[tuple[str, float]] = []
        result = reconcile(
            spark,
            ReconcileOptions(
                client={"bootstrap.servers": cluster.bootstrap},
                out=out,
                checkpoint=names["checkpoint"],
                digests=names["digests"],
                repairs=names["repairs"],
                details=False,
            ),
            lambda what: steps.append((what, round(time.monotonic() - began_s, 1))),
        )
        spark_cpu_s = cpu_s(jvm_of(spark))
        spark.stop()
    figures = {
        "slot_rows": result.counts.slot_rows,
        "slots_differing": result.counts.slots_differing,
        "spoilt": SPOILT,
        "seconds": round(result.seconds, 1),
        "slot_rows_per_s": round(result.counts.slot_rows / result.seconds),
        "filled_s": round(filled_s, 1),
        "steps": steps,
        "spark_cpu_s": round(spark_cpu_s),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
