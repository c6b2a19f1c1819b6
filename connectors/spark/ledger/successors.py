"""Checks occurrences of recurring schedules against the records that began them."""

from __future__ import annotations

import msgspec

from connectors.spark.ledger.facts import OutputRow, SourceRow
from delayservice.contract.recurrence import Recurrence, decode

_FIRST = 1


def same_recurrence(held: bytes, copied: bytes) -> bool:
    # The first occurrence of a cron schedule only adds the number 1.
    if held == copied or not held or not copied:
        return held == copied
    before = decode(held)
    return not before.number and decode(copied) == msgspec.structs.replace(before, number=_FIRST)


def against_origin(source: SourceRow, output: OutputRow) -> str | None:
    """Return why an occurrence does not match the user's record with which its schedule began."""
    facts, told = source.facts, output.facts
    _, is_numbered, number = told.origin.partition("#")
    if not is_numbered:
        return None
    if not facts.recur or not told.recur:
        return f"the occurrence {told.origin} continues a record that does not recur"
    same = (source.content, facts.record_id, facts.expires_ms)
    if same != (output.content, told.record_id, told.expires_ms):
        return f"the occurrence {told.origin} has another content, id or expiry than its record"
    return _against(decode(facts.recur), source.due_ms, decode(told.recur), output, int(number))


def _against(
    first: Recurrence, first_due_ms: int, found: Recurrence, output: OutputRow, number: int
) -> str | None:
    name = output.facts.origin
    left = None if first.left is None else first.left - (number - _FIRST)
    wanted = msgspec.structs.replace(first, number=number, left=left)
    if found != wanted or number <= _FIRST or left == 0:
        return f"the occurrence {name} does not follow from its record's schedule"
    since_ms = output.due_ms - first_due_ms
    if first.every_ms and (since_ms <= 0 or since_ms % first.every_ms):
        return f"the occurrence {name} is due at {output.due_ms}, which its period does not give"
    return None
