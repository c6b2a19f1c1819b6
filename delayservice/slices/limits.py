"""Bounds of a worker's loop: sizes, commit intervals and waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from delayservice.config.settings import Settings
from delayservice.slices.upkeep import UpkeepPace


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
    """True: outputs are seen with their commit only, exactly once."""
    cursor_interval_ms: float = 500.0
    """A commit that would only move cursors waits this long, for its loss costs nothing but reading
    a little again; unless storing would have to wait for it."""
    idle_wait_ms: int = 600
    """Longest wait for records when nothing is due. What other threads have for the loop, a role or
    the end, wakes it; what changes by itself, such as the disk, is seen after this time."""
    pace: UpkeepPace = field(default_factory=UpkeepPace)
    rest_s: float = 1.0
    """Time for which a slice that could not be served is left alone."""


def limits_of(settings: Settings) -> Limits:
    """Return the bounds of a worker's transactions: a node's budget is shared by its workers.

    At least once, a transaction carries cursors and shows no record; nothing is settled while it is
    committed, so it is committed as rarely as may be.
    """
    delivery = settings.delivery
    visible_at_commit = delivery.mode == "exactly_once"
    budget_ms = 1000 * settings.node.workers / delivery.transactions_per_s_max
    interval_ms_max = max(delivery.transaction_interval_ms_max, budget_ms)
    interval_ms_min = max(delivery.transaction_interval_ms_min, budget_ms)
    return Limits(
        transaction_records=delivery.batch_records_max,
        transaction_bytes=int(delivery.batch_bytes_max),
        visible_at_commit=visible_at_commit,
        transaction_interval_ms_min=interval_ms_min if visible_at_commit else interval_ms_max,
        transaction_interval_ms_max=interval_ms_max,
    )
