"""``Dockerfile`` and ``.dockerignore``: what can be known of them without an engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from delayservice.settings import load
from tests.deployed import ROOT, parse

LINES = [
    line.strip()
    for line in (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    if line.strip() and not line.lstrip().startswith("#")
]


def said(word: str) -> list[str]:
    """What follows an instruction, for each time that it is given."""
    return [line.partition(" ")[2].strip() for line in LINES if line.split()[0] == word]


def test_the_base_has_a_version_and_every_stage_the_same() -> None:
    bases = {line.split()[0] for line in said("FROM")}
    assert len(bases) == 1
    assert re.search(r":\d+\.\d+\.\d+-slim-\w+$", bases.pop())


def test_it_runs_as_nobody_who_may_do_anything() -> None:
    assert said("USER") == ["10001:10001"]
    # What comes after the last USER runs by it: no RUN, which could write to the image.
    assert not [line for line in LINES[LINES.index("USER 10001:10001") :] if line[:3] == "RUN"]


def test_what_is_copied_is_in_the_context_and_nothing_else_is() -> None:
    listed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = {line[1:] for line in listed if line.startswith("!")}
    copied = {
        word.split("/")[0]
        for line in said("COPY")
        if not line.startswith("--from")
        for word in line.split()[:-1]
    }
    assert "*" in listed
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_it_exposes_the_ports_that_a_node_has_by_default() -> None:
    settings = load(None, [], {})
    ports = [
        listen.rpartition(":")[2] for listen in (settings.metrics.listen, settings.admin.listen)
    ]
    assert said("EXPOSE") == [" ".join(ports)]


def test_its_commands_and_its_environment_are_the_services() -> None:
    assert [json.loads(word) for word in said("ENTRYPOINT")] == [["delayservice"]]
    parse(json.loads(said("CMD")[-1]))
    checked = json.loads(said("HEALTHCHECK")[0].partition("CMD ")[2])
    assert checked[0] == "delayservice"
    parse(checked[1:])
    pairs = dict(pair.split("=", 1) for line in said("ENV") for pair in line.split())
    ours = {name: value for name, value in pairs.items() if name.startswith("DELAYSERVICE_")}
    assert [str(load(None, [], ours).node.state_dir)] == said("VOLUME") == said("WORKDIR")


@pytest.mark.night
@pytest.mark.timeout(600)
def test_its_steps_give_a_service_that_starts(tmp_path: Path) -> None:
    """The RUN steps of the build stage, with its folders below another one."""
    source, opt = tmp_path / "src", tmp_path / "opt"
    for line in LINES[: LINES.index(next(line for line in LINES[1:] if line[:4] == "FROM"))]:
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *names, target = rest.split()
            place = Path(target.replace("/src", str(source)))
            is_folder = target.endswith("/")
            place = place / Path(names[0]).name if is_folder and len(names) == 1 else place
            for name in names:
                into = place / name if len(names) > 1 else place
                into.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["/bin/cp", "-r", ROOT / name, into], check=True)
        elif word == "RUN":
            shell = rest.replace("/src", str(source)).replace("/opt", str(opt))
            shell = shell.replace("python -m venv", f"{sys.executable} -m venv")
            subprocess.run(["/bin/sh", "-ec", shell], check=True, cwd=tmp_path)
    done = subprocess.run(
        [opt / "delayservice/bin/delayservice", "version"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stdout.startswith("delayservice ")
    # The load of docker-compose.yml runs from the image as well: without the development extra.
    helped = subprocess.run(
        [opt / "delayservice/bin/python", "-c", "import delayservice.dev.loading"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert helped.returncode == 0, helped.stderr
