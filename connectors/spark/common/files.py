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
    """Return the content of a file; None: there is none."""
    system, place = _file_system(spark, path)
    if not system.exists(place):
        return None
    stream = system.open(place)
    try:
        return bytes(stream.readAllBytes()).decode("utf-8")
    finally:
        stream.close()


def is_there(spark: SparkSession, path: str) -> bool:
    """Return whether there is such a file or folder."""
    system, place = _file_system(spark, path)
    return bool(system.exists(place))


def is_replaceable(spark: SparkSession, path: str) -> bool:
    """Return whether nothing is lost when Spark writes there anew: a folder that it wrote, or
    nothing.
    """
    system, place = _file_system(spark, path)
    if not system.exists(place):
        return True
    names = [str(status.getPath().getName()) for status in system.listStatus(place)]
    is_folder = bool(system.getFileStatus(place).isDirectory())
    return is_folder and all(name.startswith(("part-", "_", ".")) for name in names)


def delete_folder(spark: SparkSession, path: str) -> None:
    """Delete a folder and what it holds, if it is there."""
    system, place = _file_system(spark, path)
    system.delete(place, True)  # noqa: FBT003  # Java's way to say: what it holds, too


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system and path: what Spark itself writes with."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # the only way to it
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsc.hadoopConfiguration()), place  # noqa: SLF001  # as above
