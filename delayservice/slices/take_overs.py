from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from delayservice.engine.ports import Place
from delayservice.slices.edges import Edges
from delayservice.slices.log_end_queries import stored_of
from delayservice.slices.slice import Slice
from delayservice.slices.take_over import Taken, take_over

_GROUP_MAX: Final = 4_096


@dataclass(slots=True)
class TakeOver:
    """Take-over of several slices on a helper thread. ``stored``: S of each shard at its start."""

    future: Future[dict[int, Taken]]
    slices: tuple[int, ...]
    stored: Mapping[Place, int]


class TakeOvers:
    """Take-overs that one worker has under way. Only the loop's thread uses it."""

    def __init__(self, edges: Edges) -> None:
        self._background = edges.background
        self._succession = edges.succession
        self._secrets = edges.fingerprints
        self._jobs: list[TakeOver] = []

    @property
    def is_going(self) -> bool:
        return bool(self._jobs)

    def clear(self) -> None:
        for job in self._jobs:
            job.future.cancel()
        self._jobs.clear()

    def take_done(self) -> Iterator[TakeOver]:
        for job in [job for job in self._jobs if job.future.done()]:
            if job in self._jobs:  # else the one before has found the writer lost
                self._jobs.remove(job)
                yield job

    def begin(self, slices: Iterable[Slice], writer: str) -> None:
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
            )
            self._jobs.append(TakeOver(self._background.submit(run), tuple(turns), stored))


# Half the size for each failure in a row.
def _grouped(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    by_setbacks: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_setbacks.setdefault(slice_.setbacks, []).append(slice_)
    for setbacks, group in by_setbacks.items():
        size = max(_GROUP_MAX >> setbacks, 1)
        yield from (group[at : at + size] for at in range(0, len(group), size))
