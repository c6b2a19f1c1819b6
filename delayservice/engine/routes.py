"""Settings of a cluster that decide where outcomes go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class Routes:
    """Topics of outcomes, and settings of copies. The same for every shard of a cluster."""

    dead_letter: str
    outcomes: str
    secret: bytes
    roll_window_ms: int
    roll_spread_ms: int
    """Largest spread of rolled copies before the end of the window, which flattens bursts."""
    park_delays_ms: tuple[int, ...]
    cron_time: CronTime
    held_ms: int = 60_000
    """First wait of a record whose target is paused; up to half is added, to spread a backlog."""
    accepted: tuple[bytes, ...] = ()
    """Secrets that copies may be signed with besides ``secret``, while one is replaced."""
    allowlist: Callable[[str], Allowlist] = Allowlist
    """Returns the targets that this node's settings allow to a delay topic; without it, none."""
    parks_missing: bool = True
    """True: records wait for a target that does not exist; False: they are dead-lettered."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets that verify copies; the first one signs them."""
        return (self.secret, *self.accepted)
