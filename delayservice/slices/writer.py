"""Life of a worker's transactional producer, its *writer*, which ends with its first abort."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final

from delayservice.base.clock import Clock
from delayservice.engine.electability import rest_s
from delayservice.slices.slice import next_phase

_OPEN_RETRY_S: Final = 1.0
# After more losses in a row, slices are left to other nodes.
LOSSES_MAX: Final = 2
# Doubled by each further loss in a row.
_LOSS_REST_S: Final = 0.2
_LOSS_REST_S_MAX: Final = 5.0
_SLOW_S: Final = 5.0
# Longest time between two losses that count as losses in a row.
_LOSSES_S: Final = 20.0


class WriterPhase(Enum):
    NONE = "none"
    # On the writer's thread.
    OPENING = "opening"
    # Open, and nothing was sent since the last commit.
    IDLE = "idle"
    # Outputs were sent that no commit includes yet.
    SENDING = "sending"
    # On the writer's thread. Nothing is sent meanwhile.
    COMMITTING = "committing"


class WriterStep(Enum):
    OPEN = "a slice needs a writer"
    OPENED = "it has a transactional id that was never used"
    REFUSED = "Kafka opens none"
    SEND = "outputs are sent"
    COMMIT = "a commit begins"
    COMMITTED = "the commit is acknowledged"
    LOSE = "it was aborted or fenced, a commit has no known result, or its connection failed"


WRITER_STEPS: Final[Mapping[tuple[WriterPhase, WriterStep], WriterPhase]] = {
    (WriterPhase.NONE, WriterStep.OPEN): WriterPhase.OPENING,
    (WriterPhase.OPENING, WriterStep.OPENED): WriterPhase.IDLE,
    (WriterPhase.OPENING, WriterStep.REFUSED): WriterPhase.NONE,
    (WriterPhase.IDLE, WriterStep.SEND): WriterPhase.SENDING,
    (WriterPhase.SENDING, WriterStep.SEND): WriterPhase.SENDING,
    (WriterPhase.IDLE, WriterStep.COMMIT): WriterPhase.COMMITTING,
    (WriterPhase.SENDING, WriterStep.COMMIT): WriterPhase.COMMITTING,
    (WriterPhase.COMMITTING, WriterStep.COMMITTED): WriterPhase.IDLE,
    (WriterPhase.IDLE, WriterStep.LOSE): WriterPhase.NONE,
    (WriterPhase.SENDING, WriterStep.LOSE): WriterPhase.NONE,
    (WriterPhase.COMMITTING, WriterStep.LOSE): WriterPhase.NONE,
}


class Writer:
    """State of the writer. ``name``: its transactional id; empty: there is none. ``losses`` counts
    those in a row. ``outdated``: why it is to be replaced.
    """

    def __init__(self, clock: Clock) -> None:
        self.phase = WriterPhase.NONE
        self.name = ""
        self.outdated = ""
        self.losses = 0
        self._clock = clock
        self._began_s = math.inf
        self._refusal = ""
        self._open_after_s = -math.inf
        self._lost_s = -math.inf

    def move(self, step: WriterStep) -> None:
        self.phase = next_phase(WRITER_STEPS, self.phase, step)

    @property
    def may_send(self) -> bool:
        return self.phase in (WriterPhase.IDLE, WriterPhase.SENDING)

    # Why no writer can be opened; empty: one can, or it is too early to tell. Any thread may call.
    @property
    def trouble(self) -> str:
        took_s = self._clock.monotonic_s() - self._began_s
        return self._refusal or (f"no answer for {took_s:.0f} s" if took_s > _SLOW_S else "")

    @property
    def may_open(self) -> bool:
        return self.phase is WriterPhase.NONE and self._clock.monotonic_s() >= self._open_after_s

    def open(self) -> None:
        self.move(WriterStep.OPEN)
        self._began_s = self._clock.monotonic_s()

    def opened(self, name: str) -> None:
        self.move(WriterStep.OPENED)
        self.name, self._refusal, self._began_s = name, "", math.inf

    def refused(self, why: str) -> None:
        self.move(WriterStep.REFUSED)
        self._refusal, self._began_s = why, math.inf
        self._open_after_s = self._clock.monotonic_s() + _OPEN_RETRY_S

    def lose(self) -> None:
        self.move(WriterStep.LOSE)
        self.name = self.outdated = ""

    def count_loss(self) -> None:
        """Count a lost writer. From the second in a row on, the next opening is delayed, twice
        as long each time.
        """
        now_s = self._clock.monotonic_s()
        self.losses = 1 if now_s - self._lost_s > _LOSSES_S else self.losses + 1
        self._lost_s = now_s
        if self.losses > 1:  # another node's take-over causes one loss
            self._open_after_s = now_s + rest_s(self.losses, _LOSS_REST_S, _LOSS_REST_S_MAX)
