"""What is wrong with one delay record and with what settles it. Pure: no Spark, no Kafka, no clock.

Source: rule 1 of ``docs/design.md``, ``docs/header-contract.md``, and "Proof from the topics" in
``docs/guarantees.md``. Kinds of findings are explained in ``docs/audit.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from connectors.spark.ledger.facts import (
    COPIED,
    DELIVERED,
    DISCLAIMED,
    LETTER,
    NEVER_MS,
    OUTCOME,
    Output,
    Source,
    SourceFacts,
)
from delayservice.core.codes import (
    CONTROL_LOST,
    COPY_FORGED,
    CRON_INVALID,
    HEADER_INVALID,
    SLOT_FULL,
    TARGET_DENIED,
    TARGET_DOWN,
    TARGET_REFUSED,
    TARGET_UNAUTHORIZED,
    TARGET_UNKNOWN,
    TOO_LARGE,
    ZONE_INVALID,
)
from delayservice.core.contract import Contracts
from delayservice.core.cursor import Cursor
from delayservice.core.entry import CANCEL, COPY, FIRE, INVALID, SCHEDULE

LOST: Final = "lost"
DUPLICATED: Final = "duplicated"
EARLY: Final = "early"
LATE: Final = "late"
ALTERED: Final = "altered"
WRONG_TARGET: Final = "wrong_target"
WRONG_OUTCOME: Final = "wrong_outcome"
NOT_CHECKPOINTED: Final = "not_checkpointed"
UNKNOWN_SOURCE: Final = "unknown_source"
MISSING_CODE: Final = "dead_letter_missing_code"

KINDS: Final = (
    LOST,
    DUPLICATED,
    EARLY,
    LATE,
    ALTERED,
    WRONG_TARGET,
    WRONG_OUTCOME,
    NOT_CHECKPOINTED,
    UNKNOWN_SOURCE,
    MISSING_CODE,
)
"""Kinds of findings."""

CERTAIN: Final = 0
IF_MARKED: Final = 1
UNLESS_MARKED: Final = 2
IF_OTHER: Final = 3
IF_UNMARKED: Final = 4
"""When a finding is one: in any case; if the earlier cursor has passed the record's canceller;
unless the later one has; if the canceller is another one than the output names; unless the earlier
cursor has passed it."""

_AT_DELIVERY: Final = frozenset(
    {
        TARGET_UNKNOWN,
        TARGET_UNAUTHORIZED,
        TARGET_REFUSED,
        TARGET_DOWN,
        SLOT_FULL,
        TOO_LARGE,
        CRON_INVALID,
        ZONE_INVALID,
        CONTROL_LOST,
    }
)
"""Codes of dead letters of records that keep the contract, whichever that is."""

_OUTCOMES: Final[Mapping[int, frozenset[str]]] = {
    SCHEDULE: frozenset({"cancelled", "replaced", "expired"}),
    COPY: frozenset({"cancelled", "replaced", "expired"}),
    CANCEL: frozenset({"cancelled", "not_pending"}),
    FIRE: frozenset({"fired", "not_pending"}),
    INVALID: frozenset(),
}
_NAMES: Final = {
    SCHEDULE: "a record",
    COPY: "a copy",
    CANCEL: "a cancel",
    FIRE: "a fire",
    INVALID: "a record that breaks the contract",
}
_ROLE_NAMES: Final = ("", "delivered", "dead-lettered", "given an outcome", "copied")


class Finding(NamedTuple):
    """Something that is wrong. ``when`` says whether that depends on the record's canceller."""

    kind: str
    shard: int
    offset: int
    source: str
    output: Output | None
    due_ms: int
    detail: str
    when: int = CERTAIN
    claim: int = -1
    record_id: bytes | None = None
    base: int = 0
    since_ms: int = 0
    """Of what is lost: nothing may be missing from the topics since then, for it to be true."""


