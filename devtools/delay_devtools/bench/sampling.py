"""CPU time and memory of processes, measured from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Final, Self

import psutil

INTERVAL_S: Final = 0.01
MIB: Final = 1 << 20
_BUSY_WINDOW_S: Final = 0.05
_BUSY: Final = 0.4
"""Share of a core above which a service counts as busy; an idle one uses below 0.1, a busy one
about 1.
"""
_S_PER_H: Final = 3_600


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Measurement of all sampled processes at one moment.

    Attributes:
        at_s: time of the measurement, epoch seconds.
        cpu_s: sum of the processes' CPU times since their start, user and system.
        rss_bytes: sum of the processes' resident memory.
        rss_bytes_largest: resident memory of the largest process.
    """

    at_s: float
    cpu_s: float
    rss_bytes: int
    rss_bytes_largest: int


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds that the processes have used since their start, in steps of 10 ms; a
    process that has ended counts as 0.
    """
    used_s = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system
    return used_s


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


class Sampler:
    """Sampler of CPU time and memory of processes, on a thread, inside of a ``with`` block.
    ``samples`` has all samples so far.

    Args:
        processes: processes to sample.
        interval_s: time between two samples, in s.
    """

    def __init__(self, processes: Sequence[psutil.Process], interval_s: float = INTERVAL_S) -> None:
        self._processes = processes
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self.samples: list[UsageSample] = []

    def __enter__(self) -> Self:
        """Take a sample, and start the thread that takes one every ``interval_s`` seconds."""
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the sampling thread."""
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        held = [_rss_bytes(process) for process in self._processes]
        used_s = cpu_s(self._processes)
        self.samples.append(UsageSample(time.time(), used_s, sum(held), max(held, default=0)))

    @property
    def rss_mib_peak(self) -> float:
        """Return the peak of all processes' resident memory together, in MiB."""
        return max((sample.rss_bytes for sample in self.samples), default=0) / MIB

    @property
    def rss_mib_peak_largest(self) -> float:
        """Return the peak of a single process's resident memory, in MiB."""
        return max((sample.rss_bytes_largest for sample in self.samples), default=0) / MIB


def busy_until(samples: Sequence[UsageSample], start_s: float, stop_s: float) -> float:
    """Return the end of work, epoch seconds: the last moment at which the processes had used the
    share ``_BUSY`` of a core for ``_BUSY_WINDOW_S`` seconds; without such a moment, ``start_s``
    plus ``_BUSY_WINDOW_S``.

    A service publishes its counters once a second; this gives the end to some 30 ms, late rather
    than early, and ignores work shorter than ``_BUSY_WINDOW_S``.

    Args:
        samples: samples of the processes, in order of time.
        start_s: start of the work, epoch seconds.
        stop_s: time after the end of the work, epoch seconds.
    """
    inside = [sample for sample in samples if start_s <= sample.at_s <= stop_s]
    first = 0
    ended_s = start_s + _BUSY_WINDOW_S
    for last, sample in enumerate(inside):
        while first + 1 < last and inside[first + 1].at_s <= sample.at_s - _BUSY_WINDOW_S:
            first += 1
        window_s = sample.at_s - inside[first].at_s
        if window_s > 0 and sample.cpu_s - inside[first].cpu_s >= _BUSY * window_s:
            ended_s = max(sample.at_s, ended_s)
    return ended_s


def slope_mib_per_h(samples: Sequence[UsageSample]) -> float | None:
    """Return the growth of memory in MiB/h, by least squares over the second half of the samples,
    when caches are full. None: there are too few samples.
    """
    half = samples[len(samples) // 2 :]
    if len(half) < 3:  # noqa: PLR2004 (two points are a line whatever happened)
        return None
    times = [sample.at_s - half[0].at_s for sample in half]
    held = [sample.rss_bytes / MIB for sample in half]
    return linear_regression(times, held).slope * _S_PER_H


def disk_bytes(folder: Path) -> int:
    """Return the bytes of the disk blocks that the files below ``folder`` take."""
    taken = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pruned meanwhile
            taken += path.stat().st_blocks * 512
    return taken
