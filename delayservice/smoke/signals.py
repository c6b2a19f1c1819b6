"""Ending in good order on any signal that asks for it."""

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
    """Let SIGTERM and a closed terminal stop what runs inside as Ctrl-C does."""
    # SIGINT as well: a shell starts background commands with it ignored.
    before = [signal.signal(number, handler) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, former in zip(_NUMBERS, before, strict=True):
            signal.signal(number, former)


def ignored_signals() -> AbstractContextManager[None]:
    """Let nothing interrupt what runs inside: the end itself."""
    return stop_signals(signal.SIG_IGN)
