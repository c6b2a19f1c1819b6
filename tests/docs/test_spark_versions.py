"""The versions that docs/internals/spark-running.md names for Spark are those of the locks."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from connectors.spark.common.session import JAVA_VERSIONS, PACKAGES, locked
from tests.docs.pages import ROOT

DOCKERFILE: Final = (ROOT / "Dockerfile").read_text("utf-8")
JAVAS: Final = [str(number) for number in JAVA_VERSIONS]


def pinned(package: str) -> str:
    lock = (ROOT / "requirements/spark.txt").read_text("utf-8")
    found = re.search(rf"^{package}==(\S+)", lock, re.MULTILINE)
    assert found is not None, package
    return found[1]


def jar(name: str) -> str:
    (file,) = (one for one in locked() if f"_{name}" in one)
    return file.removesuffix(".jar").rpartition("-")[2]


def test_the_pages_and_the_package_name_the_versions_of_the_locks() -> None:
    (package,) = PACKAGES
    assert package.rpartition(":")[2] == jar("spark-sql-kafka") == pinned("pyspark")
    (python,) = re.findall(r"BASE_IMAGE=python:(\d+\.\d+)\.", DOCKERFILE)
    (java,) = re.findall(r"openjdk-(\d+)-jre", DOCKERFILE)
    page = (ROOT / "docs/internals/spark-running.md").read_text("utf-8")
    section = page.partition("\n## Spark\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| ([\d., ]+) \| (.+) \|$", section, re.MULTILINE)
    assert {what: version for what, version, _ in rows} == {
        "Spark, as PySpark": pinned("pyspark"),
        "Scala": package.split(":")[1].rpartition("_")[2],
        "Spark's connector to Kafka": jar("spark-sql-kafka"),
        "Kafka's Java client": jar("kafka-clients"),
        "Java": ", ".join(JAVAS),
        "Python": python,
        "pandas": pinned("pandas"),
        "pyarrow": pinned("pyarrow"),
    }
    assert f"tests and image have {java}," in section
    users = (ROOT / "docs/spark.md").read_text("utf-8")
    assert f"PySpark {pinned('pyspark')}," in users
    assert f"**Java {' or '.join(JAVAS)}**" in users
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={python}"
