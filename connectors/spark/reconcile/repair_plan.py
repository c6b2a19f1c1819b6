"""Repair plan: ranges of copies that nodes must read again from the log, as a file that users check
first.

``reconcile`` writes ``plan.json``; ``carry_out`` sends its steps to the nodes and waits for their
reports. ``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from delayservice.base.errors import DelayServiceError
from delayservice.config.units import DAY_MS
from delayservice.contract.times import DUE_STOP_MS
from delayservice.replicas.commands import Command, Report
from delayservice.replicas.digest import HOUR_MS

Copy: TypeAlias = tuple[str, str, int]
"""Node, topic and partition: the copy of one shard on one node."""

VERSION: Final = 1
STEPS_AT_ONCE: Final = 32
"""Number of commands that are sent before their reports are awaited."""
STEPS_MAX: Final = 10_000
"""Largest number of steps of a plan. More would take days, in which the copies change."""
RANGES_MAX: Final = 48
"""Largest number of ranges of one copy in a plan; a copy with more ranges is rebuilt as a whole."""
AGE_MAX_MS: Final = DAY_MS
"""Age above which a plan is refused, in ms, as copies may have changed since."""


class PlanError(DelayServiceError):
    """A plan that can't be read, or must not be carried out."""


class RepairStep(msgspec.Struct, frozen=True, kw_only=True):
    """One range of a copy that its node must read again from the log, or the whole copy.

    Attributes:
        command: ``rebuild`` for a range, ``rebuild_copy`` for the whole copy.
        node: node with the copy.
        topic_id: Kafka's id of the delay topic; a node refuses the step if its topic of this name
            has another id.
        start_ms: first key (time of delivery) of the range, epoch ms.
        stop_ms: end of the keys, exclusive, epoch ms.
        first_offset: lowest known source offset of a record in the range. The node reads its log
            from there, or from a lower offset that its copy has in the range.
        stop_offset: end of the source offsets, exclusive, for users only, as a node reads to the
            end of the log; 0: unknown.
        why: findings that the step repairs, in a few words.
    """

    command: Literal["rebuild", "rebuild_copy"] = "rebuild"
    node: str
    topic: str
    topic_id: str
    partition: int
    start_ms: int
    stop_ms: int
    first_offset: int
    stop_offset: int
    why: str

    @property
    def copy(self) -> Copy:
        """Node, topic and partition of the copy."""
        return self.node, self.topic, self.partition


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Repair steps for the nodes of one cluster.

    Attributes:
        id: random name of the plan, with which it appears in the repair topic.
        cluster: id of the Kafka cluster that the plan was made for.
        made_ms: time at which the copies were compared, epoch milliseconds.
        steps: steps in the order in which they are sent; empty: there is nothing to repair.
        v: version of the format.
    """

    id: str
    cluster: str
    made_ms: int
    steps: tuple[RepairStep, ...] = ()
    v: int = VERSION

    def age_hours(self, now_ms: int) -> int:
        """Return the age of the plan at ``now_ms`` (epoch ms) in whole hours."""
        return (now_ms - self.made_ms) // HOUR_MS

    def encode(self) -> str:
        """Return the plan as the JSON text of ``plan.json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def first_steps(
    steps: Sequence[RepairStep], keep: Collection[Copy]
) -> tuple[tuple[RepairStep, ...], list[str]]:
    """Return the steps for a plan, and a list of notes for users.

    Only the first ``STEPS_MAX`` of ``steps`` are used; a note says so if there are more. More than
    ``RANGES_MAX`` steps for one copy become one step that rebuilds the whole copy.

    Args:
        steps: all steps, those of one copy together; or the first ``STEPS_MAX`` and one more.
        keep: copies that must not be rebuilt as a whole.
    """
    more = f"the plan has the first {STEPS_MAX} steps only: carry it out, then compare again"
    found: list[RepairStep] = []
    for copy, group in groupby(steps[:STEPS_MAX], lambda step: step.copy):
        ranges = list(group)
        whole = len(ranges) > RANGES_MAX and copy not in keep
        found += [_whole_copy(ranges)] if whole else ranges
    return tuple(found), [more] if len(steps) > STEPS_MAX else []


def _whole_copy(ranges: Sequence[RepairStep]) -> RepairStep:
    """Return one step that rebuilds a whole copy, in place of steps for ranges of this copy."""
    return replace(
        ranges[0],
        command="rebuild_copy",
        start_ms=0,
        stop_ms=DUE_STOP_MS,
        first_offset=0,
        stop_offset=0,
        why=f"{len(ranges)} ranges differ",
    )