@dataclass(frozen=True, slots=True)
class ShardRules:
    """One shard at the cut.

    Attributes:
        name: ``topic:partition``.
        earlier: its cursor before the ends of the logs were pinned.
        later: its cursor after that.
        start: the first source offset that is judged.
        end: where they end, exclusive.
        log_end: where the log ends: no more is known.
        contracts: what its records are read by.
        complete_since_ms: from when on dead letters, outcomes and, of a level topic, copies hold
            all that was written there.
        born_ms: what was written before this settles none of its records: it is of a topic of the
            same name that was deleted, or of records that have expired.
    """

    name: str
    earlier: Cursor
    later: Cursor
    start: int
    end: int
    log_end: int
    contracts: Contracts
    complete_since_ms: int = 0
    born_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What records are judged by.

    Attributes:
        shards: by their numbers.
        topics: names of all topics of the cluster, by their numbers.
        partitions: how many partitions each of them has.
        read: numbers of the topics that are read beside the delay topics.
        complete_since_ms: by topic number: from when on a topic that is read holds all that was
            written to it; missing: always.
        seen_ms: by topic number: when each partition got its first record.
        late_ms: what is later than this is a finding; None: nothing is.
        early_ms: what is earlier by no more than this is none.
        unsettled_since_ms: an output that was written after this may be ahead of its checkpoint.
        believes: copies were not verified: what the service refused as forged is forged.
    """

    shards: tuple[ShardRules, ...]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    read: frozenset[int]
    complete_since_ms: Mapping[int, int]
    seen_ms: Mapping[int, tuple[int, ...]]
    late_ms: int | None = None
    early_ms: int = 0
    unsettled_since_ms: int = NEVER_MS
    believes: bool = False

    def topic(self, source: Source) -> str:
        """Name of the record's target topic."""
        return self.topics[source.topic] if source.topic >= 0 else source.facts.target

    def is_checkable(self, source: Source, since_ms: int) -> bool:
        """Whether all is read that could hold a settlement that was written at ``since_ms`` or
        later.
        """
        if self.shards[source.shard].complete_since_ms > since_ms:
            return False
        if source.facts.kind not in (SCHEDULE, COPY) or source.topic < 0:
            return True
        if source.topic not in self.read:
            return False
        return self.complete_since_ms.get(source.topic, 0) <= since_ms

    def may_hold(self, topic: int, partition: int, key_hash: int, at_ms: int) -> bool:
        """Whether a producer may have chosen this partition for a key: by the number of partitions
        that the topic has, or had then.
        """
        count = self.partitions[topic]
        if key_hash < 0 or key_hash % count == partition:
            return True
        seen = self.seen_ms.get(topic, ())
        had = 1 + max((n for n, first_ms in enumerate(seen) if first_ms <= at_ms), default=0)
        return any(key_hash % earlier == partition for earlier in range(had, count))


def judge(
    source: Source | None,
    outputs: Sequence[Output],
    shard: int,
    offset: int,
    rules: Rules,
    counts: Counter[str],
) -> Iterator[Finding]:
    """What is wrong with one record.

    Args:
        source: the record; None: there is none at that place.
        outputs: all that say they settle it.
        shard: number of its shard.
        offset: its source offset.
        rules: what to judge by.
        counts: told what was seen.
    """
    forged = {o[4:7] for o in outputs if o.role == DISCLAIMED}
    settling = [o for o in outputs if o.role != DISCLAIMED and o[4:7] not in forged]
    settling = _without_elder(settling, rules.shards[shard], counts)
    if source is None:
        yield from _without_source(settling, shard, offset, rules, counts)
        return
    counts["sources"] += 1
    if rules.believes and source.facts.kind == COPY:
        source = _as_refused(source, settling)
    if not settling:
        yield from _without_output(source, rules, counts)
        return
    first, *surplus = _ranked(source, settling, rules)
    counts[_ROLE_NAMES[first.role].replace(" ", "_").replace("-", "_")] += 1
    yield from _unless_checkpointed(source, first, rules)
    yield from _problems(source, first, rules, counts)
    for output in surplus:
        yield _surplus(source, first, output, rules)


def _without_elder(settling: list[Output], shard: ShardRules, counts: Counter[str]) -> list[Output]:
    """Without what was written before the shard's first record: it names others."""
    found = [output for output in settling if output.at_ms >= shard.born_ms]
    if len(found) < len(settling):
        counts["source_expired"] += len(settling) - len(found)
    return found


