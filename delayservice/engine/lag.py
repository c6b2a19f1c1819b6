"""Lag of a node's copy of a slice behind the owner, in seconds, by which it may become the
owner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class Lag:
    """Lag of this node's copy of a slice behind the committed checkpoints.

    Under load a copy is always a little behind the newest checkpoint, so it is compared with an
    older one until it has reached that. The lag is the age of the newest checkpoint reached.
    """

    def __init__(self) -> None:
        self._goal: Mapping[str, int] | None = None
        self._goal_s = 0.0
        self._newest: Mapping[str, int] = {}
        self._stored: Mapping[str, int] = {}
        self._newest_s = 0.0
        self._reached_s = -math.inf

    def never_served(self, now_s: float) -> None:
        """Note that the slice has no checkpoint, so that its copy has no lag. Monotonic seconds."""
        self.heard({}, now_s)

    def heard(self, offsets: Mapping[str, int], now_s: float) -> None:
        """Note H of each delay topic in the newest checkpoint. ``now_s``: monotonic seconds."""
        self._newest, self._newest_s = offsets, now_s
        if self._goal is None:
            self._goal, self._goal_s = offsets, now_s

    def lag_s(
        self, stored: Mapping[str, int], now_s: float, log_ends: Mapping[str, int] | None = None
    ) -> float:
        """Return the lag in seconds, infinite while unknown. ``stored``: S by delay topic.
        ``log_ends``: a copy that holds a whole log has no lag, even if H of the checkpoint lies
        above the log's end.
        """
        if any(stored.get(topic, 0) < offset for topic, offset in self._stored.items()):
            self._reached_s = -math.inf  # the store has started over
        self._stored = dict(stored)
        if self._goal is None:
            return math.inf
        ends = log_ends or {}
        if _has(stored, self._newest, ends):
            self._reached_s = now_s
        elif _has(stored, self._goal, ends):
            self._reached_s = max(self._reached_s, self._goal_s)
            self._goal, self._goal_s = self._newest, self._newest_s
        return now_s - self._reached_s


def _has(
    stored: Mapping[str, int], offsets: Mapping[str, int], log_ends: Mapping[str, int]
) -> bool:
    return all(
        stored[topic] >= min(offset, log_ends.get(topic, offset))
        for topic, offset in offsets.items()
        if topic in stored
    )
