"""How long a turn of the slice loop waits for records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from delayservice.core.role import Role
from delayservice.core.settle import Routes
from delayservice.cron import cron_time
from delayservice.lanes.slice_loop import Limits, SliceLoop

NOW_MS = 1_000_000
INTERVAL_MS = 20.0


def loop(due_in_ms: int | None, *, visible_at_commit: bool, since_commit_ms: float) -> SliceLoop:
    """An owner with one lane, nothing staged, that committed ``since_commit_ms`` ago."""
    unused: Any = None
    clock: Any = SimpleNamespace(wall_ms=lambda: NOW_MS, monotonic_s=lambda: 100.0)
    gate: Any = SimpleNamespace(frozen=lambda: None)
    made = SliceLoop(
        0,
        node_id="node",
        source=unused,
        sink=unused,
        checkpoints=unused,
        clock=clock,
        gate=gate,
        observer=unused,
        routes=Routes("dead", "outcomes", b"secret", 1, 0, (), cron_time),
        contract_of=unused,
        limits=Limits(transaction_interval_ms_min=INTERVAL_MS, visible_at_commit=visible_at_commit),
    )
    due_ms = None if due_in_ms is None else NOW_MS + due_in_ms
    shard = SimpleNamespace(is_staged=False, is_filling=False)
    lane: Any = SimpleNamespace(next_due_ms=lambda: due_ms, shard=shard)
    made.lanes["topic"] = lane
    made.owner = True
    made._role = Role.OWNER
    made._last_commit_s = 100.0 - since_commit_ms / 1000
    return made


@pytest.mark.parametrize(
    ("due_in_ms", "visible_at_commit", "since_commit_ms", "wait_ms"),
    [
        (None, True, 5.0, 600.0),
        (100, True, 5.0, 100.0),  # the record is what is waited for
        (2, True, 5.0, 15.0),  # nobody would see it before the commit
        (2, True, 50.0, 2.0),  # a commit may come at once
        (2, False, 5.0, 2.0),  # at least once: it is seen when it is sent
        (-3, True, 5.0, 0.5),  # due already: no wait
    ],
)
def test_a_turn_waits_for_what_it_can_do_something_about(
    *, due_in_ms: int | None, visible_at_commit: bool, since_commit_ms: float, wait_ms: float
) -> None:
    made = loop(due_in_ms, visible_at_commit=visible_at_commit, since_commit_ms=since_commit_ms)
    assert made._wait_ms() == pytest.approx(wait_ms)


@pytest.mark.parametrize(
    ("role", "wait_ms"),
    [
        (Role.REPLICA, 200.0),
        (Role.HEIR, 5.0),  # the slice may be its own in a moment
        (Role.PAUSED, 50.0),
    ],
)
def test_who_does_not_settle_looks_again_as_often_as_its_role_may_change(
    role: Role, wait_ms: float
) -> None:
    made = loop(2, visible_at_commit=True, since_commit_ms=5.0)
    made._role = role
    assert made._wait_ms() == pytest.approx(wait_ms)
