"""What the distribution says and holds, without building it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from delayservice import __version__
from delayservice.__main__ import NEEDED

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
