"""Answers of a worker to queries. They read each slice for a few milliseconds at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from delayservice.base.errors import DelayServiceError
from delayservice.contract.entry import OFFSET_MAX
from delayservice.inspection import looking
from delayservice.inspection.query import (
    Ahead,
    BacklogCounts,
    Find,
    Locate,
    Page,
    Pending,
    RecordStatus,
    Search,
)
from delayservice.inspection.query import merged as merged_pages
from delayservice.process.worker_thread import WorkerThread
from delayservice.replicas.commands import ROWS_MAX, Command, RecordHash
from delayservice.replicas.digest import HOUR_MS, frame_hash
from delayservice.replicas.digest_rows import hash_text
from delayservice.slices.copies import copy_of
from delayservice.slices.lane import Lane

# Longest wait until a query may read a slice that is busy, in s.
LOOK_TIMEOUT_S: Final = 1.0
# Time limit of one page of a search, in s; every lane is read once even if that takes longer.
SEARCH_S: Final = 0.3
# Pause of a search after it has read a lane, in s, so that delivery comes first.
SEARCH_PAUSE_S: Final = 0.001
# Records of an hour that are read at a time.
_HOUR_ROWS: Final = 1_000

_Answer = Page | RecordStatus | BacklogCounts | list[Pending] | None


def answer(question: Search | Find | Locate | Ahead, thread: WorkerThread) -> _Answer:
    """Return the answer to a query, read from the slices of one worker. ``Locate``: the result is
    None if the worker does not keep the record's shard.
    """
    if isinstance(question, Search):
        return _search(question, thread)
    if isinstance(question, Find):
        return [row for number in thread.slices for row in _find(question, thread, number)]
    if isinstance(question, Locate):
        is_here = question.partition in thread.slices
        return _locate(question, thread) if is_here else None
    horizon = BacklogCounts(now_ms=question.now_ms)
    for number in thread.slices:
        with _lanes(thread, number) as lanes:
            horizon.add(looking.ahead(lanes, question.now_ms))
    return horizon


def _search(question: Search, thread: WorkerThread) -> Page:
    # In small steps, by rotation: the loop waits during each of them.
    searches = [(n, one) for n in thread.slices for one in _begun(question, thread, n)]
    deadline_s = time.monotonic() + SEARCH_S
    while True:
        going = [(number, one) for number, one in searches if not one.is_over]
        for number, one in going:
            with _lanes(thread, number) as lanes:
                if lanes.get(one.lane.topic) is not one.lane:
                    raise DelayServiceError("it was closed meanwhile; try again")
                one.read()
            one.sift()
            time.sleep(SEARCH_PAUSE_S)  # delivery comes first
        if not going or time.monotonic() > deadline_s:
            break
    return merged_pages([one.page() for _, one in searches], question.limit)


def _begun(question: Search, thread: WorkerThread, number: int) -> list[looking.LaneSearch]:
    with _lanes(thread, number) as lanes:
        return [looking.LaneSearch(lane, question) for lane in _precise(lanes)]


def _find(question: Find, thread: WorkerThread, number: int) -> list[Pending]:
    with _lanes(thread, number) as lanes:
        found = [looking.find(lane, question) for lane in _precise(lanes)]
    return [row for row in found if row is not None]


def _locate(question: Locate, thread: WorkerThread) -> RecordStatus | None:
    with _lanes(thread, question.partition) as lanes:
        lane = lanes.get(question.topic)
        return None if lane is None else looking.locate(lane, question)


def hour_records(
    command: Command, thread: WorkerThread, now_ms: int
) -> tuple[list[RecordHash], bool]:
    """Return the records of an hour of a copy in key order, and whether it has more than
    ``ROWS_MAX``. Raises ``DelayServiceError``: the copy can't be read.
    """
    rows: list[RecordHash] = []
    after, upto = (command.hour_ms, -1), (command.hour_ms + HOUR_MS - 1, OFFSET_MAX)
    seen = scanner = None
    while after < upto and len(rows) <= ROWS_MAX:
        with _lanes(thread, command.partition) as lanes:
            lane = copy_of(command, lanes, now_ms)
            if scanner is None or lane is not seen:
                seen, scanner = lane, lane.store.scanner()
            frames, after, damage = scanner.read_on(after, upto, _HOUR_ROWS)
        if damage is not None:
            raise damage
        for key_ms, offset, mark, payload in frames:
            hashed = frame_hash(key_ms, offset, None, payload)
            rows.append((key_ms, offset, mark, hash_text(hashed)))
        time.sleep(SEARCH_PAUSE_S)  # delivery comes first
    return rows[:ROWS_MAX], len(rows) > ROWS_MAX


def _precise(lanes: Mapping[str, Lane]) -> list[Lane]:
    return [lane for lane in lanes.values() if lane.window is None]


@contextmanager
def _lanes(thread: WorkerThread, number: int) -> Iterator[Mapping[str, Lane]]:
    try:
        with thread.looking(number, LOOK_TIMEOUT_S) as lanes:
            yield lanes
    except DelayServiceError as exc:
        raise DelayServiceError(f"slice {number}: {exc}") from exc
