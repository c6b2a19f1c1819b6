"""Starts worker processes as forks of a process that has imported their modules already.

Importing them takes a second of CPU time, which a worker that replaces a dead one would cost its
slices. The supervisor itself has threads, so it can't be forked.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
# Modules that each worker imports: those of its main function and of the command ``run``.
_PRELOADED: Final = ["delayservice.cli", "delayservice.process.worker_entry"]
CONTEXT.set_forkserver_preload(_PRELOADED)
_HELD_BACK: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def start_server() -> None:
    resource_tracker.ensure_running()  # it would end the mask
    with _signals_held_back():
        forkserver.ensure_running()


def start(process: BaseProcess) -> None:
    # SIGTERM and SIGINT wait until the process calls ``accept_signals``.
    with _signals_held_back():
        process.start()


def accept_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    # Processes inherit the mask: a signal to the whole process group must end the server only
    # after its workers, whose exit statuses it reports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
