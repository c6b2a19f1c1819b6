"""Periodic work of a worker's loop beside delivery: apply checkpoints, update copies and metrics,
sync stores. No turn does all of it for every slice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.disk import DiskLevel
from delayservice.engine.ports import Checkpoints, Clock, ReadBack
from delayservice.slices.phase import OWNED
from delayservice.slices.slice import Slice

_TENDED_PER_S: Final = 20
"""Most idle slices that are tended per second."""
_ROUND_S: Final = 4.0
"""Least time between two visits to an idle slice, seconds."""


@dataclass(frozen=True, slots=True)
class UpkeepPace:
    """Intervals of upkeep, in seconds.

    Attributes:
        news_s: least time between two applications of checkpoints that were read back.
        tend_s: time between two updates of the copies and metrics of active slices.
        sync_s: time between two syncs of the stores. A restart reads the log from the durable
            horizon on, so the horizon must not become older than the log's retention.
    """

    news_s: float = 0.2
    tend_s: float = 1.0
    sync_s: float = 60.0


class Upkeep:
    """Upkeep of one worker's slices. Single-threaded, as the loop that owns it; only ``attend`` may
    be called by other threads.

    Args:
        slices: the slices of the loop, by number.
        checkpoints: checkpoints that are read back.
        clock: monotonic clock.
        pace: intervals.
        disk_level: returns how full the disk is.
        tended: updates the metrics of a slice; returns whether to call it again in a second.
        heard: takes a slice and its checkpoint that was read back.
        interrupted: takes a slice that can't be served, and why.
    """

    def __init__(
        self,
        slices: dict[int, Slice],
        checkpoints: Checkpoints,
        clock: Clock,
        pace: UpkeepPace,
        *,
        disk_level: Callable[[], DiskLevel],
        tended: Callable[[Slice], bool],
        heard: Callable[[Slice, ReadBack], None],
        interrupted: Callable[[Slice, str], None],
    ) -> None:
        self.active: set[int] = set()
        """Slices that have changed since they were tended."""
        self._slices = slices
        self._checkpoints = checkpoints
        self._clock = clock
        self._pace = pace
        self._disk_level = disk_level
        self._tended = tended
        self._heard = heard
        self._interrupted = interrupted
        self._news: set[int] = set()
        self._busy: set[int] = set()
        self._round: deque[int] = deque()
        self._news_s = self._tended_s = self._synced_s = clock.monotonic_s()

    def add(self, number: int) -> None:
        """Add a slice to the upkeep."""
        self._round.append(number)

    def active_now(self, number: int) -> None:
        """Mark a slice as active, so that it is tended within about a second."""
        self.active.add(number)

    def remove(self, number: int) -> None:
        """Remove a slice from the upkeep."""
        self._round.remove(number)

    def follow_again(self, number: int) -> None:
        """Apply the newest checkpoint of a slice again, because its shards have changed."""
        self._news.add(number)
        self.active.add(number)

    def attend(self, number: int) -> None:
        """Carry out a slice's commands from the next turn on. Any thread may call this."""
        self._busy.add(number)

    @property
    def is_busy(self) -> bool:
        """Return whether a slice's copies have unfinished scans or commands."""
        return bool(self._busy)

    def turn(self) -> None:
        """Do the upkeep that is due now."""
        self._take_news()
        self._tend()
        self._sync_when_time()

    # --- checkpoints ---------------------------------------------------------------------------

    def _take_news(self) -> None:
        self._news.update(self._checkpoints.take_news())
        now_s = self._clock.monotonic_s()
        if not self._news or now_s - self._news_s < self._pace.news_s:
            return
        self._news_s = now_s
        news, self._news = self._news, set()
        for number in news:
            slice_ = self._slices.get(number)
            if slice_ is not None:
                self._follow(slice_)

    def _follow(self, slice_: Slice) -> None:
        _turn_copies(slice_)  # before the stores are pruned
        try:
            read_back = slice_.follower.prune(slice_.lanes, is_owner=slice_.phase in OWNED)
        except KafkaEdgeError as exc:
            self._interrupted(slice_, str(exc))
            return
        self.active.add(slice_.number)
        if read_back is not None:
            self._heard(slice_, read_back)

    # --- copies and metrics --------------------------------------------------------------------

    def _tend(self) -> None:
        """Tend active slices each ``tend_s``, and some idle slices in rotation."""
        for number in list(self._busy):
            slice_ = self._slices.get(number)
            if slice_ is None or not _turn_copies(slice_):
                self._busy.discard(number)
        now_s = self._clock.monotonic_s()
        elapsed_s = now_s - self._tended_s
        if elapsed_s < self._pace.tend_s:
            return
        self._tended_s = now_s
        due, self.active = self.active, set()
        per_s = min(len(self._round) / _ROUND_S, _TENDED_PER_S)
        for _ in range(min(len(self._round), math.ceil(per_s * elapsed_s))):
            due.add(self._round[0])
            self._round.rotate(-1)
        for number in due:
            slice_ = self._slices.get(number)
            if slice_ is not None:
                self._tend_one(slice_)

    def _tend_one(self, slice_: Slice) -> None:
        if _turn_copies(slice_):
            self._busy.add(slice_.number)
        if self._tended(slice_):
            self.active.add(slice_.number)

    # --- stores --------------------------------------------------------------------------------

    def _sync_when_time(self) -> None:
        now_s = self._clock.monotonic_s()
        is_time = now_s - self._synced_s >= self._pace.sync_s
        if not is_time or self._disk_level() == DiskLevel.FULL:
            return
        self._synced_s = now_s
        for slice_ in self._slices.values():
            for lane in slice_.lanes.values():
                if lane.stats().durable_offset < lane.shard.stored:
                    lane.sync_soon()


def _turn_copies(slice_: Slice) -> bool:
    """Do one step for a slice's copies; return whether scans or commands are unfinished."""
    if slice_.copies is None or slice_.follower.refusal:
        return False
    slice_.copies.turn(slice_.lanes, is_owner=slice_.is_owner)
    return slice_.copies.is_busy
