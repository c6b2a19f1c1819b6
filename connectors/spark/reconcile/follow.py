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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace
from pyspark.sql import SparkSession

from connectors.kafka.copies import RepairClient, cluster_id
from connectors.spark.common.progress import Say, each_interval
from connectors.spark.common.session import RETRIED, reason
from connectors.spark.common.topics import native_options
from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.repair_plan import Copy, Plan, RepairStep, carry_out
from connectors.spark.reconcile.run import compare_copies, conclude
from delayservice.replicas.commands import Command

FRESH_S: Final = 60.0
"""Largest age of a comparison at which repairs may be based on it, in s."""

IS_OWNERS: Final = "the node delivers the slice, or may"
IS_SECOND: Final = "another copy of the slice is rebuilt first"
HAS_NO_WITNESS: Final = "no other copy was compared equal, or its node does not answer"
IS_OVER_LIMIT: Final = "the number of repairs is used up"
IS_STALE: Final = "the comparison took too long"


class Known(NamedTuple):
    """Copies that were compared, those of them without findings, and nodes that deliver a slice."""

    copies: frozenset[Copy]
    equal: frozenset[Copy]
    owners: frozenset[tuple[str, int]]

    def confirmed(self, answered: Collection[Copy]) -> Known:
        """Return the same, with only those equal copies whose nodes have just read them again."""
        return self._replace(equal=self.equal.intersection(answered))


class Repair(NamedTuple):
    """Repair of one node's copies of one slice, with a witness for each shard."""

    node: str
    slice_no: int
    steps: tuple[RepairStep, ...]
    witnesses: tuple[Copy, ...]


class Chosen(NamedTuple):
    """Repairs to be made now, and by reason the number of steps that are left to users."""

    repairs: tuple[Repair, ...]
    left: Mapping[str, int]


def known_of(compared: Collection[Comparison], wrong: Collection[Copy]) -> Known:
    copies = frozenset((node, *one.place) for one in compared for node in one.nodes)
    owners = frozenset((node, one.partition) for one in compared for node in one.owners)
    return Known(copies, copies.difference(wrong), owners)


def choose(steps: Sequence[RepairStep], known: Known, repairs_left: int) -> Chosen:
    """Return the repairs that may be made now, and by reason the number of other steps.

    A repair rebuilds one node's copies of the shards of one slice. It is made automatically only

    - if the node is a replica of the slice, not the owner
    - for one node of a slice at a time
    - if each shard has a *witness*: a copy on another node without findings, whose node answers
    - soon after the comparison
    - a limited number of times.
    """
    groups: dict[tuple[str, int], list[RepairStep]] = {}
    for step in steps:
        groups.setdefault((step.node, step.partition), []).append(step)
    chosen: dict[int, Repair] = {}
    left: dict[str, int] = {}
    for (node, slice_no), group in groups.items():
        witnesses = _witnesses(node, group, known)
        is_known = any((copy[0], copy[2]) == (node, slice_no) for copy in known.copies)
        if not is_known or (node, slice_no) in known.owners:
            why = IS_OWNERS
        elif slice_no in chosen:
            why = IS_SECOND
        elif witnesses is None:
            why = HAS_NO_WITNESS
        elif len(chosen) >= repairs_left:
            why = IS_OVER_LIMIT
        else:
            chosen[slice_no] = Repair(node, slice_no, tuple(group), witnesses)
            continue
        left[why] = left.get(why, 0) + len(group)
    return Chosen(tuple(chosen.values()), left)


def is_fresh(age_s: float) -> bool:
    return age_s <= FRESH_S


def _witnesses(node: str, steps: Sequence[RepairStep], known: Known) -> tuple[Copy, ...] | None:
    """Return for each shard a copy without findings on another node, a replica if possible."""
    found = []
    for step in steps:
        right = [c for c in known.equal if c[1:] == step.copy[1:] and c[0] != node]
        if not right:
            return None
        found.append(min(right, key=lambda copy: ((copy[0], copy[2]) in known.owners, copy)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options of comparisons at intervals (``interval_s`` from start to start), of at most
    ``repairs_max`` repairs in the life of the process, and of the wait for nodes' reports.
    """

    reconcile: ReconcileOptions
    interval_s: float = 60.0
    repairs_max: int = 0
    timeout_s: float = 600.0


@dataclass(slots=True)
class Repairs:
    """Numbers of repairs since the process was started, failed ones included; ``left``: steps of
    the newest plan that were not carried out, by reason.
    """

    allowed: int = 0
    made: int = 0
    failed: int = 0
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_stopped(self) -> bool:
        return 0 < self.allowed <= self.made

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "left": dict(self.left), "stopped": self.has_stopped}


@dataclass(slots=True)
class Followed:
    """Results since the process was started; ``intervals`` counts failed comparisons too."""

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
    """Compare at intervals until ``stop`` is set; ``heard`` is called after each comparison, also
    with the reason of a failure. After a failure, the next interval tries again.
    """
    following = _Following(spark, options, stop, say)
    for _ in each_interval(options.interval_s, stop, say):
        found = following.once()
        if found is not None:
            heard(found, following.so_far.repairs)
    return following.so_far


class _Following:
    def __init__(
        self, spark: SparkSession, options: FollowOptions, stop: threading.Event, say: Say
    ) -> None:
        self._spark = spark
        self._options = options
        self._say = say
        self._stop = stop
        compared = options.reconcile
        self._client = native_options(compared.client)
        self._desk = RepairClient(self._client, compared.repairs, stop)
        self.so_far = Followed(repairs=Repairs(options.repairs_max))

    def once(self) -> ReconcileResult | str | None:
        """Return the reason if the comparison failed, None if it was stopped."""
        self.so_far.intervals += 1
        try:
            result = self._compare()
            repairs = self.so_far.repairs
            if repairs.allowed and result.plan.steps:
                result = self._repair(result)
            else:
                repairs.left = {}
            conclude(self._spark, self._options.reconcile, result, repairs.to_json())
        except RETRIED as exc:
            if self._stop.is_set():
                return None
            self.so_far.failed += 1
            return reason(exc)
        self.so_far.last = result
        return result

    def _compare(self) -> ReconcileResult:
        return compare_copies(self._spark, self._options.reconcile, self._say, self._stop)

    def _repair(self, result: ReconcileResult) -> ReconcileResult:
        # The copies are read from disk and compared again before a repair: only what is allowed
        # then is done.
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
        )
        repairs.failed += len(repair.steps) - outcome.done

    def _choose(self, result: ReconcileResult, answered: Collection[Copy] | None = None) -> Chosen:
        known = known_of(result.compared, result.wrong)
        if answered is not None:
            known = known.confirmed(answered)
        repairs = self.so_far.repairs
        return choose(result.plan.steps, known, repairs.allowed - repairs.made)

    def _confirm(self, wanted: Collection[Repair]) -> set[Copy]:
        told = (copy for one in wanted for copy in (*one.witnesses, *(s.copy for s in one.steps)))
        copies = list(dict.fromkeys(told))
        plan = uuid.uuid4().hex
        commands = [
            Command(
                plan=plan, step=step, command="scan", node=node, topic=topic, partition=partition
            )
            for step, (node, topic, partition) in enumerate(copies)
        ]
        reports = self._desk.ask(commands, self._options.timeout_s)
        return {copies[report.step] for report in reports if report.status == "done"}
