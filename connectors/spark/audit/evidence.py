"""Facts of the cluster on which verdicts depend: policies of topics, and how complete logs are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from connectors.spark.audit.rules import CLOCKS_MS, Rules, ShardRules
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.log_times import Policy, first_times, offsets_at, topic_policies
from connectors.spark.common.topics import Place, Span
from connectors.spark.ledger.facts import NEVER_MS
from connectors.spark.ledger.rows import name_hash
from delayservice.contract import names

# Largest allowed time by which an output's timestamp precedes that of its source record, in ms.
CLOCKS_DIFFER_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class EarlierCut:
    """Facts that an audit keeps from its previous cut.

    Attributes:
        ends: offset up to which each log (partition) was read, exclusive.
        starts, judged: first offset of each shard that is known, and that is judged.
        seen_ms: timestamp of each partition's first record, epoch ms.
        overdue_ms: records due before this time, epoch ms, were already reported as overdue.
    """

    ends: Mapping[Place, int] = field(default_factory=dict)
    starts: Mapping[Place, int] = field(default_factory=dict)
    judged: Mapping[Place, int] = field(default_factory=dict)
    seen_ms: Mapping[Place, int] = field(default_factory=dict)
    overdue_ms: int = -NEVER_MS


NO_PAST: Final = EarlierCut()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about the logs at one cut: which offsets are read, and since when they are complete.

    Attributes:
        spans: offsets of each log that are read at this cut.
        starts, judged: as in ``EarlierCut``.
        seen_ms: timestamp of each partition's first record, epoch ms; missing: it is empty.
        complete_ms: time since which a partition still has all its records, epoch ms; missing:
            always.
        policies: compaction and timestamp type of each topic.
    """

    spans: Mapping[Place, Span]
    starts: Mapping[Place, int]
    judged: Mapping[Place, int]
    seen_ms: Mapping[Place, int]
    complete_ms: Mapping[Place, int]
    policies: Mapping[str, Policy]

    @property
    def offsets(self) -> int:
        """Number of offsets that are read at this cut."""
        return sum(span.end - span.start for span in self.spans.values())


def all_of(cut: Cut) -> Evidence:
    """Return evidence, unchecked, that all logs are whole and no target is compacted."""
    starts = {shard.place: shard.span.start for shard in cut.shards}
    policies = {topic: Policy(is_compacted=False, is_by_broker=False) for topic, _ in cut.others}
    return Evidence(cut.spans, starts, starts, dict.fromkeys(cut.spans, 0), {}, policies)


def gather(client: Mapping[str, str], cut: Cut, past: EarlierCut = NO_PAST) -> Evidence:
    """Ask the cluster for the evidence; offsets below the ends in ``past`` are not read again."""
    spans = {
        place: Span(min(max(span.start, past.ends.get(place, 0)), span.end), span.end)
        for place, span in cut.spans.items()
    }
    unseen = {place: span for place, span in cut.spans.items() if place not in past.seen_ms}
    seen_ms = {**past.seen_ms, **first_times(client, unseen)}
    gone = {p: s for p, s in cut.spans.items() if s.start > past.ends.get(p, 0)}
    others = {place: span for place, span in gone.items() if place in cut.others}
    complete_ms = dict.fromkeys(gone, NEVER_MS) | first_times(client, gone)
    complete_ms |= dict.fromkeys(others, NEVER_MS)
    complete_ms |= first_times(client, others, names.DELAY_SETTLES)
    policies = topic_policies(client, {topic for topic, _ in cut.others})
    # Records that retention deleted before they were read are not known.
    starts = {
        s.place: s.span.start if s.place in gone else past.starts.get(s.place, s.span.start)
        for s in cut.shards
    }
    judged = _judged(client, cut, past, complete_ms, policies)
    return Evidence(spans, starts, judged, seen_ms, complete_ms, policies)


