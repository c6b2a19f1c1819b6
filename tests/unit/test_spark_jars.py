"""Spark's connector among Spark's own jars: what is fetched is what the lock says, or refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from connectors.spark.common.session import PACKAGES, are_installed, locked, spark_folder

COMMON = Path(__file__).parents[2] / "connectors" / "spark" / "common"
# Stands in for the Python that opens a session, which fetches the jars.
PYTHON = """#!/bin/sh
mkdir "$3/jars"
echo "a jar" > "$3/jars/org.example_thing_2.13-1.0.jar"
echo "spark has it" > "$3/jars/org.slf4j_slf4j-api-2.0.16.jar"
echo "{spark}"
"""


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    folder = tmp_path / "spark"
    folder.mkdir()
    (folder / "slf4j-api-2.0.16.jar").touch()
    shutil.copy(COMMON / "install_jars.sh", tmp_path)
    (tmp_path / "python").write_text(PYTHON.format(spark=folder), "utf-8")
    (tmp_path / "python").chmod(0o755)
    return folder


def installed(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(tmp_path / "install_jars.sh"), str(tmp_path / "python"), *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_lock_holds_the_connector_that_is_asked_for() -> None:
    asked = {package.replace(":", "_", 1).replace(":", "-") + ".jar" for package in PACKAGES}
    assert asked <= set(locked())
    assert sorted(locked()) == locked()
    # All of them, where they were installed; never some.
    own = {path.name for path in spark_folder().iterdir()}
    assert set(locked()) & own in (set(), set(locked()))


def test_the_lock_is_written_of_what_spark_lacks_and_another_jar_is_refused(
    tmp_path: Path, spark: Path
) -> None:
    done = installed(tmp_path, "--lock")
    assert done.returncode == 0, done.stderr
    lock = tmp_path / "jars.lock"
    text = lock.read_text()
    assert [line.split()[1] for line in text.splitlines()] == ["org.example_thing_2.13-1.0.jar"]
    lock.write_text("0" * 64 + text[64:])
    done = installed(tmp_path)
    assert done.returncode != 0
    assert "org.example_thing_2.13-1.0.jar: FAILED" in done.stdout
    assert len(list(spark.iterdir())) == 1
    lock.write_text(text)
    done = installed(tmp_path)
    assert done.returncode == 0, done.stderr
    assert (spark / "org.example_thing_2.13-1.0.jar").read_text() == "a jar\n"


def test_they_are_installed_when_all_of_them_are(
    spark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark.parent))
    (spark.parent / "jars").mkdir()
    for name in locked()[:-1]:
        (spark.parent / "jars" / name).touch()
    assert not are_installed()
    (spark.parent / "jars" / locked()[-1]).touch()
    assert are_installed()
