"""Progress on a terminal, one line per step, with a bar if the step has a count; and the clean end
of a program on SIGINT, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Steps:
    """Display of the steps of a program on a terminal. Thread-safe."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        task = self._progress.add_task(what, total=None)
        yield
        self._progress.update(task, total=1, completed=1)

    def bar(self, what: str, total: int) -> Callable[[int], None]:
        """Return a function that shows how many of ``total`` are done."""
        task = self._progress.add_task(what, total=total)
        return lambda completed: self._progress.update(task, completed=completed)


@contextmanager
def steps(console: Console, *, is_shown: bool = True) -> Iterator[Steps]:
    columns = (
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not is_shown) as progress:
        yield Steps(progress)


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
