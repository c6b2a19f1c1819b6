"""The repair plan: what nodes are to read again, as a file that people look at first.

``reconcile`` writes ``plan.json``; ``carry_out`` sends its steps to the nodes and waits for their
reports. ``docs/reconcile.md`` has the format.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from delayservice.core.repair import Command, Detail, Report
from delayservice.errors import DelayServiceError

VERSION: Final = 1
STEPS_AT_ONCE: Final = 32
"""Commands that wait for their reports at one time."""
STEPS_MAX: Final = 10_000
"""Of one plan: more would take days, and copies are no longer then as they were compared."""


class PlanError(DelayServiceError):
    """A plan can't be read, or must not be carried out."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One range of one copy that is to be read again.

    Attributes:
        command: always ``rebuild``.
        node: whose copy.
        topic: the delay topic.
        partition: its partition.
        start_ms: first key of the range.
        stop_ms: end of the range.
        first_offset: of the first record that belongs in it.
        stop_offset: end of these offsets; 0: not known, all of the log is read.
        why: for people.
    """

    command: Literal["rebuild"] = "rebuild"
    node: str
    topic: str
    partition: int
    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps for the nodes of one cluster.

    Attributes:
        id: names it in the repair topic.
        cluster: id of the Kafka cluster that it was made for.
        made_ms: when.
        steps: in the order in which they are sent; none when there is nothing to repair.
        v: version of the format.
    """

    id: str
    cluster: str
    made_ms: int
    steps: tuple[Step, ...] = ()
    v: int = VERSION

    def encode(self) -> str:
        """Return the content of ``plan.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def first_steps(steps: Sequence[Step]) -> tuple[tuple[Step, ...], list[str]]:
    """Return the steps that a plan may have, and a note for people if there are more."""
    more = f"the plan has the first {STEPS_MAX} steps only: carry it out, then compare again"
    return tuple(steps[:STEPS_MAX]), [more] if len(steps) > STEPS_MAX else []


def decode_plan(data: bytes | str) -> Plan:
    """The plan that ``encode`` wrote, checked.

    Raises:
        PlanError: it is no plan, of another version, or a step makes no sense.
    """
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise PlanError(
            f"this is no repair plan ({exc}); give the plan.json that reconcile wrote"
        ) from exc
    if plan.v != VERSION:
        raise PlanError(f"the plan is of version {plan.v}, and this reads {VERSION}")
    for number, step in enumerate(plan.steps):
        if not (0 <= step.start_ms < step.stop_ms and step.first_offset >= 0):
            raise PlanError(f"step {number} has no range of keys or offsets; run reconcile again")
        if step.stop_offset and step.stop_offset < step.first_offset:
            raise PlanError(f"step {number} ends before its first offset; run reconcile again")
    return plan


class Desk(Protocol):
    """What hands commands to nodes: ``RepairDesk``."""

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report | Detail]:
        """Write commands and give their answers as they come."""


OnProgress = Callable[[int, int, Report | None], None]
"""Steps that are over, steps in all, and the report that came, if one did."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a plan.

    Attributes:
        done: steps that were carried out.
        frames: records that were read again.
        failed: number of a step to why it was not.
        silent: numbers of steps without a report in time.
    """

    done: int
    frames: int
    failed: Mapping[int, str]
    silent: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Return whether every step was carried out."""
        return not self.failed and not self.silent


def carry_out(
    plan: Plan,
    desk: Desk,
    cluster: str,
    on_progress: OnProgress = lambda *_: None,
    *,
    timeout_s: float = 600.0,
) -> Outcome:
    """Send the steps of a plan to the nodes, and wait for their reports.

    Args:
        plan: as ``decode_plan`` gave it.
        desk: of the cluster.
        cluster: id of the cluster that the desk is of.
        on_progress: told of each report, and once at the beginning.
        timeout_s: how long to wait for the reports on ``STEPS_AT_ONCE`` steps; a node begins none
            later than that.

    Raises:
        PlanError: the plan was made for another cluster.
        KafkaEdgeError: the repair topic can't be used.
    """
    if cluster != plan.cluster:
        raise PlanError(
            f"the plan was made for cluster {plan.cluster}, and this is {cluster}: offsets of one "
            "mean nothing in the other"
        )
    total = len(plan.steps)
    reports: dict[int, Report] = {}
    on_progress(0, total, None)
    for start in range(0, total, STEPS_AT_ONCE):
        numbered = list(enumerate(plan.steps))[start : start + STEPS_AT_ONCE]
        for answer in desk.ask(commands(plan.id, numbered, timeout_s), timeout_s):
            if isinstance(answer, Report):
                reports[answer.step] = answer
                on_progress(len(reports), total, answer)
    failed = {n: report.detail for n, report in reports.items() if report.status != "done"}
    return Outcome(
        done=len(reports) - len(failed),
        frames=sum(report.frames for report in reports.values()),
        failed=failed,
        silent=tuple(n for n in range(total) if n not in reports),
    )


def commands(plan_id: str, numbered: Iterable[tuple[int, Step]], timeout_s: float) -> list[Command]:
    """Return steps as commands that expire when no report is waited for any more."""
    expires_ms = int((time.time() + timeout_s) * 1_000)
    return [
        Command(
            plan=plan_id,
            step=number,
            command=step.command,
            node=step.node,
            topic=step.topic,
            partition=step.partition,
            start_ms=step.start_ms,
            stop_ms=step.stop_ms,
            first_offset=step.first_offset,
            stop_offset=step.stop_offset,
            expires_ms=expires_ms,
        )
        for number, step in numbered
    ]
