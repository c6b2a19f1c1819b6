"""Schedules in blocks, the first of which `make test` runs."""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

import pytest

from tests.simulation.plan import SEEDS

IS_LONG: Final = os.environ.get("SIMULATION_MODE") == "long"
FIRST_SEED: Final = secrets.randbelow(SEEDS) * SEEDS if IS_LONG else 0
"""Long runs draw fresh seeds. A schedule that breaks a promise is told with its seed, and is to be
put down in ``BROKE_ONCE``."""


def blocks(count: int, quick: int = 1) -> list[Any]:
    """Return the numbers of blocks of schedules, as parameters of a test.

    Blocks from number ``quick`` on are run by `make long`, the others by `make test`.
    """
    long = [pytest.param(block, marks=pytest.mark.long) for block in range(quick, count)]
    return [*range(quick), *long]
