"""Repair plan, ``plan.json``: ranges of copies that nodes must read again from the log.

``docs/internals/digests.md`` has the format.
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
# Largest number of steps of a plan. More would take days, in which the copies change.
STEPS_MAX: Final = 10_000
RANGES_MAX: Final = 48
# Age above which a plan is refused, in ms, as copies may have changed since.
AGE_MAX_MS: Final = DAY_MS


class PlanError(DelayServiceError):
    """A plan that can't be read, or must not be carried out."""


class RepairStep(msgspec.Struct, frozen=True, kw_only=True):
    """One range of a copy that its node must read again from the log, or the whole copy.

    Attributes:
        command: ``rebuild`` for a range, ``rebuild_copy`` for the whole copy.
        topic_id: a node refuses the step if its topic of this name has another id.
        start_ms, stop_ms: keys (times of delivery) of the range, ``stop_ms`` exclusive, epoch ms.
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
        return self.node, self.topic, self.partition


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Repair steps in order, for the cluster that was compared at ``made_ms``. ``id`` is the random
    name of the plan in the repair topic.
    """

    id: str
    cluster: str
    made_ms: int
    steps: tuple[RepairStep, ...] = ()
    v: int = VERSION

    def age_hours(self, now_ms: int) -> int:
        return (now_ms - self.made_ms) // HOUR_MS

    def encode(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def first_steps(
    steps: Sequence[RepairStep], keep: Collection[Copy]
) -> tuple[tuple[RepairStep, ...], list[str]]:
    """Return the steps for a plan, and a list of notes for users.

    More than ``RANGES_MAX`` steps for one copy become one that rebuilds the whole copy, unless it
    is in ``keep``. The steps of one copy stand together.
    """
    more = f"the plan has the first {STEPS_MAX} steps only: carry it out, then compare again"
    found: list[RepairStep] = []
    for copy, group in groupby(steps[:STEPS_MAX], lambda step: step.copy):
        ranges = list(group)
        whole = len(ranges) > RANGES_MAX and copy not in keep
        found += [_whole_copy(ranges)] if whole else ranges
    return tuple(found), [more] if len(steps) > STEPS_MAX else []


def _whole_copy(ranges: Sequence[RepairStep]) -> RepairStep:
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
    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        """Yield reports until each command has one or ``timeout_s`` seconds are over."""


OnProgress = Callable[[int, int, Report | None], None]
"""Function that is called with the number of steps that have a report, the number of all steps, and
the newest report; None: there is no report yet."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a plan; ``frames``: number of pending records that nodes have stored again."""

    done: int
    frames: int
    failed: Mapping[int, str]
    silent: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
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
    """Send the steps of a plan to the nodes, and wait for their reports.

    ``timeout_s`` is the longest wait for the reports about ``STEPS_AT_ONCE`` steps; nodes begin no
    step after that. With ``replica_only``, nodes refuse a step for a copy whose slice they own.

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
    # Commands expire when their reports are no longer awaited.
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
