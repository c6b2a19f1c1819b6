from __future__ import annotations

from dataclasses import dataclass

from delayservice.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, intervals and waits of one worker's loop."""

    poll_records: int = 4_000
    # Shared by all shards with due records; beyond it a commit does not wait for its interval.
    transaction_records: int = 20_000
    transaction_bytes: int = 32 << 20
    transaction_interval_ms_min: float = 10.0
    transaction_interval_ms_max: float = 100.0
    # Exactly once: outputs become visible with the commit. False: when they are written.
    visible_at_commit: bool = True
    # Between commits that only move cursors; less if storing has to wait. If it is lost, a few
    # records are read again.
    cursor_interval_ms: float = 500.0
    # When nothing is due. Roles and the end of the process wake the loop; other changes, such as
    # the disk level, are noticed after this time.
    idle_wait_ms: int = 600
    # Between two rounds in which the newest checkpoints are applied.
    follow_s: float = 0.2
    # Between two updates of digests and metrics of changed slices.
    tend_s: float = 1.0
    # A restart reads the log from the last synced offset on, which must not become older than the
    # log's retention.
    sync_s: float = 60.0
    # Before a failed slice is claimed again, or log ends are queried again.
    rest_s: float = 1.0


def limits_of(settings: Settings) -> Limits:
    """Return the limits of one worker's loop; workers share ``delivery.transactions_per_s_max``.

    In at-least-once mode a transaction carries only cursors, and nothing is settled during its
    commit. So it is committed at the longest interval.
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
