"""docs/cli.md names every command with every exit status, and completion works as it says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer

from delayservice.cli import app
from tests.docs.pages import ROOT

PAGE: Final = (ROOT / "docs" / "cli.md").read_text("utf-8")
_ROW: Final = re.compile(r"^\| (`.*?) \|(.*)\|$", re.MULTILINE)


def statuses_of(name: str) -> set[int]:
    """Of a command, as the table says; 0, 1 and 2 are everybody's."""
    (cells,) = (cells for names, cells in _ROW.findall(PAGE) if f"`{name}`" in names)
    _, three, more = cells.split("|")
    found = {0, 1, 2} | ({3} if three.strip() else set())
    return found | {int(number) for number in re.findall(r"(\d):", more)}


def leaves(group: typer.Typer, above: str = "") -> Iterator[tuple[str, str]]:
    for one in group.registered_commands:
        name = one.name or getattr(one.callback, "__name__", "")
        yield f"{above}{name}", one.epilog or ""
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from leaves(below.typer_instance, f"{above}{below.name} ")


EVERY: Final = list(leaves(app))


@pytest.mark.parametrize(("name", "epilog"), EVERY, ids=[name for name, _ in EVERY])
def test_the_table_has_every_command_with_its_statuses(name: str, epilog: str) -> None:
    told = re.search(r"Exit status: (.*)", epilog)
    numbers = set(map(int, re.findall(r"(?:^|, )(\d) ", told[1]))) if told else {0, 1, 2}
    assert statuses_of(name) == numbers | {0, 1, 2}


def test_the_table_has_no_other_command() -> None:
    known = {name for name, _ in EVERY}
    table = PAGE.partition("**1** is an error")[0]
    for names, _ in _ROW.findall(table):
        assert set(re.findall(r"`([a-z ]+)`", names)) <= known


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    path = ROOT / ".venv" / "bin"
    environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"

    def bash(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],  # noqa: S607 (from the PATH)
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = bash("delayservice --show-completion; true")
    assert "complete -o default -F _delayservice_completion delayservice" in script
    (tmp_path / "completion").write_text(script, "utf-8")
    asked = (
        '. "$HOME/completion"; COMP_WORDS=(delayservice {}); COMP_CWORD={}; '
        '_delayservice_completion delayservice; echo "${{COMPREPLY[*]}}"'
    )
    assert bash(asked.format("record re", 2)).split() == ["reschedule"]
    assert "--after" in bash(asked.format("send --a", 2)).split()

    bash("delayservice --install-completion; true")
    written = [one for one in tmp_path.rglob("*") if one.is_file() and one.name != "completion"]
    assert any("delayservice" in one.read_text("utf-8") for one in written)
