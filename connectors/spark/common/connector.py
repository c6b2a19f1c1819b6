"""Spark's connector to Kafka: names of its jars, and the folder in which Spark keeps them."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

PACKAGES: Final = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",)
"""Packages that Spark needs, as Maven coordinates; ``spark-submit --packages`` takes them."""

LOCK: Final = "jars.lock"


class SparkJar(NamedTuple):
    """Coordinate ``group:artifact:version``, SHA-256 in hex, size in bytes."""

    coordinate: str
    sha256: str
    bytes: int

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def fetched_name(self) -> str:
        # Spark's resolver names jars so in the folder into which it downloads them.
        group, artifact, version = self.coordinate.split(":")
        return f"{group}_{artifact}-{version}.jar"


def locked() -> tuple[SparkJar, ...]:
    """Return the jars that the Kafka connector needs and PySpark lacks, from the lock file."""
    text = resources.files(__package__).joinpath(LOCK).read_text("utf-8")
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(SparkJar(coordinate, sha256, int(size)) for coordinate, sha256, size in rows)


def spark_folder() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")


def are_installed() -> bool:
    folder = spark_folder()
    return all((folder / jar.file_name).exists() for jar in locked())
