"""A repair plan is what it was after it was written, and is carried out where it was made for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from connectors.spark.reconcile.repair_plan import (
    AGE_MAX_MS,
    Plan,
    PlanError,
    RepairStep,
    carry_out,
    decode_plan,
)
from delayservice.replicas.commands import Command, Report, report_on

STEP = RepairStep(node="n1", topic="any", topic_id="id", partition=3, why="1 missing")
NOW_MS = 1_000
PLAN = Plan(id="p", cluster="c", made_ms=NOW_MS, steps=(STEP,) * 70)


class Nodes:
    """Nodes that report on every step but some; kept in one process, for no node decides here."""

    def __init__(self, silent: Sequence[int] = (), failing: Sequence[int] = ()) -> None:
        self.asked: list[Command] = []
        self.at_once: list[int] = []
        self._silent, self._failing = silent, failing

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        assert timeout_s > 0
        self.asked += commands
        self.at_once.append(len(commands))
        for command in commands:
            failed = command.step in self._failing
            if command.step not in self._silent:
                yield report_on(command, "disk" if failed else "", 0)


def test_a_plan_is_read_as_it_was_written() -> None:
    assert decode_plan(PLAN.encode()) == PLAN
    assert decode_plan(Plan(id="p", cluster="c", made_ms=1).encode()).steps == ()


@pytest.mark.parametrize("change", [{"node": 5}, {"partition": "x"}, {"topic_id": None}])
def test_a_plan_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    raw = msgspec.json.decode(PLAN.encode())
    raw["steps"][1] |= change
    with pytest.raises(PlanError, match="no repair plan"):
        decode_plan(msgspec.json.encode(raw))


def test_what_is_no_plan_and_other_versions_are_refused() -> None:
    for data in (b"", b"{}", b"[1]", b"\xff"):
        with pytest.raises(PlanError, match="no repair plan"):
            decode_plan(data)
    with pytest.raises(PlanError, match="version 9"):
        decode_plan(Plan(id="p", cluster="c", made_ms=1, v=9).encode())


def test_every_step_is_sent_and_every_report_told() -> None:
    nodes, told = Nodes(), list[tuple[int, int]]()
    outcome = carry_out(
        PLAN, nodes, "c", lambda done, total, _: told.append((done, total)), now_ms=NOW_MS
    )
    assert outcome.is_complete
    assert outcome.done == 70
    assert told == [(done, 70) for done in range(71)]
    assert max(nodes.at_once) <= 32
    assert [command.step for command in nodes.asked] == list(range(70))
    first = nodes.asked[0]
    assert (first.plan, first.command, first.node, first.partition) == ("p", "rebuild", "n1", 3)
    assert (first.topic, first.topic_id) == ("any", "id")


def test_steps_that_failed_or_had_no_report_are_told() -> None:
    outcome = carry_out(PLAN, Nodes(silent=[4], failing=[33]), "c", now_ms=NOW_MS)
    assert not outcome.is_complete
    assert (outcome.done, outcome.failed, outcome.silent) == (68, {33: "disk"}, (4,))


def test_a_plan_for_another_cluster_is_not_carried_out() -> None:
    nodes = Nodes()
    with pytest.raises(PlanError, match="made for cluster c"):
        carry_out(PLAN, nodes, "other", now_ms=NOW_MS)
    assert nodes.asked == []


def test_one_node_rebuilds_at_a_time() -> None:
    steps = [msgspec.structs.replace(STEP, node=f"n{number % 2}") for number in range(40)]
    nodes = Nodes()
    outcome = carry_out(
        msgspec.structs.replace(PLAN, steps=tuple(steps)), nodes, "c", now_ms=NOW_MS
    )
    assert outcome.is_complete
    assert nodes.at_once == [20, 20]
    assert [command.node for command in nodes.asked] == ["n0"] * 20 + ["n1"] * 20


def test_a_plan_is_carried_out_until_it_is_a_day_old() -> None:
    nodes = Nodes()
    with pytest.raises(PlanError, match="24 hours old"):
        carry_out(PLAN, nodes, "c", now_ms=NOW_MS + AGE_MAX_MS + 1)
    assert nodes.asked == []
    assert carry_out(PLAN, nodes, "c", now_ms=NOW_MS + AGE_MAX_MS).is_complete
