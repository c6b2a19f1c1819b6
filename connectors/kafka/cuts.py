"""Cuts: checkpoints at which the copies of a slice are compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from delayservice.engine.ports import ReadBack

# Number of cuts kept for a slice until they are taken; beyond, the oldest are dropped.
_CUTS_MAX: Final = 16
# Time between the cuts of neighbouring slices, in ms, which spreads the comparisons.
_SHIFT_MS: Final = 7_919


class Cuts:
    """Checkpoints at which copies of each slice are to be compared, kept until they are taken."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._untaken: dict[int, deque[ReadBack]] = {}

    def note(self, slice_no: int, before: ReadBack, read_back: ReadBack) -> None:
        """Keep the checkpoint ``read_back`` as a cut if ``before``, the slice's checkpoint before
        it, is of an earlier interval by the brokers' timestamps.
        """
        every_ms, shift_ms = self._interval_ms, slice_no * _SHIFT_MS
        if not every_ms:
            return
        if (read_back.broker_ms + shift_ms) // every_ms > (before.broker_ms + shift_ms) // every_ms:
            self._untaken.setdefault(slice_no, deque(maxlen=_CUTS_MAX)).append(read_back)

    def take(self, slice_no: int) -> Sequence[ReadBack]:
        cuts = self._untaken.get(slice_no)
        if not cuts:
            return ()
        # One by one: the tail may add another meanwhile.
        taken = []
        while cuts:
            taken.append(cuts.popleft())
        return taken
