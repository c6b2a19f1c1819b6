"""The judge of one delay record and of what settles it. Pure: no Spark, no Kafka, no clock.

Source: rule 1 of ``docs/internals/design.md``, ``docs/header-contract.md``, and "Proof from the
topics" in ``docs/guarantees.md``. Kinds of findings are explained in ``docs/audit.md``. What
depends on other records of the same id is decided in ``verdicts`` by ``ledger.ids``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from connectors.spark.audit.rules import OPEN, Rules, ShardRules
from connectors.spark.ledger.facts import (
    ARRIVED,
    CONTINUED,
    COPIED,
    DELIVERED,
    DISCLAIMED,
    FORWARDED,
    LETTER,
    OUTCOME,
    SETTLING,
    Output,
    Source,
    SourceFacts,
)
from connectors.spark.ledger.ids import NONE, ORDER_MS, Line
from connectors.spark.ledger.kinds import (
    FOREIGN,
    KIND_NAMES,
    PENDING,
    SETTLEMENTS,
    WAITING,
    settlement_name,
)
from connectors.spark.ledger.successors import against_origin, same_recurrence
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
from delayservice.core.entry import CANCEL, FIRE, HOMEBOUND, INVALID, SCHEDULE

LOST: Final = "lost"
DUPLICATED: Final = "duplicated"
EARLY: Final = "early"
LATE: Final = "late"
OVERDUE: Final = "overdue"
ALTERED: Final = "altered"
WRONG_TARGET: Final = "wrong_target"
WRONG_OUTCOME: Final = "wrong_outcome"
NOT_CHECKPOINTED: Final = "not_checkpointed"
UNKNOWN_SOURCE: Final = "unknown_source"
MISSING_CODE: Final = "dead_letter_missing_code"
MALFORMED: Final = "malformed"

KINDS: Final = (
    LOST,
    DUPLICATED,
    EARLY,
    LATE,
    OVERDUE,
    ALTERED,
    WRONG_TARGET,
    WRONG_OUTCOME,
    NOT_CHECKPOINTED,
    UNKNOWN_SOURCE,
    MISSING_CODE,
    MALFORMED,
)
"""Kinds of findings."""

HEADERS_UNREADABLE: Final = "headers_unreadable"
"""Reason not to judge a record: Java decodes its header names differently from the service."""

FOUND: Final = 0
UNJUDGED: Final = 1
"""Verdicts: something is wrong, or it can't be judged."""

CERTAIN: Final = 0
IF_MARKED: Final = 1
UNLESS_MARKED: Final = 2
IF_OTHER: Final = 3
IF_UNMARKED: Final = 4
"""Conditions under which a finding counts: always; if the earlier cursor has passed the record's
canceller; unless the later cursor has; if the output names another canceller; unless the earlier
cursor has passed it."""

EXPIRY_MS: Final = 1_000
"""Allowed delivery after ``delay-expires-at``, in ms: the time that a transaction takes."""

_AT_DELIVERY: Final = frozenset(
    {
        TARGET_UNKNOWN,
        TARGET_UNAUTHORIZED,
        TARGET_REFUSED,
        TARGET_DOWN,
        SLOT_FULL,
        TOO_LARGE,
    }
)
"""Codes of dead letters that any record which keeps the contract may have."""


_ON_THE_WAY: Final = frozenset({TOO_LARGE, TARGET_REFUSED, CONTROL_LOST})
"""Codes of dead letters that a record may have which has to go home."""
_DEEDS: Final = {CANCEL: "cancelled", FIRE: "fired"}
"""The outcome of a control that settled something where it lies, by its kind."""


class Finding(NamedTuple):
    """Something that is wrong, or can't be judged. ``when`` says whether that depends on the
    record's canceller.
    """

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
    """For a lost record: the finding holds only if the topics are complete since this time."""
    verdict: int = FOUND
    aim: int = -1
    """For a lost record: the number of its target topic."""


