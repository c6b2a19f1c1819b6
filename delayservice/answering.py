"""A worker's answers: each slice is looked at in turn, for a few milliseconds at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from delayservice.core.question import Ahead, Fate, Find, Horizon, Locate, Page, Pending, Search
from delayservice.core.question import merged as merged_pages
from delayservice.errors import DelayServiceError
from delayservice.lanes import looking
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.lane import Lane
from delayservice.slice_thread import SliceThread

LOOK_TIMEOUT_S: Final = 1.0
"""How long to wait for a slice that is busy."""

_Answer = Page | Fate | Horizon | list[Pending] | None


def answer(question: Search | Find | Locate | Ahead, slices: Mapping[int, SliceThread]) -> _Answer:
    """What the slices of a worker say.

    Raises:
        DelayServiceError: one of them is busy, or can't be read.
    """
    threads = [slices[number] for number in sorted(slices)]
    if isinstance(question, Search):
        return _search(question, threads)
    if isinstance(question, Find):
        return [row for thread in threads for row in _find(question, thread)]
    if isinstance(question, Locate):
        thread = slices.get(question.partition)
        return None if thread is None else _locate(question, thread)
    horizon = Horizon()
    for thread in threads:
        with _lanes(thread) as lanes:
            horizon.add(looking.ahead(lanes, question.now_ms))
    return horizon


def _search(question: Search, threads: list[SliceThread]) -> Page:
    pages = []
    for thread in threads:
        with _lanes(thread) as lanes:
            pages += [looking.search(lane, question) for lane in _precise(lanes)]
    return merged_pages(pages, question.limit)


def _find(question: Find, thread: SliceThread) -> list[Pending]:
    with _lanes(thread) as lanes:
        found = [looking.find(lane, question) for lane in _precise(lanes)]
    return [row for row in found if row is not None]


def _locate(question: Locate, thread: SliceThread) -> Fate | None:
    with _lanes(thread) as lanes:
        lane = lanes.get(question.topic)
        return None if lane is None else looking.locate(lane, question)


def _precise(lanes: Mapping[str, AnyLane]) -> list[Lane]:
    return [lane for lane in lanes.values() if isinstance(lane, Lane)]


@contextmanager
def _lanes(thread: SliceThread) -> Iterator[Mapping[str, AnyLane]]:
    """A look at a slice.

    Raises:
        DelayServiceError: it is busy; says which.
    """
    try:
        with thread.looking(LOOK_TIMEOUT_S) as lanes:
            yield lanes
    except DelayServiceError as exc:
        raise DelayServiceError(f"slice {thread.loop.slice_no}: {exc}") from exc
