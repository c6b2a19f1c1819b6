"""Repair plan, ``plan.json``: copies that nodes must rebuild from the log.

``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from connectors.kafka.copies import RepairClient
from delayservice.replicas.commands import Command, Report

Copy: TypeAlias = tuple[str, str, int]
"""Node, topic and partition: the copy of one shard on one node."""

VERSION: Final = 1
STEPS_AT_ONCE: Final = 32


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
    """Repair steps by node, from a comparison at ``made_ms``. ``id`` is the random name of the plan
    in the repair topic.
    """

    id: str
    made_ms: int
    steps: tuple[RepairStep, ...] = ()
    v: int = VERSION

    def encode(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def carry_out(plan: Plan, nodes: RepairClient, timeout_s: float = 600.0) -> Iterator[Report]:
    """Send the steps of a plan to one node after another, and yield their reports: so one copy of a
    slice is rebuilt at a time.

    ``timeout_s`` is the longest wait for the reports about ``STEPS_AT_ONCE`` steps; the node begins
    no step after that.

    Raises:
        KafkaEdgeError: the repair topic can't be used.
    """
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
        for number, step in enumerate(plan.steps)
    ]
    for _, group in groupby(sorted(commands, key=lambda one: one.node), lambda one: one.node):
        of_node = list(group)
        for start in range(0, len(of_node), STEPS_AT_ONCE):
            yield from nodes.ask(of_node[start : start + STEPS_AT_ONCE], timeout_s)
