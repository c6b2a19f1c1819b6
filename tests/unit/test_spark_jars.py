"""Spark's connector among Spark's own jars: what is fetched is what the lock says, or refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from connectors.spark.common import jars
from connectors.spark.common.jars import install
from connectors.spark.common.session import (
    PACKAGES,
    SparkJar,
    are_installed,
    locked,
    spark_folder,
)
from delayservice.base.errors import DelayServiceError

CONTENT = b"a jar"
JAR = SparkJar("org.example:thing_2.13:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    (folder / "org.example_thing_2.13-1.0.jar").write_bytes(CONTENT)
    return folder


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    folder = tmp_path / "spark"
    folder.mkdir()
    return folder


def test_the_lock_holds_the_connector_that_is_asked_for() -> None:
    coordinates = [jar.coordinate for jar in locked()]
    assert set(PACKAGES) <= set(coordinates)
    assert sorted(coordinates) == coordinates
    assert all(len(jar.sha256) == 64 and jar.bytes for jar in locked())


def test_what_spark_brings_itself_is_not_in_the_lock() -> None:
    own = {path.name for path in spark_folder().iterdir()}
    named = {jar.file_name for jar in locked()}
    # All of them, where they were installed; never some.
    assert named & own in (set(), named)


def test_a_jar_is_installed_under_sparks_own_kind_of_name(fetched: Path, spark: Path) -> None:
    install(fetched, spark, [JAR])
    assert [path.name for path in spark.iterdir()] == ["thing_2.13-1.0.jar"]
    assert (spark / "thing_2.13-1.0.jar").read_bytes() == CONTENT


def test_another_jar_than_the_locks_is_refused(fetched: Path, spark: Path) -> None:
    other = JAR._replace(sha256="0" * 64)
    with pytest.raises(DelayServiceError, match=r"thing_2\.13:1\.0 was fetched with SHA-256"):
        install(fetched, spark, [other])
    assert list(spark.iterdir()) == []


def test_a_jar_that_was_not_fetched_is_named(fetched: Path, spark: Path) -> None:
    missing = JAR._replace(coordinate="org.example:other:1.0")
    with pytest.raises(DelayServiceError, match=r"org\.example:other:1\.0 can't be put into"):
        install(fetched, spark, [missing])


def test_they_are_installed_when_all_of_them_are(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark.parent))
    (spark.parent / "jars").mkdir()
    names = [jar.file_name for jar in locked()]
    for name in names[:-1]:
        (spark.parent / "jars" / name).touch()
    assert not are_installed()
    (spark.parent / "jars" / names[-1]).touch()
    assert are_installed()


def test_the_lock_is_written_of_what_spark_lacks(
    fetched: Path, spark: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jars, "spark_folder", lambda: spark)
    (fetched / "org.slf4j_slf4j-api-2.0.16.jar").write_bytes(b"spark has it")
    (spark / "slf4j-api-2.0.16.jar").write_bytes(b"spark has it")
    jars.write_lock(fetched, tmp_path / "new.lock")
    rows = [r for r in (tmp_path / "new.lock").read_text().splitlines() if not r.startswith("#")]
    assert rows == [f"{JAR.coordinate} {JAR.sha256} {JAR.bytes}"]
