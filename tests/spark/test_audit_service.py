"""What a target loses of what the real service delivered is found; the drill has the defects."""

from __future__ import annotations

import struct
from pathlib import Path

from pyspark.sql import SparkSession

from connectors.spark.audit import audit
from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench
from tests.spark.audits import audit_options


def test_deliveries_that_a_target_lost_with_the_end_of_its_log_are_named_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    count, kept = 40, 15
    with (
        EmbeddedCluster(brokers=1, zookeepers=0) as cluster,
        Bench(cluster.bootstrap, tmp_path, sets=("node.workers=1",)) as bench,
    ):
        service = bench.serve()
        target = bench.target("all", 2)
        sent: list[int] = []
        for wave in (kept, count):  # transactions of their own
            while len(sent) < wave:
                sent.append(bench.send(bench.to(target, 0), key=b"one")[1])
            delivered = bench.read(target, wave)
        assert service.stop() == 0
        log = f"broker-1/data/{target}-{delivered[0].partition}"
        cluster.stop_broker(1)
        cut_log(cluster.folder / log, delivered[kept].offset)
        cluster.start_broker(1)
        result = audit(spark, audit_options(bench, tmp_path / "audit"))
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
