"""What an installation holds, and which configuration it reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice import __version__
from delayservice.__main__ import NEEDED
from delayservice.cli import app
from delayservice.commands import options

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CLIENT_ALONE = """
from connectors.kafka import client
producer = client.DelayProducer({"log_level": 0})
producer.send("orders", b"v", delay="1h30m", cron=None)
client.LevelProducer(producer.producer).send("orders", b"v", delay=1)
assert len(producer) == 2
try:
    producer.send("delay_topic_1", b"v", delay=1)
except client.InvalidRequestError as exc:
    print(exc)
producer.producer.purge()
"""
INSTALLED_AS = {"pure-sasl": "puresasl"}


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where nothing that only the extra ``node`` brings can be imported."""
    extra = PROJECT["project"]["optional-dependencies"]["node"]
    names = [INSTALLED_AS.get(name, name.replace("-", "_")) for name in extra]
    hidden = f"import sys; sys.modules.update(dict.fromkeys({names!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + program], check=False, capture_output=True, text=True
    )


def test_the_client_works_where_only_the_base_is_installed() -> None:
    done = without_extras(CLIENT_ALONE)
    assert done.returncode == 0, done.stderr
    assert "reserved" in done.stdout


def test_the_command_says_in_one_line_what_to_install_where_only_the_base_is() -> None:
    done = without_extras("from delayservice.__main__ import main\nmain()")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"delayservice needs {', '.join(NEEDED)}" in line
    assert "[node]" in line


def test_version_and_build_backend_are_those_of_package_and_lock() -> None:
    assert PROJECT["project"]["version"] == __version__
    lock = (ROOT / "requirements" / "build.txt").read_text("utf-8")
    locked = re.findall(r"^\S+==\S+", lock, re.MULTILINE)
    assert PROJECT["build-system"]["requires"] == locked
    assert set(locked) <= set(PROJECT["project"]["optional-dependencies"]["dev"])


def test_the_package_without_a_clone_has_no_development_commands() -> None:
    program = (
        "import sys\nsys.modules['delay_devtools'] = None\nfrom delayservice.cli import app\napp()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={"TERM": "dumb", "COLUMNS": "80"},
    )
    assert "smoke" in done.stdout
    assert "bench" not in done.stdout


# --- commands find the configuration where deployments put it; a node does not --------------------


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
