"""``deploy/systemd``: what systemd itself says of the unit, and what it must agree with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from delayservice.settings import load
from delayservice.worker import STOP_TIMEOUT_S
from tests.deployed import ROOT, parse, seconds

UNIT = ROOT / "deploy/systemd/delayservice.service"
EXPOSURE_MAX = 2.0
"""Of 10; systemd calls what is below 2.5 OK, and a unit without any protection has 9.2."""


def service() -> dict[str, list[str]]:
    """Every value of a key of the service's section, in order: some are given again."""
    section = UNIT.read_text("utf-8").partition("[Service]\n")[2].partition("\n[")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def environment() -> dict[str, str]:
    words = " ".join(service()["Environment"]).split()
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


def test_systemd_takes_the_unit_and_warns_of_nothing(tmp_path: Path) -> None:
    # It looks for the program, which is not installed here.
    text = UNIT.read_text("utf-8").replace("/opt/delayservice/bin/delayservice", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    assert analyze("verify", "--man=no", unit) == ""


def test_the_unit_exposes_next_to_nothing() -> None:
    said = analyze("security", "--offline=true", UNIT)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE_MAX


def test_its_command_and_its_settings_are_the_services() -> None:
    program, *words = service()["ExecStart"][0].split()
    assert program.endswith("/delayservice")
    parse(words)
    ours = {n: v for n, v in environment().items() if n.startswith("DELAYSERVICE_")}
    assert load(None, [], ours).node.state_dir == Path("%S/delayservice")
    assert service()["StateDirectory"] == ["delayservice"]


def test_every_secret_comes_as_a_credential() -> None:
    given = {line.partition(":")[0] for line in service()["LoadCredential"]}
    used = {v.removeprefix("%d/") for n, v in environment().items() if n.endswith("_FILE")}
    assert given == used != set()


def test_a_stop_is_given_the_time_that_the_node_takes() -> None:
    assert seconds(service()["TimeoutStopSec"][0]) > STOP_TIMEOUT_S + 5
    # The supervisor ends its workers itself; a SIGTERM to all at once would be a second one.
    assert service()["KillMode"] == ["mixed"]
    assert service()["Restart"] == ["on-failure"]
