"""Jobs submitted to a real standalone master with two workers, against real Kafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from tests.integration.bench import Bench, Reader, await_true
from tests.spark.standalone import StandaloneCluster

ROWS = 400
DELIVERED = 60

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def standalone() -> Iterator[StandaloneCluster]:
    with StandaloneCluster() as running:
        yield running


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


def submitted(standalone: StandaloneCluster, bench: Bench, *arguments: str) -> dict[str, Any]:
    """What a job that ended well says, after making sure that both workers took part."""
    before = standalone.executors()
    done = standalone.submit(*arguments, *sets(bench), "--json")
    assert done.returncode == 0, done.stderr[-3_000:]
    assert standalone.executors() - before == 2
    return told(done)


def sets(bench: Bench) -> list[str]:
    return [word for setting in bench.settings() for word in ("--set", setting)]


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_submitted_schedule_is_written_and_delivered_once(
    standalone: StandaloneCluster, bench: Bench, tmp_path: Path
) -> None:
    target = bench.target("mails", 3)
    rows = pa.table({"id": [f"mail-{n}" for n in range(ROWS)], "n": list(range(ROWS))})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    arguments = ["schedule", str(tmp_path / "rows.parquet"), "-t", target, "--after", "1s"]
    arguments += ["--id", "id", "--key", "id", "--rejected", str(tmp_path / "rejected")]
    done = submitted(standalone, bench, *arguments)
    assert (done["rows"], done["written"], done["rejected"]) == (ROWS, ROWS, {})
    seen = bench.read(target, ROWS)
    assert {one.key for one in seen} == {b"mail-%d" % n for n in range(ROWS)}
    assert {json.loads(one.value or b"")["n"] for one in seen} == set(range(ROWS))


def test_executors_that_are_lost_while_they_write_double_no_record(
    standalone: StandaloneCluster, bench: Bench, tmp_path: Path
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
        running = pool.submit(standalone.submit, *arguments, conf=conf)
        await_true(lambda: not trap.exists() or running.done(), "a part is written by half", 200)
        assert not trap.exists(), running.result()
        assert standalone.lose_executors() > 0
        done = running.result()
    assert done.returncode == 0, done.stderr[-3_000:]
    assert told(done)["written"] == ROWS
    with Reader(bench.bootstrap, [bench.any]) as reader:
        bills = [seen.key for seen in reader.to_end() if (seen.key or b"").startswith(b"bill-")]
    assert len(bills) == len(set(bills)) == ROWS


@pytest.mark.night
def test_a_submitted_report_counts_what_was_delivered(
    standalone: StandaloneCluster, bench: Bench, tmp_path: Path
) -> None:
    orders = bench.target_name("orders")
    out = tmp_path / "report"
    done = submitted(standalone, bench, "report", "--out", str(out), "--target", orders)
    assert done["whole"]["records"] == DELIVERED
    assert orders in (out / "report.html").read_text("utf-8")


@pytest.mark.night
def test_a_submitted_audit_is_clean_after_a_service_that_did_its_work(
    standalone: StandaloneCluster, bench: Bench, tmp_path: Path
) -> None:
    done = submitted(standalone, bench, "audit", "--out", str(tmp_path / "audit"))
    assert done["clean"]
    assert done["records"] >= DELIVERED


@pytest.mark.night
def test_a_submitted_job_that_rejects_rows_ends_with_the_status_of_findings(
    standalone: StandaloneCluster, bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,due\na,2030-01-01T00:00:00Z\nb,whenever\n", "utf-8")
    arguments = ["schedule", str(tmp_path / "rows.csv"), "-t", bench.target_name("orders")]
    arguments += ["--at", "due", "--id", "id", "--rejected", str(tmp_path / "rejected")]
    done = standalone.submit(*arguments, *sets(bench), "--json")
    assert done.returncode == 3, done.stderr[-3_000:]
    assert told(done)["rejected"] == {"time-invalid": 1}
    assert pq.read_table(tmp_path / "rejected").column("id").to_pylist() == ["b"]
