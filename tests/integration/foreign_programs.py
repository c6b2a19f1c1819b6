"""Programs in other languages: what they need is fetched, and they are built and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from delay_devtools.jars import ensure_jars
from tests.needs import missing

MISSING: Final = re.compile(
    r"ECONN\w+|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|dial tcp.*|i/o timeout|requires go >= \S+"
    r"|Could not transfer artifact|Could not find artifact|Unknown host|Could not resolve host"
    r"|failed to download|Could not find a version"
)
"""What Go, npm, Maven, Cargo and pip say where the registry can't be reached or lacks a package."""


def need(*tools: str) -> None:
    if absent := [tool for tool in tools if shutil.which(tool) is None]:
        missing(f"not installed: {', '.join(absent)}")


def class_path(*more: str) -> str:
    """Kafka's own jars, and more."""
    return os.pathsep.join([*more, *map(str, ensure_jars())])


def fetch(command: str, folder: Path) -> None:
    """Run what may fetch a client; a registry that can't be reached skips the test."""
    try:
        run(command.split(), folder, GOTOOLCHAIN="local")
    except AssertionError as exc:
        if found := MISSING.search(str(exc)):
            pytest.skip(f"{command}: {found[0]}")
        raise


def run(command: Sequence[str], folder: Path, text: str = "", **environment: str) -> None:
    """Run a program to its end, which must be a good one."""
    done = subprocess.run(
        command,
        cwd=folder,
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
