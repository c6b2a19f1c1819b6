"""Check that a shard's id index and its stored records agree.

Callers check only records that are not due yet. Due records may be settled, and a settled record
and its rows in the id index are pruned at different times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from delayservice.engine.pending import NO_MARK
from delayservice.store.findings import INCONSISTENT, Finding
from delayservice.store.id_rows import IdFacts, IdRows


class NamedRecord(NamedTuple):
    """Stored record with an id; ``mark`` is -1 if it is not marked."""

    record_id: bytes
    key_ms: int
    mark: int


def check_ids(
    rows: IdRows,
    span_ms: tuple[int, int],
    records: Mapping[int, NamedRecord],
    stop_offset: int,
    where: str,
) -> Iterator[Finding]:
    """Yield a finding for each difference between the id rows and the stored records (by source
    offset, those with an id) of one range of key times, epoch milliseconds. ``where``: path of the
    id index, for the findings.
    """
    # Rows of records and marks from S (``stop_offset``) on are ignored: a start undoes them.
    known: set[int] = set()
    for fact in rows.named_between(*span_ms):
        key_ms, offset = fact.key
        if offset < stop_offset:
            known.add(offset)
            why = _difference(fact, records.get(offset), stop_offset)
            if why is not None:
                yield _finding(f"offset {offset}: {why}", where, key_ms, offset)
    for (key_ms, offset), mark, _ in rows.marks():
        known.add(offset)  # a mark from S on is ignored, because the next start undoes it
        record = records.get(offset)
        is_asked = mark < stop_offset and span_ms[0] <= key_ms < span_ms[1]
        if is_asked and record is not None and record.mark != mark:
            why = f"the ids say that offset {mark} cancels or replaces the record, which does not"
            yield _finding(f"offset {offset}: {why}", where, key_ms, offset)
    for offset, record in records.items():
        is_pending = record.mark == NO_MARK and span_ms[0] <= record.key_ms < span_ms[1]
        if offset not in known and is_pending:
            what = f"the record at offset {offset} bears an id that the ids do not know"
            yield _finding(what, where, record.key_ms, offset)


def _difference(fact: IdFacts, record: NamedRecord | None, stop_offset: int) -> str | None:
    if record is None:
        return "the ids know a record that is not there"
    if (record.record_id, record.key_ms) != (fact.record_id, fact.key[0]):
        return "the ids know the record by another id or due time"
    if NO_MARK < record.mark < stop_offset:
        return f"the ids know nothing of offset {record.mark}, which cancels or replaces the record"
    if fact.stands_for is None or fact.stands_for[1] < fact.key[1]:
        return "the id of the record does not lead to it"
    return None


def _finding(what: str, where: str, key_ms: int, offset: int) -> Finding:
    return Finding(INCONSISTENT, what, where, (key_ms, key_ms + 1), (offset, offset + 1))
