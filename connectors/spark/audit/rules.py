"""Rules by which records are judged: cursors, contracts, and the range of evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connectors.spark.ledger.facts import NEVER_MS, OutputRow, SourceRow
from connectors.spark.ledger.kinds import FOREIGN
from connectors.spark.ledger.rows import name_hash
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import CANCEL, COPY, FIRE, SCHEDULE
from delayservice.engine.cursor import Cursor

OPEN: Final = "behind_open_transaction"
"""Reason not to judge a record: an open transaction of a producer may hide its settlement."""
DELETED: Final = "evidence_deleted"
NOT_READ: Final = "target_not_read"
COMPACTED: Final = "target_compacted"
"""Reasons not to judge a record: retention may have deleted its settlement, its target was not
read, or its target keeps only the last record of a key."""

CLOCKS_MS: Final = 500
"""Allowed lag of a broker's clock, in ms; with a larger difference the service delivers nothing."""


@dataclass(frozen=True, slots=True)
class ShardRules:
    """Rules for one shard at the cut.

    Attributes:
        name: ``topic:partition``.
        earlier: its cursor before the ends of the logs were read.
        later: its cursor after that.
        start: first source offset whose record is known.
        end: offset up to which its log was read, exclusive.
        contracts: contracts by which its records are read.
        is_open: whether an open transaction hides the end of its log, and so requeued records.
        is_level: whether it is of a level topic, whose records are requeued into other shards.
        judged_from: first offset of the range that the verdict is for.
        new_from: first offset that no earlier cut has read.
        born_ms: outputs written before this settle none of its records: they belong to a deleted
            topic of the same name, or to expired records. Epoch ms.
    """

    name: str
    earlier: Cursor
    later: Cursor
    start: int
    end: int
    contracts: Contracts
    is_open: bool = False
    is_level: bool = False
    judged_from: int = 0
    new_from: int = 0
    born_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by which records are judged. Shards and topics are hashes of names, as in the ledger.

    Attributes:
        shards: rules for each shard that is judged.
        topics: names of all topics of the cluster.
        partitions: number of partitions of each topic.
        read: topics that are read besides the delay topics.
        dead_letter, outcomes, delay_topics: the service's topics.
        complete_since_ms: time since which a partition has all its records, epoch ms, by topic
            and partition; missing: always.
        open_places: partitions whose end an open transaction hides.
        compacted: targets that keep only the last record of a key.
        by_broker: topics whose timestamps are the broker's.
        seen_ms: time of each partition's first record, epoch ms, by topic.
        late_ms: deliveries later than this are findings, in ms; None: none are.
        early_ms: tolerance for early delivery, in ms.
        overdue_since_ms: unsettled records due before this time are overdue, epoch ms.
        overdue_before_ms: ``overdue_since_ms`` of the cut before, whose findings were reported.
        grace_ms: time by which outputs may be ahead of their checkpoint, in ms; 0: exactly once.
        unsettled_since_ms: outputs written after this time, epoch ms, may be ahead of their
            checkpoint.
        lag_ms: allowed lag of H behind the log while records are delivered on time, in ms.
    """

    shards: Mapping[int, ShardRules]
    topics: Mapping[int, str]
    partitions: Mapping[int, int]
    read: frozenset[int]
    dead_letter: int
    outcomes: int
    delay_topics: frozenset[int]
    complete_since_ms: Mapping[int, tuple[int, ...]]
    seen_ms: Mapping[int, tuple[int, ...]]
    open_places: frozenset[tuple[int, int]] = frozenset()
    compacted: frozenset[int] = frozenset()
    by_broker: frozenset[int] = frozenset()
    late_ms: int | None = None
    early_ms: int = 0
    overdue_since_ms: int = -NEVER_MS
    overdue_before_ms: int = -NEVER_MS
    grace_ms: int = 0
    unsettled_since_ms: int = NEVER_MS
    lag_ms: int = NEVER_MS

    def topics_by_partitions(self) -> dict[int, list[int]]:
        """Return the topics that are read, by their number of partitions."""
        found: dict[int, list[int]] = {}
        for topic in self.read:
            found.setdefault(self.partitions[topic], []).append(topic)
        return found

    def may_be_refused(self, output: OutputRow) -> bool:
        """Return whether a copy or envelope at H or above may still be refused as forged."""
        name = f"{self.topics.get(output.topic, '')}:{output.partition}"
        own = self.shards.get(name_hash(name))
        return own is not None and output.place >= own.earlier.offset

    def topic(self, source: SourceRow) -> str:
        """Return the name of the record's target topic."""
        return self.topics.get(source.topic, source.facts.target)

    def clocks_ms(self, topic: int) -> int:
        """Return the time by which a topic's timestamps may precede the service's clock, in ms."""
        return CLOCKS_MS if topic in self.by_broker else 0

    def early_allowed_ms(self, topic: int) -> int:
        """Return the tolerance for early delivery to a topic, in ms."""
        return max(self.early_ms, self.clocks_ms(topic))

    def unseen(self, source: SourceRow, since_ms: int) -> str | None:
        """Return the reason why a settlement of this record, written at ``since_ms`` or later, may
        be unreadable; None: every place where it could be was read.
        """
        facts = source.facts
        own = self.shards[source.shard]
        if own.is_open:
            return OPEN
        is_delayed = facts.kind in (SCHEDULE, COPY)
        reasons = []
        if facts.kind not in (CANCEL, FIRE):
            reasons.append(self._hidden(self.dead_letter, source, since_ms))
        if facts.kind in (CANCEL, FIRE) or facts.record_id or facts.expires_ms is not None:
            every = range(self.partitions[self.outcomes])
            reasons.append(self._hidden_in(self.outcomes, every, since_ms))
        if facts.kind in FOREIGN:
            reasons.append(self.unseen_home(source, since_ms))
        if is_delayed:
            reasons.append(self.unseen_target(source, since_ms))
        if is_delayed and own.is_level:
            reasons += [
                self._hidden_in(topic, range(self.partitions[topic]), since_ms)
                for topic in sorted(self.delay_topics)
            ]
        found = [reason for reason in reasons if reason is not None]
        return OPEN if OPEN in found else next(iter(found), None)

    def unseen_home(self, source: SourceRow, since_ms: int) -> str | None:
        """Return the reason as ``unseen`` does, for the envelope of a record that goes home."""
        return self._hidden_in(source.topic, [source.partition], since_ms)

    def unseen_target(self, source: SourceRow, since_ms: int) -> str | None:
        """Return the reason as ``unseen`` does, for deliveries only."""
        if (
            source.topic not in self.topics
        ):  # nothing can have been delivered to a topic that does not exist
            return None
        if source.topic not in self.read:
            return NOT_READ
        if source.topic in self.compacted:
            return COMPACTED
        if source.partition >= 0:
            return self._hidden_in(source.topic, [source.partition], since_ms)
        return self._hidden(source.topic, source, since_ms)

    def _hidden(self, topic: int, source: SourceRow, since_ms: int) -> str | None:
        """Return why an output may be hidden in a partition that its key may select."""
        count = self.partitions[topic]
        has_grown = any(first_ms > since_ms for first_ms in self.seen_ms.get(topic, ())[1:])
        if source.key_hash < 0 or has_grown:
            return self._hidden_in(topic, range(count), since_ms)
        return self._hidden_in(topic, [source.key_hash % count], since_ms)

    def _hidden_in(self, topic: int, partitions: Iterable[int], since_ms: int) -> str | None:
        complete_ms = self.complete_since_ms.get(topic)
        numbers = list(partitions)
        if any((topic, number) in self.open_places for number in numbers):
            return OPEN
        # Of one millisecond, retention may have taken some records and left others.
        if complete_ms is None or all(
            complete_ms[number] < since_ms for number in numbers if number < len(complete_ms)
        ):
            return None
        return DELETED

    def may_hold(self, topic: int, partition: int, key_hash: int, at_ms: int) -> bool:
        """Return whether a producer may have chosen this partition for a key, by the topic's number
        of partitions now or at ``at_ms``.
        """
        count = self.partitions[topic]
        if key_hash < 0 or key_hash % count == partition:
            return True
        seen = self.seen_ms.get(topic, ())
        had = 1 + max((n for n, first_ms in enumerate(seen) if first_ms <= at_ms), default=0)
        return any(key_hash % earlier == partition for earlier in range(had, count))
