"""The library compares on Spark Connect, where there is no JVM to reach into."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from connectors.spark.common.session import java_home

PROGRAM = """
import json
from pyspark.sql import SparkSession
from connectors.spark.common.pending import uncancelled
from connectors.spark.reconcile.compare import compare

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
at_ms = 3_600_000
COPY = "node string, topic string, partition int"
HELD = f"{COPY}, key_ms bigint, offset bigint, payload_hash bigint"
sifted = spark.createDataFrame(
    [
        ("any", 0, at_ms + 10, 10, b"a", 10, 11, 1),
        ("any", 0, at_ms + 11, 11, b"a", 11, 12, 2),
        ("any", 0, at_ms + 12, 12, None, None, 13, 3),
    ],
    "topic string, partition int, key_ms bigint, offset bigint, record_id binary, "
    "canceller bigint, base bigint, payload_hash bigint",
)
held = spark.createDataFrame([("n1", "any", 0, at_ms + 12, 12, 4)], HELD)
copies = spark.createDataFrame([("n1", "any", 0, 0)], f"{COPY}, log_start bigint")
found = compare(held, uncancelled(sifted), copies)
print(json.dumps(sorted((row["kind"], row["offset"]) for row in found.collect())))
spark.stop()
"""


def test_records_are_compared_on_spark_connect() -> None:
    environment = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["different", 12], ["missing", 11]]
