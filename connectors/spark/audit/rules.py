"""Rules by which an audit judges records: cursors, contracts, limits, and which logs
are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connectors.spark.ledger.facts import DELIVERABLE, FOREIGN, NEVER_MS, OutputRow, SourceRow
from connectors.spark.ledger.rows import name_hash
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import CANCEL, FIRE
from delayservice.engine.cursor import Cursor

OPEN: Final = "behind_open_transaction"
"""Reason not to judge a record: an open transaction of another producer may hide its settlement
(the output that settles it)."""
DELETED: Final = "evidence_deleted"
NOT_READ: Final = "target_not_read"
COMPACTED: Final = "target_compacted"
EXPIRED: Final = "control_expired"
"""Reasons not to judge a record: ``DELETED``: retention may have deleted the output that settles
it; ``NOT_READ``: its target is not read; ``COMPACTED``: its target keeps only the last record of a
key; ``EXPIRED``: a cancel or fire that retention deleted before H had passed it."""

# Least allowed difference between the clocks of brokers and nodes, in ms, whatever the nodes allow
# now: their default, by which they may have delivered before.
CLOCKS_MS: Final = 500


@dataclass(frozen=True, slots=True)
class ShardRules:
    """Rules for the records of one shard at one cut.

    Attributes:
        earlier, later: cursor of the shard, read before and after the ends of the logs.
        start: first source offset from which all records are known.
        end: source offset up to which its log is read, exclusive.
        is_open: whether an open transaction hides the end of its log.
        is_level: whether it is of a level topic, whose records may be requeued into other shards.
        judged_from, new_from: first source offset that is judged, and that no earlier cut has read.
        born_ms: time, epoch ms; outputs written before it belong to expired records, or to a
            deleted topic of the same name, and settle no record of this shard.
        lost: offsets that retention deleted before they were settled: no record there had an
            effect on another one.
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
    lost: tuple[tuple[int, int], ...] = ()

    def has_lost(self, offset: int) -> bool:
        return any(first <= offset < stop for first, stop in self.lost)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by which all records are judged. Shards and topics are hashes of names, as in the
    ledger.

    Attributes:
        read: topics that are read besides the delay topics.
        complete_since_ms: by topic, a time for each partition, epoch ms, since which it still has
            all its records; topic missing: always.
        open_places: logs whose end an open transaction hides.
        compacted: target topics that keep only the last record of a key.
        by_broker: topics in which the broker sets the timestamps.
        seen_ms: by topic, the timestamp of the first record of each partition, epoch ms;
            ``NEVER_MS``: the partition is empty.
        late_ms, early_ms, grace_ms, lag_ms, clock_tolerance_ms: as in ``AuditOptions``.
        overdue_since_ms: pending records that were due before this time, epoch ms, are overdue.
        overdue_before_ms: ``overdue_since_ms`` of the previous cut.
        unsettled_since_ms: outputs written after this time, epoch ms, may not be in a checkpoint
            yet.
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
    clock_tolerance_ms: int = CLOCKS_MS

    def may_be_refused(self, output: OutputRow) -> bool:
        # H of the earlier cursor of the output's shard has not passed it.
        name = f"{self.topics.get(output.topic, '')}:{output.partition}"
        own = self.shards.get(name_hash(name))
        return own is not None and output.place >= own.earlier.offset

    def topic(self, source: SourceRow) -> str:
        return self.topics.get(source.topic, source.facts.target)

    def clocks_ms(self, topic: int) -> int:
        """Return the allowed difference of a topic's timestamps from the clocks of nodes, in ms."""
        return max(CLOCKS_MS, self.clock_tolerance_ms) if topic in self.by_broker else 0

    def early_allowed_ms(self, topic: int) -> int:
        return max(self.early_ms, self.clocks_ms(topic))

    def unseen(self, source: SourceRow, since_ms: int) -> str | None:
        """Return the reason, such as ``DELETED``, why an output that settles this record may be
        unreadable, if it was written at ``since_ms`` (epoch ms) or later.
        """
        facts = source.facts
        own = self.shards[source.shard]
        if own.is_open:
            return OPEN
        is_delayed = facts.kind in DELIVERABLE
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
        """As ``unseen``, for the envelope that brings the record to its home."""
        return self._hidden_in(source.topic, [source.partition], since_ms)

    def unseen_target(self, source: SourceRow, since_ms: int) -> str | None:
        """As ``unseen``, for a delivery."""
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
        # Retention may have deleted some records of a millisecond and left others.
        if complete_ms is None or all(
            complete_ms[number] < since_ms for number in numbers if number < len(complete_ms)
        ):
            return None
        return DELETED

    def may_hold(self, topic: int, partition: int, key_hash: int, at_ms: int) -> bool:
        """Return whether a producer may have chosen ``partition`` for a key (negative hash: no
        key), by a number of partitions that the topic has had from ``at_ms`` (epoch ms) until now.
        """
        count = self.partitions[topic]
        if key_hash < 0 or key_hash % count == partition:
            return True
        seen = self.seen_ms.get(topic, ())
        had = 1 + max((n for n, first_ms in enumerate(seen) if first_ms <= at_ms), default=0)
        return any(key_hash % earlier == partition for earlier in range(had, count))
