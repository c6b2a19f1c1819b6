"""A repair plan is carried out by one node after another, as far as is allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from connectors.kafka.copies import RepairClient
from connectors.spark.reconcile.follow import IS_OVER_LIMIT, Following
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.repair_plan import Plan, RepairStep, carry_out
from delayservice.commands import spark_reconcile
from delayservice.commands.spark_reconcile import repair_copies
from delayservice.commands.spark_session import Running
from delayservice.replicas.commands import Command, Report, report_on

STEP = RepairStep(node="n1", topic="any", topic_id="id", partition=3, why="1 missing")
PLAN = Plan(id="p", made_ms=1_000, steps=(STEP,) * 70)


class Nodes(RepairClient):
    """Nodes that report on every step but some; kept in one process, for no node decides here."""

    def __init__(self, silent: Sequence[int] = (), failing: Sequence[int] = ()) -> None:
        self.at_once: list[list[Command]] = []
        self._silent, self._failing = silent, failing

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        assert timeout_s > 0
        self.at_once.append(list(commands))
        for command in commands:
            if command.step not in self._silent:
                yield report_on(command, "disk" if command.step in self._failing else "", 0)


def test_every_step_is_sent_to_one_node_at_a_time_and_every_report_yielded() -> None:
    nodes, steps = Nodes(), [replace(STEP, node=f"n{number % 2}") for number in range(80)]
    reports = carry_out(replace(PLAN, steps=tuple(steps)), nodes)
    order = [*range(0, 80, 2), *range(1, 80, 2)]
    assert [report.step for report in reports] == order
    assert [len(commands) for commands in nodes.at_once] == [32, 8, 32, 8]
    sent = [command for commands in nodes.at_once for command in commands]
    assert [command.node for command in sent] == [steps[number].node for number in order]
    first = sent[0]
    assert (first.plan, first.command, first.node, first.partition) == ("p", "rebuild", "n0", 3)
    assert (first.topic, first.topic_id) == ("any", "id")


def test_a_repair_makes_no_more_steps_than_allowed_and_tells_those_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(silent=[4], failing=[33])
    monkeypatch.setattr(spark_reconcile, "RepairClient", lambda *_: nodes)
    job = Running(cast("Any", None), lambda _: None)
    options = ReconcileOptions(client={}, out="out")
    done = repair_copies(job, options, PLAN, 60)
    assert (done.made, done.failed, done.left) == (60, 2, {IS_OVER_LIMIT: 10})
    told = capsys.readouterr().err
    assert "n1 did not rebuild any:3: it did not report in time" in told
    assert "n1 did not rebuild any:3: disk" in told
    assert repair_copies(job, options, PLAN, 0).made == 0
    assert sum(map(len, nodes.at_once)) == 60


def test_a_copy_that_its_node_can_not_read_from_disk_is_no_witness() -> None:
    options = ReconcileOptions(client={}, out="out")
    following = Following(cast("Any", None), options, threading.Event())
    following._nodes = Nodes(silent=[1], failing=[2])
    wrong, *right = [(f"n{number}", "any", 3) for number in range(4)]
    assert following._confirm([wrong], right) == {wrong, right[2]}
