"""Finds the broker that leads a partition, and ignores a change of leader until it has lasted.

A partition's leader moves for a moment whenever a broker restarts; if owners followed at once, each
slice would be handed over twice without need.
"""

from __future__ import annotations

from ha.placement import SliceFacts


class StableLeaders:
    """Filter of partition leaders that ignores short changes."""

    def __init__(self, stable_s: float) -> None:
        self._stable_s = stable_s
        self._stable: dict[int, int | None] = {}
        self._seen: dict[int, tuple[int | None, float]] = {}

    def settle(self, facts: SliceFacts, now_s: float) -> SliceFacts:
        # The first known leader counts at once.
        slice_no, leader = facts.slice_no, facts.leader
        seen, since_s = self._seen.get(slice_no, (leader, now_s))
        if leader != seen:
            seen, since_s = leader, now_s
        self._seen[slice_no] = (seen, since_s)
        stable = self._stable.setdefault(slice_no, leader)
        if leader is not None and (stable is None or now_s - since_s >= self._stable_s):
            stable = self._stable[slice_no] = leader
        return SliceFacts(slice_no, stable, facts.replicas)
