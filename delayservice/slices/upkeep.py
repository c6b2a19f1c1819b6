"""The work of a worker's loop for its slices besides delivery: follow checkpoints, look after
copies and metrics, have the stores synced. Nothing of it is done for every slice in every turn.
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
"""Idle slices that are looked after in a second: with more of them, each has to wait."""
_ROUND_S: Final = 4.0
"""Shortest time in which all idle slices are looked after once."""


@dataclass(frozen=True, slots=True)
class UpkeepPace:
    """Intervals, seconds.

    Attributes:
        news_s: checkpoints that were read back are followed.
        tend_s: copies and metrics of active slices are looked after.
        sync_s: how old the stores' durable horizon may get, however little is stored: what a
            restart reads again must still be in the log.
    """

    news_s: float = 0.2
    tend_s: float = 1.0
    sync_s: float = 60.0


class Upkeep:
    """Single-threaded, as the loop that owns it; only ``attend`` may be called by other threads.

    Args:
        slices: those of the loop, by number.
        checkpoints: as they are tailed.
        clock: monotonic.
        pace: how often.
        disk_level: how full the disk is.
        tended: looks after the metrics of a slice; whether that is to be done again soon.
        heard: given a slice and its checkpoint that was read back.
        interrupted: given a slice that can't be served, and why.
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
        """Slices that something happened to since they were looked after."""
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
        """Look after one more slice."""
        self._round.append(number)

    def active_now(self, number: int) -> None:
        """Note that something happened to a slice."""
        self.active.add(number)

    def remove(self, number: int) -> None:
        """Look after a slice no longer."""
        self._round.remove(number)

    def follow_again(self, number: int) -> None:
        """Follow the newest checkpoint again: the slice has other shards now."""
        self._news.add(number)
        self.active.add(number)

    def attend(self, number: int) -> None:
        """Look after a slice's copies with the next turn: there is a command. Any thread may."""
        self._busy.add(number)

    @property
    def is_busy(self) -> bool:
        """Return whether a copy is being read from the disk."""
        return bool(self._busy)

    def turn(self) -> None:
        """Do what it is time for."""
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
        """Look after what is active each second, and after the rest in turn."""
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
                if lane.store.stats().durable_offset < lane.shard.stored:
                    lane.sync_soon()


def _turn_copies(slice_: Slice) -> bool:
    """Do a little for the copies of a slice; return whether there is more to do."""
    if slice_.copies is None or slice_.follower.refusal:
        return False
    slice_.copies.turn(slice_.lanes, is_owner=slice_.is_owner)
    return slice_.copies.is_busy
