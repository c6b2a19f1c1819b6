"""Settings of a cluster for outputs: their topics, and how records are requeued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class Routes:
    """Names of the dead-letter and outcomes topics, and settings of requeued records. Equal for all
    shards of a cluster.
    """

    dead_letter: str
    """Name of the dead-letter topic."""
    outcomes: str
    """Name of the outcomes topic."""
    secret: bytes
    """Secret that signs requeued records and envelopes."""
    roll_window_ms: int
    """Roll window, the longest wait before a record is rolled, ms."""
    roll_spread_ms: int
    """Largest time by which a record is rolled before the end of its roll window, ms; it spreads
    bursts."""
    park_delays_ms: tuple[int, ...]
    """Wait after each failed delivery attempt, ms; after one more failure, a record is
    dead-lettered."""
    cron_time: CronTime
    """Function of a cron expression, a time zone and a time, that returns the next occurrence."""
    held_ms: int = 60_000
    """First wait of a record whose target is paused, ms; up to half of it is added to spread
    records."""
    accepted: tuple[bytes, ...] = ()
    """Further secrets that verify requeued records and envelopes, while the secret is replaced."""
    allowlist: Callable[[str], Allowlist] = Allowlist
    """Function that returns the targets that settings allow to the records of a delay topic;
    default: no targets."""
    parks_missing: bool = True
    """True: records are parked while their target does not exist; False: they are dead-lettered."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets that verify requeued records and envelopes; the first one signs."""
        return (self.secret, *self.accepted)
