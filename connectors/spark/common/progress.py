"""Shows the progress of Spark jobs on standard error: a bar on a terminal, else lines at intervals.

Spark's own progress and log lines are meant for its developers; ``hush`` suppresses them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark import StatusTracker
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

Say: TypeAlias = Callable[[str], None]
"""Function that displays a text of a few words as the program's current activity."""

LINE_EVERY_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Tasks:
    stages: int
    total: int
    running: int
    done: int
    failed: int

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} tasks done, {self.running} running{failed}"


def each_interval(interval_s: float, stop: threading.Event, say: Say) -> Iterator[None]:
    # If the caller's work takes longer than the interval, the next one begins at once.
    while not stop.is_set():
        next_s = time.monotonic() + interval_s
        yield
        say("waiting for the next interval")
        stop.wait(max(0.0, next_s - time.monotonic()))


def hush(spark: SparkSession) -> None:
    """Limit Spark's log to errors: a session from ``spark-submit`` logs more by default."""
    spark.sparkContext.setLogLevel("ERROR")


def running_tasks(tracker: StatusTracker) -> Tasks:
    """Return the numbers of tasks in the stages that run now; all are zero between two jobs."""
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]  # None: it has just ended
    return Tasks(
        stages=len(stages),
        total=sum(stage.numTasks for stage in stages),
        running=sum(stage.numActiveTasks for stage in stages),
        done=sum(stage.numCompletedTasks for stage in stages),
        failed=sum(stage.numFailedTasks for stage in stages),
    )


@contextmanager
def shown(
    spark: SparkSession, console: Console, *, is_plain: bool = False, every_s: float = LINE_EVERY_S
) -> Iterator[Say]:
    """Show progress within the block; yield the function that sets the displayed activity."""
    tracker = spark.sparkContext.statusTracker()
    is_over = threading.Event()
    view = _Lines(console, every_s) if is_plain or not console.is_terminal else _Bar(console)
    follower = threading.Thread(
        target=_follow, args=(tracker, view, is_over), name="spark-progress", daemon=True
    )
    with view:
        follower.start()
        try:
            yield view.say
        finally:
            is_over.set()
            follower.join()


def _follow(tracker: StatusTracker, view: _Bar | _Lines, is_over: threading.Event) -> None:
    while not is_over.wait(_LOOK_EVERY_S):
        view.update(running_tasks(tracker))


class _Bar:
    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[tasks]}", style="dim"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, tasks="")

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what, total=None, completed=0, tasks="")

    def update(self, tasks: Tasks) -> None:
        if tasks.stages:
            self._progress.update(
                self._task, total=tasks.total, completed=tasks.done, tasks=str(tasks)
            )


class _Lines:
    """Printer of a line every ``every_s`` seconds; for shorter jobs it prints nothing."""

    def __init__(self, console: Console, every_s: float) -> None:
        self._console = console
        self._every_s = every_s
        self._what = "starting"
        self._next_s = time.monotonic() + every_s

    def __enter__(self) -> None:
        self._next_s = time.monotonic() + self._every_s

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, what: str) -> None:
        self._what = what

    def update(self, tasks: Tasks) -> None:
        if tasks.stages and time.monotonic() >= self._next_s:
            self._next_s += self._every_s
            self._console.print(f"{self._what}: {tasks}", markup=False)