def decode_plan(data: bytes | str) -> Plan:
    """Return the plan from the content of ``plan.json``, after checking its steps.

    Raises:
        PlanError: the content is no plan or of another version, or a step has an impossible range.
    """
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise PlanError(
            f"this is no repair plan ({exc}); give the plan.json that reconcile wrote"
        ) from exc
    if plan.v != VERSION:
        raise PlanError(f"the plan is of version {plan.v}, and this reads {VERSION}: upgrade it")
    for number, step in enumerate(plan.steps):
        if not (0 <= step.start_ms < step.stop_ms and step.first_offset >= 0):
            raise PlanError(f"step {number} has no range of keys or offsets; run reconcile again")
        if step.stop_offset and step.stop_offset < step.first_offset:
            raise PlanError(f"step {number} ends before its first offset; run reconcile again")
    return plan


class CommandClient(Protocol):
    """Client that sends commands to nodes, such as ``RepairDesk``."""

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        """Send commands to nodes, and yield their reports as they come, until each command has one
        or ``timeout_s`` seconds are over.
        """


OnProgress = Callable[[int, int, Report | None], None]
"""Function that is called with the number of steps that have a report, the number of all steps, and
the newest report; None: there is no report yet."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of carrying out a plan.

    Attributes:
        done: number of steps that were carried out.
        frames: number of pending records that nodes have stored again.
        failed: reason why a step failed, by the number of the step.
        silent: numbers of the steps for which no report came in time.
    """

    done: int
    frames: int
    failed: Mapping[int, str]
    silent: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Return whether every step of the repair plan was carried out."""
        return not self.failed and not self.silent


def carry_out(
    plan: Plan,
    desk: CommandClient,
    cluster: str,
    on_progress: OnProgress = lambda *_: None,
    *,
    now_ms: int,
    timeout_s: float = 600.0,
    replica_only: bool = False,
) -> Outcome:
    """Send the steps of a plan to the nodes, wait for their reports, and return the result.

    Args:
        plan: a plan from ``decode_plan``.
        desk: client that sends commands to the nodes of the cluster.
        cluster: id of the cluster that ``desk`` is connected to.
        on_progress: called at the beginning, and for each report.
        timeout_s: longest wait, in seconds, for the reports about ``STEPS_AT_ONCE`` steps; nodes
            begin no step after that.
        now_ms: present time, epoch ms, by which the age of the plan is judged.
        replica_only: whether nodes must refuse a step for a copy whose slice they own.

    Raises:
        PlanError: the plan was made for another cluster, or is too old.
        KafkaEdgeError: the repair topic can't be used.
    """
    if cluster != plan.cluster:
        raise PlanError(
            f"the plan was made for cluster {plan.cluster}, and this is {cluster}: offsets of one "
            "mean nothing in the other"
        )
    if now_ms - plan.made_ms > AGE_MAX_MS:
        raise PlanError(
            f"the plan is {plan.age_hours(now_ms)} hours old, and copies change: compare again"
        )
    total = len(plan.steps)
    reports: dict[int, Report] = {}
    on_progress(0, total, None)
    for start in range(0, total, STEPS_AT_ONCE):
        numbered = list(enumerate(plan.steps))[start : start + STEPS_AT_ONCE]
        sent = commands(plan.id, numbered, timeout_s, replica_only=replica_only)
        for answer in desk.ask(sent, timeout_s):
            reports[answer.step] = answer
            on_progress(len(reports), total, answer)
    failed = {n: report.detail for n, report in reports.items() if report.status != "done"}
    return Outcome(
        done=len(reports) - len(failed),
        frames=sum(report.frames for report in reports.values()),
        failed=failed,
        silent=tuple(n for n in range(total) if n not in reports),
    )


def commands(
    plan_id: str,
    numbered: Iterable[tuple[int, RepairStep]],
    timeout_s: float,
    *,
    replica_only: bool,
) -> list[Command]:
    """Return repair steps as commands for nodes, which expire after ``timeout_s`` seconds, when
    their reports are no longer awaited; ``numbered``: steps with their numbers.
    """
    expires_ms = int((time.time() + timeout_s) * 1_000)
    return [
        Command(
            plan=plan_id,
            step=number,
            expires_ms=expires_ms,
            replica_only=replica_only,
            **{name: fact for name, fact in asdict(step).items() if name != "why"},
        )
        for number, step in numbered
    ]