def _judged(
    client: Mapping[str, str],
    cut: Cut,
    past: EarlierCut,
    complete_ms: Mapping[Place, int],
    policies: Mapping[str, Policy],
) -> dict[Place, int]:
    # Records are judged from the first one whose outputs retention can't have deleted; a shard in
    # past keeps its offset.
    since_ms = max(
        (
            at_ms
            for (topic, _), at_ms in complete_ms.items()
            if at_ms < NEVER_MS and topic in policies and not policies[topic].is_compacted
        ),
        default=0,
    )
    new = [shard for shard in cut.shards if shard.place not in past.judged]
    # From the next millisecond on: retention may have deleted some records of this one.
    found = offsets_at(client, [s.place for s in new], since_ms + 1) if since_ms and new else {}
    first = {
        s.place: max(s.span.start, found.get(s.place, s.span.end)) if since_ms else s.span.start
        for s in new
    }
    return {shard.place: past.judged.get(shard.place, -1) for shard in cut.shards} | first


@dataclass(frozen=True, slots=True)
class Strictness:
    """Limits by which outputs are judged, in ms, as in ``AuditOptions``; None: no limit."""

    late_ms: int | None = None
    early_ms: int = 0
    grace_ms: int = 0
    overdue_ms: int | None = 600_000
    lag_ms: int = 30_000
    clock_tolerance_ms: int = CLOCKS_MS


def rules_of(
    cut: Cut, evidence: Evidence, strictness: Strictness, past: EarlierCut = NO_PAST
) -> Rules:
    read = {topic for topic, _ in cut.others}
    own = {cut.dead_letter, cut.outcomes}
    grace_ms, policies = strictness.grace_ms, evidence.policies
    return Rules(
        shards={name_hash(s.name): _shard_rules(s, cut, evidence, past) for s in cut.shards},
        topics={name_hash(topic): topic for topic in cut.partitions},
        partitions={name_hash(topic): count for topic, count in cut.partitions.items()},
        read=_hashes(read),
        dead_letter=name_hash(cut.dead_letter),
        outcomes=name_hash(cut.outcomes),
        delay_topics=_hashes(cut.delay_topics),
        complete_since_ms=_by_topic(cut, read, evidence.complete_ms, 0),
        seen_ms=_by_topic(cut, read, evidence.seen_ms, NEVER_MS),
        open_places=frozenset((name_hash(topic), number) for topic, number in cut.open_places),
        compacted=_hashes(t for t in read - own if policies[t].is_compacted),
        by_broker=_hashes(t for t in read if policies[t].is_by_broker),
        late_ms=strictness.late_ms,
        early_ms=strictness.early_ms,
        overdue_since_ms=overdue_since_ms(cut, strictness),
        overdue_before_ms=past.overdue_ms,
        grace_ms=grace_ms,
        unsettled_since_ms=cut.taken_ms - grace_ms if grace_ms else NEVER_MS,
        lag_ms=strictness.lag_ms,
        clock_tolerance_ms=strictness.clock_tolerance_ms,
    )


def overdue_since_ms(cut: Cut, strictness: Strictness) -> int:
    """Return the time, epoch ms, before which an overdue record must have been due."""
    overdue_ms = strictness.overdue_ms
    return -NEVER_MS if overdue_ms is None else cut.taken_ms - overdue_ms


def _shard_rules(shard: ShardCut, cut: Cut, evidence: Evidence, past: EarlierCut) -> ShardRules:
    # Delay topics have the broker's times: the service serves no other ones.
    first_ms = evidence.seen_ms.get(shard.place, cut.taken_ms)
    return ShardRules(
        shard.name,
        shard.earlier,
        shard.later,
        evidence.starts[shard.place],
        shard.span.end,
        shard.contracts,
        is_open=shard.place in cut.open_places,
        is_level=any(contract.level_ms for _, contract in shard.contracts.entries()),
        judged_from=evidence.judged[shard.place],
        new_from=past.ends.get(shard.place, 0),
        born_ms=first_ms - CLOCKS_DIFFER_MS,
        lost=tuple((lost.first, lost.stop) for lost in shard.lost),
    )


def _hashes(topics: Iterable[str]) -> frozenset[int]:
    return frozenset(map(name_hash, topics))


def _by_topic(
    cut: Cut, topics: Collection[str], at_ms: Mapping[Place, int], default: int
) -> dict[int, tuple[int, ...]]:
    return {
        name_hash(topic): tuple(
            at_ms.get((topic, number), default) for number in range(cut.partitions[topic])
        )
        for topic in {*topics, *cut.delay_topics}
    }
