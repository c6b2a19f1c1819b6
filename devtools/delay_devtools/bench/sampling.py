from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

INTERVAL_S: Final = 0.01
MIB: Final = 1 << 20
_BUSY_WINDOW_S: Final = 0.05
# Share of a core above which a service counts as busy; an idle one uses below 0.1, a busy one about
# 1.
_BUSY: Final = 0.4


@dataclass(frozen=True, slots=True)
class UsageSample:
    at_s: float
    cpu_s: float
    rss_mib: float


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    used_s = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system
    return used_s


def rss_mib(processes: Iterable[psutil.Process]) -> float:
    held = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            held += process.memory_info().rss
    return held / MIB


class Sampler:
    """Samples CPU time and memory of processes on a thread, every ``interval_s`` seconds."""

    def __init__(self, processes: Sequence[psutil.Process], interval_s: float = INTERVAL_S) -> None:
        self._processes = processes
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self.samples: list[UsageSample] = []

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        sample = UsageSample(time.time(), cpu_s(self._processes), rss_mib(self._processes))
        self.samples.append(sample)

    @property
    def rss_mib_peak(self) -> float:
        return max((sample.rss_mib for sample in self.samples), default=0)

    @property
    def rss_mib_growth(self) -> float:
        return self.samples[-1].rss_mib - self.samples[0].rss_mib


def busy_until(samples: Sequence[UsageSample], start_s: float, stop_s: float) -> float:
    """Return the end of work, epoch seconds: the last moment at which the processes had used the
    share ``_BUSY`` of a core for ``_BUSY_WINDOW_S`` seconds.

    A service publishes its counters once a second; this gives the end to some 30 ms, late rather
    than early, and ignores work shorter than ``_BUSY_WINDOW_S``.
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


def disk_bytes(folder: Path) -> int:
    taken = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pruned meanwhile
            taken += path.stat().st_blocks * 512
    return taken
