"""Periodic work of a worker's loop beside delivery: applies checkpoints, updates digests and
metrics, syncs stores. No iteration of the loop does all of it for every slice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.disk import DiskLevel
from delayservice.engine.ports import ReadBack
from delayservice.slices.edges import Edges
from delayservice.slices.slice import OWNED, Slice

_TENDED_PER_S: Final = 20
# Least time between two updates of an idle slice.
_ROUND_S: Final = 4.0
# Slices that catch up or are new and are updated each ``follow_s``: the sooner it is known that
# they have caught up, the sooner they can be owned.
_BEHIND_AT_ONCE: Final = 4


class Upkeep:
    """Periodic work for one worker's slices. Only the loop's thread uses it, except ``attend``.

    ``tended`` returns whether to call it again in a second. ``heard`` gets an applied checkpoint,
    ``interrupted`` a slice whose checkpoint can't be applied.
    """

    def __init__(
        self,
        slices: dict[int, Slice],
        edges: Edges,
        *,
        tended: Callable[[Slice], bool],
        heard: Callable[[Slice, ReadBack], None],
        interrupted: Callable[[Slice, str], None],
    ) -> None:
        # Slices that have changed since their digests and metrics were updated.
        self.active: set[int] = set()
        self._slices = slices
        self._checkpoints = edges.checkpoints
        self._clock = edges.clock
        self._limits = edges.limits
        self._disk_level = edges.disk_level
        self._tended = tended
        self._heard = heard
        self._interrupted = interrupted
        self._news: set[int] = set()
        self._busy: set[int] = set()
        # Slices that catch up or are new, the longest known first.
        self._behind: dict[int, None] = {}
        self._round: deque[int] = deque()
        self._news_s = self._tended_s = self._synced_s = edges.clock.monotonic_s()
        self._hurried_s = -math.inf

    def add(self, number: int) -> None:
        self._round.append(number)
        self._behind[number] = None

    def active_now(self, number: int) -> None:
        self.active.add(number)

    def remove(self, number: int) -> None:
        self._round.remove(number)
        self._behind.pop(number, None)

    def follow_again(self, number: int) -> None:
        """Apply a slice's newest checkpoint again soon, because its lanes have changed."""
        self._news.add(number)
        self.active.add(number)

    def attend(self, number: int) -> None:
        """Begin a slice's repair commands in the next iteration. Any thread may call this."""
        self._busy.add(number)

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    @property
    def is_hurried(self) -> bool:
        return bool(self._behind)

    def turn(self) -> None:
        self._take_news()
        self._tend()
        self._sync_when_time()

    # --- checkpoints ---------------------------------------------------------------------------

    def _take_news(self) -> None:
        self._news.update(self._checkpoints.take_updated())
        now_s = self._clock.monotonic_s()
        if not self._news or now_s - self._news_s < self._limits.follow_s:
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
        if slice_.number in self._behind:
            self._hurried_s = -math.inf
        if read_back is not None:
            self._heard(slice_, read_back)

    # --- copies and metrics --------------------------------------------------------------------

    def _tend(self) -> None:
        for number in list(self._busy):
            slice_ = self._slices.get(number)
            if slice_ is None or not _turn_copies(slice_):
                self._busy.discard(number)
        now_s = self._clock.monotonic_s()
        elapsed_s = now_s - self._tended_s
        if elapsed_s < self._limits.tend_s:
            if self._behind and now_s - self._hurried_s >= self._limits.follow_s:
                self._hurried_s = now_s
                self._tend_all(list(self._behind)[:_BEHIND_AT_ONCE])
            return
        self._tended_s = now_s
        due, self.active = self.active, set()
        per_s = min(len(self._round) / _ROUND_S, _TENDED_PER_S)
        for _ in range(min(len(self._round), math.ceil(per_s * elapsed_s))):
            due.add(self._round[0])
            self._round.rotate(-1)
        self._tend_all(due)

    def _tend_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            slice_ = self._slices.get(number)
            if slice_ is None:
                continue
            if _turn_copies(slice_):
                self._busy.add(number)
            is_behind = self._tended(slice_)
            self._behind.pop(number, None)
            if is_behind:
                self.active.add(number)
                self._behind[number] = None  # as the last one

    # --- stores --------------------------------------------------------------------------------

    def _sync_when_time(self) -> None:
        now_s = self._clock.monotonic_s()
        is_time = now_s - self._synced_s >= self._limits.sync_s
        if not is_time or self._disk_level() == DiskLevel.FULL:
            return
        self._synced_s = now_s
        for slice_ in self._slices.values():
            for lane in slice_.lanes.values():
                if lane.stats().durable_offset < lane.shard.stored:
                    lane.sync_soon()


# Nothing is done if the slice is refused, or digests are off.
def _turn_copies(slice_: Slice) -> bool:
    if slice_.copies is None or slice_.follower.refusal:
        return False
    slice_.copies.turn(slice_.lanes, is_owner=slice_.is_owner)
    return slice_.copies.is_busy
