"""An archive is audited when the topics are gone, and finds what an audit of the topics found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.archive import ARCHIVE, ArchiveOptions, Batch, audit_archive, capture
from connectors.spark.audit import AuditOptions, AuditResult
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import DelayServiceError
from tests.integration.bench import await_true
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory

MINUTE = 60_000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(cluster: EmbeddedCluster) -> Iterator[MadeHistory]:
    with MadeHistory(cluster.bootstrap, 2) as made:
        yield made


def options(h: MadeHistory, out: Path) -> AuditOptions:
    return audit_options(h, out, overdue_ms=None)


def written(spark: SparkSession, h: MadeHistory, path: Path, *, values: bool = False) -> Batch:
    return capture(spark, ArchiveOptions(options(h, path), values))


def found_in(spark: SparkSession, result: AuditResult) -> set[tuple[object, ...]]:
    rows = spark.read.parquet(result.findings_path).collect()
    return {
        tuple(row[name] for name in ("id", "kind", "topic", "offset", "detail")) for row in rows
    }


def test_batches_are_added_and_values_are_kept_where_they_are_asked_for(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    first = h.record(due_ms, value=b"one")
    h.delivered(first, due_ms, value=b"one")
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    written(spark, h, path, values=True)
    second, third = (h.record(due_ms, value=b"two") for _ in range(2))
    h.delivered(third, due_ms, value=b"three")
    h.settled(h.now_ms)
    written(spark, h, path, values=True)
    rows = spark.read.schema(ARCHIVE).parquet(f"{path}/records").where(f"topic = '{h.delay}'")
    values = sorted((row["offset"], bytes(row["value"])) for row in rows.collect())
    assert values == [(first, b"one"), (second, b"two"), (third, b"two")]
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert result.findings == {"altered": 1, "lost": 1}


def test_every_cut_is_one_at_which_the_archive_can_be_judged(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    """What is pending at one cut is settled at the next; without new records there is no batch."""
    h = history
    soon_ms = h.now_ms + MINUTE
    offset = h.record(soon_ms)
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    assert written(spark, h, path).number == 0
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert (result.findings, result.counts["pending"]) == ({}, 1)
    assert written(spark, h, path).number == 0
    h.delivered(offset, soon_ms)
    h.settled(soon_ms + 1)
    assert written(spark, h, path).number == 1
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert (result.findings, result.counts["delivered"]) == ({}, 1)


def test_an_archive_refuses_a_topic_that_was_created_again(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(10)
    h.settled(h.now_ms)
    written(spark, h, tmp_path)
    h.make_anew()
    h.plain(20)
    h.settled(h.now_ms)
    with pytest.raises(DelayServiceError, match=f"topic {h.delay} was deleted and created again"):
        written(spark, h, tmp_path)


def test_what_was_delivered_to_a_topic_that_is_deleted_stays_delivered(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    h.delivered(h.record(due_ms, target=h.other), due_ms, topic=h.other)
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    written(spark, h, path)
    h.delete(h.other)
    for _ in range(2):  # it is known to the batch after the next one too
        h.delivered(h.record(due_ms), due_ms)
        h.settled(h.now_ms)
        written(spark, h, path)
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert (result.findings, result.unjudged, result.counts["delivered"]) == ({}, {}, 3)


def test_a_batch_that_is_made_again_takes_the_place_of_the_first(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    """The state is that after a kill before the manifest was written."""
    h = history
    due_ms = h.now_ms - MINUTE
    h.delivered(h.record(due_ms), due_ms)
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    written(spark, h, path)
    (path / "batches" / "00000000.msgpack").unlink()
    written(spark, h, path)
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert (result.findings, result.records, result.counts["delivered"]) == ({}, 1, 1)


def test_the_command_that_is_told_to_stop_ends_after_its_batch_with_one_line(
    history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    h.plain(10)
    h.settled(h.now_ms)
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "delayservice", "spark", "archive", "--interval", "1s"),
            *("--out", "archive", *h.settings()),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    manifest = tmp_path / "archive" / "batches" / "00000000.msgpack"
    await_true(lambda: manifest.exists() or job.poll() is not None, "a batch is written", 120)
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=120)
    assert (job.returncode, out) == (0, "1 batches in archive\n"), err
    assert "Traceback" not in err


@pytest.mark.night
@pytest.mark.parametrize("remote", ["", "local[2]"])
def test_a_notebook_judges_it_also_over_spark_connect(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, remote: str
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    h.delivered(h.record(due_ms), due_ms)
    h.delivery(due_ms - 1, h.record(due_ms, ("delay-id", b"a")), due_ms)
    h.record(due_ms)
    h.settled(h.now_ms)
    written(spark, h, tmp_path / "archive")
    script = str(ROOT / "docs/examples/audit_notebook.py")
    notebook = [sys.executable, script, str(tmp_path / "archive")]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/client", "PYSPARK_PYTHON": sys.executable}
    env |= {"SPARK_REMOTE": remote} if remote else {}
    done = subprocess.run(
        notebook, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    cells = [tuple(line.strip("|").replace(" ", "").split("|")) for line in done.stdout.split("\n")]
    assert {("true", "early", "1"), ("true", "lost", "1")} <= set(cells)
    assert sum(cell[0] == "true" for cell in cells) == 2
