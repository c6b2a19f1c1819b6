"""Judges one settlement (output that settles a record): whether it is right for its record.

Source: ``docs/header-contract.md``, and "Proof from the topics" in ``docs/guarantees.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from connectors.spark.audit.group import base_of
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.verdicts import (
    ALTERED,
    CERTAIN,
    EARLY,
    IF_OTHER,
    LATE,
    MISSING_CODE,
    UNJUDGED,
    WRONG_OUTCOME,
    WRONG_TARGET,
    RecordVerdict,
)
from connectors.spark.ledger.facts import (
    COPIED,
    DELIVERED,
    FOREIGN,
    FORWARDED,
    HERE,
    KIND_NAMES,
    LETTER,
    PENDING,
    SETTLEMENTS,
    WAITING,
    OutputRow,
    SourceRow,
    settlement_name,
)
from connectors.spark.ledger.ids import NONE, ORDER_MS, same_recurrence
from delayservice.contract.codes import (
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
from delayservice.contract.entry import ABSENT, CANCEL, FIRE, HOMEBOUND, INVALID

# Reason not to judge a record: Java reads its header names differently from the service.
HEADERS_UNREADABLE: Final = "headers_unreadable"

# Codes of dead letters that any valid record may get when it is delivered.
_AT_DELIVERY: Final = frozenset(
    {
        TARGET_DENIED,
        TARGET_UNKNOWN,
        TARGET_UNAUTHORIZED,
        TARGET_REFUSED,
        TARGET_DOWN,
        SLOT_FULL,
        TOO_LARGE,
    }
)
# Codes of dead letters that a record may get while it is sent to its home.
_ON_THE_WAY: Final = frozenset({TOO_LARGE, TARGET_REFUSED})
# Outcome of a record that found one of its id pending, by its kind.
_DEEDS: Final = {CANCEL: "cancelled", FIRE: "fired", ABSENT: "kept"}


def problems(
    source: SourceRow, output: OutputRow, rules: Rules, counts: Counter[str]
) -> Iterator[RecordVerdict]:
    """Yield findings about an output that settles a record, regardless of its other outputs."""
    facts, told = source.facts, output.facts
    settlement = SETTLEMENTS.get(settlement_name(output.role, told.outcome))
    if facts.code == HEADER_INVALID and output.role == DELIVERED:
        yield from unseen(source, HEADERS_UNREADABLE, rules)
        counts["not_checkable"] += 1
    elif output.role == LETTER and not told.code:
        detail = "a dead letter without delay-error: its cause is not known"
        yield finding_of(MISSING_CODE, source, output, rules, detail)
    elif settlement is None:
        detail = f"{KIND_NAMES[facts.kind]} can't have the outcome {told.outcome or '(none)'}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)
    elif facts.kind not in settlement.of:
        detail = f"{KIND_NAMES[facts.kind]} was {settlement.verb}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)
    elif output.role == DELIVERED:
        yield from _delivery(source, output, rules)
    elif output.role == LETTER:
        yield from _letter(source, output, rules)
        yield from _sourced(source, output, rules)
    elif output.role in (COPIED, FORWARDED):
        yield from (gone_home if facts.kind in FOREIGN else _copied)(source, output, rules)
    else:
        yield from _told(source, output, rules)


def _told(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    # The outcome fits the record's kind; here, whether it fits the record.
    facts, outcome = source.facts, output.facts.outcome
    if facts.kind == HOMEBOUND and outcome != _DEEDS.get(facts.acts):
        detail = f"{KIND_NAMES[facts.acts]} was {SETTLEMENTS[outcome].verb}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)
    elif outcome == "expired":
        yield from _expired(source, output, rules)
    elif SETTLEMENTS[outcome].by is not None and facts.kind in PENDING:
        yield _claimed(source, output, rules)
    else:
        yield from _sourced(source, output, rules)


def _delivery(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    yield from _misplaced(source, output, rules)
    yield from _changed(source, output, rules)
    if source.facts.is_armed:
        yield from _mistimed(source, output, rules)
    if output.facts.by >= 0:
        yield _claimed(source, output, rules)


def _changed(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    if source.content != output.content:
        detail = "its key, value or own headers are not those that the record asks for"
        yield finding_of(ALTERED, source, output, rules, detail)
        return
    if source.facts.is_armed and source.due_ms != output.due_ms:
        detail = f"it says that it was due at {output.due_ms}, and it was at {source.due_ms}"
        yield finding_of(ALTERED, source, output, rules, detail)
        return
    origin = output.facts.origin or own_place(source, rules)
    if source.facts.is_armed and origin != origin_of(source, rules):
        detail = f"its delay-source is {origin}, not {origin_of(source, rules)}"
        yield finding_of(ALTERED, source, output, rules, detail)


def _sourced(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    told, wanted = output.facts.origin, origin_of(source, rules)
    told = own_place(source, rules) if told == HERE else told
    if told and source.facts.is_armed and told != wanted:
        detail = f"its delay-source is {told}, not {wanted}"
        yield finding_of(ALTERED, source, output, rules, detail)


def _misplaced(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    if output.topic != source.topic:
        reason = rules.unseen_target(source, max(source.key_ms, source.written_ms))
        if reason is not None:  # it may be a consumer's copy of a delivery that can't be seen
            yield from unseen(source, reason, rules)
            return
        detail = f"its target is {rules.topic(source)}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)
    elif source.partition >= 0 and output.partition != source.partition:
        detail = f"its target is partition {source.partition} of {rules.topic(source)}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)
    elif source.partition < 0 and not rules.may_hold(
        output.topic, output.partition, output.key_hash, output.at_ms
    ):
        count = rules.partitions[output.topic]
        detail = f"its key belongs in partition {output.key_hash % count}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)


def _mistimed(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    was_fired = output.facts.by >= 0 or _may_be_fired(source, rules)
    early_ms = source.due_ms - output.at_ms
    if early_ms > rules.early_allowed_ms(output.topic) and not was_fired:
        yield finding_of(EARLY, source, output, rules, f"by {early_ms} ms")
    late_ms = output.at_ms - max(source.due_ms, source.written_ms)
    if rules.late_ms is not None and late_ms > rules.late_ms:
        detail = f"by {late_ms} ms, and {rules.late_ms} are allowed"
        yield finding_of(LATE, source, output, rules, detail)
    expires_ms = source.facts.expires_ms
    if expires_ms is None:
        return
    is_due_later = source.due_ms > expires_ms and not was_fired
    allowed_ms = ORDER_MS + rules.clocks_ms(output.topic)
    if is_due_later or output.at_ms > expires_ms + allowed_ms:
        detail = f"delivered at {output.at_ms}, and its delay-expires-at is {expires_ms}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)


def _may_be_fired(source: SourceRow, rules: Rules) -> bool:
    # A requeued record does not state that it was made of a fired one, but then its base is the
    # offset after the fire, not after the user's record.
    facts = source.facts
    if facts.attempt == 1 or facts.record_id is None:
        return False
    return origin_of(source, rules).partition("#")[0] != place_at(
        source, base_of(source) - 1, rules
    )


def _letter(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    facts, told = source.facts, output.facts
    expected = _codes(source)
    if told.code not in expected:
        instead = f", which is {facts.code}" if facts.kind == INVALID else ""
        detail = f"{KIND_NAMES[facts.kind]}{instead} was dead-lettered as {told.code}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)
        return
    if facts.code == HEADER_INVALID:  # neither the service nor this job can read its headers
        return
    if told.is_bare and told.says_bare:
        return
    is_control = facts.acts in (CANCEL, FIRE)
    if facts.kind == HOMEBOUND and is_control:  # it goes without content
        return
    is_as_written = facts.kind in (INVALID, *FOREIGN)
    held = told.whole_hash if is_as_written else output.content
    if held != source.content:
        detail = "the dead letter's key, value or headers are not the record's"
        yield finding_of(ALTERED, source, output, rules, detail)
    elif not is_as_written:
        yield from _asked_again(source, output, rules)


def _asked_again(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
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
        yield finding_of(ALTERED, source, output, rules, detail)


def _codes(source: SourceRow) -> Collection[str]:
    if source.facts.kind == INVALID:
        return {source.facts.code}
    if source.facts.kind in FOREIGN:
        return _ON_THE_WAY
    codes = set(_AT_DELIVERY)
    if source.facts.recur:
        codes |= {CRON_INVALID, ZONE_INVALID}
    return codes


def _expired(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    expires_ms = source.facts.expires_ms
    if expires_ms is None or output.at_ms < expires_ms - rules.clocks_ms(output.topic):
        detail = f"expired at {output.at_ms}, and its delay-expires-at is {expires_ms}"
        yield finding_of(WRONG_OUTCOME, source, output, rules, detail)


def _copied(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
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
        yield finding_of(ALTERED, source, output, rules, detail)
    if (told.target, told.target_partition) != (rules.topic(source), source.partition):
        detail = f"the copy names {told.target}, the record {rules.topic(source)}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)
    yield from _based(source, output, rules)


def _based(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    told = output.facts
    if told.base != NONE and not base_of(source) <= told.base <= output.place:
        detail = f"it was requeued with the base {told.base}, which is {base_of(source)} at least"
        yield finding_of(ALTERED, source, output, rules, detail)


def _claimed(source: SourceRow, output: OutputRow, rules: Rules) -> RecordVerdict:
    # For a record with an id, the other records of the id decide whether this counts.
    by = output.facts.by
    detail = f"it names offset {by} as what settled it, and that is not its canceller"
    when = IF_OTHER if source.facts.record_id is not None else CERTAIN
    return finding_of(WRONG_OUTCOME, source, output, rules, detail, when)


def gone_home(source: SourceRow, output: OutputRow, rules: Rules) -> Iterator[RecordVerdict]:
    facts, told = source.facts, output.facts
    asked = [
        ("content", source.content, output.content),
        ("operation", facts.acts, told.acts),
        ("first timestamp", facts.first_ms, told.first_ms),
        ("source", origin_of(source, rules), told.origin),
    ]
    if output.role == COPIED:
        asked.append(("id", facts.record_id, told.record_id))
    if output.role == COPIED and facts.kind == WAITING:
        asked.append(("company", facts.group, told.group))
    changed = [name for name, wanted, found in asked if wanted != found]
    if changed:
        detail = f"it goes home with another {', '.join(changed)} than it has"
        yield finding_of(ALTERED, source, output, rules, detail)
    home = (rules.topic(source), source.partition)
    found = (rules.topics[output.topic], output.partition)
    if output.role == COPIED:
        found = (told.target, told.target_partition)
    if found != home:
        detail = f"its id is at home in {home[0]}:{home[1]}, not in {found[0]}:{found[1]}"
        yield finding_of(WRONG_TARGET, source, output, rules, detail)
    yield from _based(source, output, rules)


def unseen(
    source: SourceRow, reason: str, rules: Rules, when: int = CERTAIN
) -> Iterator[RecordVerdict]:
    # Nothing is unjudged below the first offset that is judged.
    if source.offset >= rules.shards[source.shard].judged_from:
        detail = "it is settled, and what settles it may be where nothing could be read"
        yield finding_of(reason, source, None, rules, detail, when)._replace(verdict=UNJUDGED)


def finding_of(
    kind: str,
    source: SourceRow,
    output: OutputRow | None,
    rules: Rules,
    detail: str,
    when: int = CERTAIN,
) -> RecordVerdict:
    return RecordVerdict(
        kind,
        source.shard,
        source.offset,
        origin_of(source, rules),
        output,
        source.due_ms,
        detail,
        when,
        -1 if output is None else output.facts.by,
        base_of(source),
    )


def own_place(source: SourceRow, rules: Rules) -> str:
    return place_at(source, source.offset, rules)


def place_at(source: SourceRow, offset: int, rules: Rules) -> str:
    return f"{rules.shards[source.shard].name}:{offset}"


def origin_of(source: SourceRow, rules: Rules) -> str:
    return source.facts.origin or own_place(source, rules)


def elsewhere(origin: str, place: str) -> str:
    written = origin.partition("#")[0]
    return "" if written == place else written
