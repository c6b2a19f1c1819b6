"""Settings of a cluster for outputs: their topics, and how records are requeued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class Routes:
    """Topics for dead letters and outcomes, and settings of requeued records, equal for all
    shards.
    """

    dead_letter: str
    outcomes: str
    secret: bytes
    roll_window_ms: int
    # Rolls come up to this much earlier, which spreads bursts.
    roll_spread_ms: int
    # The wait after each failed attempt; after one more failure, a record is dead-lettered.
    park_delays_ms: tuple[int, ...]
    cron_time: CronTime
    # First wait of a record whose target is paused; up to half is added to spread records.
    held_ms: int = 60_000
    # Verify requeued records and envelopes while the secret is replaced.
    accepted: tuple[bytes, ...] = ()
    allowlist: Callable[[str], Allowlist] = Allowlist
    # Records are parked while their target does not exist, else dead-lettered.
    parks_missing: bool = True

    # The first one signs.
    @property
    def secrets(self) -> tuple[bytes, ...]:
        return (self.secret, *self.accepted)
