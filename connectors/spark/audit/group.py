"""Groups of ledger rows: a source record with its outputs, as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from connectors.spark.audit.verdicts import (
    CARRIED,
    CERTAIN,
    SETTLED,
    RecordVerdict,
    Remembered,
    Settled,
)
from connectors.spark.ledger.facts import (
    ARRIVED,
    CONTINUED,
    DISCLAIMED,
    HERE,
    LETTER,
    NAMED,
    OUTCOME,
    OUTCOME_NAMES,
    PLAIN_OUTPUT,
    PLAIN_SOURCE,
    REMEMBERED,
    SETTLING,
    SOURCE,
    SOURCES,
    OutputFacts,
    OutputRow,
    SourceFacts,
    SourceRow,
)
from connectors.spark.ledger.ids import NONE, Line
from connectors.spark.ledger.rows import LedgerRow, id_hash, pack
from delayservice.contract.codes import COPY_FORGED
from delayservice.contract.entry import INVALID

_source_facts: Final = msgspec.msgpack.Decoder(SourceFacts).decode
_output_facts: Final = msgspec.msgpack.Decoder(OutputFacts).decode
_named: Final = msgspec.msgpack.Decoder(tuple[bytes, Line]).decode
_remembered: Final = msgspec.msgpack.Decoder(Remembered).decode


@dataclass(frozen=True, slots=True)
class Group:
    """Source record, and the outputs which state that they settle it, continue it or bring it home.

    Attributes:
        source: the record; None: it is unknown, or an earlier cut has judged it.
        settled, details, named: what is stored if an earlier cut has judged the record: its
            settlement, its details, and its id and ``Line`` if it may still cancel others.
        arrivals: envelopes that bring the record to its home without settling it there.
        mirrored: number of its dead letters or outcomes that other producers have copied to target
            topics.
        undecided: requeued records and envelopes that name the record, and that the service may
            still refuse as forged.
    """

    shard: int
    offset: int
    source: SourceRow | None = None
    settled: Settled | None = None
    details: Remembered | None = None
    named: tuple[bytes, Line] | None = None
    settling: Sequence[OutputRow] = ()
    successors: Sequence[OutputRow] = ()
    arrivals: Sequence[OutputRow] = ()
    mirrored: int = 0
    undecided: Sequence[OutputRow] = ()
    rows: Sequence[LedgerRow] = field(default=(), repr=False)

    def carried(self, when: int = CERTAIN, reason: str = "") -> Iterator[RecordVerdict]:
        """Yield verdicts that hand all rows of the group to the next cut."""
        return (self.kept(CARRIED, row, when)._replace(kind=reason) for row in self.rows)

    def carried_undecided(self) -> Iterator[RecordVerdict]:
        places = {place_of(one) for one in self.undecided}
        for row in self.rows:
            if row.role not in SOURCES and row[8:11] in places:
                yield self.kept(CARRIED, row, CERTAIN)

    def kept(self, verdict: int, row: LedgerRow, when: int) -> RecordVerdict:
        base = 0 if self.source is None else base_of(self.source)
        told = (self.shard, self.offset)
        return RecordVerdict("", *told, when=when, base=base, verdict=verdict, row=row)


def group_of(rows: Sequence[LedgerRow]) -> Group:
    shard, offset = rows[0][:2]
    by_role = {row.role: row for row in rows if row.role in SOURCES}
    source = _source(by_role[SOURCE]) if SOURCE in by_role else None
    outputs = [_output(row) for row in rows if row.role not in SOURCES]
    group = grouped(shard, offset, source, outputs)
    past, named = by_role.get(REMEMBERED), by_role.get(NAMED)
    return replace(
        group,
        settled=None if past is None else _settled(past),
        details=None if past is None or past.more is None else _remembered(past.more),
        named=None if named is None or named.more is None else _named(named.more),
        rows=rows,
    )


def grouped(
    shard: int, offset: int, source: SourceRow | None, outputs: Iterable[OutputRow]
) -> Group:
    """Return the group without outputs that the service refused as forged."""
    said = sorted(outputs, key=lambda one: (one.at_ms, one.place))
    forged = {place_of(one) for one in said if one.role == DISCLAIMED}
    real = [one for one in said if place_of(one) not in forged]
    settling = [one for one in real if one.role in SETTLING]
    return Group(
        shard,
        offset,
        source=None if source is None else _as_refused(source, said),
        settling=[one for one in settling if not one.facts.is_mirror],
        successors=[one for one in real if one.role == CONTINUED],
        arrivals=[one for one in real if one.role == ARRIVED],
        mirrored=sum(one.facts.is_mirror for one in settling),
    )


def without_undecided(group: Group, is_undecided: Callable[[OutputRow], bool]) -> Group:
    said = (*group.settling, *group.successors, *group.arrivals)
    undecided = [one for one in said if not one.facts.is_verified and is_undecided(one)]
    if not undecided:
        return group
    return replace(
        group,
        settling=[one for one in group.settling if one not in undecided],
        successors=[one for one in group.successors if one not in undecided],
        arrivals=[one for one in group.arrivals if one not in undecided],
        undecided=undecided,
    )


def place_of(output: OutputRow) -> tuple[int, int, int]:
    return output.topic, output.partition, output.place


def base_of(source: SourceRow) -> int:
    return source.facts.base or source.offset + 1


def named_row(shard: int, line: Line, record_id: bytes) -> RecordVerdict:
    """Return the verdict that keeps a judged record, as it may cancel others later."""
    row = LedgerRow(
        shard,
        line.offset,
        NAMED,
        key_ms=line.key_ms,
        at_ms=line.written_ms,
        id_hash=id_hash(record_id),
        more=pack((record_id, line)),
    )
    return RecordVerdict("", shard, line.offset, verdict=CARRIED, row=row)


def settled_row(
    group: Group, settled: Settled, details: Remembered | None = None, when: int = CERTAIN
) -> RecordVerdict:
    """Return the verdict that keeps a judged record, to compare later outputs with."""
    row = LedgerRow(
        group.shard,
        group.offset,
        REMEMBERED,
        kind=settled.role,
        at_ms=settled.at_ms,
        topic=settled.topic,
        partition=settled.partition,
        place=settled.place,
        more=None if details is None else pack(details),
    )
    return group.kept(SETTLED, row, when)


def _as_refused(source: SourceRow, outputs: Sequence[OutputRow]) -> SourceRow:
    # A record whose unverified signature a dead letter calls forged counts as an invalid record.
    if source.facts.is_verified:
        return source
    for output in outputs:
        if output.role == LETTER and output.facts.code == COPY_FORGED:
            facts = SourceFacts(INVALID, code=COPY_FORGED)
            return source._replace(key_ms=0, due_ms=0, content=output.facts.whole_hash, facts=facts)
    return source


def _source(row: LedgerRow) -> SourceRow:
    if row.more is not None:
        facts = _source_facts(row.more)
    else:
        facts = PLAIN_SOURCE if row.id is None else SourceFacts(row.kind, row.id)
    return SourceRow(*row[:2], *row[4:10], facts, row.key_hash)


def _output(row: LedgerRow) -> OutputRow:
    if row.more is not None:
        facts = _output_facts(row.more)
    elif row.role == OUTCOME:
        origin = HERE if row.by == NONE else ""
        facts = OutputFacts(origin, outcome=OUTCOME_NAMES[row.kind], by=row.by)
    else:
        facts = PLAIN_OUTPUT
    return OutputRow(row.role, *row[5:12], facts)


def _settled(row: LedgerRow) -> Settled:
    return Settled(row.kind, row.at_ms, row.topic, row.partition, row.place)
