from __future__ import annotations

import math
from typing import Final

from delayservice.slices.owning import Owning
from delayservice.slices.settling import Settling
from delayservice.slices.transaction import LoopParts
from delayservice.slices.upkeep import Upkeep

# Waits for records, ms: while no writer is open, the clock is not trusted, or slices catch up.
_NOT_SETTLING_WAIT_MS: Final = 50.0
# While a slice is taken over or released.
_CHANGING_WAIT_MS: Final = 5.0
# While a commit is under way or a writer is opened.
_HELPER_WAIT_MS: Final = 2.0
# While H cannot move, or a delay topic is paused, unless the next commit begins later.
_WALKING_WAIT_MS: Final = 10.0
# While a copy is scanned or repaired; leaves part of a core free.
_BUSY_WAIT_MS: Final = 5.0
# While due records remain.
_LEAST_WAIT_MS: Final = 0.5
_GATHER_MS_MAX: Final = 10.0


class Waits:
    """How long one worker's loop may wait for records."""

    def __init__(
        self, parts: LoopParts, owning: Owning, settling: Settling, upkeep: Upkeep
    ) -> None:
        self._owning = owning
        self._settling = settling
        self._upkeep = upkeep
        self._transaction = parts.transaction
        self._agenda = parts.agenda
        self._edges = parts.edges
        self._limits = parts.edges.limits

    def wait_ms(self) -> float:
        transaction, limits = self._transaction, self._limits
        if transaction.commit is not None and not transaction.commit.is_change:
            # Nothing is settled before this commit has ended and, with visible_at_commit, before
            # the next one may begin.
            rest_ms = transaction.may_commit_in_ms if limits.visible_at_commit else 0
            return max(_HELPER_WAIT_MS, rest_ms)
        if transaction.commit is not None or self._owning.is_opening:
            return _HELPER_WAIT_MS
        if self._owning.is_changing:
            return _CHANGING_WAIT_MS
        wait_ms = float(limits.idle_wait_ms)
        if self._upkeep.is_busy:
            wait_ms = _BUSY_WAIT_MS
        if self._upkeep.is_hurried:
            wait_ms = min(wait_ms, _NOT_SETTLING_WAIT_MS)
        if self._owning.lacks_writer or self._edges.clock_watch.doubt() is not None:
            return min(wait_ms, _NOT_SETTLING_WAIT_MS)
        if self._settling.has_backlog:
            return _LEAST_WAIT_MS
        if self._agenda.walking:
            wait_ms = min(wait_ms, max(transaction.may_commit_in_ms, _WALKING_WAIT_MS))
        wait_ms = min(wait_ms, self._due_in_ms())
        if transaction.is_staged:
            wait_ms = min(wait_ms, transaction.commit_in_ms)
        # Never zero: a due record that can't be settled yet must not make the loop spin.
        return max(wait_ms, _LEAST_WAIT_MS)

    def gather_ms(self, wait_ms: float) -> float:
        """Return how long to wait for more records after the first, milliseconds; 0 if they
        could be settled at once. A longer wait makes fewer iterations, which cost less.
        """
        if not self._limits.visible_at_commit or wait_ms <= _LEAST_WAIT_MS:
            return 0.0
        return min(self._transaction.may_commit_in_ms, wait_ms, _GATHER_MS_MAX)

    def _due_in_ms(self) -> float:
        due_ms = self._agenda.next_due_ms()
        due_in_ms = math.inf if due_ms is None else due_ms - self._edges.clock.wall_ms()
        if not self._limits.visible_at_commit:
            return due_in_ms
        return max(due_in_ms, self._transaction.may_commit_in_ms)
