"""Settings of a cluster that decide where outcomes go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class Routes:
    """Where outcomes go, and what copies need. The same for every shard of a cluster."""

    dead_letter: str
    outcomes: str
    secret: bytes
    roll_window_ms: int
    roll_spread_ms: int
    """A copy comes back up to so much earlier than after the window: bursts flatten out."""
    park_delays_ms: tuple[int, ...]
    cron_time: CronTime
    held_ms: int = 60_000
    """How long a record is put off at first whose target is paused, and up to half as long again: a
    backlog comes back spread over the rest."""
    accepted: tuple[bytes, ...] = ()
    """Secrets that copies may be signed with besides ``secret``, while one is replaced."""
    allowlist: Callable[[str], Allowlist] = Allowlist
    """Returns the targets that this node's settings allow to a delay topic; without it, none."""
    parks_missing: bool = True
    """Whether records wait for a target that does not exist, or are dead-lettered at once."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets that verify copies; the first one signs them."""
        return (self.secret, *self.accepted)
