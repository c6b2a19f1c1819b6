"""Take-overs under way: helper threads await claims, fence writers and read checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from delayservice.engine.ports import Place
from delayservice.slices.edges import Edges
from delayservice.slices.joining import stored_of
from delayservice.slices.slice import Slice
from delayservice.slices.take_over import Taken, take_over

_GROUP_MAX: Final = 4_096
"""Most slices that are taken over together."""


@dataclass(slots=True)
class TakeOver:
    """Take-over under way.

    Attributes:
        future: facts about each slice, once it has ended.
        slices: numbers of the slices.
        stored: the next offset to be stored of each shard, when the take-over started.
    """

    future: Future[dict[int, Taken]]
    slices: tuple[int, ...]
    stored: Mapping[Place, int]


class TakeOvers:
    """Take-overs of one worker. Single-threaded, as the loop that owns it."""

    def __init__(self, edges: Edges) -> None:
        self._background = edges.background
        self._succession = edges.succession
        self._secrets = edges.fingerprints
        self._jobs: list[TakeOver] = []

    @property
    def is_going(self) -> bool:
        """Return whether a take-over is under way."""
        return bool(self._jobs)

    def clear(self) -> None:
        """Cancel and forget all take-overs, because the writer was lost."""
        for job in self._jobs:
            job.future.cancel()
        self._jobs.clear()

    def take_done(self) -> Iterator[TakeOver]:
        """Yield the take-overs that have ended, and forget each."""
        for job in [job for job in self._jobs if job.future.done()]:
            if job in self._jobs:  # else the writer was lost with the one before
                self._jobs.remove(job)
                yield job

    def begin(self, slices: Iterable[Slice], writer: str, upgraded: Collection[int]) -> None:
        """Start the take-over of slices whose claims are committed. ``upgraded``: slices whose
        first checkpoint is committed as well.
        """
        for group in _grouped(slices):
            turns = {slice_.number: slice_.turn - 1 for slice_ in group}
            stored = stored_of(lane for slice_ in group for lane in slice_.lanes.values())
            run = partial(
                take_over,
                self._succession,
                writer,
                turns,
                stored.keys(),
                self._secrets,
                upgraded,
            )
            self._jobs.append(TakeOver(self._background.submit(run), tuple(turns), stored))


def _grouped(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Yield slices in groups of at most ``_GROUP_MAX``, halved with each failed take-over."""
    by_setbacks: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_setbacks.setdefault(slice_.setbacks, []).append(slice_)
    for setbacks, group in by_setbacks.items():
        size = max(_GROUP_MAX >> setbacks, 1)
        yield from (group[at : at + size] for at in range(0, len(group), size))
