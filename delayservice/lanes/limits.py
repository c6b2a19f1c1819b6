"""How much a worker's loop does at once, how often it commits, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayservice.lanes.upkeep import Pace


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one worker."""

    poll_records: int = 4_000
    transaction_records: int = 20_000
    """Outputs after which a transaction is committed even before its time; the shards that have
    something due share them."""
    transaction_bytes: int = 32 << 20
    """Payload bytes of a transaction, about."""
    transaction_interval_ms_min: float = 10.0
    """Bounds of the time between the starts of two commits."""
    transaction_interval_ms_max: float = 100.0
    visible_at_commit: bool = True
    """Whether outputs are seen with their commit only: exactly once."""
    cursor_interval_ms: float = 500.0
    """A commit that would only move cursors waits this long, for its loss costs nothing but reading
    a little again; unless storing would have to wait for it."""
    idle_wait_ms: int = 600
    """Longest wait for records when nothing is due. What other threads have for the loop, a role or
    the end, wakes it; what changes by itself, such as the disk, is seen after this time."""
    pace: Pace = field(default_factory=Pace)
    rest_s: float = 1.0
    """How long a slice that could not be served is left alone."""
