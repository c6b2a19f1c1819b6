"""Repeats comparisons of copies, and has nodes rebuild wrong copies within limits.

Before a repair, the nodes read the copy and all right copies of its slice from their disks, and
everything is compared again. So a passing difference is not repaired, and the copy that is left is
known to be right.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from msgspec.structs import replace
from pyspark.sql import SparkSession

from connectors.kafka.copies import RepairClient
from connectors.spark.common.progress import Say
from connectors.spark.common.topics import native_options
from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Copy, RepairStep, carry_out
from connectors.spark.reconcile.run import compare_copies, conclude
from delayservice.replicas.commands import Command

FRESH_S: Final = 60.0
"""Largest age of a comparison at which repairs may be based on it, in s."""
ANSWER_TIMEOUT_S: Final = 600.0
"""Longest wait for nodes to read copies from their disks, or to rebuild them, in s."""

IS_OWNERS: Final = "the node delivers the slice, or may"
IS_SECOND: Final = "another copy of the slice is rebuilt first"
HAS_NO_WITNESS: Final = "no other copy was compared equal, or its node does not answer"
IS_OVER_LIMIT: Final = "the number of repairs is used up"
IS_STALE: Final = "the comparison took too long"


@dataclass(slots=True)
class RepairPolicy:
    """Rules by which copies are rebuilt without a person.

    A repair rebuilds one node's copies of the shards of one slice. It is made only

    - if the node is a replica of the slice, not the owner
    - for one node of a slice at a time
    - if each shard has a copy on another node without findings, whose node answers
    - soon after the comparison
    - ``allowed`` times in the life of the process.

    Attributes:
        made: number of repairs so far, failed ones included; ``failed``: of their steps.
        left: steps of the newest plan that were not carried out, by reason.
    """

    allowed: int = 0
    made: int = 0
    failed: int = 0
    left: dict[str, int] = field(default_factory=dict)

    @property
    def has_stopped(self) -> bool:
        return 0 < self.allowed <= self.made

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "stopped": self.has_stopped}

    def choose(
        self, steps: Sequence[RepairStep], compared: Sequence[Comparison], right: Collection[Copy]
    ) -> list[list[RepairStep]]:
        """Return the repairs that may be made now, each the steps of one node in one slice; and
        count the other steps in ``left``. ``right``: copies that need no repair.
        """
        replicas = {(node, one.partition) for one in compared for node in one.nodes}
        owners = {(node, one.partition) for one in compared for node in one.owners}
        groups: dict[tuple[str, int], list[RepairStep]] = {}
        for step in steps:
            groups.setdefault((step.node, step.partition), []).append(step)
        chosen: dict[int, list[RepairStep]] = {}
        self.left = {}
        for (node, slice_no), group in groups.items():
            others = {copy[1:] for copy in right if copy[0] != node}
            if (node, slice_no) not in replicas - owners:
                why = IS_OWNERS
            elif slice_no in chosen:
                why = IS_SECOND
            elif any(step.copy[1:] not in others for step in group):
                why = HAS_NO_WITNESS
            elif len(chosen) >= self.allowed - self.made:
                why = IS_OVER_LIMIT
            else:
                chosen[slice_no] = group
                continue
            self._leave(group, why)
        return list(chosen.values())

    def may_make(self, repair: Sequence[RepairStep], age_s: float) -> bool:
        """Return whether a repair may be based on a comparison of this age; if so, count it."""
        if age_s > FRESH_S:
            self._leave(repair, IS_STALE)
            return False
        self.made += 1
        return True

    def _leave(self, steps: Sequence[RepairStep], why: str) -> None:
        self.left[why] = self.left.get(why, 0) + len(steps)


class Following:
    """Comparisons that are repeated, with repairs by ``policy``. ``last``: result of the newest one
    that did not fail.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: ReconcileOptions,
        stop: threading.Event,
        repairs_max: int = 0,
        say: Say = lambda _: None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._stop = stop
        self._say = say
        self._nodes = RepairClient(native_options(options.client), options.repairs, stop)
        self.policy = RepairPolicy(repairs_max)
        self.last: ReconcileResult | None = None

    def step(self) -> ReconcileResult:
        """Compare once, and repair what may be repaired. Raises one of ``session.RETRIED``."""
        result = self._compare()
        self.policy.left = {}
        if self.policy.allowed and result.plan.steps:
            result = self._repair(result)
        conclude(self._spark, self._options, result, self.policy.to_json())
        self.last = result
        return result

    def _compare(self) -> ReconcileResult:
        return compare_copies(self._spark, self._options, self._say, self._stop)

    def _repair(self, result: ReconcileResult) -> ReconcileResult:
        # The copies are read from disk and compared again before a repair: only what is allowed
        # then is done.
        chosen = self.policy.choose(result.plan.steps, result.compared, result.right)
        if not chosen:
            return result
        self._say("having other copies read from their disks")
        answered = self._confirm([step.copy for repair in chosen for step in repair], result.right)
        result = self._compare()
        right = result.right & answered
        for repair in self.policy.choose(result.plan.steps, result.compared, right):
            if self.policy.may_make(repair, time.monotonic() - result.read_s):
                self._carry_out(repair, result)
        return result

    def _confirm(self, wrong: Sequence[Copy], right: Collection[Copy]) -> set[Copy]:
        slices = {slice_no for _, _, slice_no in wrong}
        copies = [*wrong, *(copy for copy in sorted(right) if copy[2] in slices)]
        plan = uuid.uuid4().hex
        commands = [
            Command(
                plan=plan, step=step, command="scan", node=node, topic=topic, partition=partition
            )
            for step, (node, topic, partition) in enumerate(copies)
        ]
        reports = self._nodes.ask(commands, ANSWER_TIMEOUT_S)
        return {copies[report.step] for report in reports if report.status == "done"}

    def _carry_out(self, repair: Sequence[RepairStep], result: ReconcileResult) -> None:
        node, _, slice_no = repair[0].copy
        self._say(f"having {node} rebuild its copy of slice {slice_no}")
        plan = replace(result.plan, id=uuid.uuid4().hex, steps=tuple(repair))
        reports = carry_out(plan, self._nodes, ANSWER_TIMEOUT_S)
        self.policy.failed += len(repair) - sum(one.status == "done" for one in reports)
