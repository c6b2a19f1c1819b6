"""Findings of a check of a store's folder: kinds of damage and of harmless remarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Case(NamedTuple):
    """Kind of finding: damage or a harmless remark, what a node does about it, and advice to a
    person.
    """

    name: str
    is_damage: bool
    then: str
    advice: str


_BY_ITSELF: Final = "Nothing has to be done"

SLOT: Final = Case(
    "slot",
    is_damage=True,
    then="a node that reads it sets it aside and reads these offsets again from the log",
    advice=f"{_BY_ITSELF}. `delayservice spark reconcile` and `spark repair` mend it before it is "
    "due",
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
    then="a node does not notice it",
    advice="Stop the node and remove this folder: it is rebuilt from the log. Report "
    "it: no crash and no disk should do that",
)
STRAY: Final = Case(
    "stray",
    is_damage=False,
    then="no node reads it",
    advice="Remove it, if you know where it comes from",
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
    then="a node removes what is settled; its horizon says so with the next sync. One that misses "
    "what is not settled reads it again from the log",
    advice=_BY_ITSELF,
)
SET_ASIDE: Final = Case(
    "set-aside",
    is_damage=False,
    then="no node reads it; what was in it was read again from the log",
    advice="Look at the disk, if they get more. They may be removed",
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
    """Result of a check of one shard's store.

    Attributes:
        stop_offset: S, a source offset; 0: unknown.
        bytes: bytes of the readable records: of their blocks in a wheel, of their payloads in
            RocksDB.
        findings: the findings, those that are damage first.
    """

    stop_offset: int
    records: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def is_damaged(self) -> bool:
        return any(found.case.is_damage for found in self.findings)
