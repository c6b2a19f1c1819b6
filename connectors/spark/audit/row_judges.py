"""Judges ledger rows on the executors: all records of an id together, others one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.group import (
    Group,
    base_of,
    group_of,
    named_row,
    place_of,
    without_undecided,
)
from connectors.spark.audit.judge import judge
from connectors.spark.audit.rules import OPEN, Rules, ShardRules
from connectors.spark.audit.settlement import elsewhere, own_place, place_at
from connectors.spark.audit.verdicts import (
    CARRIED,
    CERTAIN,
    FLOODED,
    FOUND,
    ID_FLOODED,
    IF_MARKED,
    IF_OTHER,
    IF_UNMARKED,
    MALFORMED,
    SETTLED,
    UNJUDGED,
    UNJUDGED_ROLE,
    UNKNOWN_SOURCE,
    UNLESS_MARKED,
    WRONG_OUTCOME,
    RecordVerdict,
)
from connectors.spark.common import frames
from connectors.spark.common.decode import without_collector
from connectors.spark.ledger.facts import (
    ARRIVED,
    COPIED,
    DELIVERED,
    FOREIGN,
    FORWARDED,
    NEVER_MS,
    SOURCES,
    WAITING,
    SourceRow,
    settlement_name,
)
from connectors.spark.ledger.ids import NONE, IdHistory, Line
from connectors.spark.ledger.rows import (
    COLUMNS,
    COUNTED,
    NO_SHARD,
    UNMARKED,
    LedgerRow,
    batch_of,
)
from connectors.spark.ledger.rows import FOREIGN as FOREIGN_ROW
from connectors.spark.ledger.rows import MALFORMED as MALFORMED_ROW
from delayservice.contract.entry import ABSENT, CANCEL, FIRE, HOMEBOUND, INVALID

JUDGED: Final = (
    "kind string, shard long, topic string, partition int, offset long, source string, "
    "target string, target_partition int, target_offset long, due_ms long, at_ms long, "
    "detail string, since_ms long, aim long, verdict byte, number long, packed binary"
)
"""Columns of rows with verdicts. ``verdict`` is a value of ``verdicts`` such as ``FOUND``, or
``COUNT`` (``number`` records of ``kind``); ``packed`` is the ledger row that the next cut reads.
Other columns are as in ``verdicts.RecordVerdict`` and ``verdicts.FINDING``."""

COUNT: Final = 4
"""Value of ``verdict`` besides those of ``verdicts``: the row holds a number of records."""

ROWS_MAX: Final = 10_000
"""Largest number of rows of one record that are judged: whoever may write to a target topic can
write any number of outputs that name one record."""

ID_RECORDS_MAX: Final = 500_000
"""Largest number of records of one id that are judged against each other."""

_SCHEMA: Final = frames.arrow_schema(JUDGED)
JUDGED_NAMES: Final = tuple(_SCHEMA.names)
# Largest number of verdicts that are held as Python objects before they become an Arrow batch.
_BATCH_ROWS: Final = 10_000

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


def judge_records(rows: DataFrame, rules: Rules, passed: PassedTimes, *, keeps: bool) -> DataFrame:
    """Return the verdicts on records, columns ``JUDGED``.

    Args:
        rows: ledger rows with the column ``family`` (``match.family``), which all rows of a record
            and all records of an id share.
        keeps: whether to return the verdicts that the next cut needs, besides those for users.
    """
    judge = RowJudge(rules, passed, keeps=keeps)
    is_output = ~sf.col("role").isin(*SOURCES)
    told, is_of_shard = rows.select(*COLUMNS, "family"), sf.col("shard") != NO_SHARD
    judged = (
        told.where(is_of_shard)
        .repartition("shard", "family")
        .sortWithinPartitions("shard", "family", "offset", is_output, "at_ms", "place")
        .mapInArrow(judge.judge, JUDGED)
    )
    return judged.unionByName(told.where(~is_of_shard).mapInArrow(judge.shardless, JUDGED))


def ledger_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch_of(map(_unpack, batch.column(0).to_pylist()))


@dataclass(slots=True)
class _OfId:
    """Records of one id: each with what to say of it, and verdicts that depend on the others."""

    lines: list[Line] = field(default_factory=list)
    about: list[RecordVerdict] = field(default_factory=list)
    conditional: list[RecordVerdict] = field(default_factory=list)
    judged: set[int] = field(default_factory=set)
    is_open: bool = False
    records: int = 0


class RowJudge:
    """Judge of ledger rows, in this process or on the executors; ``counts``: records by what became
    of them.
    """

    def __init__(self, rules: Rules, passed: PassedTimes, *, keeps: bool = True) -> None:
        self._rules = rules
        self._passed = passed
        names = {shard: own.name.rpartition(":") for shard, own in rules.shards.items()}
        self._places = {shard: (name[0], int(name[2])) for shard, name in names.items()}
        self._keeps = keeps
        self.counts: Counter[str] = Counter()

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield verdicts, and at the end counts. ``batches``: ledger rows with their family, sorted
        by shard, family and offset; rows of source records before those of outputs.
        """
        with without_collector():
            found = self.verdicts(_rows_of(batches))
            wanted = (one for one in found if self._keeps or one.verdict <= UNJUDGED)
            yield from _batches(map(self.columns, wanted))
        yield from _batches(_count(kind, number) for kind, number in self.counts.items())

    def shardless(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As ``judge``, for rows of ``NO_SHARD``, in any order."""
        yield from _batches(self.of_no_shard(row) for _, row in _rows_of(batches))

    def verdicts(self, rows: Iterable[tuple[int, LedgerRow]]) -> Iterator[RecordVerdict]:
        """As ``judge``; ``rows``: pairs of family and row."""
        for (shard, _), family in groupby(rows, lambda row: (row[1].shard, row[0])):
            yield from self._of_family(shard, (row for _, row in family))

    def of_no_shard(self, row: LedgerRow) -> tuple[Any, ...]:
        """Return the columns ``JUDGED`` of a row of ``NO_SHARD``."""
        if row.offset in (UNMARKED, FOREIGN_ROW):
            return _count(COUNTED[row.offset], row.place)
        told = dict.fromkeys(_SCHEMA.names) | {
            "kind": MALFORMED if row.offset == MALFORMED_ROW else UNKNOWN_SOURCE,
            "shard": NO_SHARD,
            "target": self._rules.topics.get(row.topic),
            "target_partition": row.partition,
            "target_offset": row.place,
            "at_ms": row.at_ms,
            "detail": (row.more or b"").decode(),
            "verdict": FOUND,
        }
        return tuple(told.values())

    def _of_family(self, shard: int, rows: Iterable[LedgerRow]) -> Iterator[RecordVerdict]:
        ids: dict[bytes, _OfId] = {}
        for _, held in groupby(rows, lambda row: row.offset):
            left = iter(held)
            group = group_of(list(islice(left, ROWS_MAX)))
            yield from self._of_record(group, ids)
            if more := sum(1 for _ in left):
                detail = f"{more + ROWS_MAX} rows name it, and the first {ROWS_MAX} were judged"
                origin = f"{self._rules.shards[shard].name}:{group.offset}"
                yield RecordVerdict(FLOODED, shard, group.offset, origin, detail=detail)
        for record_id, of_id in ids.items():
            yield from self._of_id(shard, record_id, of_id)

    def _of_record(self, whole: Group, ids: dict[bytes, _OfId]) -> Iterator[RecordVerdict]:
        group = without_undecided(whole, self._rules.may_be_refused)
        self.counts["outputs"] += len(group.settling) + len(group.successors)
        found = list(judge(group, self._rules, self.counts))
        yield from (one for one in found if one.when == CERTAIN)
        named = _line_of(group, found, self._rules)
        if named is None:  # then all verdicts are certain
            return
        record_id, line = named
        of_id = ids.setdefault(record_id, _OfId())
        of_id.records += 1
        of_id.conditional += (one for one in found if one.when != CERTAIN)
        if of_id.records > ID_RECORDS_MAX:
            # Which of them another one settled is not known: later cuts are told so at once.
            for one in of_id.conditional:
                if one.verdict == SETTLED and one.row is not None:
                    yield one._replace(row=one.row._replace(kind=UNJUDGED_ROLE))
            of_id.conditional.clear()
            return
        of_id.lines.append(line)
        of_id.about.append(_about(group, line, self._rules))
        of_id.is_open |= any(one.verdict == CARRIED and one.kind == OPEN for one in found)
        is_settled = any(one.verdict == SETTLED and one.when == CERTAIN for one in found)
        if is_settled or group.named is not None:
            of_id.judged.add(group.offset)
        elif line.kind != WAITING:  # a cut may lie between what it settled and its own outcome
            of_id.is_open |= line.acts in (ABSENT, CANCEL, FIRE)

    def _of_id(self, shard: int, record_id: bytes, of_id: _OfId) -> Iterator[RecordVerdict]:
        own = self._rules.shards[shard]
        lines = of_id.lines
        if of_id.records > ID_RECORDS_MAX:
            detail = f"{of_id.records} records have its id, and {ID_RECORDS_MAX} are judged at most"
            yield of_id.about[0]._replace(kind=ID_FLOODED, detail=detail, verdict=UNJUDGED)
            return
        history = IdHistory(lines, own.start, own.has_lost)
        unseen = {one.offset for one in of_id.conditional if one.verdict == UNJUDGED}
        for one in of_id.conditional:
            if _is_true(one, own, history, unseen):
                yield one
        wrong = dict(history.judge(self._passed_ms(shard), self._rules.lag_ms))
        for number, why in wrong.items():
            yield of_id.about[number]._replace(kind=WRONG_OUTCOME, detail=why)
            lines[number] = lines[number]._replace(settlement="")  # it is not reported again
        for line in lines:
            if line.offset in of_id.judged and _may_matter(line, own, is_open=of_id.is_open):
                yield named_row(shard, line, record_id)

    def columns(self, one: RecordVerdict) -> tuple[Any, ...]:
        """Return the columns ``JUDGED`` of a verdict."""
        output: tuple[Any, ...] = (None,) * 3
        if one.output is not None:
            topic, partition, place = place_of(one.output)
            output = (self._rules.topics.get(topic), partition, place)
        return (
            *(one.kind, one.shard, *self._places[one.shard], one.offset, one.source),
            *output,
            one.due_ms if one.due_ms > 0 else None,
            None if one.output is None else one.output.at_ms,
            *(one.detail, one.since_ms, one.aim, one.verdict, None),
            None if one.row is None else _pack(one.row),
        )

    def _passed_ms(self, shard: int) -> Callable[[int], int | None]:
        def passed_ms(offset: int) -> int | None:
            at_ms = self._passed.at_ms(shard, offset)
            return None if at_ms is None else at_ms + self._rules.grace_ms

        return passed_ms


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, LedgerRow]]:
    for batch in batches:
        *columns, families = (column.to_pylist() for column in batch.columns)
        yield from zip(families, map(LedgerRow, *columns), strict=True)


def _count(kind: str, number: int) -> tuple[Any, ...]:
    row = dict.fromkeys(_SCHEMA.names)
    return tuple((row | {"kind": kind, "verdict": COUNT, "number": number}).values())


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    kept = iter(rows)
    while some := list(islice(kept, _BATCH_ROWS)):
        yield frames.batch_of(some, _SCHEMA)


def _line_of(
    group: Group, found: Sequence[RecordVerdict], rules: Rules
) -> tuple[bytes, Line] | None:
    if group.named is not None:
        record_id, line = group.named
        return record_id, line._replace(is_home=line.is_home or bool(group.arrivals))
    source = group.source
    if source is None or source.facts.record_id is None or source.facts.kind == INVALID:
        return None
    return source.facts.record_id, _line(source, group, found, rules)


def _line(source: SourceRow, group: Group, found: Sequence[RecordVerdict], rules: Rules) -> Line:
    # A record with an unconditional finding counts as not settled.
    facts = source.facts
    line = Line(
        *(source.offset, facts.kind, base_of(source), source.key_ms, source.written_ms),
        acts=facts.acts if facts.kind in FOREIGN else facts.kind,
        source=elsewhere(facts.origin, own_place(source, rules)),
        is_home=bool(group.arrivals)
        or any(one.role in (ARRIVED, FORWARDED) for one in group.settling)
        or (facts.kind == HOMEBOUND and rules.unseen_home(source, source.written_ms) is not None),
    )
    is_wrong = any(one.verdict in (FOUND, UNJUDGED) and one.when == CERTAIN for one in found)
    if not group.settling or is_wrong:
        return line
    own = [one for one in group.settling if one.role != DELIVERED or one.topic == source.topic]
    if len({one.role for one in own}) != 1:  # a crash under at_least_once: either may be the first
        return line
    first, told = own[0], own[0].facts
    return line._replace(
        settlement=settlement_name(first.role, told.outcome),
        at_ms=first.at_ms,
        by=told.by,
        copy_base=told.base if first.role == COPIED else NONE,
        by_source=elsewhere(told.by_source, place_at(source, told.by, rules)),
    )


def _about(group: Group, line: Line, rules: Rules) -> RecordVerdict:
    # A finding that the rest of the id may turn out to be.
    source = group.source
    origin = "" if source is None else source.facts.origin
    return RecordVerdict(
        WRONG_OUTCOME,
        group.shard,
        line.offset,
        origin or f"{rules.shards[group.shard].name}:{line.offset}",
        output=group.settling[0] if group.settling else None,
        due_ms=0 if source is None else source.due_ms,
    )


class PassedTimes:
    """Times by which H (offset up to which cancels were read) had passed blocks of 2**``bits``
    offsets.

    A record is settled only after H has passed it. So the time of its settlement is such a time for
    all offsets up to its own.
    """

    def __init__(self, bits: int = 0, blocks: Iterable[tuple[int, int, int]] = ()) -> None:
        self._bits = bits
        held: dict[int, list[tuple[int, int]]] = {}
        for shard, block, at_ms in blocks:
            held.setdefault(shard, []).append((block, at_ms))
        self._shards = {shard: _suffix_minima(sorted(told)) for shard, told in held.items()}

    def at_ms(self, shard: int, offset: int) -> int | None:
        blocks, at_ms = self._shards.get(shard, _NOTHING)
        at = int(np.searchsorted(blocks, offset >> self._bits, side="right"))
        return int(at_ms[at]) if at < len(blocks) else None


_Minima: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_NOTHING: Final[_Minima] = (np.array([], np.int64), np.array([], np.int64))


def _suffix_minima(held: Sequence[tuple[int, int]]) -> _Minima:
    blocks, at_ms = (np.array(column, np.int64) for column in zip(*held, strict=True))
    return blocks, np.minimum.accumulate(at_ms[::-1])[::-1]


def _is_true(
    one: RecordVerdict, own: ShardRules, history: IdHistory, unseen: Container[int]
) -> bool:
    # Records that can't be judged (unseen) count as cancelled if their canceller may be an unread
    # record.
    # What expired before it had an effect is no canceller; it was none if a later one acted.
    canceller = history.canceller(one.base)
    if canceller is not None and own.has_lost(canceller.offset):
        return one.when == IF_UNMARKED
    is_known = history.is_certain(one.base)
    mark = NEVER_MS if canceller is None else canceller.offset
    is_marked = mark < own.earlier.offset or (not is_known and one.offset in unseen)
    is_before = one.claim in range(one.base, own.start)
    is_true: dict[int, bool] = {
        IF_MARKED: is_marked,
        IF_UNMARKED: not is_marked,
        UNLESS_MARKED: is_known and mark >= own.later.offset,
        IF_OTHER: mark != one.claim and (is_known or not is_before),
    }
    return is_true[one.when]


def _may_matter(line: Line, own: ShardRules, *, is_open: bool) -> bool:
    # H of the earlier cursor has not passed the record, so it may still cancel others; or it waits
    # for its home and has not arrived there; or another record of its id, which it may have
    # cancelled or been settled by, is judged later (is_open).
    waits = line.kind == HOMEBOUND and line.settlement == "requeued" and not line.is_home
    return is_open or waits or line.offset >= own.earlier.offset