def judge(
    source: Source | None,
    outputs: Sequence[Output],
    shard: int,
    offset: int,
    rules: Rules,
    counts: Counter[str],
) -> Iterator[Finding]:
    """Return the findings of one record.

    Args:
        source: the record, after ``as_refused``; None: there is none at that place.
        outputs: all that say they settle it, and the occurrences that follow it.
        shard: number of its shard.
        offset: its source offset.
        rules: what to judge by.
        counts: told what was seen.
    """
    own = rules.shards[shard]
    forged = {o[4:7] for o in outputs if o.role == DISCLAIMED}
    real = [o for o in outputs if o[4:7] not in forged]
    settling = [o for o in real if o.role in SETTLING and not o.facts.is_mirror]
    counts["mirrored"] += sum(o.facts.is_mirror for o in real)
    successors = [o for o in real if o.role == CONTINUED]
    arrivals = [o for o in real if o.role == ARRIVED]
    if source is None and offset < own.start:
        yield from _of_expired(settling, shard, offset, rules, counts)
        yield from _forks(f"{own.name}:{offset}", successors, shard, offset)
        return
    settling = _without_elder(settling, own, counts)
    if source is None:
        said = [*settling, *successors, *arrivals]
        yield from _without_source(said, shard, offset, rules, counts)
        return
    counts["sources"] += 1
    yield from _forks(_origin(source, rules), successors, shard, offset)
    if source.facts.kind != HOMEBOUND:  # what it recurs by is judged at its home
        for output in successors:
            yield from _continued(source, output, rules)
    yield from _arrived(source, settling, arrivals, rules)
    if not settling:
        yield from _without_output(source, rules, counts)
        return
    first, *surplus = _ranked(source, settling, rules)
    counts[_COUNTED[first.role]] += 1
    yield from _unless_checkpointed(source, first, rules)
    yield from _problems(source, first, rules, counts)
    for output in surplus:
        if _is_forwarded(source, first, output):
            counts["mirrored"] += 1
        elif _is_redelivered(first, output, rules):
            counts["redelivered"] += 1
        else:
            yield _surplus(source, first, output, rules)


_COUNTED: Final = {
    DELIVERED: "delivered",
    LETTER: "dead_lettered",
    OUTCOME: "given_an_outcome",
    COPIED: "copied",
    FORWARDED: "forwarded",
}


def line_of(
    source: Source, outputs: Sequence[Output], found: Sequence[Finding], rules: Rules
) -> Line:
    """The record as a line of its id's history; with its settlement, if nothing is wrong there."""
    facts = source.facts
    line = Line(
        *(source.offset, facts.kind, _base(source), source.key_ms, source.written_ms),
        acts=facts.acts if facts.kind in FOREIGN else facts.kind,
        source=_elsewhere(facts.origin, _place(source, rules)),
        is_home=any(o.role in (ARRIVED, FORWARDED) for o in outputs)
        or (facts.kind == HOMEBOUND and rules.unseen_home(source, source.written_ms) is not None),
    )
    forged = {o[4:7] for o in outputs if o.role == DISCLAIMED}
    real = [o for o in outputs if o[4:7] not in forged]
    settling = [o for o in real if o.role in SETTLING and not o.facts.is_mirror]
    is_sound = not any(one.when == CERTAIN for one in found)
    if not settling or not is_sound:
        return line
    own = [o for o in settling if o.role != DELIVERED or o.topic == source.topic]
    if len({one.role for one in own}) != 1:  # a crash under at_least_once: either may be the first
        return line
    first = own[0]
    name = settlement_name(first.role, first.facts.outcome)
    by = first.facts.by
    return line._replace(
        settlement=name,
        at_ms=first.at_ms,
        by=by,
        copy_base=first.facts.base if first.role == COPIED else NONE,
        by_source=_elsewhere(first.facts.by_source, _place_of(source, by, rules)),
    )


def _elsewhere(origin: str, place: str) -> str:
    """``delay-source`` without the number of an occurrence; empty: it is its own place."""
    written = origin.partition("#")[0]
    return "" if written == place else written


# --- records that are not there ------------------------------------------------------------------


def _without_elder(settling: list[Output], shard: ShardRules, counts: Counter[str]) -> list[Output]:
    """Without what was written before the shard's first record: it names others."""
    found = [output for output in settling if output.at_ms >= shard.born_ms]
    if len(found) < len(settling):
        counts["source_expired"] += len(settling) - len(found)
    return found


