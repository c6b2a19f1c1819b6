"""Sessions of jobs: a Java process that is killed, and workers that keep what they know of the
archives on their path.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def reread_archives(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the path of each archive, and whether an invalidation of the caches reads it again."""
    directory = "_files"  # replaced by whoever reads the archive
    before = {
        path: getattr(finder, directory)
        for path, finder in sys.path_importer_cache.items()
        if hasattr(finder, directory)
    }
    importlib.invalidate_caches()
    finders = sys.path_importer_cache
    read = [getattr(finders[path], directory) is not before[path] for path in before]
    yield pa.RecordBatch.from_pydict({"path": list(before), "is_read_again": read})


def test_a_task_does_not_read_the_archives_on_its_path_again(spark: SparkSession) -> None:
    rows = spark.range(1).mapInArrow(reread_archives, "path string, is_read_again boolean")
    found = {row["path"]: row["is_read_again"] for row in rows.collect()}
    assert any("spark-core" in path for path in found)
    assert not [path for path, is_read_again in found.items() if is_read_again]


def test_a_java_process_that_is_killed_is_an_error_of_one_line() -> None:
    code = """
import psutil
from delayservice.commands.spark_session import SessionOptions
with SessionOptions(master="local[1]").running("test", as_json=True) as job:
    for java in psutil.Process().children(recursive=True):
        java.kill()
    job.spark.range(1).count()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    error = "delayservice.base.errors.DelayServiceError: Spark's Java process does not answer"
    assert error in done.stderr.splitlines()[-1], done.stderr
