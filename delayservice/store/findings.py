"""Findings of a check of a store's folder: kinds of damage and of harmless remarks; and the check
that a shard's id index and its stored records agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from delayservice.engine.cursor import NO_MARK
from delayservice.store.ids import IdFacts, IdRows


class Case(NamedTuple):
    """Kind of finding: damage or a harmless remark, what a node does about it, and advice to a
    person.
    """

    name: str
    is_damage: bool
    then: str
    advice: str


_BY_ITSELF: Final = "No action needed"

SLOT: Final = Case(
    "slot",
    is_damage=True,
    then="a node that reads it moves it to quarantine and reads these offsets again from the log",
    advice=f"{_BY_ITSELF}. `delayservice spark reconcile` and `spark repair` repair it before it "
    "is due",
)
WAITING: Final = Case(
    "waiting",
    is_damage=True,
    then="the node found it damaged and reads these offsets again from the log before it is due",
    advice=_BY_ITSELF,
)
START_OVER: Final = Case(
    "start-over",
    is_damage=True,
    then="a node that opens the folder removes what is damaged and starts its shards over from the "
    "log",
    advice=f"{_BY_ITSELF}, while the delay topic still holds what is pending",
)
DATABASE: Final = Case(
    "database",
    is_damage=True,
    then="a node puts the database into quarantine and starts this shard over from the log; one "
    "that has it open restarts its worker for that",
    advice=f"{_BY_ITSELF}, while the delay topic still holds what is pending",
)
INCONSISTENT: Final = Case(
    "inconsistent",
    is_damage=True,
    then="a node does not detect it",
    advice="Stop the node and remove this folder: it is rebuilt from the log. Report "
    "it: neither a crash nor a disk failure should cause that",
)
STRAY: Final = Case(
    "stray",
    is_damage=False,
    then="no node reads it",
    advice="Remove it if its origin is known",
)
UNSYNCED: Final = Case(
    "unsynced",
    is_damage=False,
    then="a node reads these records again from the log and writes over the bytes",
    advice=_BY_ITSELF,
)
SETTLED: Final = Case(
    "settled",
    is_damage=False,
    then="a node removes what is settled; its horizon follows with the next sync. Missing records "
    "that are not settled are read again from the log",
    advice=_BY_ITSELF,
)
SET_ASIDE: Final = Case(
    "set-aside",
    is_damage=False,
    then="no node reads it; what was in it was read again from the log",
    advice="Check the disk if their number grows. They may be removed",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: kind, one sentence, path relative to the store's folder, and the affected range
    ``[first, stop)`` of key times (epoch milliseconds) and of source offsets, if it has one.
    """

    case: Case
    what: str
    where: str
    due_ms: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """Result of a check of one shard's store."""

    # S, a source offset; 0: unknown.
    stop_offset: int
    records: int
    # Bytes of the readable records: of their blocks in a wheel, of their payloads in RocksDB.
    bytes: int
    # The findings, those that are damage first.
    findings: tuple[Finding, ...]

    @property
    def is_damaged(self) -> bool:
        return any(found.case.is_damage for found in self.findings)


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
    # Callers check only records that are not due yet: a settled record and its rows in the index
    # are pruned at different times. Rows from S (``stop_offset``) on are
    # ignored: a start undoes them.
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
            why = f"the id index says that offset {mark} cancels or replaces it; its row does not"
            yield _finding(f"offset {offset}: {why}", where, key_ms, offset)
    for offset, record in records.items():
        is_pending = record.mark == NO_MARK and span_ms[0] <= record.key_ms < span_ms[1]
        if offset not in known and is_pending:
            what = f"the record at offset {offset} has an id that is missing in the id index"
            yield _finding(what, where, record.key_ms, offset)


def _difference(fact: IdFacts, record: NamedRecord | None, stop_offset: int) -> str | None:
    if record is None:
        return "the id index has a record that is not stored"
    if (record.record_id, record.key_ms) != (fact.record_id, fact.key[0]):
        return "the id index has another id or due time for the record"
    if NO_MARK < record.mark < stop_offset:
        return f"the id index lacks offset {record.mark}, which cancels or replaces the record"
    if fact.stands_for is None or fact.stands_for[1] < fact.key[1]:
        return "the id index does not lead from the id to the record"
    return None


def _finding(what: str, where: str, key_ms: int, offset: int) -> Finding:
    return Finding(INCONSISTENT, what, where, (key_ms, key_ms + 1), (offset, offset + 1))