def _of_expired(
    settling: Sequence[Output], shard: int, offset: int, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    """Outputs of a record that retention has deleted: they can only be held against each other."""
    counts["source_expired"] += len(settling)
    kept: list[Output] = []
    for output in sorted(settling, key=lambda o: (o.at_ms, o.place)):
        first = next((one for one in kept if _settle_twice(one, output)), None)
        if first is None:
            kept.append(output)
        elif _is_redelivered(first, output, rules):
            counts["redelivered"] += 1
        else:
            origin = output.facts.origin or f"{rules.shards[shard].name}:{offset}"
            detail = _twice(first, output, rules)
            yield Finding(DUPLICATED, shard, offset, origin, output, output.due_ms, detail)


def _settle_twice(first: Output, second: Output) -> bool:
    """Return whether two outputs of one offset can't both be right, whatever the record was. In two
    target topics, one may be a consumer's copy of the other.
    """
    if first.role == second.role == DELIVERED:
        return first.topic == second.topic and first[1:4:2] == second[1:4:2]
    return True


def _without_source(
    outputs: Sequence[Output], shard: int, offset: int, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    """Outputs of a record that never was."""
    own = rules.shards[shard]
    for output in outputs:
        is_copy = output.role in (COPIED, CONTINUED, FORWARDED, ARRIVED)
        is_before = is_copy and output.facts.base != NONE and output.place <= offset
        if offset >= own.end and (own.end < own.log_end or (is_copy and not is_before)):
            counts["outside"] += 1
            continue
        origin = output.facts.origin or f"{own.name}:{offset}"
        what = {CONTINUED: "continues", ARRIVED: "brings home"}.get(output.role, "settles")
        detail = f"it says that it {what} offset {offset} of {own.name}, where no record is"
        yield Finding(UNKNOWN_SOURCE, shard, offset, origin, output, output.due_ms, detail)


# --- occurrences ---------------------------------------------------------------------------------


def _forks(origin: str, successors: Sequence[Output], shard: int, offset: int) -> Iterator[Finding]:
    """Occurrences of a schedule that were begun twice."""
    seen: set[str] = set()
    for output in sorted(successors, key=lambda o: (o.at_ms, o.place)):
        name = output.facts.origin
        if name in seen:
            detail = f"the occurrence {name} was begun here a second time"
            yield Finding(DUPLICATED, shard, offset, origin, output, output.due_ms, detail)
        seen.add(name)


def _continued(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether an occurrence is one of the record that it names."""
    why = against_origin(source, output)
    if why is not None:
        yield _finding(ALTERED, source, output, rules, why)
    named = (output.facts.target, output.facts.target_partition)
    if named != (rules.topic(source), source.partition):
        detail = f"the occurrence names {named[0]}, the record {rules.topic(source)}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)


# --- records that go home ------------------------------------------------------------------------


def _arrived(
    source: Source, settling: Sequence[Output], arrivals: Sequence[Output], rules: Rules
) -> Iterator[Finding]:
    """Envelopes that bring a record home without settling it: it has waited for that."""
    waits = any(one.role == COPIED for one in settling)
    for number, output in enumerate(sorted(arrivals, key=lambda o: (o.at_ms, o.place))):
        if source.facts.kind != HOMEBOUND:
            detail = f"{KIND_NAMES[source.facts.kind]} was sent home"
            yield _finding(WRONG_OUTCOME, source, output, rules, detail)
        elif number or (settling and not waits):
            detail = "the record was settled, and sent home here again"
            yield _finding(DUPLICATED, source, output, rules, detail)
        else:
            yield from _gone_home(source, output, rules)


def _gone_home(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether what went or waits to go home is what was written, and goes to its home."""
    facts, told = source.facts, output.facts
    asked = [
        ("content", source.content, output.content),
        ("operation", facts.acts, told.acts),
        ("first timestamp", facts.first_ms, told.first_ms),
        ("source", _origin(source, rules), told.origin),
    ]
    if output.role == COPIED:
        asked.append(("id", facts.record_id, told.record_id))
    if output.role == COPIED and facts.kind == WAITING:
        asked.append(("company", facts.group, told.group))
    changed = [name for name, wanted, found in asked if wanted != found]
    if changed:
        detail = f"it goes home with another {', '.join(changed)} than it has"
        yield _finding(ALTERED, source, output, rules, detail)
    home = (rules.topic(source), source.partition)
    found = (rules.topics[output.topic], output.partition)
    if output.role == COPIED:
        found = (told.target, told.target_partition)
    if found != home:
        detail = f"its id is at home in {home[0]}:{home[1]}, not in {found[0]}:{found[1]}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)
    yield from _based(source, output, rules)


# --- records that nothing settles ----------------------------------------------------------------


def as_refused(source: Source, outputs: Sequence[Output]) -> Source:
    """A copy or envelope whose signature was not verified, as the service saw it, which knows the
    secret: forged, if it says so.
    """
    if source.facts.is_verified:
        return source
    for output in outputs:
        if output.role == LETTER and output.facts.code == COPY_FORGED:
            facts = SourceFacts(INVALID, code=COPY_FORGED)
            return source._replace(key_ms=0, due_ms=0, content=output.facts.whole_hash, facts=facts)
    return source


def _without_output(source: Source, rules: Rules, counts: Counter[str]) -> Iterator[Finding]:
    """A record that nothing settles: it is pending, lost, or what settles it can't be seen."""
    shard = rules.shards[source.shard]
    by_key = shard.earlier.has_settled((source.key_ms, source.offset), -1)
    is_named = source.facts.record_id is not None and source.facts.kind in PENDING
    if not by_key:
        counts["pending"] += 1
        yield from _overdue(source, rules, is_named=is_named)
        if not is_named:
            return
    # A canceller settles a record at any time, and only the key says not before when.
    key_ms = max(source.key_ms, source.written_ms)
    reason = rules.unseen(source, source.written_ms if is_named else key_ms)
    when = CERTAIN if by_key else IF_MARKED
    since_ms = source.written_ms if is_named else key_ms
    if reason is not None and by_key and is_named and rules.unseen(source, key_ms) is None:
        yield from _unseen(source, reason, rules, counts, IF_MARKED)
        reason, when, since_ms = None, IF_UNMARKED, key_ms
    if reason is not None:
        counts["not_checkable"] += by_key
        yield from _unseen(source, reason, rules, counts, when)
        return
    k_ms, k_offset = shard.earlier.key
    detail = (
        f"the checkpoint says that it is settled (K {k_ms}, {k_offset}; H {shard.earlier.offset}), "
        "and nothing settles it in any topic that was read"
    )
    if not by_key:
        detail = "it was cancelled, replaced or fired, and nothing settles it"
    lost = _finding(LOST, source, None, rules, detail, when)
    yield lost._replace(since_ms=since_ms, aim=source.topic)


def _unseen(
    source: Source, reason: str, rules: Rules, counts: Counter[str], when: int
) -> Iterator[Finding]:
    """A record whose settlement may be where nothing can be read."""
    if reason == OPEN:
        counts[OPEN] += when == CERTAIN
    elif source.offset >= rules.shards[source.shard].judged_from:
        detail = "it is settled, and what settles it may be where nothing could be read"
        yield _finding(reason, source, None, rules, detail, when)._replace(verdict=UNJUDGED)


def _overdue(source: Source, rules: Rules, *, is_named: bool) -> Iterator[Finding]:
    """A record that should have been settled long ago, by a service that makes no progress."""
    shard = rules.shards[source.shard]
    since_ms = max(source.key_ms, source.written_ms)
    is_settled = shard.later.has_settled((source.key_ms, source.offset), -1)
    if is_settled or since_ms >= rules.overdue_since_ms:
        return
    detail = f"its time came at {since_ms}, and it is not settled: K or H does not move"
    yield _finding(OVERDUE, source, None, rules, detail, UNLESS_MARKED if is_named else CERTAIN)


# --- several settlements -------------------------------------------------------------------------


def _ranked(source: Source, settling: Sequence[Output], rules: Rules) -> list[Output]:
    """The one that is taken for the settlement first: the soundest, then the oldest."""
    if len(settling) == 1:
        return list(settling)

    def rank(output: Output) -> tuple[int, bool, int, int]:
        wrong = len(list(_problems(source, output, rules, Counter())))
        return wrong, output.topic != source.topic, output.at_ms, output.place

    return sorted(settling, key=rank)


def _is_forwarded(source: Source, first: Output, output: Output) -> bool:
    """Return whether a consumer may have written it: what was delivered, with its headers, to
    another topic than the record names.
    """
    are_deliveries = first.role == output.role == DELIVERED
    is_after = output.at_ms >= first.at_ms - ORDER_MS
    return are_deliveries and is_after and first.topic == source.topic != output.topic


def _is_redelivered(first: Output, output: Output, rules: Rules) -> bool:
    """Return whether a crash under ``at_least_once`` explains two settlements: one of them is a
    delivery, and was ahead of its checkpoint.
    """
    older, newer = sorted((first, output), key=lambda o: o.at_ms)
    return older.role == DELIVERED and newer.at_ms - older.at_ms <= rules.grace_ms != 0


def _surplus(source: Source, first: Output, output: Output, rules: Rules) -> Finding:
    others = {found.kind for found in _problems(source, output, rules, Counter())}
    also = f"; it is also {', '.join(sorted(others))}" if others else ""
    return _finding(DUPLICATED, source, output, rules, _twice(first, output, rules) + also)


def _twice(first: Output, output: Output, rules: Rules) -> str:
    where = f"{rules.topics[first.topic]}:{first.partition}:{first.place}"
    return f"the record was {_verb(first)} at {where}, and {_verb(output)} here again"


def _verb(output: Output) -> str:
    settlement = SETTLEMENTS.get(settlement_name(output.role, output.facts.outcome))
    return "given an outcome" if settlement is None else settlement.verb


# --- one settlement ------------------------------------------------------------------------------


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
    """Return the findings of the output by itself."""
    facts, told = source.facts, output.facts
    settlement = SETTLEMENTS.get(settlement_name(output.role, told.outcome))
    if facts.code == HEADER_INVALID and output.role == DELIVERED:
        yield from _unseen(source, HEADERS_UNREADABLE, rules, counts, CERTAIN)
        counts["not_checkable"] += 1
    elif output.role == LETTER and not told.code:
        detail = "a dead letter without delay-error: its cause is not known"
        yield _finding(MISSING_CODE, source, output, rules, detail)
    elif settlement is None:
        detail = f"{KIND_NAMES[facts.kind]} can't have the outcome {told.outcome or '(none)'}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
    elif facts.kind not in settlement.of:
        detail = f"{KIND_NAMES[facts.kind]} was {settlement.verb}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
    elif output.role == DELIVERED:
        yield from _delivery(source, output, rules, counts)
    elif output.role == LETTER:
        yield from _letter(source, output, rules)
        yield from _sourced(source, output, rules)
    elif output.role in (COPIED, FORWARDED):
        yield from (_gone_home if facts.kind in FOREIGN else _copied)(source, output, rules)
    else:
        yield from _told(source, output, rules)


def _told(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether an outcome that records of this kind may have is this one's."""
    facts, outcome = source.facts, output.facts.outcome
    if facts.kind == HOMEBOUND and outcome != _DEEDS.get(facts.acts):
        detail = f"{KIND_NAMES[facts.acts]} was {SETTLEMENTS[outcome].verb}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
    elif outcome == "expired":
        yield from _expired(source, output, rules)
    elif SETTLEMENTS[outcome].by is not None and facts.kind in PENDING:
        yield _claimed(source, output, rules)
    else:
        yield from _sourced(source, output, rules)


def _delivery(
    source: Source, output: Output, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    yield from _misplaced(source, output, rules, counts)
    yield from _changed(source, output, rules)
    if source.facts.is_armed:
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


def _sourced(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether a dead letter or a control's outcome names where its record was written."""
    told, wanted = output.facts.origin, _origin(source, rules)
    if told and source.facts.is_armed and told != wanted:
        detail = f"its delay-source is {told}, not {wanted}"
        yield _finding(ALTERED, source, output, rules, detail)


def _misplaced(
    source: Source, output: Output, rules: Rules, counts: Counter[str]
) -> Iterator[Finding]:
    if output.topic != source.topic:
        since_ms = max(source.key_ms, source.written_ms)
        reason = rules.unseen_target(source, since_ms)
        if reason is not None:  # it may be a consumer's copy of a delivery that can't be seen
            yield from _unseen(source, reason, rules, counts, CERTAIN)
            return
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
    if early_ms > rules.early_allowed_ms(output.topic) and not was_fired:
        yield _finding(EARLY, source, output, rules, f"by {early_ms} ms")
    late_ms = output.at_ms - max(source.due_ms, source.written_ms)
    if rules.late_ms is not None and late_ms > rules.late_ms:
        detail = f"by {late_ms} ms, and {rules.late_ms} are allowed"
        yield _finding(LATE, source, output, rules, detail)
    expires_ms = source.facts.expires_ms
    if expires_ms is None:
        return
    is_due_later = source.due_ms > expires_ms and not was_fired
    if is_due_later or output.at_ms > expires_ms + EXPIRY_MS:
        detail = f"delivered at {output.at_ms}, and its delay-expires-at is {expires_ms}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)


def _may_be_fired(source: Source, rules: Rules) -> bool:
    """Return whether a fire may have been parked as this copy, which does not say so. The canceller
    of such a copy comes after the fire; before that, it comes after the user's record.
    """
    facts = source.facts
    if facts.attempt == 1 or facts.record_id is None:
        return False
    return _origin(source, rules).partition("#")[0] != _place_of(source, _base(source) - 1, rules)


def _letter(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    facts, told = source.facts, output.facts
    expected = _codes(source, rules)
    if told.code not in expected:
        instead = f", which is {facts.code}" if facts.kind == INVALID else ""
        detail = f"{KIND_NAMES[facts.kind]}{instead} was dead-lettered as {told.code}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)
        return
    if facts.code == HEADER_INVALID:  # its headers can't be read, neither there nor here
        return
    if told.is_bare and told.says_bare:
        return
    if facts.kind == HOMEBOUND and facts.acts != SCHEDULE:  # it would have gone without content
        return
    is_as_written = facts.kind in (INVALID, *FOREIGN)
    held = told.whole_hash if is_as_written else output.content
    if held != source.content:
        detail = "the dead letter's key, value or headers are not the record's"
        yield _finding(ALTERED, source, output, rules, detail)
    elif not is_as_written:
        yield from _asked_again(source, output, rules)


def _asked_again(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether the dead letter of a valid record says again what that asked for."""
    facts, told = source.facts, output.facts
    asked = [
        ("target", rules.topic(source), told.target),
        ("id", facts.record_id, told.record_id),
        ("expiry", facts.expires_ms, told.expires_ms),
    ]
    if facts.is_armed:
        asked.append(("due time", source.due_ms, output.due_ms))
    lost = [name for name, wanted, found in asked if wanted != found]
    if lost:
        detail = f"the dead letter does not say again the record's {', '.join(lost)}"
        yield _finding(ALTERED, source, output, rules, detail)


def _codes(source: Source, rules: Rules) -> Collection[str]:
    """Codes of dead letters that a record may have. Where its contract has an allowlist, a denied
    target makes it invalid.
    """
    if source.facts.kind == INVALID:
        return {source.facts.code}
    if source.facts.kind in FOREIGN:
        return _ON_THE_WAY
    codes = set(_AT_DELIVERY)
    if not rules.shards[source.shard].contracts.at(source.offset).has_allowlist:
        codes.add(TARGET_DENIED)
    if source.facts.recur:
        codes |= {CRON_INVALID, ZONE_INVALID}
    if source.facts.record_id is not None:
        codes.add(CONTROL_LOST)
    return codes


def _expired(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    expires_ms = source.facts.expires_ms
    if expires_ms is None or output.at_ms < expires_ms - rules.clocks_ms(output.topic):
        detail = f"expired at {output.at_ms}, and its delay-expires-at is {expires_ms}"
        yield _finding(WRONG_OUTCOME, source, output, rules, detail)


def _copied(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    facts, told = source.facts, output.facts
    yield from _changed(source, output, rules)
    lost = [
        name
        for name, is_kept in (
            ("id", facts.record_id == told.record_id),
            ("expiry", facts.expires_ms == told.expires_ms),
            ("recurrence", same_recurrence(facts.recur, told.recur)),
        )
        if not is_kept
    ]
    if lost:
        detail = f"it was requeued with another {', '.join(lost)} than it has"
        yield _finding(ALTERED, source, output, rules, detail)
    if (told.target, told.target_partition) != (rules.topic(source), source.partition):
        detail = f"the copy names {told.target}, the record {rules.topic(source)}"
        yield _finding(WRONG_TARGET, source, output, rules, detail)
    yield from _based(source, output, rules)


def _based(source: Source, output: Output, rules: Rules) -> Iterator[Finding]:
    """Return whether the search for a copy's canceller begins where it may."""
    told = output.facts
    if told.base != NONE and not _base(source) <= told.base <= output.place:
        detail = f"it was requeued with the base {told.base}, which is {_base(source)} at least"
        yield _finding(ALTERED, source, output, rules, detail)


def _claimed(source: Source, output: Output, rules: Rules) -> Finding:
    """Return whether the canceller that an output names is the record's: to be looked up."""
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
    """Return an offset of the record's shard in the form of ``delay-source``."""
    return f"{rules.shards[source.shard].name}:{offset}"


def _origin(source: Source, rules: Rules) -> str:
    """``delay-source`` of the record."""
    return source.facts.origin or _place(source, rules)
