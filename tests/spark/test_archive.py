"""An archive is audited when the topics are gone, and finds what an audit of the topics found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.archive import ARCHIVE, Archive, ArchiveOptions, audit_archive, start_archive
from connectors.spark.audit import AuditOptions, AuditResult, audit
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import DelayServiceError
from tests.spark.made_history import MadeHistory

MINUTE = 60_000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def history(cluster: EmbeddedCluster) -> Iterator[MadeHistory]:
    with MadeHistory(cluster.bootstrap, 2) as made:
        yield made


def options(h: MadeHistory, out: Path) -> AuditOptions:
    return AuditOptions(
        client=h.client,
        out=str(out),
        checkpoint=h.checkpoint,
        dead_letter=h.dead_letter,
        outcomes=h.outcomes,
        allow=tuple(h.allow),
        overdue_ms=None,
    )


def written(spark: SparkSession, h: MadeHistory, path: Path, *, values: bool = False) -> None:
    query = start_archive(spark, ArchiveOptions(options(h, path), 0, values=values))
    query.awaitTermination()


def found_in(spark: SparkSession, result: AuditResult) -> set[tuple[object, ...]]:
    rows = spark.read.parquet(result.findings_path).collect()
    return {
        tuple(row[name] for name in ("id", "kind", "topic", "offset", "detail")) for row in rows
    }


def test_the_archive_of_defects_has_the_findings_of_the_topics(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    h.plain(50)
    h.delivery(h.source(due_ms, ("delay-id", b"a"), key=b"k"), due_ms, key=b"k", at_ms=due_ms - 1)
    h.source(due_ms)
    h.delivery(h.source(due_ms), due_ms, value=b"another")
    h.letter(h.write(h.delay, [("delay-at", b"soon")]), code="")
    h.settled(h.now_ms)
    live = audit(spark, options(h, tmp_path / "live"))
    written(spark, h, tmp_path / "archive")
    nowhere = replace(options(h, tmp_path / "later"), client={})
    later = audit_archive(spark, nowhere, str(tmp_path / "archive"))
    kinds = {"early": 1, "lost": 1, "altered": 1, "dead_letter_missing_code": 1}
    assert later.findings == live.findings == kinds
    assert found_in(spark, later) == found_in(spark, live)
    assert later.counts == live.counts


def test_batches_are_added_and_values_are_kept_where_they_are_asked_for(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    first = h.source(due_ms, value=b"one")
    h.delivery(first, due_ms, value=b"one")
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    written(spark, h, path, values=True)
    second, third = (h.source(due_ms, value=b"two") for _ in range(2))
    h.delivery(third, due_ms, value=b"three")
    h.settled(h.now_ms)
    written(spark, h, path, values=True)
    rows = spark.read.schema(ARCHIVE).parquet(f"{path}/records").where(f"topic = '{h.delay}'")
    values = sorted((row["offset"], bytes(row["value"])) for row in rows.collect())
    assert values == [(first, b"one"), (second, b"two"), (third, b"two")]
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert result.findings == {"altered": 1, "lost": 1}
    assert Archive(str(path)).numbers() == [0, 1]


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
    assert Archive(str(tmp_path)).numbers() == [0]


def test_a_batch_that_is_made_again_takes_the_place_of_the_first(
    spark: SparkSession, history: MadeHistory, tmp_path: Path
) -> None:
    """As after a crash between the batch and Spark's own note that it is done."""
    h = history
    due_ms = h.now_ms - MINUTE
    h.delivery(h.source(due_ms), due_ms)
    h.settled(h.now_ms)
    path = tmp_path / "archive"
    written(spark, h, path)
    for note in (path / "state" / "commits").glob("*0*"):
        note.unlink()
    written(spark, h, path)
    result = audit_archive(spark, options(h, tmp_path / "out"), str(path))
    assert (result.findings, result.records, result.counts["delivered"]) == ({}, 1, 1)


@pytest.mark.parametrize("remote", [pytest.param("", marks=pytest.mark.night), "local[2]"])
def test_a_notebook_judges_it_also_over_spark_connect(
    spark: SparkSession, history: MadeHistory, tmp_path: Path, remote: str
) -> None:
    h = history
    due_ms = h.now_ms - MINUTE
    h.delivery(h.source(due_ms), due_ms)
    h.delivery(h.source(due_ms, ("delay-id", b"a")), due_ms, at_ms=due_ms - 1)
    h.source(due_ms)
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
