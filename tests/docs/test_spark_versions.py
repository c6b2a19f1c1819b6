"""The versions that docs/internals/spark-running.md names for Spark are those of the locks."""

from __future__ import annotations

import re
import tomllib
from typing import Final

import pytest

from connectors.spark.common.session import JAVA_VERSIONS, PACKAGES, locked
from tests.docs.pages import ROOT

PAGE: Final = (ROOT / "docs/internals/spark-running.md").read_text("utf-8")
SECTION: Final = PAGE.partition("\n## Spark\n")[2].partition("\n## ")[0]
ROWS: Final = {
    what: (version, where)
    for what, version, where in re.findall(
        r"^\| (.+) \| ([\d., ]+) \| (.+) \|$", SECTION, re.MULTILINE
    )
}


def pinned(package: str) -> str:
    lock = (ROOT / "requirements/spark.txt").read_text("utf-8")
    found = re.search(rf"^{package}==(\S+)", lock, re.MULTILINE)
    assert found is not None, package
    return found[1]


def jar(name: str) -> str:
    (file,) = (one for one in locked() if f"_{name}" in one)
    return file.removesuffix(".jar").rpartition("-")[2]


def test_every_version_is_held_against_something() -> None:
    assert ROWS.keys() == EXPECTED.keys()


def test_the_versions_of_a_connector_and_its_spark_are_the_same() -> None:
    (package,) = PACKAGES
    assert package.rpartition(":")[2] == jar("spark-sql-kafka") == pinned("pyspark")


def dockerfile(pattern: str) -> str:
    found = re.search(pattern, (ROOT / "Dockerfile").read_text("utf-8"))
    assert found is not None, pattern
    return found[1]


EXPECTED: Final = {
    "Spark, as PySpark": pinned("pyspark"),
    "Scala": PACKAGES[0].split(":")[1].rpartition("_")[2],
    "Spark's connector to Kafka": jar("spark-sql-kafka"),
    "Kafka's Java client": jar("kafka-clients"),
    "Java": ", ".join(map(str, JAVA_VERSIONS)),
    "Python": dockerfile(r"BASE_IMAGE=python:(\d+\.\d+)\."),
    "pandas": pinned("pandas"),
    "pyarrow": pinned("pyarrow"),
}


@pytest.mark.parametrize("what", EXPECTED)
def test_a_version_is_that_of_the_lock(what: str) -> None:
    version, where = ROWS[what]
    assert version == EXPECTED[what]
    file = re.match(r"`([\w./]+)`", where)
    assert file is None or (ROOT / file[1]).exists()


def test_the_java_of_the_image_is_the_one_that_the_page_names() -> None:
    release = dockerfile(r"openjdk-(\d+)-jre")
    assert f"tests and image have {release}," in ROWS["Java"][1]


def test_the_page_of_the_jobs_and_the_package_name_the_same_versions() -> None:
    page = (ROOT / "docs/spark.md").read_text("utf-8")
    assert f"PySpark {pinned('pyspark')}," in page
    assert f"**Java {' or '.join(map(str, JAVA_VERSIONS))}**" in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={EXPECTED['Python']}"
