"""Jobs submitted to a Spark master with two workers, whose executors are processes of their own;
against real Kafka.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from connectors.spark.common import session
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from delayservice.commands import spark_job
from tests.integration.bench import Bench, Reader, await_true

ROWS = 400
DELIVERED = 60
EXECUTOR = "CoarseGrainedExecutorBackend"

pytestmark = [pytest.mark.cluster, pytest.mark.night]


class Spark:
    """Submits jobs; each gets a master and two workers with one core each. They keep the folders of
    their executors below Spark's own, which is made of links here.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder
        for one in Path(pyspark.__file__).parent.iterdir():
            (folder / one.name).symlink_to(one)

    def submit(
        self, *arguments: str, conf: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", **(conf or {})}
        command = [
            str(self.home / "bin" / "spark-submit"),
            *("--master", "local-cluster[2,1,640]", "--packages", ",".join(session.PACKAGES)),
            *("--driver-memory", "512m"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *(spark_job.__file__, *arguments),
        ]
        environ = {"SPARK_HOME": str(self.home), "JAVA_HOME": str(session.java_home())}
        environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.run(
            command,
            env=os.environ | environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def executors(self) -> int:
        """How many executors the jobs have had."""
        return sum(path.name.isdigit() for path in self.home.glob("work/app-*/*"))


def lose_executors() -> int:
    """Kill all executors that run; how many there were. Their master starts others."""
    lost = 0
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if any(EXECUTOR in word for word in one.cmdline()):
                one.kill()
                lost += 1
    return lost


@pytest.fixture(scope="module")
def spark_of_two(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    return Spark(tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A service that has delivered some records, and goes on."""
    folder = tmp_path_factory.mktemp("bench")
    with Bench(cluster.bootstrap, folder, partitions=2) as bench:
        orders = bench.target("orders", 2)
        bench.serve()
        for n in range(DELIVERED):
            bench.send_later(bench.to(orders, 100), partition=n % 2, key=b"%d" % n)
        bench.producer.flush()
        bench.read(orders, DELIVERED)
        yield bench


def submitted(spark: Spark, bench: Bench, *arguments: str) -> dict[str, Any]:
    """Return what a job says; assert that it ended well and both workers took part."""
    before = spark.executors()
    done = spark.submit(*arguments, *sets(bench), "--json")
    assert done.returncode == 0, done.stderr[-3_000:]
    assert spark.executors() - before == 2
    return told(done)


def sets(bench: Bench) -> list[str]:
    return [word for setting in bench.settings() for word in ("--set", setting)]


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_submitted_schedule_is_written_and_delivered_once(
    spark_of_two: Spark, bench: Bench, tmp_path: Path
) -> None:
    target = bench.target("mails", 3)
    rows = pa.table({"id": [f"mail-{n}" for n in range(ROWS)], "n": list(range(ROWS))})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    arguments = ["schedule", str(tmp_path / "rows.parquet"), "-t", target, "--after", "1s"]
    arguments += ["--id", "id", "--key", "id", "--rejected", str(tmp_path / "rejected")]
    done = submitted(spark_of_two, bench, *arguments)
    assert (done["rows"], done["written"], done["rejected"]) == (ROWS, ROWS, {})
    seen = bench.read(target, ROWS)
    assert {one.key for one in seen} == {b"mail-%d" % n for n in range(ROWS)}
    assert {json.loads(one.value or b"")["n"] for one in seen} == set(range(ROWS))


def test_executors_that_are_lost_while_they_write_double_no_record(
    spark_of_two: Spark, bench: Bench, tmp_path: Path
) -> None:
    target, trap = bench.target("bills", 1), tmp_path / "trap"
    pq.write_table(pa.table({"id": [f"bill-{n}" for n in range(ROWS)]}), tmp_path / "bills.parquet")
    arguments = ["schedule", str(tmp_path / "bills.parquet"), "-t", target, "--after", "1d"]
    arguments += ["--id", "id", "--rejected", str(tmp_path / "rejected"), *sets(bench), "--json"]
    conf = {
        f"spark.executorEnv.{faults.VARIABLE}": f"bulk_committed:stick:{trap}",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    trap.touch()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(spark_of_two.submit, *arguments, conf=conf)
        await_true(lambda: not trap.exists() or running.done(), "a part is written by half", 200)
        assert not trap.exists(), running.result()
        assert lose_executors() > 0
        done = running.result()
    assert done.returncode == 0, done.stderr[-3_000:]
    assert told(done)["written"] == ROWS
    with Reader(bench.bootstrap, [bench.any]) as reader:
        bills = [seen.key for seen in reader.to_end() if (seen.key or b"").startswith(b"bill-")]
    assert len(bills) == len(set(bills)) == ROWS


def test_a_submitted_report_counts_what_was_delivered(
    spark_of_two: Spark, bench: Bench, tmp_path: Path
) -> None:
    orders = bench.target_name("orders")
    out = tmp_path / "report"
    done = submitted(spark_of_two, bench, "report", "--out", str(out), "--target", orders)
    assert done["whole"]["records"] == DELIVERED
    assert orders in (out / "report.html").read_text("utf-8")


def test_a_submitted_audit_is_clean_after_a_service_that_did_its_work(
    spark_of_two: Spark, bench: Bench, tmp_path: Path
) -> None:
    done = submitted(spark_of_two, bench, "audit", "--out", str(tmp_path / "audit"))
    assert done["clean"]
    assert done["records"] >= DELIVERED
