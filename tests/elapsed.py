"""Elapsed time: caps on it, and a clock that tests set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer: far longer than it should on a busy machine, and less than it
    would take without the rule.
    """
    began_s = time.monotonic()
    yield
    elapsed_s = time.monotonic() - began_s
    assert elapsed_s < seconds, f"it took {elapsed_s:.1f} s"
