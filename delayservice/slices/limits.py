"""Limits of one iteration of a worker's loop: sizes, commit intervals and waits."""

from __future__ import annotations

from dataclasses import dataclass

from delayservice.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, intervals and waits of one worker's loop."""

    poll_records: int = 4_000
    """Largest number of records that one poll returns."""
    transaction_records: int = 20_000
    """Number of outputs at which a transaction is committed before its interval has passed. All
    shards with due records share it."""
    transaction_bytes: int = 32 << 20
    """Approximate limit of the payload bytes of a transaction."""
    transaction_interval_ms_min: float = 10.0
    """Lower bound of the time between two starts of commits, milliseconds. The time follows the
    duration of the commits."""
    transaction_interval_ms_max: float = 100.0
    """Upper bound of the time between two starts of commits, milliseconds."""
    visible_at_commit: bool = True
    """True: exactly once, outputs become visible with the commit. False: at least once, outputs
    become visible when they are written."""
    cursor_interval_ms: float = 500.0
    """Time between commits that only move cursors, milliseconds. Such a commit comes earlier if
    storing has to wait for it. If it is lost, a few records are read again."""
    idle_wait_ms: int = 600
    """Longest wait for records when nothing is due, milliseconds. Changes of roles and the end of
    the process wake the loop; other changes, such as the disk level, are noticed after this
    time.
    """
    follow_s: float = 0.2
    """Least time between two rounds in which the newest checkpoints read from Kafka are applied,
    seconds."""
    tend_s: float = 1.0
    """Time between two updates of the digests and metrics of slices that changed since, seconds."""
    sync_s: float = 60.0
    """Time between two syncs of the stores to disk, seconds. A restart reads the log from the
    horizon (the last synced offset) on, which must not become older than the log's retention."""
    rest_s: float = 1.0
    """Pause before a failed slice is claimed again, or log ends are queried again, seconds."""


def limits_of(settings: Settings) -> Limits:
    """Return the limits of one worker's loop. The workers of a node share
    ``delivery.transactions_per_s_max``.

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
