"""Repair plan, ``plan.json``: copies that nodes must rebuild from the log.

``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeAlias

import msgspec

from delayservice.base.errors import DelayServiceError
from delayservice.config.units import DAY_MS
from delayservice.replicas.commands import Command, Report
from delayservice.replicas.digest import HOUR_MS

Copy: TypeAlias = tuple[str, str, int]
"""Node, topic and partition: the copy of one shard on one node."""

VERSION: Final = 1
STEPS_AT_ONCE: Final = 32
# Age above which a plan is refused, in ms, as copies may have changed since.
AGE_MAX_MS: Final = DAY_MS


class PlanError(DelayServiceError):
    """A plan that can't be read, or must not be carried out."""


class RepairStep(msgspec.Struct, frozen=True, kw_only=True):
    """One copy that its node must rebuild from the log.

    Attributes:
        topic_id: a node refuses the step if its topic of this name has another id.
        why: findings that the step repairs, in a few words.
    """

    node: str
    topic: str
    topic_id: str
    partition: int
    why: str

    @property
    def copy(self) -> Copy:
        return self.node, self.topic, self.partition


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Repair steps by node, for the cluster that was compared at ``made_ms``. ``id`` is the random
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


def decode_plan(data: bytes | str) -> Plan:
    """Return the plan from the content of ``plan.json``.

    Raises:
        PlanError: the content is no plan, or of another version.
    """
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise PlanError(
            f"this is no repair plan ({exc}); give the plan.json that reconcile wrote"
        ) from exc
    if plan.v != VERSION:
        raise PlanError(f"the plan is of version {plan.v}, and this reads {VERSION}: upgrade it")
    return plan


class CommandClient(Protocol):
    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Report]:
        """Yield reports until each command has one or ``timeout_s`` seconds are over."""


OnProgress = Callable[[int, int, Report | None], None]
"""Function that is called with the number of steps that have a report, the number of all steps, and
the newest report; None: there is no report yet."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a plan."""

    done: int
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
) -> Outcome:
    """Send the steps of a plan to one node after another, and wait for their reports: so one copy
    of a slice is rebuilt at a time.

    ``timeout_s`` is the longest wait for the reports about ``STEPS_AT_ONCE`` steps; the node begins
    no step after that.

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
    for numbered in _batches(plan.steps):
        commands = [
            Command(
                plan=plan.id,
                step=number,
                command="rebuild",
                node=step.node,
                topic=step.topic,
                topic_id=step.topic_id,
                partition=step.partition,
            )
            for number, step in numbered
        ]
        for answer in desk.ask(commands, timeout_s):
            reports[answer.step] = answer
            on_progress(len(reports), total, answer)
    failed = {n: report.detail for n, report in reports.items() if report.status != "done"}
    return Outcome(
        done=len(reports) - len(failed),
        failed=failed,
        silent=tuple(n for n in range(total) if n not in reports),
    )


def _batches(steps: Sequence[RepairStep]) -> Iterator[Sequence[tuple[int, RepairStep]]]:
    by_node = sorted(enumerate(steps), key=lambda numbered: numbered[1].node)
    for _, group in groupby(by_node, key=lambda numbered: numbered[1].node):
        numbered = list(group)
        for start in range(0, len(numbered), STEPS_AT_ONCE):
            yield numbered[start : start + STEPS_AT_ONCE]
