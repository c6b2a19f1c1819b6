"""``deploy/systemd``: what systemd itself says of the units, and what they must agree with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.config.settings import load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, seconds
from tests.needs import program

FOLDER = ROOT / "deploy/systemd"
UNIT = FOLDER / "delayservice.service"
STANDALONE = FOLDER / "standalone.conf"
SERVICES = sorted(FOLDER.glob("*.service"))
every_service = pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
every_job = pytest.mark.parametrize(
    "unit", [unit for unit in SERVICES if unit != UNIT], ids=lambda unit: unit.stem
)
EXPOSURE_MAX = 2.0
"""Of 10; systemd calls what is below 2.5 OK, and a unit without any protection has 9.2."""


def values(unit: Path, key: str) -> list[str]:
    """All values of a key: some are given again."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


def environment(unit: Path) -> dict[str, str]:
    words = " ".join(values(unit, "Environment")).split()
    return dict(word.split("=", 1) for word in words)


def analyze(*arguments: str | Path) -> str:
    done = subprocess.run(
        [program("systemd-analyze", "systemd-tools"), "--no-pager", *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_units_and_warns_of_nothing(tmp_path: Path) -> None:
    units = []
    for unit in sorted(set(FOLDER.iterdir()) - {STANDALONE}):
        # It looks for the program, which is not installed here.
        text = unit.read_text("utf-8").replace("/opt/delayservice/bin/delayservice", sys.executable)
        units.append(tmp_path / unit.name)
        units[-1].write_text(text)
    assert len(units) == 5
    assert analyze("verify", "--man=no", *units) == ""


@every_service
def test_a_unit_exposes_next_to_nothing(unit: Path) -> None:
    told = analyze("security", "--offline=true", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found is not None, told
    assert float(found[1]) <= EXPOSURE_MAX


@every_service
def test_its_command_settings_and_secrets_are_the_services(unit: Path) -> None:
    _, *words = values(unit, "ExecStart")[0].split()
    parse(words)
    given = environment(unit)
    load(None, [], {n: v for n, v in given.items() if n.startswith("DELAYSERVICE_")})
    files = {v.removeprefix("%d/") for n, v in given.items() if n.endswith("_FILE")}
    assert {line.partition(":")[0] for line in values(unit, "LoadCredential")} == files != set()
    assert f"%S/{values(unit, 'StateDirectory')[0]}" in unit.read_text("utf-8")


def test_a_node_without_an_ensemble_is_not_started_unless_a_drop_in_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayservice.process.node.run", lambda _settings: 0)
    (usual,), alone = values(UNIT, "ExecStart"), values(STANDALONE, "ExecStart")
    assert alone == ["", usual.removesuffix(" --require zookeeper.hosts")]
    node = '[node]\ncluster_secret = "0123456789abcdef"\n[kafka]\nbootstrap = "kafka:9092"\n'
    config = tmp_path / "delayservice.toml"
    words = usual.replace("/etc/delayservice/delayservice.toml", str(config)).split()[1:]
    for hosts, status in (('hosts = "zk:2181"', 0), ('hosts = ""', 1), ("", 1)):
        config.write_text(f"{node}[zookeeper]\n{hosts}\n", "utf-8")
        assert CliRunner().invoke(app, words).exit_code == status
    assert load(config, [], environment(STANDALONE)).zookeeper.hosts == ""


def test_a_stop_is_given_the_time_that_the_node_takes() -> None:
    assert seconds(values(UNIT, "TimeoutStopSec")[0]) > STOP_TIMEOUT_S + 5
    # The supervisor ends its workers itself; a SIGTERM to all at once would be a second one.
    assert values(UNIT, "KillMode") == ["mixed"]
    assert values(UNIT, "Restart") == ["on-failure"]


@every_job
def test_a_job_runs_each_hour_and_ends(unit: Path) -> None:
    words = values(unit, "ExecStart")[0].split()
    assert words[1:3] == ["spark", unit.stem.removeprefix("delayservice-")]
    assert "--publish" in words
    assert "--follow" not in words
    # A unit fails when something was found, and is not tried again.
    assert values(unit, "Type") == ["oneshot"]
    assert values(unit, "SuccessExitStatus") == values(unit, "Restart") == []
    timer = unit.with_suffix(".timer")
    assert re.fullmatch(r"\*-\*-\* \*:\d\d:00", values(timer, "OnCalendar")[0])
    assert seconds(values(unit, "TimeoutStartSec")[0]) < 3_600
