"""Progress on a terminal: one line per step, with a bar if the step has a count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """Progress bar with a text. Thread-safe."""

    def __init__(self, progress: Progress, what: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def at(self, completed: int) -> None:
        self._progress.update(self._task, completed=completed)

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)


class Steps:
    """Display of the steps of a program on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        task = self._progress.add_task(what, total=None)
        yield
        self._progress.update(task, total=1, completed=1)

    def bar(self, what: str, total: int) -> Bar:
        return Bar(self._progress, what, total)


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
