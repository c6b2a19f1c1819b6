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
        """Show ``completed`` of the bar's items as done."""
        self._progress.update(self._task, completed=completed)

    def say(self, what: str) -> None:
        """Change the bar's text to ``what``."""
        self._progress.update(self._task, description=what)


class Steps:
    """Display of the steps of a program on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show ``what`` as a step without a count while the ``with`` block runs."""
        task = self._progress.add_task(what, total=None)
        yield
        self._progress.update(task, total=1, completed=1)

    def bar(self, what: str, total: int) -> Bar:
        """Show ``what`` as a step that counts to ``total``, and return its progress bar."""
        return Bar(self._progress, what, total)


@contextmanager
def steps(console: Console, *, is_shown: bool = True) -> Iterator[Steps]:
    """Yield a display of steps on ``console`` for the ``with`` block; ``is_shown`` False hides
    it.
    """
    columns = (
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not is_shown) as progress:
        yield Steps(progress)
