"""Caps on elapsed time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer: far longer than it should on a busy machine, and less than it
    would take without the rule.
    """
    began_s = time.monotonic()
    yield
    elapsed_s = time.monotonic() - began_s
    assert elapsed_s < seconds, f"it took {elapsed_s:.1f} s"
