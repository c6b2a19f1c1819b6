"""A repair plan is what it was after it was written, and is carried out where it was made for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from connectors.spark.reconcile.repair_plan import (
    AGE_MAX_MS,
    RANGES_MAX,
    STEPS_MAX,
    Plan,
    PlanError,
    RepairStep,
    carry_out,
    decode_plan,
    first_steps,
)
from delayservice.replicas.commands import Command, Report

STEP = RepairStep(
    node="n1",
    topic="any",
    topic_id="id",
    partition=3,
    start_ms=60_000,
    stop_ms=120_000,
    first_offset=5,
    stop_offset=9,
    why="1 missing",
)
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
                yield Report(
                    plan=command.plan,
                    step=command.step,
                    node=command.node,
                    status="failed" if failed else "done",
                    detail="disk" if failed else "",
                    frames=2,
                    at_ms=0,
                )


def test_a_plan_is_read_as_it_was_written() -> None:
    assert decode_plan(PLAN.encode()) == PLAN
    assert decode_plan(Plan(id="p", cluster="c", made_ms=1).encode()).steps == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"start_ms": 120_000}, "no range"),
        ({"start_ms": -1}, "no range"),
        ({"first_offset": -1}, "no range"),
        ({"stop_offset": 4}, "before its first offset"),
        ({"command": "delete"}, "no repair plan"),
        ({"node": 5}, "no repair plan"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change: dict[str, object], why: str) -> None:
    raw = msgspec.json.decode(PLAN.encode())
    raw["steps"][1] |= change
    with pytest.raises(PlanError, match=why):
        decode_plan(msgspec.json.encode(raw))


def test_what_is_no_plan_and_other_versions_are_refused() -> None:
    for data in (b"", b"{}", b"[1]", b"\xff"):
        with pytest.raises(PlanError, match="no repair plan"):
            decode_plan(data)
    with pytest.raises(PlanError, match="version 9"):
        decode_plan(Plan(id="p", cluster="c", made_ms=1, v=9).encode())


def test_a_plan_has_so_many_steps_and_says_that_there_are_more() -> None:
    assert first_steps([STEP] * STEPS_MAX, {STEP.copy}) == ((STEP,) * STEPS_MAX, [])
    steps, (note,) = first_steps([STEP] * (STEPS_MAX + 1), {STEP.copy})
    assert len(steps) == STEPS_MAX
    assert "compare again" in note


def test_an_end_that_nobody_knows_is_allowed() -> None:
    step = msgspec.structs.replace(STEP, stop_offset=0)
    plan = Plan(id="p", cluster="c", made_ms=1, steps=(step,))
    assert decode_plan(plan.encode()) == plan


def test_every_step_is_sent_and_every_report_told() -> None:
    nodes, told = Nodes(), list[tuple[int, int]]()
    outcome = carry_out(
        PLAN, nodes, "c", lambda done, total, _: told.append((done, total)), now_ms=NOW_MS
    )
    assert outcome.is_complete
    assert (outcome.done, outcome.frames) == (70, 140)
    assert told == [(done, 70) for done in range(71)]
    assert max(nodes.at_once) <= 32
    assert [command.step for command in nodes.asked] == list(range(70))
    first = nodes.asked[0]
    assert (first.plan, first.command, first.node, first.partition) == ("p", "rebuild", "n1", 3)
    assert (first.start_ms, first.stop_ms, first.topic_id) == (60_000, 120_000, "id")
    assert (first.first_offset, first.stop_offset) == (5, 9)


def test_steps_that_failed_or_had_no_report_are_told() -> None:
    outcome = carry_out(PLAN, Nodes(silent=[4], failing=[33]), "c", now_ms=NOW_MS)
    assert not outcome.is_complete
    assert (outcome.done, outcome.failed, outcome.silent) == (68, {33: "disk"}, (4,))


def test_a_plan_for_another_cluster_is_not_carried_out() -> None:
    nodes = Nodes()
    with pytest.raises(PlanError, match="made for cluster c"):
        carry_out(PLAN, nodes, "other", now_ms=NOW_MS)
    assert nodes.asked == []


def test_a_copy_with_many_ranges_is_rebuilt_as_a_whole_where_that_is_allowed() -> None:
    other = msgspec.structs.replace(STEP, node="n2")
    many = [STEP] * (RANGES_MAX + 1) + [other] * RANGES_MAX
    steps, _ = first_steps(many, set())
    assert [(one.command, one.node) for one in steps[:2]] == [
        ("rebuild_copy", "n1"),
        ("rebuild", "n2"),
    ]
    assert len(steps) == 1 + RANGES_MAX
    assert (steps[0].why, steps[0].topic_id) == (f"{RANGES_MAX + 1} ranges differ", "id")
    assert decode_plan(Plan(id="p", cluster="c", made_ms=1, steps=steps).encode()).steps == steps
    assert first_steps(many, {STEP.copy})[0] == tuple(many)


def test_a_plan_is_carried_out_until_it_is_a_day_old() -> None:
    nodes = Nodes()
    with pytest.raises(PlanError, match="24 hours old"):
        carry_out(PLAN, nodes, "c", now_ms=NOW_MS + AGE_MAX_MS + 1)
    assert nodes.asked == []
    assert carry_out(PLAN, nodes, "c", now_ms=NOW_MS + AGE_MAX_MS).is_complete


def test_nodes_are_told_to_spare_the_owners_copy_where_that_is_asked_for() -> None:
    nodes = Nodes()
    carry_out(PLAN, nodes, "c", now_ms=NOW_MS, replica_only=True)
    assert all(command.replica_only for command in nodes.asked)
