"""Small files beside Parquet, wherever Spark writes: local folders, HDFS, object stores."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, in place of one that is there."""
    system, place = _file_system(spark, path)
    stream = system.create(place, True)  # noqa: FBT003  # Java's way to say: overwrite
    try:
        stream.write(bytearray(text, "utf-8"))
    finally:
        stream.close()


def read_text(spark: SparkSession, path: str) -> str | None:
    """What a file holds; None: there is none."""
    system, place = _file_system(spark, path)
    if not system.exists(place):
        return None
    stream = system.open(place)
    try:
        return bytes(stream.readAllBytes()).decode("utf-8")
    finally:
        stream.close()


def delete_folder(spark: SparkSession, path: str) -> None:
    """Delete a folder and what it holds, if it is there."""
    system, place = _file_system(spark, path)
    system.delete(place, True)  # noqa: FBT003  # Java's way to say: what it holds, too


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system and path: what Spark itself writes with."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # the only way to it
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place  # noqa: SLF001  # as above
