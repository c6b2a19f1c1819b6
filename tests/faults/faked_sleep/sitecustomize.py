"""Loaded at the start of a process whose wall clock is faked, before anything else of it.

``time.sleep`` asks for an instant of the monotonic clock; libfaketime, told to leave that clock
alone, then refuses with EINVAL. Waiting on no file at all takes the same time.
"""

import select
import time


def _sleep(seconds: float, /) -> None:
    select.select([], [], [], seconds)


time.sleep = _sleep  # type: ignore[assignment]  # nobody sleeps for an ``__index__``
