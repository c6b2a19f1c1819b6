"""``deploy/systemd``: what systemd itself says of the unit, and what it must agree with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.config.settings import load
from delayservice.process.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, seconds

FOLDER = ROOT / "deploy/systemd"
UNIT = FOLDER / "delayservice.service"
STANDALONE = FOLDER / "standalone.conf"
JOBS = ("audit", "reconcile")
SERVICES = [UNIT, *(FOLDER / f"delayservice-{job}.service" for job in JOBS)]
every_service = pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
every_job = pytest.mark.parametrize("job", JOBS)
EXPOSURE_MAX = 2.0
"""Of 10; systemd calls what is below 2.5 OK, and a unit without any protection has 9.2."""


def section(unit: Path, name: str) -> dict[str, list[str]]:
    """Every value of a key of a section, in order: some are given again."""
    text = unit.read_text("utf-8").partition(f"[{name}]\n")[2].partition("\n[")[0]
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def service(unit: Path = UNIT) -> dict[str, list[str]]:
    return section(unit, "Service")


def environment(unit: Path = UNIT) -> dict[str, str]:
    words = " ".join(service(unit)["Environment"]).split()
    return dict(word.split("=", 1) for word in words)


def analyze(*arguments: str | Path) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: type `make compose-tools`")
    done = subprocess.run(
        [program, "--no-pager", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_unit_is_one_that_is_looked_at() -> None:
    timers = {FOLDER / f"delayservice-{job}.timer" for job in JOBS}
    assert set(FOLDER.iterdir()) == {*SERVICES, *timers, STANDALONE}


def test_systemd_takes_the_units_and_warns_of_nothing(tmp_path: Path) -> None:
    units = []
    for unit in sorted(set(FOLDER.iterdir()) - {STANDALONE}):
        # It looks for the program, which is not installed here.
        text = unit.read_text("utf-8").replace("/opt/delayservice/bin/delayservice", sys.executable)
        units.append(tmp_path / unit.name)
        units[-1].write_text(text)
    assert analyze("verify", "--man=no", *units) == ""


@every_service
def test_a_unit_exposes_next_to_nothing(unit: Path) -> None:
    said = analyze("security", "--offline=true", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


@every_job
def test_a_job_is_guarded_as_the_service(job: str) -> None:
    lines = UNIT.read_text("utf-8").splitlines()
    guards = lines[lines.index("NoNewPrivileges=yes") : lines.index("[Install]")]
    own = (FOLDER / f"delayservice-{job}.service").read_text("utf-8").splitlines()
    assert [line for line in guards if line and line not in own] == []


def test_its_command_and_its_settings_are_the_services() -> None:
    program, *words = service()["ExecStart"][0].split()
    assert program.endswith("/delayservice")
    parse(words)
    ours = {n: v for n, v in environment().items() if n.startswith("DELAYSERVICE_")}
    assert load(None, [], ours).node.state_dir == Path("%S/delayservice")
    assert service()["StateDirectory"] == ["delayservice"]


def test_a_node_without_an_ensemble_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayservice.process.node.run", lambda _settings: 0)
    _, *words = service()["ExecStart"][0].split()
    node = '[node]\ncluster_secret = "0123456789abcdef"\n[kafka]\nbootstrap = "kafka:9092"\n'
    statuses = []
    for number, text in enumerate(['hosts = "zk:2181"', 'hosts = ""', ""]):
        config = tmp_path / f"{number}.toml"
        config.write_text(f"{node}[zookeeper]\n{text}\n", "utf-8")
        words[words.index("--config") + 1] = str(config)
        statuses.append(CliRunner().invoke(app, words).exit_code)
    assert statuses == [0, 1, 1]


def test_a_single_node_is_allowed_by_a_drop_in(tmp_path: Path) -> None:
    own, usual = service(STANDALONE), service()["ExecStart"][0]
    assert own["ExecStart"] == ["", usual.removesuffix(" --require zookeeper.hosts")]
    name, _, value = own["Environment"][0].partition("=")
    config = tmp_path / "delayservice.toml"
    config.write_text(
        '[node]\ncluster_secret = "0123456789abcdef"\n[zookeeper]\nhosts = "zk:2181"\n', "utf-8"
    )
    assert load(config, [], {name: value}).zookeeper.hosts == ""


def test_machines_differ_in_a_file_of_variables_alone() -> None:
    assert service()["EnvironmentFile"] == ["-/etc/delayservice/node.env"]
    assert load(None, [], {"DELAYSERVICE_NODE__BROKER_ID": "3"}).node.broker_id == 3


@every_service
def test_every_secret_comes_as_a_credential(unit: Path) -> None:
    given = {line.partition(":")[0] for line in service(unit)["LoadCredential"]}
    used = {v.removeprefix("%d/") for n, v in environment(unit).items() if n.endswith("_FILE")}
    assert given == used != set()


def test_a_stop_is_given_the_time_that_the_node_takes() -> None:
    assert seconds(service()["TimeoutStopSec"][0]) > STOP_TIMEOUT_S + 5
    # The supervisor ends its workers itself; a SIGTERM to all at once would be a second one.
    assert service()["KillMode"] == ["mixed"]
    assert service()["Restart"] == ["on-failure"]


@every_job
def test_a_job_is_a_command_that_ends_and_writes_to_its_own_folder(job: str) -> None:
    unit = FOLDER / f"delayservice-{job}.service"
    own = service(unit)
    program, *words = own["ExecStart"][0].split()
    assert program == service()["ExecStart"][0].split()[0]
    assert words[:2] == ["spark", job]
    parse(words)
    assert "--publish" in words
    assert "--follow" not in words
    assert own["StateDirectory"] == own["User"] == [unit.stem]
    folder = f"%S/{unit.stem}"
    assert words[words.index("--out") + 1].startswith(f"{folder}/")
    assert own["WorkingDirectory"] == [folder] == [environment(unit)["HOME"]]
    ours = {n: v for n, v in environment(unit).items() if n.startswith("DELAYSERVICE_")}
    load(None, [], ours)
    # A result that is none to be proud of is a unit that failed, and is not tried again.
    assert own["Type"] == ["oneshot"]
    assert not {"SuccessExitStatus", "Restart"} & own.keys()


@every_job
def test_a_timer_starts_the_job_of_its_name_each_hour(job: str) -> None:
    timer = FOLDER / f"delayservice-{job}.timer"
    own = section(timer, "Timer")
    assert "Unit" not in own  # that of its name
    assert re.fullmatch(r"\*-\*-\* \*:\d\d:00", own["OnCalendar"][0])
    assert own["Persistent"] == ["yes"]
    assert section(timer, "Install") == {"WantedBy": ["timers.target"]}
    # It is over before the next one begins.
    most = seconds(service(FOLDER / f"delayservice-{job}.service")["TimeoutStartSec"][0])
    assert most < 3_600
