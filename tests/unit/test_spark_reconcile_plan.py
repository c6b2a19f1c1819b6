"""A repair plan is what it was after it was written, and is carried out where it was made for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from connectors.kafka.copies import RepairClient
from connectors.spark.reconcile.repair_plan import (
    AGE_MAX_MS,
    Plan,
    PlanError,
    RepairStep,
    carry_out,
    decode_plan,
)
from delayservice.commands import spark_reconcile
from delayservice.commands.spark_reconcile import repair_copies
from delayservice.config.settings import Settings
from delayservice.replicas.commands import Command, Report, report_on

STEP = RepairStep(node="n1", topic="any", topic_id="id", partition=3, why="1 missing")
NOW_MS = 1_000
PLAN = Plan(id="p", cluster="c", made_ms=NOW_MS, steps=(STEP,) * 70)


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


def test_a_plan_is_read_as_it_was_written() -> None:
    assert decode_plan(PLAN.encode()) == PLAN
    assert decode_plan(Plan(id="p", cluster="c", made_ms=1).encode()).steps == ()


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", PLAN.encode().replace(": 3", ": null")])
def test_an_unreadable_plan_is_refused(data: bytes | str) -> None:
    with pytest.raises(PlanError, match="no repair plan"):
        decode_plan(data)


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(PlanError, match="version 9"):
        decode_plan(Plan(id="p", cluster="c", made_ms=1, v=9).encode())


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


def test_a_plan_is_good_for_its_cluster_until_it_is_a_day_old() -> None:
    PLAN.check("c", NOW_MS + AGE_MAX_MS)
    with pytest.raises(PlanError, match="made for cluster c"):
        PLAN.check("other", NOW_MS)
    with pytest.raises(PlanError, match="24 hours old"):
        PLAN.check("c", NOW_MS + AGE_MAX_MS + 1)


@pytest.mark.parametrize("nodes", [Nodes(), Nodes([4], [33])])
def test_steps_that_failed_or_had_no_report_are_told(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap": "b:1"}})
    path = tmp_path / "plan.json"
    path.write_text(replace(PLAN, made_ms=time.time_ns() // 1_000_000).encode())
    monkeypatch.setattr(spark_reconcile, "admin_client", lambda _: None)
    monkeypatch.setattr(spark_reconcile, "cluster_id", lambda _: "c")
    monkeypatch.setattr(spark_reconcile, "RepairClient", lambda *_: nodes)
    is_done = repair_copies(settings, path, is_dry=False, timeout_s=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert is_done is (told["done"] == 70)
    if not is_done:
        assert (told["done"], told["failed"], told["silent"]) == (68, {"33": "disk"}, [4])
