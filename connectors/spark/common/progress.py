"""Shows the progress of Spark jobs on standard error: one line that changes on a terminal, else
lines at intervals.

Spark's own progress and log lines are meant for its developers; ``hush`` suppresses them. A session
of Spark Connect does not tell how many tasks there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, TypeAlias

from pyspark import StatusTracker
from pyspark.sql import SparkSession, is_remote
from rich.console import Console
from rich.markup import escape
from rich.status import Status

Say: TypeAlias = Callable[[str], None]
"""Function that displays a text of a few words as the program's current activity."""

LINE_EVERY_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.25


def each_interval(interval_s: float, stop: threading.Event, say: Say) -> Iterator[None]:
    # If the caller's work takes longer than the interval, the next one begins at once.
    while not stop.is_set():
        next_s = time.monotonic() + interval_s
        yield
        say("waiting for the next interval")
        stop.wait(max(0.0, next_s - time.monotonic()))


def hush(spark: SparkSession) -> None:
    """Limit Spark's log to errors: a session from ``spark-submit`` logs more by default."""
    if not is_remote():
        spark.sparkContext.setLogLevel("ERROR")


@contextmanager
def shown(
    spark: SparkSession, console: Console, *, is_plain: bool = False, every_s: float = LINE_EVERY_S
) -> Iterator[Say]:
    """Show progress within the block; yield the function that sets the displayed activity."""
    tracker = None if is_remote() else spark.sparkContext.statusTracker()
    is_live = console.is_terminal and not is_plain
    status = console.status("starting") if is_live else None
    view = _View(console, tracker, status)
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(_LOOK_EVERY_S if is_live else every_s):
            view.show()

    follower = threading.Thread(target=follow, name="spark-progress", daemon=True)
    with status or nullcontext():
        follower.start()
        try:
            yield view.say
        finally:
            is_over.set()
            follower.join()


class _View:
    def __init__(
        self, console: Console, tracker: StatusTracker | None, status: Status | None
    ) -> None:
        self._console = console
        self._tracker = tracker
        self._status = status
        self._since_s = time.monotonic()
        self._what = "starting"
        self._printed = ""

    def say(self, what: str) -> None:
        self._what = what
        self._since_s = time.monotonic()

    def show(self) -> None:
        """Without a terminal, print only what has changed, and no line between two jobs."""
        tasks = _tasks(self._tracker)
        text = ": ".join(filter(None, (self._what, tasks)))
        if self._status is not None:
            self._status.update(f"{escape(text)} ({time.monotonic() - self._since_s:.0f} s)")
        elif text != self._printed and (tasks or self._tracker is None):
            self._printed = text
            self._console.print(text, markup=False)


def _tasks(tracker: StatusTracker | None) -> str:
    """Return how far the stages are that run now; empty between two jobs, or if it is unknown."""
    if tracker is None:
        return ""
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]  # None: it has just ended
    if not stages:
        return ""
    total = sum(stage.numTasks for stage in stages)
    done = sum(stage.numCompletedTasks for stage in stages)
    failed = sum(stage.numFailedTasks for stage in stages)
    return f"{done:,} of {total:,} tasks done{f', {failed:,} failed' if failed else ''}"