def _without_source(
    settling: Sequence[Output], shard: int, offset: int, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    """Outputs of a record that is not there: it expired, or never was."""
    own = rules.shards[shard]
    for output in settling:
        if offset < own.start:
            counts["source_expired"] += 1
        elif offset >= own.end and (own.end < own.log_end or output.role == COPIED):
            counts["outside"] += 1
        else:
            origin = output.facts.origin or f"{own.name}:{offset}"
            detail = f"it says that it settles offset {offset} of {own.name}, where no record is"
            yield Finding(UNKNOWN_SOURCE, shard, offset, origin, output, output.due_ms, detail)


def _as_refused(source: Source, settling: Sequence[Output]) -> Source:
    """A copy as the service saw it, which knows the secret: forged, if it says so."""
    for output in settling:
        if output.role == LETTER and output.facts.code == COPY_FORGED:
            facts = SourceFacts(INVALID, code=COPY_FORGED)
            return source._replace(key_ms=0, due_ms=0, content=output.facts.whole_hash, facts=facts)
    return source


def _without_output(source: Source, rules: Rules, counts: Counter[str]) -> Iterator[Finding]:
    """A record that nothing settles: it is pending, or lost."""
    shard = rules.shards[source.shard]
    by_key = shard.earlier.has_settled((source.key_ms, source.offset), -1)
    is_named = source.facts.record_id is not None and source.facts.kind in (SCHEDULE, COPY)
    if not by_key:
        counts["pending"] += 1
    if not by_key and not is_named:
        return
    when = CERTAIN if by_key else IF_MARKED
    # A canceller settles a record at any time, and only the key says not before when.
    since_ms = source.written_ms if is_named else max(source.key_ms, source.written_ms)
    if by_key and is_named and not rules.is_checkable(source, since_ms):
        when, since_ms = IF_UNMARKED, max(source.key_ms, source.written_ms)
    is_unknown = when == IF_UNMARKED and source.facts.kind == COPY and _base(source) < shard.start
    if is_unknown or not rules.is_checkable(source, since_ms):
        counts["not_checkable"] += by_key
        return
    k_ms, k_offset = shard.earlier.key
    detail = (
        f"the checkpoint says that it is settled (K {k_ms}, {k_offset}; H {shard.earlier.offset}), "
        "and nothing settles it in any topic that was read"
    )
    if not by_key:
        detail = "it was cancelled, replaced or fired, and nothing settles it"
    yield _finding(LOST, source, None, rules, detail, when)._replace(since_ms=since_ms)


def _ranked(source: Source, settling: Sequence[Output], rules: Rules) -> list[Output]:
    """The one that is taken for the settlement first: the soundest, then the oldest."""
    if len(settling) == 1:
        return list(settling)
    return sorted(
        settling,
        key=lambda o: (len(list(_problems(source, o, rules, Counter()))), o.at_ms, o.place),
    )


def _surplus(source: Source, first: Output, output: Output, rules: Rules) -> Finding:
    others = {found.kind for found in _problems(source, output, rules, Counter())}
    also = f"; it is also {', '.join(sorted(others))}" if others else ""
    what = _ROLE_NAMES[first.role]
    where = f"{rules.topics[first.topic]}:{first.partition}:{first.place}"
    detail = f"the record was {what} at {where}, and {_ROLE_NAMES[output.role]} here again{also}"
    return _finding(DUPLICATED, source, output, rules, detail)


def _unless_checkpointed(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """An output of a record that no checkpoint says is settled."""
    shard = rules.shards[source.shard]
    if shard.later.has_settled((source.key_ms, source.offset), -1):
        return
    if output.at_ms > rules.unsettled_since_ms:
        return
    is_named = source.facts.record_id is not None
    k_ms, k_offset = shard.later.key
    detail = (
        f"its key is ({source.key_ms}, {source.offset}), and the checkpoint has settled up to "
        f"K ({k_ms}, {k_offset}), H {shard.later.offset}"
    )
    when = UNLESS_MARKED if is_named else CERTAIN
    yield _finding(NOT_CHECKPOINTED, source, output, rules, detail, when)


def _problems(
    source: Source, output: Output, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    """What is wrong with the output itself."""
    if output.role == DELIVERED:
        yield from _delivery(source, output, rules, counts)
    elif output.role == LETTER:
        yield from _letter(source, output, rules)
    elif output.role == OUTCOME:
        yield from _outcome(source, output, rules)
    else:
        yield from _copied(source, output, rules)


def _delivery(
    source: Source, output: Output, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    facts = source.facts
    if facts.code == HEADER_INVALID:
        counts["not_checkable"] += 1  # Java shows no difference to a legal replacement character
        return
    if facts.kind not in (SCHEDULE, COPY):
        detail = f"{_NAMES[facts.kind]} was delivered"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
        return
    yield from _changed(source, output, rules)
    yield from _misplaced(source, output, rules)
    if facts.is_armed:
        yield from _mistimed(source, output, rules)
    if output.facts.by >= 0:
        yield _claimed(source, output, rules)


def _changed(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    if source.content != output.content:
        detail = "its key, value or own headers are not those that the record asks for"
        yield _finding(ALTERED, source, output, rules, detail)
        return
    if source.facts.is_armed and source.due_ms != output.due_ms:
        detail = f"it says that it was due at {output.due_ms}, and it was at {source.due_ms}"
        yield _finding(ALTERED, source, output, rules, detail)
        return
    origin = output.facts.origin or _place(source, rules)
    if source.facts.is_armed and origin != _origin(source, rules):
        detail = f"its delay-source is {origin}, not {_origin(source, rules)}"
        yield _finding(ALTERED, source, output, rules, detail)


def _misplaced(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    if output.topic != source.topic:
        detail = f"its target is {rules.topic(source)}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)
    elif source.partition >= 0 and output.partition != source.partition:
        detail = f"its target is partition {source.partition} of {rules.topic(source)}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)
    elif source.partition < 0 and not rules.may_hold(
        output.topic, output.partition, output.key_hash, output.at_ms
    ):
        count = rules.partitions[output.topic]
        detail = f"its key belongs in partition {output.key_hash % count}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)


def _mistimed(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    was_fired = output.facts.by >= 0 or _may_be_fired(source, rules)
    early_ms = source.due_ms - output.at_ms
    if early_ms > rules.early_ms and not was_fired:
        yield _finding(EARLY, source, output, rules, f"by {early_ms} ms")
    late_ms = output.at_ms - max(source.due_ms, source.written_ms)
    if rules.late_ms is not None and late_ms > rules.late_ms:
        detail = f"by {late_ms} ms, and {rules.late_ms} are allowed"
        yield _finding(LATE, source, output, rules, detail)


def _may_be_fired(source: Source, rules: Rules) -> bool:
    """Whether a fire may have been parked as this copy, which does not say so. The canceller of
    such a copy comes after the fire; before that, it comes after the user's record.
    """
    facts = source.facts
    if facts.attempt == 1 or facts.record_id is None:
        return False
    return _origin(source, rules).partition("#")[0] != _place_of(source, _base(source) - 1, rules)


def _letter(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    facts, told = source.facts, output.facts
    if not told.code:
        detail = "a dead letter without delay-error: nobody can tell why"
        yield _finding(MISSING_CODE, source, output, rules, detail)
        return
    expected = {facts.code} if facts.kind == INVALID else _codes_at_delivery(source, rules)
    if facts.kind in (CANCEL, FIRE) or told.code not in expected:
        instead = f", which is {facts.code}" if facts.kind == INVALID else ""
        detail = f"{_NAMES[facts.kind]}{instead} was dead-lettered as {told.code}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
        return
    held = told.whole_hash if facts.kind == INVALID else output.content
    if not told.is_bare and held != source.content and facts.code != HEADER_INVALID:
        detail = "the dead letter's key, value or headers are not the record's"
        yield _finding(ALTERED, source, output, rules, detail)


def _codes_at_delivery(source: Source, rules: Rules) -> Collection[str]:
    """Codes of dead letters that a valid record may have. Where its contract has an allowlist, a
    denied target makes it invalid.
    """
    if rules.shards[source.shard].contracts.at(source.offset).has_allowlist:
        return _AT_DELIVERY
    return {*_AT_DELIVERY, TARGET_DENIED}


def _outcome(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    facts, told = source.facts, output.facts
    if told.outcome not in _OUTCOMES[facts.kind]:
        detail = f"{_NAMES[facts.kind]} can't have the outcome {told.outcome or '(none)'}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
    elif told.outcome == "expired":
        if facts.expires_ms is None or output.at_ms < facts.expires_ms:
            detail = f"expired at {output.at_ms}, and its delay-expires-at is {facts.expires_ms}"
            yield _finding(WRONG_OUTCOME, source, output, rules, detail)
    elif facts.kind in (SCHEDULE, COPY):
        yield _claimed(source, output, rules)


def _copied(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    facts, told = source.facts, output.facts
    if facts.kind not in (SCHEDULE, COPY):
        detail = f"{_NAMES[facts.kind]} was copied"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
        return
    yield from _changed(source, output, rules)
    if (told.target, told.target_partition) != (rules.topic(source), source.partition):
        detail = f"the copy names {told.target}, the record {rules.topic(source)}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)


def _claimed(source: Source, output: Output, rules: Rules) -> Finding:
    """Whether the canceller that an output names is the record's: to be looked up."""
    by = output.facts.by
    detail = f"it names offset {by} as what settled it, and that is not its canceller"
    when = IF_OTHER if source.facts.record_id is not None else CERTAIN
    return _finding(WRONG_OUTCOME, source, output, rules, detail, when)


def _finding(
    kind: str,
    source: Source,
    output: Output | None,
    rules: Rules,
    detail: str,
    when: int = CERTAIN,
) -> Finding:
    return Finding(
        kind,
        source.shard,
        source.offset,
        _origin(source, rules),
        output,
        source.due_ms,
        detail,
        when,
        -1 if output is None else output.facts.by,
        source.facts.record_id,
        _base(source),
    )


def _base(source: Source) -> int:
    """The first offset at which its canceller may be."""
    return source.facts.base or source.offset + 1


def _place(source: Source, rules: Rules) -> str:
    return _place_of(source, source.offset, rules)


def _place_of(source: Source, offset: int, rules: Rules) -> str:
    """As ``delay-source`` spells it, of an offset of the record's shard."""
    return f"{rules.shards[source.shard].name}:{offset}"


def _origin(source: Source, rules: Rules) -> str:
    """``delay-source`` of the record."""
    return source.facts.origin or _place(source, rules)
