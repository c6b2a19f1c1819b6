"""Clean end of a program on SIGINT, SIGTERM and SIGHUP."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def stop_signals(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers = _interrupt,
) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP by ``handler`` while the ``with`` block runs, then restore
    the former handlers. The default raises ``KeyboardInterrupt``.
    """
    # SIGINT as well: a shell starts background commands with it ignored.
    before = [signal.signal(number, handler) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, former in zip(_NUMBERS, before, strict=True):
            signal.signal(number, former)


def ignored_signals() -> AbstractContextManager[None]:
    """Return a context in which SIGINT, SIGTERM and SIGHUP are ignored, to clean up undisturbed."""
    return stop_signals(signal.SIG_IGN)
