"""Commands find the configuration where deployments put it; a node does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.commands import options


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "delayservice.toml"
    path.write_text('[kafka]\nbootstrap = "installed:9092"\n', "utf-8")
    monkeypatch.setattr(options, "INSTALLED", path)
    return path


def bootstrap(*words: str) -> dict[str, str]:
    done = CliRunner().invoke(app, ["config", "show", "--json", *words])
    assert done.exit_code == 0, done.output
    found: dict[str, str] = json.loads(done.stdout)["kafka.bootstrap"]
    return found


def test_a_command_reads_the_installed_file_and_says_so(installed: Path) -> None:
    assert bootstrap() == {"value": "installed:9092", "origin": installed.name}


@pytest.mark.usefixtures("installed")
def test_another_file_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[kafka]\nbootstrap = "other:9092"\n', "utf-8")
    assert bootstrap("--config", str(other))["value"] == "other:9092"
    monkeypatch.setenv("DELAYSERVICE_CONFIG", str(other))
    assert bootstrap()["value"] == "other:9092"


@pytest.mark.usefixtures("installed")
def test_a_node_is_given_its_own() -> None:
    assert options.load(None, [], is_node=True).settings.kafka.bootstrap != "installed:9092"
    assert options.load(None, []).settings.kafka.bootstrap == "installed:9092"


def test_nothing_installed_is_nothing_read(installed: Path) -> None:
    installed.unlink()
    assert bootstrap()["origin"] == "default"
