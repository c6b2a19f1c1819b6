"""Judges one source record: whether it has exactly one settlement (output that settles it).

Source: rule 1 of ``docs/internals/design.md``, and "Proof from the topics" in
``docs/guarantees.md``. ``settlement`` decides whether a settlement is right, ``row_judges`` with
``ledger.ids`` what depends on other records of the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from connectors.spark.audit.group import Group, settled_row
from connectors.spark.audit.multiple_outputs import (
    is_again,
    is_forwarded,
    is_mirror_of,
    is_redelivered,
    ranked,
    settlement_of,
    surplus_finding,
    twice_text,
)
from connectors.spark.audit.rules import EXPIRED, OPEN, Rules, ShardRules
from connectors.spark.audit.settlement import finding_of, gone_home, origin_of, problems, unseen
from connectors.spark.audit.verdicts import (
    ALTERED,
    CERTAIN,
    DUPLICATED,
    IF_MARKED,
    IF_UNMARKED,
    LOST,
    LOST_ROLE,
    NOT_CHECKPOINTED,
    OVERDUE,
    UNJUDGED_ROLE,
    UNKNOWN_SOURCE,
    UNLESS_MARKED,
    WRONG_OUTCOME,
    WRONG_TARGET,
    RecordVerdict,
    Remembered,
    Settled,
)
from connectors.spark.ledger.facts import (
    ARRIVED,
    CONTINUED,
    COPIED,
    DELIVERED,
    FORWARDED,
    KIND_NAMES,
    LETTER,
    OUTCOME,
    PENDING,
    OutputRow,
    SourceFacts,
    SourceRow,
)
from connectors.spark.ledger.ids import NONE, against_origin
from delayservice.contract.entry import ABSENT, CANCEL, FIRE, HOMEBOUND, SCHEDULE

_COUNTED: Final = {
    DELIVERED: "delivered",
    LETTER: "dead_lettered",
    OUTCOME: "given_an_outcome",
    COPIED: "copied",
    FORWARDED: "forwarded",
}
_NOWHERE: Final = Settled(LOST_ROLE, 0, -1, -1, -1)


def judge(group: Group, rules: Rules, counts: Counter[str]) -> Iterator[RecordVerdict]:
    own = rules.shards[group.shard]
    counts["mirrored"] += group.mirrored
    if group.undecided and group.source is not None and not group.settling:
        counts["sources"] += 1
        counts["pending"] += 1
        yield from group.carried()
        return
    yield from group.carried_undecided()
    settling = _without_elder(group.settling, own, counts)
    if group.settled is not None:
        yield from _late(group, group.settled, settling, rules, counts)
    elif group.source is not None:
        yield from _judge(group, group.source, settling, rules, counts)
    elif group.offset < own.start:
        yield from _of_expired(group, rules, counts)
    else:
        yield from _without_source(group, settling, rules, counts)


def _judge(
    group: Group,
    source: SourceRow,
    settling: Sequence[OutputRow],
    rules: Rules,
    counts: Counter[str],
) -> Iterator[RecordVerdict]:
    counts["sources"] += 1
    yield from _forks(origin_of(source, rules), group)
    if source.facts.kind != HOMEBOUND:  # its recurrence is judged at its home
        for output in group.successors:
            yield from _continued(source, output, rules)
    waits = any(one.role == COPIED for one in settling)
    yield from _arrived(source, group.arrivals, rules, waits=waits, settled=bool(settling))
    if not settling:
        yield from _without_output(group, source, rules, counts)
        return
    first, *surplus = ranked(source, settling, rules)
    if _is_ahead(source, first, rules):
        yield from group.carried()
        return
    if _may_be_copy(source, first, rules):
        counts["not_checkable"] += 1
        yield from unseen(source, OPEN, rules)
        yield from group.carried(reason=OPEN)
        return
    counts[_COUNTED[first.role]] += 1
    yield from _unless_checkpointed(source, first, rules)
    yield from problems(source, first, rules, counts)
    for output in surplus:
        if is_forwarded(source, first, output):
            counts["mirrored"] += 1
        elif is_redelivered(first, output, rules):
            counts["redelivered"] += 1
        else:
            yield surplus_finding(source, first, output, rules)
    yield settled_row(group, settlement_of(first), _details(group, source, first))


def _details(group: Group, source: SourceRow, first: OutputRow) -> Remembered | None:
    # A record that recurs or goes to its home may get further outputs. That it was sent there is
    # known without details: they would be kept of every one.
    facts = source.facts
    if facts.kind != HOMEBOUND and not (facts.recur and facts.kind in (SCHEDULE, ABSENT)):
        return None
    begun = max((_number(one) for one in group.successors), default=0)
    if facts.kind == HOMEBOUND and first.role == FORWARDED and not begun:
        return None
    is_home = bool(group.arrivals) or any(one.role == FORWARDED for one in group.settling)
    return Remembered(source, begun, is_home)


def _forwarded(group: Group) -> Remembered:
    # Of a record that was sent to its home, later outputs are compared with its place only.
    source = SourceRow(
        group.shard,
        group.offset,
        key_ms=0,
        due_ms=0,
        written_ms=0,
        content=0,
        topic=-1,
        partition=-1,
        facts=SourceFacts(HOMEBOUND),
    )
    return Remembered(source, is_home=True)


def _without_elder(
    settling: Sequence[OutputRow], shard: ShardRules, counts: Counter[str]
) -> list[OutputRow]:
    # Outputs written before the shard was born belong to expired records.
    found = [output for output in settling if output.at_ms >= shard.born_ms]
    counts["source_expired"] += len(settling) - len(found)
    return found


def _of_expired(group: Group, rules: Rules, counts: Counter[str]) -> Iterator[RecordVerdict]:
    counts["source_expired"] += len(group.settling)
    name = f"{rules.shards[group.shard].name}:{group.offset}"
    kept: list[OutputRow] = []
    for output in group.settling:
        first = next((one for one in kept if _settle_twice(one, output)), None)
        if first is None:
            kept.append(output)
        elif is_redelivered(first, output, rules):
            counts["redelivered"] += 1
        else:
            detail = twice_text(settlement_of(first), output, rules)
            yield _about(DUPLICATED, group, output, output.facts.origin or name, detail)
    yield from _forks(name, group)


def _settle_twice(first: OutputRow, second: OutputRow) -> bool:
    # Two deliveries settle a record twice, whatever it was, only if topic, due time and content are
    # the same.
    if first.role == second.role == DELIVERED:
        return first.topic == second.topic and first[1:4:2] == second[1:4:2]
    return True


def _without_source(
    group: Group, settling: Sequence[OutputRow], rules: Rules, counts: Counter[str]
) -> Iterator[RecordVerdict]:
    # If the offset is beyond the end of the log that was read, outputs that may be ahead of it are
    # carried to the next cut.
    own = rules.shards[group.shard]
    said = [*settling, *group.successors, *group.arrivals]
    if group.offset >= own.end:
        later = [one for one in said if own.is_open or _is_beside(group, one)]
        counts["outside"] += len(later)
        if later:
            yield from group.carried()
        said = [one for one in said if one not in later]
    for output in said:
        what = {CONTINUED: "continues", ARRIVED: "brings home"}.get(output.role, "settles")
        detail = f"it says that it {what} offset {group.offset} of {own.name}, where no record is"
        origin = output.facts.origin or f"{own.name}:{group.offset}"
        yield _about(UNKNOWN_SOURCE, group, output, origin, detail)


def _is_beside(group: Group, output: OutputRow) -> bool:
    # A requeued record or envelope in another shard, or after the source offset in the same shard,
    # may have been read before its source record was.
    is_copy = output.role in (COPIED, CONTINUED, FORWARDED, ARRIVED)
    return is_copy and not (output.facts.base != NONE and output.place <= group.offset)


def _about(kind: str, group: Group, output: OutputRow, origin: str, detail: str) -> RecordVerdict:
    return RecordVerdict(kind, group.shard, group.offset, origin, output, output.due_ms, detail)


def _late(
    group: Group,
    settled: Settled,
    settling: Sequence[OutputRow],
    rules: Rules,
    counts: Counter[str],
) -> Iterator[RecordVerdict]:
    details = group.details
    if details is None and settled.role == FORWARDED:
        details = _forwarded(group)
    origin = f"{rules.shards[group.shard].name}:{group.offset}"
    for output in settling:
        if settled.role == UNJUDGED_ROLE:
            counts["not_checkable"] += 1
        elif is_mirror_of(settled, output):
            counts["mirrored"] += 1
        elif is_again(settled, output, rules):
            counts["redelivered"] += 1
        else:
            detail = twice_text(settled, output, rules)
            kind = WRONG_OUTCOME if settled.role == LOST_ROLE else DUPLICATED
            yield _about(kind, group, output, output.facts.origin or origin, detail)
    yield from _forks(origin, group, since=0 if details is None else details.begun)
    yield from _late_arrivals(group, settled, details, rules)
    for output in group.successors:
        if details is None:
            detail = f"the occurrence {output.facts.origin} continues a record that does not recur"
            yield _about(ALTERED, group, output, origin, detail)
        elif details.source.facts.kind != HOMEBOUND:
            yield from _continued(details.source, output, rules)
    if details is not None and (group.successors or group.arrivals):
        begun = max(details.begun, *(_number(one) for one in group.successors), 0)
        is_home = details.is_home or bool(group.arrivals)
        yield settled_row(group, settled, Remembered(details.source, begun, is_home))


def _late_arrivals(
    group: Group, settled: Settled, details: Remembered | None, rules: Rules
) -> Iterator[RecordVerdict]:
    if details is None:
        for output in group.arrivals:
            detail = "a record that was not to go there was sent home"
            yield _about(WRONG_OUTCOME, group, output, output.facts.origin, detail)
        return
    waits = settled.role == COPIED and not details.is_home
    yield from _arrived(details.source, group.arrivals, rules, waits=waits, settled=True)


def _forks(origin: str, group: Group, since: int = 0) -> Iterator[RecordVerdict]:
    # since: highest number of an occurrence seen at an earlier cut; 0: none.
    seen: set[str] = set()
    for output in group.successors:
        name = output.facts.origin
        if name in seen or 0 < _number(output) <= since:
            detail = f"the occurrence {name} was begun here a second time"
            yield _about(DUPLICATED, group, output, origin, detail)
        seen.add(name)


def _number(output: OutputRow) -> int:
    number = output.facts.origin.rpartition("#")[2]
    return int(number) if number.isdecimal() else 0


def _continued(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    why = against_origin(source, output)
    if why is not None:
        yield finding_of(ALTERED, source, output, rules, why)
    named = (output.facts.target, output.facts.target_partition)
    if named != (rules.topic(source), source.partition):
        detail = f"the occurrence names {named[0]}, the record {rules.topic(source)}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)


def _arrived(
    source: SourceRow, arrivals: Sequence[OutputRow], rules: Rules, *, waits: bool, settled: bool
) -> Iterator[RecordVerdict]:
    for number, output in enumerate(arrivals):
        if source.facts.kind != HOMEBOUND:
            detail = f"{KIND_NAMES[source.facts.kind]} was sent home"
            yield finding_of(WRONG_OUTCOME, source, output, rules, detail)
        elif number or (settled and not waits):
            detail = "the record was settled, and sent home here again"
            yield finding_of(DUPLICATED, source, output, rules, detail)
        else:
            yield from gone_home(source, output, rules)


def _without_output(
    group: Group, source: SourceRow, rules: Rules, counts: Counter[str]
) -> Iterator[RecordVerdict]:
    shard = rules.shards[source.shard]
    if source.facts.kind in (CANCEL, FIRE) and shard.has_lost(source.offset):
        counts["not_checkable"] += 1
        yield from unseen(source, EXPIRED, rules)
        yield settled_row(group, _NOWHERE._replace(role=UNJUDGED_ROLE))
        return
    by_key = shard.earlier.has_settled((source.key_ms, source.offset), -1)
    is_named = source.facts.record_id is not None and source.facts.kind in PENDING
    if not by_key:
        counts["pending"] += 1
        yield from _overdue(source, rules, is_named=is_named)
        if not is_named:
            yield from group.carried()
            return
        yield from group.carried(IF_UNMARKED)
    # With an id, a canceller may settle the record at any time; else it is settled after its key.
    key_ms = max(source.key_ms, source.written_ms)
    since_ms = source.written_ms if is_named else key_ms
    reason, when = rules.unseen(source, since_ms), CERTAIN if by_key else IF_MARKED
    if reason is not None and by_key and is_named and rules.unseen(source, key_ms) is None:
        yield from unseen(source, reason, rules, IF_MARKED)
        yield settled_row(group, _NOWHERE._replace(role=UNJUDGED_ROLE), when=IF_MARKED)
        reason, when, since_ms = None, IF_UNMARKED, key_ms
    if reason is not None:
        counts["not_checkable"] += by_key
        yield from unseen(source, reason, rules, when)
        if reason == OPEN:  # the next cut may see what settles it
            yield from group.carried(when, OPEN)
        else:
            yield settled_row(group, _NOWHERE._replace(role=UNJUDGED_ROLE), when=when)
        return
    detail = "it was cancelled, replaced or fired, and nothing settles it"
    if by_key:
        k_ms, k_offset = shard.earlier.key
        detail = (
            f"the checkpoint says that it is settled (K {k_ms}, {k_offset}; H "
            f"{shard.earlier.offset}), and nothing settles it in any topic that was read"
        )
    lost = finding_of(LOST, source, None, rules, detail, when)
    yield lost._replace(since_ms=since_ms, aim=source.topic)
    yield settled_row(group, _NOWHERE, when=when)


def _overdue(source: SourceRow, rules: Rules, *, is_named: bool) -> Iterator[RecordVerdict]:
    # A record with an id may have been cancelled. What an earlier cut has reported is not reported
    # again.
    since_ms = max(source.key_ms, source.written_ms)
    is_old = source.offset < rules.shards[source.shard].new_from
    was_seen = is_old and since_ms < rules.overdue_before_ms
    if was_seen or since_ms >= rules.overdue_since_ms or _is_checkpointed(source, rules):
        return
    detail = f"its time came at {since_ms}, and it is not settled: K or H does not move"
    yield finding_of(OVERDUE, source, None, rules, detail, UNLESS_MARKED if is_named else CERTAIN)


def _is_checkpointed(source: SourceRow, rules: Rules) -> bool:
    later = rules.shards[source.shard].later
    return later.has_settled((source.key_ms, source.offset), -1)


def _is_ahead(source: SourceRow, output: OutputRow, rules: Rules) -> bool:
    # Under at_least_once, the checkpoint may not count a young output yet.
    is_young = output.at_ms > rules.unsettled_since_ms
    return is_young and source.facts.record_id is None and not _is_checkpointed(source, rules)


def _may_be_copy(source: SourceRow, output: OutputRow, rules: Rules) -> bool:
    # An open transaction may hide a delivery in the target, of which this may be a consumer's copy.
    if output.role != DELIVERED or output.topic == source.topic:
        return False
    return rules.unseen_target(source, max(source.key_ms, source.written_ms)) == OPEN


def _unless_checkpointed(
    source: SourceRow, output: OutputRow, rules: Rules
) -> Iterator[RecordVerdict]:
    # Under at_least_once, outputs may be so young that the later cursor does not count the record
    # yet.
    if _is_checkpointed(source, rules) or output.at_ms > rules.unsettled_since_ms:
        return
    shard = rules.shards[source.shard]
    k_ms, k_offset = shard.later.key
    detail = (
        f"its key is ({source.key_ms}, {source.offset}), and the checkpoint has settled up to "
        f"K ({k_ms}, {k_offset}), H {shard.later.offset}"
    )
    when = UNLESS_MARKED if source.facts.record_id is not None else CERTAIN
    yield finding_of(NOT_CHECKPOINTED, source, output, rules, detail, when)
