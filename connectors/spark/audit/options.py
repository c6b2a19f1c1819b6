"""The options of an audit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from connectors.spark.audit.evidence import Strictness
from connectors.spark.common.topics import Place
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import OFFSET_MAX
from delayservice.contract.targets import Allowlist


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Source offsets ``[start, stop)`` of one shard."""

    topic: str
    partition: int
    start: int = 0
    stop: int = OFFSET_MAX

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        client: options of librdkafka, ``bootstrap.servers`` at least.
        out: folder or URL for the results, as Spark names them; what it holds is replaced.
        checkpoint: the service's checkpoint topic.
        dead_letter: its dead-letter topic.
        outcomes: its outcome topic.
        targets: target topics to read; none: every topic that a contract or ``allow`` allows.
        allow: patterns of targets in the settings of the nodes, which judge records whose contract
            has no allowlist; None: not known, so every topic is read that no rule reserves. What is
            not read any more is not checkable.
        all_topics: read every topic that is not Kafka's own, whatever is allowed.
        never: further topics of the service, which are left out: they hold no outputs.
        secrets: the cluster's secrets, to tell forged copies; none: copies are believed, but for
            those that the service refused.
        late_ms: report what is delivered later than this after it was due; None: nothing.
        early_ms: report only what is early by more than this.
        grace_ms: for ``at_least_once``: outputs younger than this may be ahead of the checkpoint,
            and a delivery that comes again within this time after a crash is none too many.
        overdue_ms: report what is not settled so long after its time had come; None: nothing.
        lag_ms: how far H may lag behind the log while records are delivered on time: a cancel that
            was written longer before a record was due wins.
        delay_topics: delay topics that should be in the checkpoints, as far as they exist.
        ranges: report on these source offsets only; none: on all.
        topic: write findings and a summary to this topic, too.
    """

    client: Mapping[str, str]
    out: str
    checkpoint: str = "delay_checkpoint"
    dead_letter: str = "delay_dead_letter"
    outcomes: str = "delay_outcomes"
    targets: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    all_topics: bool = False
    never: tuple[str, ...] = ()
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    late_ms: int | None = None
    early_ms: int = 0
    grace_ms: int = 0
    overdue_ms: int | None = 600_000
    lag_ms: int = 30_000
    delay_topics: tuple[str, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    topic: str | None = None

    def choose(self, contracts: Collection[Contracts], topics: Collection[str]) -> set[str]:
        """The topics to read beside the delay topics, of those that there are.

        Raises:
            KafkaEdgeError: one that is needed does not exist.
        """
        needed = {self.dead_letter, self.outcomes, *self.targets}
        missing = sorted(needed - set(topics))
        if missing:
            raise KafkaEdgeError(
                f"there is no topic {', '.join(missing)}: name dead letters and outcomes as the "
                "service's settings topics.dead_letter and topics.outcomes do, and targets that "
                "exist"
            )
        never = {self.checkpoint, f"{self.checkpoint}_claims", self.topic, *self.never}
        if self.all_topics:
            return needed | {t for t in topics if not t.startswith("__") and t not in never}
        return needed if self.targets else needed | (self._allowed(contracts, topics) - never)

    def _allowed(self, contracts: Collection[Contracts], topics: Collection[str]) -> set[str]:
        """Topics that a record of any shard may be delivered to."""
        rules = {contract for held in contracts for _, contract in held.entries()}
        lists = [Allowlist.of_contract(one, "") for one in rules if one.has_allowlist]
        if len(lists) < len(rules):
            lists.append(Allowlist("", ["*"] if self.allow is None else self.allow))
        return {t for t in topics if any(one.denial(t) is None for one in lists)}

    @property
    def strictness(self) -> Strictness:
        """Return how strictly outputs are judged."""
        return Strictness(self.late_ms, self.early_ms, self.grace_ms, self.overdue_ms, self.lag_ms)

    def path(self, name: str) -> str:
        """Return the path of something in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"
