"""Programs that a test needs: without one it is skipped, and in CI (TOOLS_REQUIRED) it fails."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """End the test because the machine lacks what it needs; ``what`` says how to get it."""
    if os.environ.get("TOOLS_REQUIRED"):
        pytest.fail(what)
    pytest.skip(what)


def program(name: str, target: str) -> str:
    """Return the path of a program of the venv or of the machine.

    Args:
        name: of the program.
        target: of the Makefile; installs it.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return shutil.which(name, path=path) or missing(f"{name} is not installed: make {target}")
