"""A user's transaction stays open on a delay topic, and hides what is written behind it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.faults.conftest import Scenario
from tests.faults.facts import UID, Step
from tests.faults.stage import Script

pytestmark = pytest.mark.fault

OPEN_S = 60
HIDDEN = 0
"""Partition, and slice, with the open transaction."""


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_records_behind_an_open_transaction_come_once_when_it_ends(
    scenario: Scenario, *, commits: bool
) -> None:
    with scenario.play(Script(settle_s=120), nodes_min=2) as stage:
        options = {
            "bootstrap.servers": stage.cluster.bootstrap,
            "transactional.id": f"user-{stage.run}",
            "transaction.timeout.ms": 5 * OPEN_S * 1_000,
            "log_level": 0,
        }
        user: Any = Producer(options)
        step = Step(b"user", HIDDEN, None, b"", ((UID, b"user"),), 100, stage.targets[0])
        user.init_transactions(30)
        user.begin_transaction()
        noted = partial(stage.history.note, step)
        user.produce(stage.delay_topic, b"", None, HIDDEN, noted, headers=step.headers())
        assert user.flush(30) == 0
        stage.await_written(OPEN_S * stage.script.per_s // 2)
        owner = stage.owner(HIDDEN)
        assert owner is not None
        owner.kill()
        stage.await_served()
        owner.start()
        stage.await_written(OPEN_S * stage.script.per_s // 2)
        assert stage.is_served(), "nobody gives up a slice for it"
        (own,) = (one for one in stage.history.acked if one.step is step)
        behind = {
            one.step.uid
            for one in stage.history.acked
            if one.step.partition == HIDDEN and one.offset > own.offset
        }
        assert behind
        assert not behind & stage.watch.uids, "what is behind it waits"
        if commits:
            user.commit_transaction(30)
        else:
            user.abort_transaction(30)
            stage.history.acked.remove(own)
