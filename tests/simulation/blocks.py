"""Schedules in blocks, the first of which `make test` runs."""

from __future__ import annotations

from typing import Any

import pytest


def blocks(count: int, quick: int = 1) -> list[Any]:
    """Return the numbers of blocks of schedules, as parameters of a test.

    Blocks from number ``quick`` on are run by `make long`, the others by `make test`.
    """
    long = [pytest.param(block, marks=pytest.mark.long) for block in range(quick, count)]
    return [*range(quick), *long]
