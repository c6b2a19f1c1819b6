"""Library and commands work on Spark Connect, where there is no JVM to reach into."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.spark.common.session import java_home
from delay_devtools.cluster import EmbeddedCluster
from tests.spark.made_history import MadeHistory

ENVIRONMENT = {**os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}

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


def csv_rows(folder: Path) -> list[list[str]]:
    return [row for path in folder.glob("*.csv") for row in csv.reader(path.open())]


@pytest.mark.night
def test_records_are_compared_on_spark_connect() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["different", 12], ["missing", 11]]


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (["audit", "--format", "csv"], 3),
        pytest.param(["report", "--top", "5"], 0, marks=pytest.mark.night),
    ],
)
def test_the_commands_run_on_spark_connect(
    cluster: EmbeddedCluster, tmp_path: Path, job: list[str], status: int
) -> None:
    """One record is delivered, one is lost."""
    with MadeHistory(cluster.bootstrap) as h:
        due_ms = h.now_ms - 60_000
        h.delivered(h.record(due_ms), due_ms)
        h.record(due_ms)
        h.settled(h.now_ms)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "delayservice", "spark", *job, "--json"),
            *("--out", str(tmp_path / "out"), *h.settings()),
        ],
        env={**ENVIRONMENT, "SPARK_REMOTE": "local[2]"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == status, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    if job[0] == "report":
        assert found["whole"]["records"] == 1
    else:
        assert found["findings"] == {"lost": 1}
        (row,) = csv_rows(tmp_path / "out" / "findings.csv")
        assert row[1] == "lost"
