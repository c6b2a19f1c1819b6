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
    """Source offsets ``[start, stop)`` of one shard (partition of a delay topic)."""

    topic: str
    partition: int
    start: int = 0
    stop: int = OFFSET_MAX

    @property
    def place(self) -> Place:
        """Topic and partition of the range."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        client: options of librdkafka, ``bootstrap.servers`` at least.
        out: folder or URL for the results, as Spark names them; its content is replaced.
        checkpoint: the service's checkpoint topic.
        dead_letter: the service's dead-letter topic.
        outcomes: the service's outcome topic.
        targets: target topics to read; empty: every topic that a contract or ``allow`` allows.
        allow: target patterns from the nodes' settings, for records whose contract has no
            allowlist; None: unknown, so every topic that no rule reserves is read. Deliveries to
            topics that are not read can't be checked.
        all_topics: whether to read every topic that is not Kafka's own, allowed or not.
        never: further topics of the service to leave out, as they hold no outputs.
        secrets: the cluster's secrets, to detect forged copies; empty: copies count as genuine,
            except those that the service refused.
        late_ms: report deliveries later than this after their due time, in ms; None: none.
        early_ms: report deliveries earlier than due by more than this, in ms.
        grace_ms: for ``at_least_once``: outputs younger than this may be ahead of the checkpoint,
            and a repeated delivery within this time after a crash is allowed, in ms.
        overdue_ms: report records unsettled for longer than this after due, in ms; None: none.
        lag_ms: allowed lag of H behind the log while records are delivered on time, in ms: a cancel
            written longer than this before a record was due wins.
        delay_topics: delay topics that should be in the checkpoints, as far as they exist.
        ranges: source offsets to report on; empty: all.
        topic: topic to write findings and a summary to; None: no topic.
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
        """Return the topics to read besides the delay topics, from all ``topics`` of the cluster.

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
        """Return the topics to which a record of any shard may be delivered."""
        rules = {contract for held in contracts for _, contract in held.entries()}
        lists = [Allowlist.of_contract(one, "") for one in rules if one.has_allowlist]
        if len(lists) < len(rules):
            lists.append(Allowlist("", ["*"] if self.allow is None else self.allow))
        return {t for t in topics if any(one.denial(t) is None for one in lists)}

    @property
    def strictness(self) -> Strictness:
        """Limits by which outputs are judged."""
        return Strictness(self.late_ms, self.early_ms, self.grace_ms, self.overdue_ms, self.lag_ms)

    def path(self, name: str) -> str:
        """Return the path of the entry ``name`` in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"
