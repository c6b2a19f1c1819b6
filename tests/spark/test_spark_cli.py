"""``delayservice spark`` as people and programs call it: Spark in the command's own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from rich.console import Console

from connectors.spark.common.progress import shown
from delay_devtools.cluster import EmbeddedCluster
from tests.conftest import MakeTopic
from tests.integration.bench import Reader, await_true

pytestmark = pytest.mark.cluster


def command(bootstrap: str, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "delayservice", "spark", *arguments]
    return [*words, "-b", bootstrap, "--set", "targets.default.allow=to_*", "--master", "local[2]"]


def run(
    cluster: EmbeddedCluster, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(cluster.bootstrap, *arguments),
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def rows(folder: Path, count: int) -> str:
    lines = (f"call-{n},2030-01-01T00:00:00Z,number {n}\n" for n in range(count))
    path = folder / "calls.csv"
    path.write_text("id,due,text\n" + "".join(lines), "utf-8")
    return str(path)


def asked(path: str, topic: str, target: str) -> list[str]:
    mapping = ["--at", "due", "--id", "id", "--value", "text", "-t", target]
    return ["schedule", path, "--topic", topic, *mapping]


@pytest.fixture
def topics(cluster: EmbeddedCluster, make_topic: MakeTopic) -> tuple[str, str]:
    made = (make_topic("delay_topic", partitions=2), make_topic("to"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    await_true(lambda: set(made) <= admin.list_topics(timeout=10).topics.keys(), "both are there")
    return made


def test_a_program_gets_one_object_and_people_are_told_beside_it(
    cluster: EmbeddedCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    path = rows(tmp_path, 20)
    with Path(path).open("a") as opened:
        opened.write("late,whenever,text\n")
    done = run(cluster, tmp_path, *asked(path, *topics), "--json", "--skip-rejected")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["written"], told["rejected"]) == (21, 20, {"time-invalid": 1})
    # On a slow machine there is a line each half minute, and never anything else.
    assert all("tasks done" in line for line in done.stderr.splitlines())
    with Reader(cluster.bootstrap, [topics[0]]) as reader:
        assert len(reader.to_end()) == 20
    assert not (tmp_path / "spark-warehouse").exists()
    assert not (tmp_path / "artifacts").exists()


def test_errors_are_printed_in_one_line(
    cluster: EmbeddedCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    done = run(cluster, tmp_path, *asked(rows(tmp_path, 2), "delay_topic_none", topics[1]))
    assert done.returncode == 2, done.stderr
    assert "there is no delay topic" in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def work(spark: SparkSession) -> None:
    """Two tasks of a second each."""

    def wait(batches: Iterable[object]) -> Iterator[object]:
        time.sleep(1)
        yield from batches

    spark.range(4, numPartitions=2).mapInArrow(wait, "id long").count()


def test_where_nobody_watches_a_long_step_says_a_line_now_and_then(spark: SparkSession) -> None:
    said = StringIO()
    with shown(spark, Console(file=said, width=120), every_s=0.3) as say:
        say("counting")
        work(spark)
    lines = said.getvalue().splitlines()
    assert lines
    assert all(line.startswith("counting: ") and "tasks done" in line for line in lines)


def test_on_a_terminal_a_bar_moves_under_the_words_of_the_step(spark: SparkSession) -> None:
    said = StringIO()
    console = Console(file=said, width=120, force_terminal=True)
    with shown(spark, console) as say:
        say("counting")
        work(spark)
    assert "counting" in said.getvalue()
    assert "of 2 tasks done" in said.getvalue()
