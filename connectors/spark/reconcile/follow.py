"""Compares copies at intervals until the process is stopped, and repairs within limits.

Before a repair, the nodes read the copy and its *witness*, a right copy on another node, from their
disks, and everything is compared again. So a passing difference is not repaired, and the witness is
known to be right.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field

from msgspec.structs import replace
from pyspark.sql import SparkSession

from connectors.kafka.copies import RepairDesk, cluster_id
from connectors.spark.common.failures import FAILURES, reason
from connectors.spark.common.progress import Say, each_interval
from connectors.spark.common.topics import native_options
from connectors.spark.reconcile.guard import (
    IS_STALE,
    Chosen,
    Repair,
    choose,
    confirmed,
    is_fresh,
    standings,
)
from connectors.spark.reconcile.options import ReconcileOptions
from connectors.spark.reconcile.repair_plan import Copy, Plan, carry_out
from connectors.spark.reconcile.result import ReconcileResult
from connectors.spark.reconcile.run import compare_copies, conclude
from delayservice.base.errors import DelayServiceError
from delayservice.replicas.commands import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of comparisons at intervals, and of repairs.

    Attributes:
        reconcile: options of each comparison.
        interval_s: time from the start of one comparison to that of the next, in seconds; if a
            comparison takes longer, the next begins at once.
        repairs_max: largest number of repairs in the life of the process; 0: no repairs.
        timeout_s: longest wait for the reports of nodes about repair steps, or about reading their
            disks, in seconds.
    """

    reconcile: ReconcileOptions
    interval_s: float = 60.0
    repairs_max: int = 0
    timeout_s: float = 600.0


@dataclass(slots=True)
class Repairs:
    """Numbers of repairs since the process was started.

    Attributes:
        allowed: largest number of repairs; 0: no repairs are made.
        made: number of repairs that were begun, successful or not.
        failed: number of repair steps that failed, or for which no report came.
        left: number of steps of the newest plan that were not carried out, by reason.
    """

    allowed: int = 0
    made: int = 0
    failed: int = 0
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_stopped(self) -> bool:
        """Return whether no more repairs are made, as the allowed number is reached."""
        return 0 < self.allowed <= self.made

    def to_json(self) -> dict[str, object]:
        """Return the numbers of repairs as part of the JSON summary."""
        return {**asdict(self), "left": dict(self.left), "stopped": self.has_stopped}


@dataclass(slots=True)
class Followed:
    """Results of the comparisons since the process was started.

    Attributes:
        intervals: number of comparisons, including failed ones.
        failed: number of comparisons that failed.
        repairs: numbers of repairs.
        last: result of the last comparison that did not fail; None: no such comparison.
    """

    intervals: int = 0
    failed: int = 0
    repairs: Repairs = field(default_factory=Repairs)
    last: ReconcileResult | None = None


Heard = Callable[[ReconcileResult | str, Repairs], None]
"""Function that is called after each comparison with its result, or the reason why it failed; and
with the numbers of repairs so far."""


def follow(
    spark: SparkSession,
    options: FollowOptions,
    stop: threading.Event,
    heard: Heard = lambda *_: None,
    say: Say = lambda _: None,
) -> Followed:
    """Compare at intervals until ``stop`` is set, and return the results; ``heard`` is called after
    each comparison, also with the reason of a failure, but not after one that ``stop`` has ended.
    After a failure, the next interval tries again.
    """
    following = _Following(spark, options, stop, say)
    for _ in each_interval(options.interval_s, stop, say):
        found = following.once()
        if found is not None:
            heard(found, following.so_far.repairs)
    return following.so_far


class _Following:
    """Runner of comparisons and repairs, one at a time."""

    def __init__(
        self, spark: SparkSession, options: FollowOptions, stop: threading.Event, say: Say
    ) -> None:
        self._spark = spark
        self._options = options
        self._say = say
        self._stop = stop
        compared = options.reconcile
        self._client = native_options(compared.client)
        self._desk = RepairDesk(self._client, compared.repairs, stop)
        self.so_far = Followed(repairs=Repairs(options.repairs_max))

    def once(self) -> ReconcileResult | str | None:
        """Compare, make the allowed repairs, write and publish the summary; return the result, or
        the reason why that failed; None: it was stopped.
        """
        self.so_far.intervals += 1
        try:
            result = self._compare()
            repairs = self.so_far.repairs
            if repairs.allowed and result.plan.steps:
                result = self._repair(result)
            else:
                repairs.left = {}
            conclude(self._spark, self._options.reconcile, result, repairs.to_json())
        except (DelayServiceError, *FAILURES) as exc:
            if self._stop.is_set():
                return None
            self.so_far.failed += 1
            return str(exc) if isinstance(exc, DelayServiceError) else reason(exc)
        self.so_far.last = result
        return result

    def _compare(self) -> ReconcileResult:
        return compare_copies(self._spark, self._options.reconcile, self._say, self._stop)

    def _repair(self, result: ReconcileResult) -> ReconcileResult:
        """Choose the allowed repairs; if there are any, have the copies read from disk, compare
        again, and make those that are allowed then. Return the newest comparison.
        """
        chosen = self._choose(result)
        if chosen.repairs:
            self._say("having other copies read from their disks")
            answered = self._confirm(chosen.repairs)
            result = self._compare()
            chosen = self._choose(result, answered)
        left = Counter(chosen.left)
        for repair in chosen.repairs:
            if is_fresh(time.monotonic() - result.read_s):
                self._carry_out(repair, result.plan)
            else:
                left[IS_STALE] += len(repair.steps)
        self.so_far.repairs.left = dict(left)
        return result

    def _carry_out(self, repair: Repair, plan: Plan) -> None:
        self._say(f"having {repair.node} rebuild its copy of slice {repair.slice_no}")
        repairs = self.so_far.repairs
        repairs.made += 1
        outcome = carry_out(
            replace(plan, id=uuid.uuid4().hex, steps=repair.steps),
            self._desk,
            cluster_id(self._client),
            now_ms=time.time_ns() // 1_000_000,
            timeout_s=self._options.timeout_s,
            replica_only=True,
        )
        repairs.failed += len(repair.steps) - outcome.done

    def _choose(self, result: ReconcileResult, answered: Collection[Copy] | None = None) -> Chosen:
        known = standings(result.compared, result.wrong)
        if answered is not None:
            known = confirmed(known, answered)
        repairs = self.so_far.repairs
        return choose(result.plan.steps, known, repairs.allowed - repairs.made)

    def _confirm(self, wanted: Collection[Repair]) -> set[Copy]:
        """Have nodes read the copies to repair, and their witnesses, from disk; wait up to
        ``timeout_s`` of the options; return the copies that were read.
        """
        told = (copy for one in wanted for copy in (*one.witnesses, *(s.copy for s in one.steps)))
        copies = list(dict.fromkeys(told))
        plan, timeout_s = uuid.uuid4().hex, self._options.timeout_s
        expires_ms = int((time.time() + timeout_s) * 1_000)
        commands = [
            Command(
                plan=plan,
                step=step,
                command="scan",
                node=node,
                topic=topic,
                partition=partition,
                expires_ms=expires_ms,
            )
            for step, (node, topic, partition) in enumerate(copies)
        ]
        reports = self._desk.ask(commands, timeout_s)
        return {copies[report.step] for report in reports if report.status == "done"}
