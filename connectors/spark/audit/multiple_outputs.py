"""Judges records that several outputs settle: chooses the one that counts, explains the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from connectors.spark.audit.group import place_of
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.settlement import finding_of, problems
from connectors.spark.audit.verdicts import DUPLICATED, LOST_ROLE, RecordVerdict, Settled
from connectors.spark.ledger.facts import (
    DELIVERED,
    SETTLEMENTS,
    OutputRow,
    SourceRow,
    settlement_name,
)

# By how much the timestamp of a copy may be below that of what was copied, in ms: clocks differ.
_CLOCKS_MS: Final = 1_000


def settlement_of(output: OutputRow) -> Settled:
    return Settled(output.role, output.at_ms, *place_of(output))


def is_mirror_of(settled: Settled, output: OutputRow) -> bool:
    """Return whether a consumer may have copied the delivery ``settled`` to another topic."""
    are_deliveries = settled.role == output.role == DELIVERED
    is_after = output.at_ms >= settled.at_ms - _CLOCKS_MS
    return are_deliveries and output.topic != settled.topic and is_after


def ranked(source: SourceRow, settling: Sequence[OutputRow], rules: Rules) -> list[OutputRow]:
    """Return the outputs by number of errors, then those in the target topic, then by time."""
    if len(settling) == 1:
        return list(settling)

    def rank(output: OutputRow) -> tuple[int, bool, int, int]:
        wrong = len(list(problems(source, output, rules, Counter())))
        return wrong, output.topic != source.topic, output.at_ms, output.place

    return sorted(settling, key=rank)


def is_forwarded(source: SourceRow, first: OutputRow, output: OutputRow) -> bool:
    # A consumer of the target topic may write a copy of the delivery to another topic.
    return first.topic == source.topic and is_mirror_of(settlement_of(first), output)


def is_redelivered(first: OutputRow, output: OutputRow, rules: Rules) -> bool:
    # Under at_least_once, a crash may repeat a delivery within the grace time.
    older, newer = sorted((first, output), key=lambda one: one.at_ms)
    return is_again(settlement_of(older), newer, rules)


def is_again(settled: Settled, output: OutputRow, rules: Rules) -> bool:
    is_soon = output.at_ms - settled.at_ms <= rules.grace_ms != 0
    return settled.role == DELIVERED and is_soon


def surplus_finding(
    source: SourceRow, first: OutputRow, output: OutputRow, rules: Rules
) -> RecordVerdict:
    others = {found.kind for found in problems(source, output, rules, Counter())}
    also = f"; it is also {', '.join(sorted(others))}" if others else ""
    detail = twice_text(settlement_of(first), output, rules) + also
    return finding_of(DUPLICATED, source, output, rules, detail)


def twice_text(settled: Settled, output: OutputRow, rules: Rules) -> str:
    if settled.role == LOST_ROLE:
        return f"nothing settled the record when its time had come, and it was {_verb(output)} here"
    topic = rules.topics.get(settled.topic, "a topic that is gone")
    where = f"{topic}:{settled.partition}:{settled.place}"
    name = settlement_name(settled.role, "")
    first = SETTLEMENTS[name].verb if name in SETTLEMENTS else "given an outcome"
    return f"the record was {first} at {where}, and {_verb(output)} here again"


def _verb(output: OutputRow) -> str:
    settlement = SETTLEMENTS.get(settlement_name(output.role, output.facts.outcome))
    return "given an outcome" if settlement is None else settlement.verb
